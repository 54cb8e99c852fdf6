"""Frames over one socket, for both sides. Other modules decide which frames are allowed.

A frame is a header, metadata and a body (see `frames`). If both sides lend memory, the header names the segment that
contains the body, and the segments that its sender returns (see `lending`).
"""

from __future__ import annotations

import contextlib
import os
import socket
import ssl
import struct
import time
from collections.abc import Sequence
from typing import Any, NamedTuple, NoReturn

from elastrec.platform.specs.errors import TransportError
from elastrec.platform.transport.wire.frames import MAXIMUM_CALL_BYTES, MAXIMUM_FRAME_BYTES, Array, empty_body
from elastrec.platform.transport.wire.lending import Borrower, Lender, Segment, may_lend

# Bytes of metadata and body, the segment that contains the body, and the returned segments.
_HEADER = struct.Struct("<4sIQBH")
_MAGIC = b"elf2"
_NO_SEGMENT = 255
_DESCRIPTOR = struct.Struct("i")
_ANCILLARY_BYTES = socket.CMSG_LEN(_DESCRIPTOR.size)
_LOCAL_SEND_BYTES = 4 * 2**20  # a whole frame of a step, so that its sender need not wait for the reader
_MOST_PARTS = 1024  # what one call takes, on every Linux
_MOST_ENCRYPTED_BYTES = 2**18  # of one call: what it could not send is encrypted again
_KEEP_ALIVE = {socket.TCP_KEEPIDLE: 60, socket.TCP_KEEPINTVL: 15, socket.TCP_KEEPCNT: 4}
"""Seconds of silence, seconds between probes, and number of probes, after which a connection counts as lost. With the
kernel's own two hours, connections of nodes that were lost, or cut off for a while, use a server's limit up."""
_FIRST_BYTES = 2**14  # a call, or a header with the metadata of a step: one system call instead of three


class OversizedError(TransportError):
    """A frame above the limits, refused because of its header and not read."""


class _Incoming(NamedTuple):
    """A frame whose header has arrived.

    Attributes:
        missing: parts of metadata and body that have not arrived, in their order.
    """

    metadata: bytes | bytearray
    body: Array
    missing: list[memoryview]


