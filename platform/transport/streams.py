"""Connections that carry frames: one per stream, TLS if there is any, and the token before all else.

Plain calls go over Arrow Flight; arrays do not: on loopback a training step's frames of 2 MB cost half of the CPU time
that Flight's DoExchange takes, which copies every frame together and splits it into HTTP/2 frames and windows. Nor do
life signs: a small request on an open stream costs a server a third of a call.
Processes that share a network namespace use a Unix socket, which takes a quarter less than TCP on loopback, and if they
are one user's and speak no TLS, bodies lie in memory that both map (see `lending`), which takes half of that again.
"""

from __future__ import annotations

import contextlib
import hmac
import os
import secrets
import socket
import ssl
import struct
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Union

import msgspec
import structlog

from elastrec.platform.specs.errors import AuthenticationError, IncompatibleError, TransportError
from elastrec.platform.transport.admission import Admission, Visitor
from elastrec.platform.transport.connection import Connection
from elastrec.platform.transport.frames import Array, Joined, decode_frame, encode_frame
from elastrec.platform.transport.lending import may_lend
from elastrec.platform.transport.security import TlsConfig
from elastrec.platform.transport.versions import code_version

_GREETING = struct.Struct("<4sI")
_GREETING_MAGIC, _LENDING_MAGIC = b"els1", b"els2"  # the second one: of a client that would lend and borrow memory
_REFUSED, _WELCOME, _LENDING, _FULL = b"\x00", b"\x01", b"\x02", b"\x03"  # a frame with a Problem follows the last
_MAXIMUM_TOKEN_BYTES = 4096
_MAXIMUM_STREAMS = 4096
_MAXIMUM_GREETING = 128  # connections without a token; each costs a thread
_BACKLOG = 256
_GREETING_SECONDS = 10.0
_SEND_SECONDS = 60.0
_REFUSAL_SECONDS = 2.0
MEND = "install the same version on every node and start the job again"

log = structlog.get_logger(__name__)


class FindStreams(msgspec.Struct, tag=True):
    """A plain call: where the server takes streams."""


class StreamsAt(msgspec.Struct, tag=True):
    """Answer: the port, on the host of the server's address.

    Attributes:
        local_name: of a Unix socket (abstract) for clients in the server's network namespace; empty: there is none.
    """

    port: int
    local_name: str = ""


class Problem(msgspec.Struct, frozen=True, tag=True):
    """Answer of a stream request that failed; the stream goes on.

    Attributes:
        kind: name of the error's class.
        version: of the answering side's code.
        retryable: the same request may succeed later.
    """

    kind: str
    text: str
    version: str = "unknown"
    retryable: bool = False


