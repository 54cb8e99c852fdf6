"""One socket that carries frames, from either side. Who may speak, and about what, is decided in `streams`.

A frame is a header, metadata and a body (see `frames`). Where both sides lend memory the header also names the segment
that the body lies in, and those that its sender gives back (see `lending`).
"""

from __future__ import annotations

import contextlib
import os
import socket
import ssl
import struct
import time
from collections.abc import Sequence
from typing import Any

from elastrec.platform.specs.errors import TransportError
from elastrec.platform.transport.frames import MAXIMUM_FRAME_BYTES, Array, empty_body
from elastrec.platform.transport.lending import Borrower, Lender

_HEADER = struct.Struct("<4sIQ")
_LENDING_HEADER = struct.Struct("<4sIQBH")  # and the body's segment, and the segments given back
_MAGIC, _LENDING_MAGIC = b"elf1", b"elm1"
_NO_SEGMENT = 255
_DESCRIPTOR = struct.Struct("i")
_MAXIMUM_METADATA_BYTES = 2**24
_LOCAL_SEND_BYTES = 4 * 2**20  # a whole frame of a step, so that its sender need not wait for the reader
_MOST_PARTS = 1024  # what one call takes, on every Linux
_FIRST_BYTES = 4096  # a header with the metadata of a step: one call instead of two


