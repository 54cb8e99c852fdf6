"""A pool of threads for requests of many connections; each thread serves one connection at a time.

An idle connection needs no thread: there is one thread per request that is being answered, and a few that wait.
"""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

import structlog

Client = TypeVar("Client")
log = structlog.get_logger(__name__)
_EVENTS = select.EPOLLIN | select.EPOLLRDHUP | select.EPOLLONESHOT
_FEWEST_WAITING = 2
_IDLE_SECONDS = 10.0


class ThreadPool(Generic[Client]):
    """Safe to use from several threads.

    Args:
        serve: answers a request on a connection, in one of the threads; false when the connection has ended.
        end: closes a connection that has ended, or whose server is closed.
    """

    def __init__(self, serve: Callable[[Client], bool], end: Callable[[Client], None]) -> None:
        self._serve, self._end_client = serve, end
        self._epoll = select.epoll()
        self._end = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._epoll.register(self._end, select.EPOLLIN)
        self._clients: dict[int, Client] = {}
        self._lock = threading.Lock()
        self._threads = self._waiting = 0
        self._is_closed = self._has_failed = False

    def add(self, descriptor: int, client: Client) -> None:
        """Adds a connection. Raises RuntimeError when no thread can be started."""
        with self._lock:
            if self._is_closed:
                raise RuntimeError("the server is closed")
            if not self._threads:
                self._start_thread()
            self._clients[descriptor] = client
            self._epoll.register(descriptor, _EVENTS)

    def close(self) -> None:
        """Ends the threads after their current requests. May be called repeatedly."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
            if self._threads:
                os.eventfd_write(self._end, 1)
            else:
                self._release()

    def _release(self) -> None:
        for client in self._clients.values():
            self._end_client(client)
        self._clients.clear()
        self._epoll.close()
        os.close(self._end)

    def _start_thread(self) -> None:
        threading.Thread(target=self._run, name="rpc", daemon=True).start()
        self._threads += 1
        self._waiting += 1

    def _run(self) -> None:
        while (descriptor := self._wait()) is not None:
            client = self._clients[descriptor]
            try:
                if self._serve(client):
                    self._epoll.modify(descriptor, _EVENTS)
                else:
                    # Removed before it is closed, because its number may be reused afterwards.
                    del self._clients[descriptor]
                    self._end_client(client)
            except Exception:
                log.exception("connection_not_served")
            del client  # a waiting thread must not keep an ended connection alive
            with self._lock:
                self._waiting += 1

    def _wait(self) -> int | None:
        """A connection on which something has arrived; None when the thread is not needed any more."""
        while True:
            try:
                ready = self._epoll.poll(_IDLE_SECONDS, 1)
            except OSError as error:  # without this thread, connections would get no answer
                log.warning("connections_not_watched", reason=str(error))
                threading.Event().wait(0.1)
                continue
            with self._lock:
                if self._is_closed or (not ready and self._waiting > _FEWEST_WAITING):
                    self._waiting -= 1
                    self._threads -= 1
                    if self._is_closed and not self._threads:
                        self._release()
                    return None
                if not ready:
                    continue
                self._waiting -= 1
                if not self._waiting:
                    self._start_another()
            return ready[0][0]

    def _start_another(self) -> None:
        try:
            self._start_thread()
        except (RuntimeError, MemoryError) as error:
            # Waiting connections are served when a thread is free.
            if not self._has_failed:
                log.warning("thread_not_started", threads=self._threads, reason=str(error))
            self._has_failed = True
        else:
            self._has_failed = False
