"""The client's end of a connection, and how it is opened."""

from __future__ import annotations

import contextlib
import socket
import ssl
import time
from collections.abc import Callable
from typing import Any

from elastrec.platform.specs.errors import TransportError
from elastrec.platform.transport.security import TlsConfig
from elastrec.platform.transport.wire.connection import Connection, OversizedError
from elastrec.platform.transport.wire.frames import Array, Layout, read_layout
from elastrec.platform.transport.wire.greeting import Welcome, client_context, send_token

_GREETING_SECONDS = 10.0


class LostError(TransportError):
    """The server is unreachable, or has closed the connection. Retryable."""

    def __init__(self, message: str) -> None:
        super().__init__(message, retryable=True)


class Channel:
    """Requests, each followed by its answer; used by one thread at a time, except `cut`.

    Attributes:
        connection: that carries them.
        version: of the server's code.
    """

    def __init__(self, connection: Connection, address: str, welcome: Welcome) -> None:
        self.connection = connection
        self.address, self.version, self.local_name = address, welcome.version, welcome.local_name
        self._timeout_seconds = 0.0
        self._is_sending = False

    def request(self, frame: tuple[bytes, list[Any]], timeout_seconds: float) -> tuple[Layout, Array]:
        """Sends a frame and returns the answer's layout and body. After an error, the channel must be closed.

        Raises:
            LostError: the server is unreachable.
            TransportError: it did not answer in time, or not with a frame.
        """
        if timeout_seconds != self._timeout_seconds:
            self._timeout_seconds = timeout_seconds
            self.connection.limit(timeout_seconds, timeout_seconds)
        try:
            # A server that refuses a frame before it has read it sends an answer before it closes the connection.
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                self.connection.send(*frame)
            metadata, body = self.connection.receive()
            return read_layout(metadata), body
        except (TimeoutError, BlockingIOError):
            raise self.late(timeout_seconds) from None
        except (OSError, EOFError, OversizedError) as error:
            raise self._problem(error) from error

    def unblock(self) -> None:
        """Switches to requests by `begin` and `advance`, which do not wait."""
        self.connection.unblock()

    def begin(self, frame: tuple[bytes, list[Any]]) -> None:
        """Sends as much of a frame as the socket takes. Raises like `request`."""
        self._is_sent(self.connection.send, *frame)

    def advance(self) -> tuple[Layout, Array] | None:
        """Continues the current request: layout and body of its answer, None until it is complete.

        Call it again when the socket is ready (`fileno`, `wants_write`). Raises like `request`.
        """
        if self._is_sending and not self._is_sent(self.connection.resume_sending):
            return None
        try:
            metadata, body = self.connection.receive()
            return read_layout(metadata), body
        except BlockingIOError:
            return None
        except (OSError, EOFError, OversizedError) as error:
            raise self._problem(error) from error

    def _is_sent(self, send: Callable[..., None], *frame: Any) -> bool:
        self._is_sending = True
        try:
            send(*frame)
        except (BrokenPipeError, ConnectionResetError):
            pass  # as in `request`
        except BlockingIOError:
            return False
        except OSError as error:
            raise self._problem(error) from error
        self._is_sending = False
        return True

    def late(self, timeout_seconds: float) -> TransportError:
        """The error of a server that does not answer."""
        return TransportError(f"{self.address} did not answer within {timeout_seconds:.3g} s", retryable=True)

    def _problem(self, error: Exception) -> TransportError:
        if isinstance(error, OversizedError):
            return TransportError(f"{self.address} answers with a frame that is too large: {error}")
        if isinstance(error, EOFError):
            return LostError(f"{self.address} closed the connection")
        return LostError(f"{self.address}: {error}")

    def cut(self) -> None:
        """Makes the request under way fail; for any thread."""
        self.connection.cut()

    def close(self) -> None:
        """Safe to repeat."""
        self.connection.close()


class Dialer:
    """Opens channels to one server; safe to use from several threads."""

    def __init__(self, address: str, token: str, tls: TlsConfig | None) -> None:
        self.address = address
        host, _, port = address.rpartition(":")
        self._host, self._port = host.strip("[]"), int(port)
        self._token, self._tls = token, tls
        self._context: ssl.SSLContext | None = None
        self._local_name = ""

    def open(self, timeout_seconds: float) -> Channel:
        """A channel over the server's Unix socket if that is reachable, otherwise over TCP.

        Raises:
            AuthenticationError: the server refused the token.
            TransportError: it is unreachable, or has its maximum of connections.
        """
        deadline = time.monotonic() + min(timeout_seconds, _GREETING_SECONDS)
        if (local := self._open_local(deadline)) is not None:
            return local
        over_tcp = self._greet(lambda left: socket.create_connection((self._host, self._port), left), deadline)
        self._local_name = over_tcp.local_name
        if (local := self._open_local(deadline)) is None:
            return over_tcp
        over_tcp.close()
        return local

    def _open_local(self, deadline: float) -> Channel | None:
        name = self._local_name
        if not name:
            return None
        try:
            return self._greet(lambda left: _connect_local(name, left), deadline)
        except TransportError:
            self._local_name = ""  # the server is in another network namespace, or has ended
            return None

    def _greet(self, connect: Callable[[float], socket.socket], deadline: float) -> Channel:
        link: socket.socket | None = None
        try:
            link = connect(max(0.001, deadline - time.monotonic()))
            if self._tls is not None:
                self._context = self._context or client_context(self._tls)
                link = self._context.wrap_socket(link, server_hostname=self._tls.server_name or self._host)
            connection = Connection(link)
            return Channel(connection, self.address, send_token(connection, self._token, deadline))
        except BaseException as error:
            if link is not None:
                link.close()
            if isinstance(error, TransportError):
                raise type(error)(f"{self.address}: {error}", retryable=error.retryable) from None
            if isinstance(error, ssl.SSLCertVerificationError):
                raise TransportError(f"{self.address}: its certificate is refused: {error.verify_message}") from error
            if isinstance(error, EOFError):
                raise LostError(f"{self.address} closed the connection before it was greeted") from None
            if isinstance(error, OSError):
                raise LostError(f"{self.address}: {str(error) or type(error).__name__}") from error
            raise


def _connect_local(name: str, timeout_seconds: float) -> socket.socket:
    link = socket.socket(socket.AF_UNIX)
    try:
        link.settimeout(timeout_seconds)
        link.connect("\0" + name)
    except BaseException:
        link.close()
        raise
    return link