class ArrayStream:
    """The client's half: `request` sends a message with arrays and waits for the answer.

    Args:
        found: where the server takes streams; its Unix socket is used if it can be reached.

    Raises:
        AuthenticationError: the token was refused.
        TransportError: the server cannot be reached, or has as many streams as it takes.
    """

    def __init__(
        self,
        host: str,
        found: StreamsAt,
        token: str,
        tls: TlsConfig | None,
        answers: Sequence[type[msgspec.Struct]],
        timeout_seconds: float,
    ) -> None:
        self.address = f"{host}:{found.port}"
        self._decoder = msgspec.msgpack.Decoder(Union[(*answers, Problem)])
        # Now: an upgrade may put other files in place while this process runs.
        self._version = code_version()
        self._timeout_seconds = timeout_seconds
        link: socket.socket | None = None
        try:
            link = _connect(host, found, min(timeout_seconds, _GREETING_SECONDS))
            if tls:
                link = _client_context(tls).wrap_socket(link, server_hostname=host)
            self._connection = Connection(link)
            magic = _LENDING_MAGIC if may_lend(link) else _GREETING_MAGIC
            self._connection.send_bytes(_GREETING.pack(magic, len(token.encode())) + token.encode())
            welcome = self._connection.receive_bytes(1)
            if welcome == _LENDING:
                self._connection.lend()
            refusal = self._connection.receive() if welcome == _FULL else None
            self._connection.limit(timeout_seconds, timeout_seconds)
        except (OSError, EOFError) as error:
            if link is not None:
                link.close()
            raise TransportError(f"{self.address}: no stream: {error!r}", retryable=True) from error
        if refusal is not None:
            self._connection.close()
            self._read(*refusal)
        if welcome not in (_WELCOME, _LENDING):
            self._connection.close()
            raise AuthenticationError(f"{self.address} refused the token")

    def request(self, message: msgspec.Struct, arrays: Sequence[Array | Joined] = ()) -> tuple[Any, list[Array]]:
        """Sends one frame, returns the answer's message and arrays.

        Raises:
            IncompatibleError: one side cannot read what the other one sends.
            TransportError: the server refused, is gone, or did not answer in time. Unless the server refused the
                request itself, the stream is unusable afterwards.
        """
        try:
            self._connection.send(*encode_frame(message, arrays))
            metadata, body = self._connection.receive()
        except (TimeoutError, BlockingIOError):
            text = f"{self.address} did not answer within {self._timeout_seconds} s"
            raise TransportError(text, retryable=True) from None
        except EOFError:
            raise TransportError(f"{self.address} closed the stream", retryable=True) from None
        except OSError as error:
            raise TransportError(f"{self.address}: {error}", retryable=True) from error
        return self._read(metadata, body)

    def _read(self, metadata: bytes, body: Array) -> tuple[Any, list[Array]]:
        """Message and arrays of an answer; raises what it says if it is a Problem."""
        try:
            answer, answer_arrays = decode_frame(metadata, body, self._decoder)
        except TransportError as error:
            raise IncompatibleError(
                f"{self.address} answers what this process, which runs elastrec {self._version}, cannot read: {error}; "
                f"{MEND}"
            ) from error
        if isinstance(answer, Problem):
            if answer.kind == IncompatibleError.__name__:
                raise IncompatibleError(
                    f"{self.address}, which runs elastrec {answer.version}, refuses what this process, which runs "
                    f"elastrec {self._version}, sends: {answer.text}; {MEND}"
                )
            raise TransportError(f"{self.address}: {answer.kind}: {answer.text}", retryable=answer.retryable)
        return answer, answer_arrays

    def limit(self, timeout_seconds: float) -> None:
        """Sets the timeout of the requests from now on."""
        if timeout_seconds != self._timeout_seconds:
            self._timeout_seconds = timeout_seconds
            self._connection.limit(timeout_seconds, timeout_seconds)

    def cut(self) -> None:
        """Makes the request under way fail; for any thread."""
        self._connection.cut()

    def close(self) -> None:
        """Safe to repeat."""
        self._connection.close()


def _connect(host: str, found: StreamsAt, timeout_seconds: float) -> socket.socket:
    if found.local_name:
        link = socket.socket(socket.AF_UNIX)
        try:
            link.settimeout(timeout_seconds)
            link.connect("\0" + found.local_name)
        except OSError:
            link.close()  # the server is in another network namespace
        else:
            return link
    return socket.create_connection((host, found.port), timeout_seconds)


