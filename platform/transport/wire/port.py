"""The port of a server: it accepts connections, checks their token, and serves them frame by frame.

Clients in the same network namespace may use a Unix socket, which takes a quarter less CPU time than TCP on loopback.
If they belong to the same user and do not use TLS, bodies are in shared memory (see `lending`), which takes half of
that.
"""

from __future__ import annotations

import contextlib
import resource
import secrets
import socket
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import structlog

from elastrec.platform.specs.errors import TransportError
from elastrec.platform.transport.security import TlsConfig
from elastrec.platform.transport.wire.admission import Admission, Visitor
from elastrec.platform.transport.wire.callers import set_caller
from elastrec.platform.transport.wire.connection import Connection, OversizedError
from elastrec.platform.transport.wire.frames import Array, encode_frame
from elastrec.platform.transport.wire.greeting import Welcome, accept, receive_token, refuse, server_context
from elastrec.platform.transport.wire.pool import ThreadPool
from elastrec.platform.transport.wire.problems import Problem, problem_of

_MAXIMUM_GREETING = 128  # connections without a token; each costs a thread
_BACKLOG = 1024
_DESCRIPTORS = 2**16
_GREETING_SECONDS = 10.0
_SILENCE_SECONDS = 60.0  # in the middle of a frame
_REFUSAL_SECONDS = 2.0

log = structlog.get_logger(__name__)
Answer = tuple[bytes, list[Any]]


class PortClosedError(Exception):
    """A call arrived while the port was being closed; it is not executed."""


@dataclass(frozen=True)
class _Client:
    visitor: Visitor
    connection: Connection
    caller: str
    begin_call: Callable[[], bool]


class Port:
    """A listening port, and the threads that serve its connections.

    Args:
        answer: computes a frame's answer (metadata, buffers) from its metadata and body. Before a call that must not be
            interrupted, it calls the function in its arguments, and raises PortClosedError if that returns false.
        version: of the server's code.
        others: other callers, by token (see `RpcServer`).
        maximum_connections: maximum of connections with the token; called for every new one.
        is_local: whether it also listens at a Unix socket, if the system has abstract ones.
    """

    def __init__(
        self,
        answer: Callable[[bytes | bytearray, Array, Callable[[], bool]], Answer],
        *,
        host: str,
        port: int,
        token: str,
        others: Callable[[bytes], str | None],
        tls: TlsConfig | None,
        version: str,
        maximum_connections: Callable[[], int],
        is_local: bool = True,
    ) -> None:
        self._answer = answer
        self._token, self._others = token, others
        self._context = server_context(tls) if tls else None
        self._admission = Admission(_MAXIMUM_GREETING, maximum_connections)
        self._pool = ThreadPool(self._serve, self._end)
        self._is_closed = False
        self._refused = 0
        _allow_descriptors()
        self._listeners = [socket.create_server((host, port), backlog=_BACKLOG)]
        self.number: int = self._listeners[0].getsockname()[1]
        self.welcome = Welcome(version)
        if is_local and sys.platform == "linux":
            # Random, because another process that used a server's name first would receive its clients' tokens.
            self.welcome = Welcome(version, f"elastrec-{secrets.token_hex(16)}")
            self._listeners.append(socket.socket(socket.AF_UNIX))
            self._listeners[-1].bind("\0" + self.welcome.local_name)
            self._listeners[-1].listen(_BACKLOG)

    def start(self) -> None:
        """Begins to accept connections; earlier ones have waited."""
        for listener in self._listeners:
            threading.Thread(target=self._accept, args=(listener,), name="rpc-accept", daemon=True).start()

    def close(self) -> None:
        """Stops listening and closes all connections except those with running calls; returns when they are answered.

        Safe to repeat.
        """
        self._is_closed = True
        for listener in self._listeners:
            with contextlib.suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)
            listener.close()
        self._admission.close()
        self._admission.wait()
        self._pool.close()

    def _accept(self, listener: socket.socket) -> None:
        pause = threading.Event()
        has_failed = False
        while not self._is_closed:
            try:
                self._start(listener.accept()[0])
                has_failed = False
            except Exception as error:  # otherwise the process would run on, unreachable
                if self._is_closed:
                    return
                if not has_failed:
                    log.warning("connection_not_accepted", reason=str(error))
                has_failed = True
                # Out of descriptors, threads or memory: connections without a token must not hold them.
                self._admission.cut_oldest()
                pause.wait(0.1)

    def _start(self, link: socket.socket) -> None:
        visitor = self._admission.enter(link)
        try:
            threading.Thread(target=self._greet, args=(visitor,), name="rpc-greeting", daemon=True).start()
        except BaseException:
            self._admission.leave(visitor)
            link.close()
            raise

    def _greet(self, visitor: Visitor) -> None:
        try:
            if self._is_admitted(visitor):
                return
        except (OSError, EOFError):
            pass  # the other side is unreachable, or too slow
        except Exception as error:
            log.warning("connection_ended", reason=str(error))
        self._admission.leave(visitor)
        visitor.link.close()

    def _is_admitted(self, visitor: Visitor) -> bool:
        deadline = time.monotonic() + _GREETING_SECONDS
        visitor.link.settimeout(_GREETING_SECONDS)
        if self._context is not None:
            visitor.link = link = self._context.wrap_socket(
                visitor.link, server_side=True, do_handshake_on_connect=False
            )
            link.do_handshake()
        connection = Connection(visitor.link)
        greeted = receive_token(connection, self._token, self._others, deadline)
        if greeted is None:
            self._count_refusal()
            return False
        if maximum := self._admission.admit(visitor):
            text = f"{maximum} connections are open, which is the limit of this server"
            refuse(connection, Problem(TransportError.__name__, text, retryable=True))
            return False
        accept(connection, self.welcome, lends=greeted.lends)
        connection.limit(_SILENCE_SECONDS, _SILENCE_SECONDS)
        client = _Client(visitor, connection, greeted.caller, partial(self._admission.begin_call, visitor))
        self._pool.add(visitor.link.fileno(), client)
        return True

    def _count_refusal(self) -> None:
        self._refused += 1
        # Powers of two: an attacker cannot fill the disk with this line.
        if self._refused & (self._refused - 1) == 0:
            log.warning("call_refused", reason="missing or wrong token", refused_total=self._refused)

    def _serve(self, client: _Client) -> bool:
        set_caller(client.caller)
        try:
            # In one expression, so that a lent body without references is returned with the answer.
            client.connection.send(*self._answer(*client.connection.receive(), client.begin_call))
            self._admission.end_call(client.visitor)
            return True
        except OversizedError as error:
            log.warning("connection_ended", reason=str(error))
            with contextlib.suppress(OSError):
                client.connection.send(*encode_frame(problem_of(error)))
                # If the connection were closed now, a client that still sends would lose the answer.
                client.connection.discard(_REFUSAL_SECONDS)
        except (OSError, EOFError, PortClosedError):
            pass  # the other side is unreachable; it opens another connection if it is alive
        except Exception as error:
            log.warning("connection_ended", reason=str(error))
        return False

    def _end(self, client: _Client) -> None:
        self._admission.leave(client.visitor)
        client.connection.close()


def _allow_descriptors() -> None:
    """Raises this process's limit of connections to the system's maximum; the usual limit is 1,024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    target = _DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, _DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < target:
        resource.setrlimit(resource.RLIMIT_NOFILE, (target, hard))
