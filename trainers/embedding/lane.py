"""One server as a worker sees it: a stream, and a thread that sends requests over it in the order they were made."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np

from elastrec.platform.specs.errors import AuthenticationError, TransportError
from elastrec.platform.transport import ArrayStream, RpcClient, TlsConfig
from elastrec.platform.transport.frames import Joined
from elastrec.trainers.parameter_server.messages import ANSWERS, Blocked, Missing, Stale, Stamp

Array = np.ndarray[Any, Any]
Reply = tuple[Any, list[Array]]
Request = Callable[[Stamp], msgspec.Struct]
"""A request, which gets its stamp when it is sent."""

_PAUSE_SECONDS = 0.02


class RoutingChangedError(TransportError):
    """The servers are not what the routing says: wait for a newer directive, connect again, and pull again.

    Attributes:
        epoch, generation: what the server named, -1 when it could not be reached.
    """

    def __init__(self, message: str, epoch: int = -1, generation: int = -1) -> None:
        super().__init__(message, retryable=True)
        self.epoch, self.generation = epoch, generation


@dataclass(frozen=True)
class _Queued:
    """A request that was made in a round of the lane (see `Lane.restart`)."""

    round: int
    request: Request
    arrays: Sequence[Array | Joined]
    reply: Future[Reply] = field(default_factory=Future)


class Lane:
    """Requests to one server, answered strictly in order.

    A request whose answer was lost is sent again over a new stream: pulls change nothing, pushes count once.

    Args:
        stamp: of requests; may be set at any time.
        patience_seconds: how long a server may be out of reach, or behind the stamp, before requests fail.
    """

    def __init__(
        self, server: str, address: str, token: str, tls: TlsConfig | None, stamp: Stamp, patience_seconds: float
    ) -> None:
        self.address = address
        self.stamp = stamp
        self._server = server
        self._client = RpcClient(address, token, tls)
        self._patience_seconds = patience_seconds
        self._queue: queue.SimpleQueue[_Queued | None] = queue.SimpleQueue()
        self._closed = threading.Event()
        self._round = 0
        self._failure: tuple[int, Exception] | None = None
        self._stream: ArrayStream | None = None
        self._thread = threading.Thread(target=self._run, name=f"lane-{server}", daemon=True)
        self._thread.start()

    def send(self, request: Request, arrays: Sequence[Array | Joined] = ()) -> Future[Reply]:
        """Queues a request; the arrays must not change until the future is done."""
        queued = _Queued(self._round, request, arrays)
        self._queue.put(queued)
        return queued.reply

    def restart(self, stamp: Stamp) -> None:
        """Fails what is queued, and goes on under another stamp over the same connection.

        The request that is being answered may still be answered.
        """
        self.stamp = stamp
        self._round += 1

    def close(self) -> None:
        """Fails what is queued and the request that is being answered."""
        self._closed.set()
        self._queue.put(None)
        if (stream := self._stream) is not None:
            stream.cut()

    def join(self, timeout_seconds: float) -> None:
        """Waits for the thread after `close`."""
        self._thread.join(timeout_seconds)

    def _run(self) -> None:
        while (queued := self._queue.get()) is not None:
            try:
                if self._failure is not None and self._failure[0] == queued.round:
                    raise self._failure[1]
                reply = self._exchange(queued)
            except Exception as error:
                # What follows a lost request must not overtake it.
                self._failure = queued.round, error
                if not isinstance(error, RoutingChangedError):
                    self._drop_stream()  # what it carries now is not known
                queued.reply.set_exception(error)
            else:
                queued.reply.set_result(reply)
        self._drop_stream()
        self._client.close()
        while not self._queue.empty():
            if (queued := self._queue.get()) is not None:
                queued.reply.set_exception(self._given_up())

    def _exchange(self, queued: _Queued) -> Reply:
        deadline = time.monotonic() + self._patience_seconds
        while not self._closed.is_set() and queued.round == self._round:
            stamp = self.stamp
            try:
                if self._stream is None:
                    self._stream = self._client.open_stream(ANSWERS)
                answer, answer_arrays = self._stream.request(queued.request(stamp), queued.arrays)
            except AuthenticationError:
                raise
            except TransportError as error:
                if not error.retryable:
                    raise
                self._drop_stream()
                problem = RoutingChangedError(f"parameter server {self._server} is out of reach: {error}")
            else:
                if isinstance(answer, Blocked):
                    deadline = time.monotonic() + self._patience_seconds
                    continue
                if isinstance(answer, Missing):
                    raise RoutingChangedError(
                        f"parameter server {self._server} lacks the push before this one: it has applied "
                        f"{answer.offset} rows of the shard",
                        stamp.epoch,
                        stamp.generation,
                    )
                if not isinstance(answer, Stale):
                    return answer, answer_arrays
                state = "ready" if answer.ready else "not ready"
                problem = RoutingChangedError(
                    f"parameter server {self._server} is at epoch {answer.epoch}, generation {answer.generation} "
                    f"({state if answer.named else 'the master does not count this worker in'}); "
                    f"this worker believes in epoch {stamp.epoch}, generation {stamp.generation}",
                    answer.epoch,
                    answer.generation,
                )
                if answer.epoch > stamp.epoch or answer.generation > stamp.generation:
                    raise problem
            # Out of reach, or still behind: it may have missed a directive that this worker already has.
            if time.monotonic() > deadline:
                raise problem
            self._closed.wait(_PAUSE_SECONDS)
        raise self._given_up()

    def _given_up(self) -> RoutingChangedError:
        return RoutingChangedError(f"requests to {self._server} were given up")

    def _drop_stream(self) -> None:
        if self._stream is not None:
            self._stream.close()
            self._stream = None
