"""The client's end of a connection, and how it comes about."""

from __future__ import annotations

import contextlib
import socket
import ssl
import time
from collections.abc import Callable
from typing import Any

from elastrec.platform.specs.errors import TransportError
from elastrec.platform.transport.connection import Connection, OversizedError
from elastrec.platform.transport.frames import Array, Layout, read_layout
from elastrec.platform.transport.greeting import Welcome, client_context, send_token
from elastrec.platform.transport.security import TlsConfig

_GREETING_SECONDS = 10.0


class LostError(TransportError):
    """The server is gone, or has closed the connection. Retryable."""

    def __init__(self, message: str) -> None:
        super().__init__(message, retryable=True)


class Channel:
    """Requests, each followed by its answer; used by one thread at a time, but for `cut`.

    Attributes:
        version: of the server's code.
    """

    def __init__(self, connection: Connection, address: str, welcome: Welcome) -> None:
        self._connection = connection
        self.address, self.version, self.local_name = address, welcome.version, welcome.local_name
        self._timeout_seconds = 0.0

    def request(self, frame: tuple[bytes, list[Any]], timeout_seconds: float) -> tuple[Layout, Array]:
        """Sends a frame and returns the answer's layout and body. What raises leaves a channel that must be closed.

        Raises:
            LostError: the server is gone.
            TransportError: it did not answer in time, or with something that is no frame.
        """
        if timeout_seconds != self._timeout_seconds:
            self._timeout_seconds = timeout_seconds
            self._connection.limit(timeout_seconds, timeout_seconds)
        try:
            # A server that refuses a frame before it has read it says so before it hangs up.
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                self._connection.send(*frame)
            metadata, body = self._connection.receive()
            return read_layout(metadata), body
        except OversizedError as error:
            raise TransportError(f"{self.address} answers with a frame that is too large: {error}") from None
        except (TimeoutError, BlockingIOError):
            text = f"{self.address} did not answer within {timeout_seconds:.3g} s"
            raise TransportError(text, retryable=True) from None
        except EOFError:
            raise LostError(f"{self.address} closed the connection") from None
        except OSError as error:
            raise LostError(f"{self.address}: {error}") from error

    def cut(self) -> None:
        """Makes the request under way fail; for any thread."""
        self._connection.cut()

    def close(self) -> None:
        """Safe to repeat."""
        self._connection.close()


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
        """A channel over the server's Unix socket if that is in reach, else over TCP.

        Raises:
            AuthenticationError: the server refused the token.
            TransportError: it is out of reach, or has as many connections as it takes.
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
            self._local_name = ""  # the server is in another network namespace, or is not there any more
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
