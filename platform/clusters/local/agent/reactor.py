"""One thread that sleeps until a process ends or a timer is due; it never polls."""

from __future__ import annotations

import heapq
import itertools
import os
import select
import threading
import time
from collections.abc import Callable

import structlog

log = structlog.get_logger(__name__)


class Reactor:
    """Calls back, in its own thread, when descriptors become readable and when timers are due."""

    def __init__(self) -> None:
        self._poll = select.epoll()
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._poll.register(self._wake, select.EPOLLIN)
        self._lock = threading.Lock()
        self._watched: dict[int, Callable[[], None]] = {}
        self._timers: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="reactor", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Ends the thread and closes what it holds; watched descriptors stay open."""
        self._stopping = True
        os.eventfd_write(self._wake, 1)
        self._thread.join()
        self._poll.close()
        os.close(self._wake)

    def watch(self, descriptor: int, callback: Callable[[], None]) -> None:
        """Calls back once, when the descriptor becomes readable."""
        with self._lock:
            self._watched[descriptor] = callback
            self._poll.register(descriptor, select.EPOLLIN)

    def call_later(self, seconds: float, callback: Callable[[], None]) -> None:
        """Calls back once, after at least this number of seconds. Timers cannot be cancelled, so callbacks check the
        state."""
        with self._lock:
            heapq.heappush(self._timers, (time.monotonic() + max(0.0, seconds), next(self._order), callback))
        os.eventfd_write(self._wake, 1)

    def _run(self) -> None:
        while not self._stopping:
            with self._lock:
                left = self._timers[0][0] - time.monotonic() if self._timers else -1.0
                timeout = max(0.0, left) if self._timers else -1.0
            for descriptor, _ in self._poll.poll(timeout):
                if descriptor == self._wake:
                    os.eventfd_read(self._wake)
                    continue
                with self._lock:
                    callback = self._watched.pop(descriptor)
                    self._poll.unregister(descriptor)
                self._call(callback)
            now = time.monotonic()
            with self._lock:
                due = []
                while self._timers and self._timers[0][0] <= now:
                    due.append(heapq.heappop(self._timers)[2])
            for callback in due:
                self._call(callback)

    def _call(self, callback: Callable[[], None]) -> None:
        try:
            callback()
        except Exception:
            # An error with one pod must not end the supervision of the others.
            log.exception("callback_failed")
