"""A worker's requests to one server, answered in their order, over a stream that may break.

A lane has no thread. The requesting thread sends requests as far as the socket accepts them immediately; the thread of
one loop (`platform.transport.wire.loop`) does everything else for all lanes of a worker.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from elastrec.platform.specs.errors import AuthenticationError, TransportError
from elastrec.platform.transport import ArrayStream, RpcClient, StreamLoop, TlsConfig
from elastrec.platform.transport.messages.directive import RoutingTable
from elastrec.platform.transport.wire.frames import Encoded, Packed
from elastrec.platform.transport.wire.loop import Watched
from elastrec.trainers.embedding.replies import Answer, Reply
from elastrec.trainers.parameter_server.messages import ANSWERS, Blocked, Missing, Stale, Stamp

Array = np.ndarray[Any, Any]

_PAUSE_SECONDS = 0.02
_NOT_TAKEN = (Blocked, Missing, Stale)


class RoutingChangedError(TransportError):
    """The servers differ from the routing: wait for a newer directive, connect again, and pull again.

    Attributes:
        epoch, generation: of the server, -1 when it could not be reached.
        routing: of a newer epoch of the same generation, from the server: connect with it immediately.
    """

    def __init__(
        self, message: str, epoch: int = -1, generation: int = -1, routing: RoutingTable | None = None
    ) -> None:
        super().__init__(message, retryable=True)
        self.epoch, self.generation, self.routing = epoch, generation, routing


class Request:
    """A message that gets its stamp when it is sent; encoded once for all servers."""

    def __init__(self, make: Callable[[Stamp], msgspec.Struct]) -> None:
        self.make = make
        self._stamp: Stamp | None = None
        self._encoded: Encoded | None = None

    def under(self, stamp: Stamp) -> Encoded:
        if self._encoded is None or stamp is not self._stamp:
            self._stamp, self._encoded = stamp, Encoded.of(self.make(stamp))
        return self._encoded


@dataclass(eq=False, slots=True)
class _Queued:
    request: Request
    arrays: Sequence[Array | Packed]
    reply: Reply


def _newer_routing(stale: Stale, stamp: Stamp) -> RoutingTable | None:
    routing = stale.routing
    # The model was rolled back: only the master knows the servers of the new generation.
    if routing is None or stale.generation != stamp.generation or routing.epoch <= stamp.epoch:
        return None
    return routing


class Lane:
    """Requests to one server, answered strictly in order.

    A request whose answer was lost is sent again over a new stream: pulls change nothing, pushes count once. After a
    failed request, all others fail until `restart`, so that the order is kept.

    Args:
        loop: that serves the lane; its lock guards it.
        stamp: of requests; may be set at any time.
        patience_seconds: time for which a server may be unreachable, or behind the stamp, before requests fail.
    """

    def __init__(
        self,
        loop: StreamLoop,
        server: str,
        address: str,
        token: str,
        tls: TlsConfig | None,
        stamp: Stamp,
        patience_seconds: float,
    ) -> None:
        self.address = address
        self.stamp = stamp
        self._loop = loop
        self._server = server
        self._client = RpcClient(address, token, tls)
        self._patience_seconds = patience_seconds
        self._queue: deque[_Queued] = deque()
        self._current: _Queued | None = None
        self._sent_under = stamp
        self._deadline = 0.0
        self._failure: Exception | None = None
        self._watched: Watched | None = None  # the stream, while there is one
        self._is_opening = self._is_closed = False
        self._is_busy = False  # the stream carries a request: the current one, or one that was given up

    def send(self, request: Request, arrays: Sequence[Array | Packed] = ()) -> Reply:
        """Sends a request after the earlier ones are answered; the arrays must not change before its answer."""
        queued = _Queued(request, arrays, Reply(self._loop.lock))
        with self._loop.lock:
            self._queue.append(queued)
            if self._current is None and not self._is_busy:
                self._send_next()
        return queued.reply

    def restart(self, stamp: Stamp) -> None:
        """Fails unanswered requests, and continues with another stamp over the same connection.

        A request that has reached the server may still be executed. If its answer does not arrive within the patience,
        the connection is replaced.
        """
        with self._loop.lock:
            self.stamp = stamp
            self._give_up()
            self._failure = None
            if self._watched is not None:
                self._watched.stream.hurry(self._patience_seconds)

    def close(self) -> None:
        """Fails all unanswered and all later requests."""
        with self._loop.lock:
            self._is_closed = True
            self._failure = self._give_up()
            self._drop_stream()
            self._client.close()

    def _give_up(self) -> RoutingChangedError:
        error = RoutingChangedError(f"requests to {self._server} were given up")
        unanswered = [*filter(None, [self._current]), *self._queue]
        self._current = None
        self._queue.clear()
        for queued in unanswered:
            queued.reply.fail(error)
        return error

    def _send_next(self) -> None:
        while self._failure is not None and self._queue:
            self._queue.popleft().reply.fail(self._failure)
        if self._queue:
            self._current = self._queue.popleft()
            self._deadline = time.monotonic() + self._patience_seconds
            self._attempt()

    def _attempt(self) -> None:
        queued = self._current
        if queued is None or self._is_opening or self._is_busy:
            return
        try:
            if self._watched is None:
                self._loop.open(self._client, ANSWERS, self._opened)
                self._is_opening = True
                return
            self._sent_under = self.stamp
            self._watched.stream.begin(queued.request.under(self.stamp), queued.arrays)
            self._is_busy = True
            self._loop.update(self._watched)
        except Exception as error:
            self._lost(error)

    def _opened(self, result: ArrayStream | Exception) -> None:
        self._is_opening = False
        if isinstance(result, Exception):
            self._lost(result)
        elif self._is_closed:
            result.close()
        else:
            self._watched = self._loop.watch(result, self._go_on)
            self._attempt()

    def _go_on(self) -> None:
        if self._watched is None:
            return
        try:
            answer = self._watched.stream.advance()
        except Exception as error:
            self._lost(error)
            return
        if answer is None:
            self._loop.update(self._watched)
            return
        if not self._is_busy:
            self._lost(TransportError("it answers what was not asked", retryable=True))
            return
        self._is_busy = False
        if self._current is None:
            self._send_next()  # that request was given up
        else:
            self._take(self._current, answer)

    def _take(self, queued: _Queued, answer: Answer) -> None:
        message, stamp = answer[0], self._sent_under
        if not isinstance(message, _NOT_TAKEN):
            self._current = None
            queued.reply.succeed(answer)
            if self._queue:
                self._send_next()
        elif isinstance(message, Blocked):
            self._deadline = time.monotonic() + self._patience_seconds
            self._attempt()
        elif isinstance(message, Missing):
            text = (
                f"parameter server {self._server} lacks the push before this one: it has applied {message.offset} "
                "rows of the shard"
            )
            self._fail(RoutingChangedError(text, stamp.epoch, stamp.generation))
        else:
            state = "ready" if message.ready else "not ready"
            problem = RoutingChangedError(
                f"parameter server {self._server} is at epoch {message.epoch}, generation {message.generation} "
                f"({state if message.named else 'the master does not count this worker in'}); "
                f"this worker believes in epoch {stamp.epoch}, generation {stamp.generation}",
                message.epoch,
                message.generation,
                _newer_routing(message, stamp),
            )
            if message.epoch > stamp.epoch or message.generation > stamp.generation:
                self._fail(problem)
            else:
                # The server may not have received a directive yet that this worker has.
                self._attempt_later(problem)

    def _lost(self, error: Exception) -> None:
        self._drop_stream()  # what it carries now is not known
        if self._current is None:
            self._send_next()
        elif isinstance(error, TransportError) and error.retryable and not isinstance(error, AuthenticationError):
            self._attempt_later(RoutingChangedError(f"parameter server {self._server} is out of reach: {error}"))
        else:
            self._fail(error)

    def _attempt_later(self, problem: RoutingChangedError) -> None:
        if time.monotonic() > self._deadline:
            self._fail(problem)
            return
        waiting = self._current

        def attempt() -> None:
            if self._current is waiting:
                self._attempt()

        self._loop.call_later(_PAUSE_SECONDS, attempt)

    def _fail(self, error: Exception) -> None:
        queued, self._current = self._current, None
        self._failure = error
        if queued is not None:
            queued.reply.fail(error)
        self._send_next()

    def _drop_stream(self) -> None:
        if self._watched is not None:
            self._loop.forget(self._watched)
            self._watched.stream.close()
            self._watched = None
        self._is_busy = False