class StreamPort:
    """The server's half: a listening port, and a thread per connection that answers one request after the other.

    Args:
        answer: makes a frame's answer (metadata, buffers) from its metadata and body; never raises.
        on_refused: told of every connection with a missing or wrong token.
        is_local: also listens at a Unix socket, where the system has abstract ones.

    Attributes:
        found: what clients need to know.
    """

    def __init__(
        self,
        answer: Callable[[bytes, Array], tuple[bytes, list[Any]]],
        *,
        host: str,
        token: str,
        tls: TlsConfig | None,
        on_refused: Callable[[], None],
        is_local: bool = True,
    ) -> None:
        self._answer, self._on_refused = answer, on_refused
        self._token = token.encode()
        self._context = _server_context(tls) if tls else None
        self._admission = Admission(_MAXIMUM_GREETING, _MAXIMUM_STREAMS)
        self._closed = False
        self._listeners = [socket.create_server((host, 0), backlog=_BACKLOG)]
        self.found = StreamsAt(self._listeners[0].getsockname()[1])
        if is_local and sys.platform == "linux":
            # Not to be guessed: whoever took a server's name first would be sent its clients' tokens.
            self.found = StreamsAt(self.found.port, f"elastrec-{secrets.token_hex(16)}")
            self._listeners.append(socket.socket(socket.AF_UNIX))
            self._listeners[-1].bind("\0" + self.found.local_name)
            self._listeners[-1].listen(_BACKLOG)
        for listener in self._listeners:
            threading.Thread(target=self._accept, args=(listener,), name="streams", daemon=True).start()

    def close(self) -> None:
        """Stops listening and cuts all connections."""
        self._closed = True
        for listener in self._listeners:
            with contextlib.suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)
            listener.close()
        self._admission.close()

    def _accept(self, listener: socket.socket) -> None:
        pause = threading.Event()
        has_failed = False
        while not self._closed:
            try:
                self._start(listener.accept()[0])
                has_failed = False
            except Exception as error:  # a port that no longer accepts would leave its process alive and unreachable
                if self._closed:
                    return
                if not has_failed:
                    log.warning("stream_not_accepted", reason=str(error))
                has_failed = True
                # Out of descriptors, threads or memory: connections without a token must not hold them.
                self._admission.cut_oldest()
                pause.wait(0.1)

    def _start(self, link: socket.socket) -> None:
        visitor = self._admission.enter(link)
        try:
            threading.Thread(target=self._serve, args=(visitor,), name="stream", daemon=True).start()
        except BaseException:
            self._admission.leave(visitor)
            link.close()
            raise

    def _serve(self, visitor: Visitor) -> None:
        connection: Connection | None = None
        try:
            deadline = time.monotonic() + _GREETING_SECONDS
            visitor.link.settimeout(_GREETING_SECONDS)
            if self._context is not None:
                visitor.link = link = self._context.wrap_socket(
                    visitor.link, server_side=True, do_handshake_on_connect=False
                )
                link.do_handshake()
            connection = Connection(visitor.link)
            if self._is_welcome(connection, visitor, deadline):
                connection.limit(_SEND_SECONDS, None)
                while True:
                    connection.send(*self._answer(*connection.receive()))
        except (OSError, EOFError):
            pass  # the other side is gone; it opens another stream if it is alive
        except TransportError as error:
            log.warning("stream_ended", reason=str(error))
        finally:
            self._admission.leave(visitor)
            if connection is not None:
                connection.close()
            visitor.link.close()

    def _is_welcome(self, connection: Connection, visitor: Visitor, deadline: float) -> bool:
        magic, length = _GREETING.unpack(connection.receive_by(deadline, _GREETING.size))
        is_greeting = magic in (_GREETING_MAGIC, _LENDING_MAGIC) and length <= _MAXIMUM_TOKEN_BYTES
        if not (is_greeting and hmac.compare_digest(connection.receive_by(deadline, length), self._token)):
            self._on_refused()
            connection.send_bytes(_REFUSED)
            return False
        if not self._admission.greet(visitor):
            connection.limit(_REFUSAL_SECONDS, _REFUSAL_SECONDS)
            connection.send_bytes(_FULL)
            connection.send(*encode_frame(self._too_many_streams(), []))
            return False
        lends = magic == _LENDING_MAGIC and may_lend(visitor.link)
        connection.send_bytes(_LENDING if lends else _WELCOME)
        if lends:
            connection.lend()
        return True

    def _too_many_streams(self) -> Problem:
        maximum = self._admission.maximum_streams
        text = f"{maximum} streams are open, which is the limit of one server; start fewer workers, or more servers"
        return Problem("TooManyStreams", text, code_version(), retryable=True)


def _client_context(tls: TlsConfig) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(cadata=tls.root_pem.decode())
    return context


def _server_context(tls: TlsConfig) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    # OpenSSL reads keys from files only; this one has no name and lives in memory.
    with os.fdopen(os.memfd_create("tls"), "wb") as file:
        file.write(tls.certificate_pem + b"\n" + tls.key_pem)
        file.flush()
        context.load_cert_chain(f"/proc/self/fd/{file.fileno()}")
    return context