class Connection:
    """Frames over one socket; used by one thread at a time, except `cut`.

    Attributes:
        wants_write: whether a non-blocking socket waits to send, rather than to receive.
        moved_bytes: sent and received, from `send` on.
    """

    def __init__(self, link: socket.socket) -> None:
        self._link = link
        self._is_plain = not isinstance(link, ssl.SSLSocket)
        self._lender: Lender | None = None
        self._borrower = Borrower()
        self._unsent: list[Any] = []
        self._unsent_bytes = 0
        self._along: list[tuple[int, int, bytes]] = []
        self._segment_to_map: Segment | None = None
        self._begun = b""
        self._descriptors: list[int] = []
        self._incoming: _Incoming | None = None
        self.wants_write = False
        self.moved_bytes = 0
        if link.family == socket.AF_UNIX:
            link.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _LOCAL_SEND_BYTES)
        else:
            link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            link.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for option, amount in _KEEP_ALIVE.items():
                link.setsockopt(socket.IPPROTO_TCP, option, amount)

    def may_lend(self) -> bool:
        """Whether both ends can use memory of each other (see `lending.may_lend`)."""
        return may_lend(self._link)

    def lend(self) -> None:
        """Allows frames in lent memory in both directions; only if `may_lend` is true."""
        self._lender = Lender()

    def limit(self, send_seconds: float, receive_seconds: float) -> None:
        """How long one send and one receive may take without progress."""
        if not self._is_plain:
            self._link.settimeout(receive_seconds)
            return
        # The kernel's own limits: a Python timeout would poll before every call and return short reads.
        self._link.settimeout(None)
        for option, seconds in ((socket.SO_SNDTIMEO, send_seconds), (socket.SO_RCVTIMEO, receive_seconds)):
            whole, microseconds = int(seconds), int(seconds % 1 * 1e6)
            self._link.setsockopt(socket.SOL_SOCKET, option, struct.pack("ll", whole, microseconds))

    def unblock(self) -> None:
        """Makes `send` and `receive` raise BlockingIOError instead of waiting.

        `resume_sending` and `receive` continue when the socket is ready, according to `wants_write`.
        """
        self._link.setblocking(False)

    def fileno(self) -> int:
        return self._link.fileno()

    def send(self, metadata: bytes, buffers: Sequence[Any]) -> None:
        """Raises OSError."""
        size_bytes = sum(map(len, buffers))
        number, on_socket = _NO_SEGMENT, size_bytes
        if self._lender is not None and (segment := self._lender.lend(buffers, size_bytes)) is not None:
            number, on_socket, buffers = segment.number, 0, ()
            if segment.descriptor >= 0:
                self._segment_to_map = segment
                self._along = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, _DESCRIPTOR.pack(segment.descriptor))]
        given_back = self._borrower.give_back() if self._borrower.dropped else 0
        first = _HEADER.pack(_MAGIC, len(metadata), size_bytes, number, given_back) + metadata
        self._unsent_bytes = len(first) + on_socket
        self._unsent = [first, *buffers]
        self.resume_sending()

    def resume_sending(self) -> None:
        """Sends the rest of the frame that `send` began; raises OSError."""
        self.wants_write = True
        if self._is_plain:
            self._send_parts()
        else:
            try:
                self._send_encrypted()
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError) as error:
                self._would_block(error)
        if self._segment_to_map is not None:
            self._segment_to_map.close()
            self._segment_to_map = None
        self.wants_write = False

    def _send_parts(self) -> None:
        parts = self._unsent
        while parts:
            if len(parts) > 1 or self._along:
                sent = self._link.sendmsg(parts[:_MOST_PARTS], self._along)
                self._along = []
            else:
                sent = self._link.send(parts[0])
            self.moved_bytes += sent
            self._unsent_bytes -= sent
            if not self._unsent_bytes:
                parts.clear()
                return
            whole = 0
            while whole < len(parts) and sent >= len(parts[whole]):
                sent -= len(parts[whole])
                whole += 1
            del parts[:whole]
            if sent:
                parts[0] = memoryview(parts[0])[sent:]

    def _send_encrypted(self) -> None:
        while self._unsent:
            part = memoryview(self._unsent[0])
            sent = self._link.send(part[:_MOST_ENCRYPTED_BYTES])
            self.moved_bytes += sent
            if sent == len(part):
                del self._unsent[0]
            else:
                self._unsent[0] = part[sent:]

    def receive(self) -> tuple[bytes | bytearray, Array]:
        """Metadata and body of the next frame.

        Raises:
            EOFError: the other side has closed the connection.
            OSError: it is unreachable, or too slow.
            OversizedError: the frame is larger than allowed; only its header was read.
            TransportError: the received data is not a frame.
        """
        self.wants_write = False
        try:
            if self._incoming is None:
                self._incoming = self._receive_header()
            if self._incoming.missing:
                self._receive_missing(self._incoming.missing)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError) as error:
            self._would_block(error)
        metadata, body, _ = self._incoming
        self._incoming = None
        return metadata, body

    def _would_block(self, error: OSError) -> NoReturn:
        # TLS may have to send in order to receive, and the other way round.
        self.wants_write = isinstance(error, ssl.SSLWantWriteError)
        raise BlockingIOError from None

    def _receive_header(self) -> _Incoming:
        # Requests and answers alternate, so that no other frame can follow this one yet.
        while len(self._begun) < _HEADER.size:
            if self._lender is None:
                piece = self._link.recv(_FIRST_BYTES)
            else:
                piece, ancillary, _, _ = self._link.recvmsg(_FIRST_BYTES, _ANCILLARY_BYTES, socket.MSG_CMSG_CLOEXEC)
                for _, _, data in ancillary:
                    if len(data) == _DESCRIPTOR.size:
                        self._descriptors += _DESCRIPTOR.unpack(data)
            if not piece:
                raise EOFError
            self._begun += piece
            self.moved_bytes += len(piece)
        first, self._begun = self._begun, b""
        magic, metadata_bytes, body_bytes, number, given_back = _HEADER.unpack_from(first)
        if magic != _MAGIC or metadata_bytes > MAXIMUM_CALL_BYTES or body_bytes > MAXIMUM_FRAME_BYTES:
            _refuse_header(magic, metadata_bytes, body_bytes)
        if given_back and self._lender is not None:
            self._lender.note_returned(given_back)
        if self._descriptors:
            self._map(number)
        end = _HEADER.size + metadata_bytes
        on_socket = body_bytes if number == _NO_SEGMENT else 0
        if len(first) > end + on_socket:
            raise TransportError(f"{len(first) - end - on_socket} bytes too many behind a frame")
        metadata: bytes | bytearray = first[_HEADER.size : end]
        missing = []
        if len(first) < end:
            begun, metadata = metadata, bytearray(metadata_bytes)
            metadata[: len(begun)] = begun
            missing.append(memoryview(metadata)[len(begun) :])
        if number != _NO_SEGMENT:
            return _Incoming(metadata, self._borrower.body(number, body_bytes), missing)
        body = empty_body(body_bytes)
        if body_bytes:
            begun = first[end:]
            body.data[: len(begun)] = begun
            if len(begun) < body_bytes:
                missing.append(body.data[len(begun) :])
        return _Incoming(metadata, body, missing)

    def _map(self, number: int) -> None:
        try:
            for descriptor in self._descriptors:
                self._borrower.map(number, descriptor)
        finally:
            self._close_descriptors()

    def _receive_missing(self, missing: list[memoryview]) -> None:
        flags = socket.MSG_WAITALL if self._is_plain else 0
        while missing:
            view = missing[0]
            count = self._link.recv_into(view, view.nbytes, flags)
            if not count:
                raise EOFError
            self.moved_bytes += count
            if count == view.nbytes:
                del missing[0]
            else:
                missing[0] = view[count:]

    def _close_descriptors(self) -> None:
        while self._descriptors:
            os.close(self._descriptors.pop())

    def receive_by(self, deadline: float, count: int) -> bytes:
        """Exactly this number of bytes, all of them before `deadline` (`time.monotonic`); raises like `receive`.

        Raises:
            TimeoutError: they did not arrive in time.
        """
        taken = b""
        while len(taken) < count:
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError
            self._link.settimeout(left)
            piece = self._link.recv(count - len(taken))
            if not piece:
                raise EOFError
            taken += piece
        return taken

    def send_bytes(self, data: bytes) -> None:
        self._link.sendall(data)

    def discard(self, seconds: float) -> None:
        """Reads and discards data until the other side closes or the time is over."""
        deadline, room = time.monotonic() + seconds, bytearray(2**16)
        with contextlib.suppress(OSError):
            while (left := deadline - time.monotonic()) > 0:
                self._link.settimeout(left)
                if not self._link.recv_into(room):
                    return

    def cut(self) -> None:
        """Ends what any thread does on the connection; for any thread."""
        # Not SSLSocket.shutdown, which removes the TLS state while another thread reads.
        with contextlib.suppress(OSError):
            socket.socket.shutdown(self._link, socket.SHUT_RDWR)

    def close(self) -> None:
        self.cut()
        self._link.close()
        self._close_descriptors()
        self._unsent.clear()
        if self._lender is not None:
            self._lender.close()


def _refuse_header(magic: bytes, metadata_bytes: int, body_bytes: int) -> NoReturn:
    if magic != _MAGIC:
        raise TransportError(f"no frame: it begins with {magic!r}; allowed: {_MAGIC!r}")
    raise OversizedError(
        f"a message of {metadata_bytes} bytes with arrays of {body_bytes} bytes is not allowed; allowed: at most "
        f"{MAXIMUM_CALL_BYTES} bytes with arrays of at most {MAXIMUM_FRAME_BYTES} bytes"
    )
