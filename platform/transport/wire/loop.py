"""One thread that waits for many streams at once, so that there is no thread for each server."""

from __future__ import annotations

import heapq
import itertools
import math
import os
import select
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec
import structlog

from elastrec.platform.transport.client import ArrayStream, RpcClient

_TICK_SECONDS = 0.5  # between checks of the deadlines of requests, which are seconds long

log = structlog.get_logger(__name__)


@dataclass(eq=False)
class Watched:
    """A stream that a loop watches.

    Attributes:
        events: the epoll events for which the loop waits.
    """

    stream: ArrayStream
    descriptor: int
    on_ready: Callable[[], None]
    events: int


class StreamLoop:
    """Calls back when a stream is ready, its request's deadline is over, a stream was opened, or a timer is due.

    Callbacks run under `lock`, one at a time, and must not wait. Methods are called under `lock`, except `close`, and
    so are all methods of a watched stream.

    Attributes:
        lock: reentrant.
    """

    def __init__(self, name: str) -> None:
        self.lock = threading.RLock()
        self._epoll = select.epoll()
        self._bell = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._epoll.register(self._bell, select.EPOLLIN)
        self._watched: dict[int, Watched] = {}
        self._timers: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self._wakes_at = -math.inf  # -inf: it is awake
        self._is_closed = False
        self._opening: set[threading.Thread] = set()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def open(
        self,
        client: RpcClient,
        answers: Sequence[type[msgspec.Struct]],
        on_opened: Callable[[ArrayStream | Exception], None],
    ) -> None:
        """Opens a stream in a thread of its own, and calls back with it, or with the error of `open_stream`.

        Raises:
            RuntimeError: no thread can be started.
        """
        opening = threading.Thread(target=self._open, args=(client, answers, on_opened), daemon=True)
        opening.start()
        self._opening.add(opening)

    def _open(
        self,
        client: RpcClient,
        answers: Sequence[type[msgspec.Struct]],
        on_opened: Callable[[ArrayStream | Exception], None],
    ) -> None:
        result: ArrayStream | Exception
        try:
            result = client.open_stream(answers)
        except Exception as error:
            result = error
        with self.lock:
            self._opening.discard(threading.current_thread())
            if not self._is_closed:
                self._call(lambda: on_opened(result))
            elif isinstance(result, ArrayStream):
                result.close()

    def watch(self, stream: ArrayStream, on_ready: Callable[[], None]) -> Watched:
        """Watches a stream until `forget`."""
        watched = Watched(stream, stream.fileno(), on_ready, _events_of(stream))
        self._watched[watched.descriptor] = watched
        self._epoll.register(watched.descriptor, watched.events)
        return watched

    def update(self, watched: Watched) -> None:
        """Updates the events of a stream; call it after its `begin` and `advance`."""
        events = _events_of(watched.stream)
        if events != watched.events:
            watched.events = events
            self._epoll.modify(watched.descriptor, events)

    def forget(self, watched: Watched) -> None:
        """Stops watching a stream; call it before the stream is closed."""
        del self._watched[watched.descriptor]
        self._epoll.unregister(watched.descriptor)

    def call_later(self, seconds: float, function: Callable[[], None]) -> None:
        """Calls a function after this time."""
        when = time.monotonic() + seconds
        heapq.heappush(self._timers, (when, next(self._numbers), function))
        if when < self._wakes_at:
            self._wake()

    def _wake(self) -> None:
        os.eventfd_write(self._bell, 1)

    def close(self, timeout_seconds: float) -> None:
        """Stops all callbacks and waits for the threads. Streams are not closed. May be called repeatedly."""
        with self.lock:
            if self._is_closed:
                return
            self._is_closed = True
            self._wake()
            threads = [self._thread, *self._opening]
        deadline = time.monotonic() + timeout_seconds
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    def _run(self) -> None:
        tick_at, pause_seconds = 0.0, 0.0
        while True:
            events = self._epoll.poll(pause_seconds)
            with self.lock:
                self._wakes_at = -math.inf
                if self._is_closed:
                    self._epoll.close()
                    os.close(self._bell)
                    return
                for descriptor, _ in events:
                    if descriptor == self._bell:
                        os.eventfd_read(self._bell)
                    elif (watched := self._watched.get(descriptor)) is not None:
                        self._call(watched.on_ready)
                now = time.monotonic()
                while self._timers and self._timers[0][0] <= now:
                    self._call(heapq.heappop(self._timers)[2])
                if now >= tick_at:
                    tick_at = now + _TICK_SECONDS
                    for watched in [each for each in self._watched.values() if each.stream.deadline < now]:
                        self._call(watched.on_ready)
                self._wakes_at = min(tick_at, self._timers[0][0] if self._timers else math.inf)
                pause_seconds = max(0.0, self._wakes_at - time.monotonic())

    def _call(self, function: Callable[[], None]) -> None:
        try:
            function()
        except Exception:  # the other streams go on
            log.exception("stream_callback_failed")


def _events_of(stream: ArrayStream) -> int:
    return select.EPOLLOUT if stream.wants_write else select.EPOLLIN
