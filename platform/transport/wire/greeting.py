"""The beginning of a connection: TLS if it is used, the token, then the server's description of itself.

The server's answer to the token names the Unix socket at which it also listens, so that a client only needs the TCP
port.
"""

from __future__ import annotations

import hmac
import os
import ssl
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from elastrec.platform.specs.errors import AuthenticationError, TransportError
from elastrec.platform.transport.security import TlsConfig
from elastrec.platform.transport.wire.connection import Connection
from elastrec.platform.transport.wire.frames import encode_frame, kind_of, read_layout
from elastrec.platform.transport.wire.problems import Problem

_GREETING = struct.Struct("<4sI")
_MAGIC, _LENDING_MAGIC = b"elg1", b"elg2"  # the second one: the client can lend and borrow memory
_REFUSED, _WELCOME, _LENDING, _FULL = b"\x00", b"\x01", b"\x02", b"\x03"  # a frame follows all but the first
_MAXIMUM_TOKEN_BYTES = 4096
_REFUSAL_SECONDS = 2.0


class Welcome(msgspec.Struct, frozen=True):
    """A server's answer to the token.

    Attributes:
        version: of the server's code.
        local_name: of its Unix socket (abstract) for clients in its network namespace; empty: there is none.
    """

    version: str
    local_name: str = ""


_welcome_decoder = msgspec.msgpack.Decoder(Welcome)
_problem_decoder = msgspec.msgpack.Decoder(Problem)


def send_token(connection: Connection, token: str, deadline: float) -> Welcome:
    """The client's half: sends the token and returns the server's answer.

    Raises:
        AuthenticationError: the server refused the token.
        OSError, EOFError: the server is unreachable, or does not answer until `deadline` (`time.monotonic`).
        TransportError: the server has its maximum of connections, or is not a server of elastrec.
    """
    secret = token.encode()
    magic = _LENDING_MAGIC if connection.may_lend() else _MAGIC
    connection.send_bytes(_GREETING.pack(magic, len(secret)) + secret)
    verdict = connection.receive_by(deadline, 1)
    if verdict == _REFUSED:
        raise AuthenticationError("it refused the token")
    if verdict not in (_WELCOME, _LENDING, _FULL):
        raise TransportError(f"it does not answer as a server of elastrec does, but with {verdict!r}")
    left = max(0.001, deadline - time.monotonic())
    connection.limit(left, left)
    layout = read_layout(connection.receive()[0])
    if layout.kind == kind_of(Problem):
        problem: Problem = layout.decode(_problem_decoder)
        raise TransportError(problem.text, retryable=problem.retryable)
    if verdict == _LENDING:
        connection.lend()
    welcome: Welcome = layout.decode(_welcome_decoder)
    return welcome


@dataclass(frozen=True)
class Greeted:
    """A client with a valid token.

    Attributes:
        caller: whose token it is; empty: the server's own.
        lends: whether it can lend memory.
    """

    caller: str
    lends: bool


def receive_token(
    connection: Connection, token: str, others: Callable[[bytes], str | None], deadline: float
) -> Greeted | None:
    """The server's half: None when the token is wrong; the client then gets an answer, too.

    Args:
        others: other callers, by token; None: no caller has the token. It compares in constant time.

    Raises:
        OSError, EOFError: the client is unreachable, or has not sent everything until `deadline`.
    """
    magic, length = _GREETING.unpack(connection.receive_by(deadline, _GREETING.size))
    if magic in (_MAGIC, _LENDING_MAGIC) and length <= _MAXIMUM_TOKEN_BYTES:
        sent = connection.receive_by(deadline, length)
        caller = "" if hmac.compare_digest(sent, token.encode()) else others(sent)
        if caller is not None:
            return Greeted(caller, lends=magic == _LENDING_MAGIC)
    connection.send_bytes(_REFUSED)
    return None


def accept(connection: Connection, welcome: Welcome, *, lends: bool) -> None:
    """Accepts the token; frames follow. Raises OSError."""
    lends = lends and connection.may_lend()
    connection.send_bytes(_LENDING if lends else _WELCOME)
    connection.send(*encode_frame(welcome))
    if lends:
        connection.lend()


def refuse(connection: Connection, problem: Problem) -> None:
    """Refuses a client with a valid token because of too many connections. Raises OSError."""
    connection.limit(_REFUSAL_SECONDS, _REFUSAL_SECONDS)
    connection.send_bytes(_FULL)
    connection.send(*encode_frame(problem))


def client_context(tls: TlsConfig) -> ssl.SSLContext:
    """For connections to servers whose certificate the root has signed."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(cadata=tls.root_pem.decode())
    return context


def server_context(tls: TlsConfig) -> ssl.SSLContext:
    """For a server with this certificate and key."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    # OpenSSL reads keys from files only; this one has no name and is kept in memory.
    with os.fdopen(os.memfd_create("tls"), "wb") as file:
        file.write(tls.certificate_pem + b"\n" + tls.key_pem)
        file.flush()
        context.load_cert_chain(f"/proc/self/fd/{file.fileno()}")
    return context
