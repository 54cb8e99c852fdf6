"""One server as a worker sees it: a stream, and a thread that sends requests over it in the order they were made."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

import msgspec
import numpy as np

from elastrec.platform.specs.errors import AuthenticationError, TransportError
from elastrec.platform.transport import ArrayStream, RpcClient, TlsConfig
from elastrec.platform.transport.frames import Joined
from elastrec.trainers.parameter_server.messages import ANSWERS, Blocked, Stale, Stamp

Array = np.ndarray[Any, Any]
Reply = tuple[Any, list[Array]]

_PAUSE_SECONDS = 0.02


class RoutingChangedError(TransportError):
    """The servers are not what the routing says: forget what is in flight, wait for a newer directive, connect again.

    Attributes:
        epoch, generation: what the server named, -1 when it could not be reached.
    """

    def __init__(self, message: str, epoch: int = -1, generation: int = -1) -> None:
        super().__init__(message, retryable=True)
        self.epoch, self.generation = epoch, generation


class Lane:
    """Requests to one server, answered strictly in order.

    A request whose answer was lost is sent again over a new stream: pulls change nothing, pushes carry a sequence.

    Args:
        patience_seconds: how long a server may be out of reach, or behind the stamp, before requests fail.
    """

    def __init__(
        self, server: str, address: str, token: str, tls: TlsConfig | None, stamp: Stamp, patience_seconds: float
    ) -> None:
        self._server = server
        self._client = RpcClient(address, token, tls)
        self._stamp = stamp
        self._patience_seconds = patience_seconds
        self._queue: queue.SimpleQueue[tuple[msgspec.Struct, Sequence[Array | Joined], Future[Reply]] | None]
        self._queue = queue.SimpleQueue()
        self._closed = threading.Event()
        self._failure: Exception | None = None
        self._stream: ArrayStream | None = None
        self._thread = threading.Thread(target=self._run, name=f"lane-{server}", daemon=True)
        self._thread.start()

    def send(self, message: msgspec.Struct, arrays: Sequence[Array | Joined] = ()) -> Future[Reply]:
        """Queues a request; the arrays must not change until the future is done."""
        future: Future[Reply] = Future()
        self._queue.put((message, arrays, future))
        return future

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
        while (item := self._queue.get()) is not None:
            message, arrays, future = item
            try:
                if self._failure is not None:
                    raise self._failure
                reply = self._exchange(message, arrays)
            except Exception as error:
                # What follows a lost request must not overtake it.
                self._failure = error
                future.set_exception(error)
            else:
                future.set_result(reply)
        self._drop_stream()
        self._client.close()
        while not self._queue.empty():
            if (item := self._queue.get()) is not None:
                item[2].set_exception(RoutingChangedError(f"the connection to {self._server} was given up"))

    def _exchange(self, message: msgspec.Struct, arrays: Sequence[Array | Joined]) -> Reply:
        deadline = time.monotonic() + self._patience_seconds
        while not self._closed.is_set():
            try:
                if self._stream is None:
                    self._stream = self._client.open_stream(ANSWERS)
                answer, answer_arrays = self._stream.request(message, arrays)
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
                if not isinstance(answer, Stale):
                    return answer, answer_arrays
                state = "ready" if answer.ready else "not ready"
                problem = RoutingChangedError(
                    f"parameter server {self._server} is at epoch {answer.epoch}, generation {answer.generation} "
                    f"({state if answer.named else 'the master does not count this worker in'}); "
                    f"this worker believes in epoch {self._stamp.epoch}, generation {self._stamp.generation}",
                    answer.epoch,
                    answer.generation,
                )
                if answer.epoch > self._stamp.epoch or answer.generation > self._stamp.generation:
                    raise problem
            # Out of reach, or still behind: it may have missed a directive that this worker already has.
            if time.monotonic() > deadline:
                raise problem
            self._closed.wait(_PAUSE_SECONDS)
        raise RoutingChangedError(f"the connection to {self._server} was given up")

    def _drop_stream(self) -> None:
        if self._stream is not None:
            self._stream.close()
            self._stream = None