class Connection:
    """Frames over one socket; used by one thread, but for `cut`."""

    def __init__(self, link: socket.socket) -> None:
        self._link = link
        self._is_plain = not isinstance(link, ssl.SSLSocket)
        self._lender: Lender | None = None
        self._borrower = Borrower()
        if link.family == socket.AF_UNIX:
            link.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _LOCAL_SEND_BYTES)
        else:
            link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            link.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)

    def lend(self) -> None:
        """From now on both sides send frames that may lie in lent memory; only where `may_lend` says so."""
        self._lender = Lender()

    def limit(self, send_seconds: float, receive_seconds: float | None) -> None:
        """How long one send and one receive may take without progress; None: for ever."""
        if not self._is_plain:
            self._link.settimeout(receive_seconds)
            return
        # The kernel's own limits: a Python timeout would poll before every call and return short reads.
        self._link.settimeout(None)
        for option, seconds in ((socket.SO_SNDTIMEO, send_seconds), (socket.SO_RCVTIMEO, receive_seconds or 0.0)):
            whole = int(seconds)
            self._link.setsockopt(socket.SOL_SOCKET, option, struct.pack("ll", whole, int((seconds - whole) * 1e6)))

    def send(self, metadata: bytes, buffers: Sequence[Any]) -> None:
        """Raises OSError."""
        size_bytes = sum(len(buffer) for buffer in buffers)
        if self._lender is not None:
            self._send_lending(self._lender, metadata, buffers, size_bytes)
            return
        parts: list[Any] = [_HEADER.pack(_MAGIC, len(metadata), size_bytes) + metadata, *buffers]
        if not self._is_plain:
            for part in parts:
                self._link.sendall(part)
            return
        self._send_parts(parts, [])

    def _send_lending(self, lender: Lender, metadata: bytes, buffers: Sequence[Any], size_bytes: int) -> None:
        number = lender.lend(buffers, size_bytes)
        header = _LENDING_HEADER.pack(
            _LENDING_MAGIC,
            len(metadata),
            size_bytes,
            _NO_SEGMENT if number is None else number,
            self._borrower.give_back(),
        )
        if number is None:
            self._send_parts([header + metadata, *buffers], [])
            return
        descriptor = lender.descriptor(number)
        along = [] if descriptor < 0 else [(socket.SOL_SOCKET, socket.SCM_RIGHTS, _DESCRIPTOR.pack(descriptor))]
        self._send_parts([header + metadata], along)
        lender.sent(number)

    def _send_parts(self, parts: list[Any], along: list[tuple[int, int, bytes]]) -> None:
        while parts:
            sent = self._link.sendmsg(parts[:_MOST_PARTS], along)
            along = []
            while parts and sent >= len(parts[0]):
                sent -= len(parts.pop(0))
            if sent:
                parts[0] = memoryview(parts[0])[sent:]

    def receive(self) -> tuple[bytes, Array]:
        """Metadata and body of the next frame.

        Raises:
            EOFError: the other side has closed the connection.
            OSError: it is gone, or too slow.
            TransportError: what came is no frame.
        """
        if self._lender is not None:
            return self._receive_lending(self._lender)
        magic, metadata_bytes, body_bytes = _HEADER.unpack(self.receive_bytes(_HEADER.size))
        _check_header(magic, _MAGIC, metadata_bytes, body_bytes)
        metadata = self.receive_bytes(metadata_bytes)
        body = empty_body(body_bytes)
        self._fill(body.data)
        return metadata, body

    def _receive_lending(self, lender: Lender) -> tuple[bytes, Array]:
        # Requests and answers take turns: behind this frame there is nothing yet that belongs to another one.
        first, ancillary, _, _ = self._link.recvmsg(
            _FIRST_BYTES, socket.CMSG_LEN(_DESCRIPTOR.size), socket.MSG_CMSG_CLOEXEC
        )
        descriptors = [_DESCRIPTOR.unpack(data)[0] for _, _, data in ancillary if len(data) == _DESCRIPTOR.size]
        try:
            if not first:
                raise EOFError
            if len(first) < _LENDING_HEADER.size:
                first += self.receive_bytes(_LENDING_HEADER.size - len(first))
            magic, metadata_bytes, body_bytes, number, given_back = _LENDING_HEADER.unpack_from(first)
            _check_header(magic, _LENDING_MAGIC, metadata_bytes, body_bytes)
            lender.take_back(given_back)
            for descriptor in descriptors:
                self._borrower.map(number, descriptor)
        finally:
            for descriptor in descriptors:
                os.close(descriptor)
        end = _LENDING_HEADER.size + metadata_bytes
        if len(first) < end:
            first += self.receive_bytes(end - len(first))
        if number != _NO_SEGMENT:
            if len(first) > end:
                raise TransportError(f"{len(first) - end} bytes too many behind a frame")
            return first[_LENDING_HEADER.size : end], self._borrower.body(number, body_bytes)
        body = empty_body(body_bytes)
        begun = len(first) - end
        if begun > body_bytes:
            raise TransportError(f"{begun - body_bytes} bytes too many behind a frame")
        body.data[:begun] = first[end:]
        self._fill(body.data[begun:])
        return first[_LENDING_HEADER.size : end], body

    def receive_bytes(self, count: int) -> bytes:
        """Exactly this many; raises like `receive`."""
        taken = bytearray(count)
        self._fill(memoryview(taken))
        return bytes(taken)

    def _fill(self, view: memoryview) -> None:
        while view.nbytes:
            if self._is_plain:
                count = self._link.recv_into(view, view.nbytes, socket.MSG_WAITALL)
            else:
                count = self._link.recv_into(view)
            if not count:
                raise EOFError
            view = view[count:]

    def receive_by(self, deadline: float, count: int) -> bytes:
        """Exactly this many bytes, all of them before `deadline` (`time.monotonic`); raises like `receive`.

        Raises:
            TimeoutError: they did not come in time.
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

    def cut(self) -> None:
        """Ends what any thread does on the connection; for any thread."""
        # Not SSLSocket.shutdown: that takes the TLS state away from under the thread that reads.
        with contextlib.suppress(OSError):
            socket.socket.shutdown(self._link, socket.SHUT_RDWR)

    def close(self) -> None:
        self.cut()
        self._link.close()
        if self._lender is not None:
            self._lender.close()


def _check_header(magic: bytes, expected: bytes, metadata_bytes: int, body_bytes: int) -> None:
    if magic != expected or metadata_bytes > _MAXIMUM_METADATA_BYTES or body_bytes > MAXIMUM_FRAME_BYTES:
        raise TransportError(
            f"no frame: {magic!r} with {metadata_bytes} and {body_bytes} bytes; allowed: {expected!r} with at "
            f"most {_MAXIMUM_METADATA_BYTES} and {MAXIMUM_FRAME_BYTES} bytes"
        )
