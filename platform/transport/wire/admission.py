"""Admission: the limits of a port's connections, before and after they have sent the token, and their end.

Every process that reaches the port can open connections. Connections that have not sent the token have a low limit:
when one more arrives, the oldest of them is closed. A client needs milliseconds for its greeting, so that silent
connections never keep it out. Connections that have sent the token have a limit of their own and are never closed
before the port closes; then those whose call is being executed stay until it is answered.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable

import structlog

log = structlog.get_logger(__name__)


class Visitor:
    """An accepted connection. `link` is replaced when TLS takes over its socket."""

    def __init__(self, link: socket.socket) -> None:
        self.link = link
        self.is_calling = False

    def cut(self) -> None:
        """Ends what any thread does on the connection; for any thread."""
        # Not SSLSocket.shutdown, which removes the TLS state while another thread reads.
        with contextlib.suppress(OSError):
            socket.socket.shutdown(self.link, socket.SHUT_RDWR)


class Admission:
    """The connections of one port; safe to use from several threads.

    Args:
        maximum_greeting: connections that have not sent the token.
        maximum_connections: connections that have sent it; called for every new one.
    """

    def __init__(self, maximum_greeting: int, maximum_connections: Callable[[], int]) -> None:
        self._maximum_greeting = maximum_greeting
        self._maximum_connections = maximum_connections
        self._lock = threading.Lock()
        self._all_answered = threading.Condition(self._lock)
        self._greeting: dict[Visitor, None] = {}  # oldest first
        self._admitted: set[Visitor] = set()
        self._calls = 0
        self._is_closed = self._greeting_is_full = self._is_full = False

    def enter(self, link: socket.socket) -> Visitor:
        """Adds an accepted connection; the oldest one without a token is closed if there are too many."""
        visitor = Visitor(link)
        with self._lock:
            if self._is_closed:
                visitor.cut()
            if len(self._greeting) >= self._maximum_greeting:
                self._cut_oldest()
                if not self._greeting_is_full:
                    self._greeting_is_full = True
                    log.warning("connections_without_token_cut", maximum=self._maximum_greeting)
            self._greeting[visitor] = None
        return visitor

    def cut_oldest(self) -> None:
        """Closes the connection that has waited longest without sending the token, if there is one."""
        with self._lock:
            self._cut_oldest()

    def _cut_oldest(self) -> None:
        if self._greeting:
            oldest = next(iter(self._greeting))
            del self._greeting[oldest]
            oldest.cut()

    def admit(self, visitor: Visitor) -> int:
        """Adds a connection that has sent the token; returns 0, or the limit when there are too many of them."""
        maximum = self._maximum_connections()
        with self._lock:
            self._greeting.pop(visitor, None)
            if self._is_closed:
                visitor.cut()
            if len(self._admitted) < maximum:
                self._admitted.add(visitor)
                return 0
            if not self._is_full:
                self._is_full = True
                log.warning("connections_refused", reason="too many connections", maximum=maximum)
            return maximum

    def begin_call(self, visitor: Visitor) -> bool:
        """Keeps the connection while a call is executed; False: the port is closed, and the call must not be
        executed."""
        with self._lock:
            if self._is_closed:
                return False
            visitor.is_calling = True
            self._calls += 1
            return True

    def end_call(self, visitor: Visitor) -> None:
        """Records that the call, if there was one, was answered."""
        if not visitor.is_calling:
            return
        with self._lock:
            visitor.is_calling = False
            self._calls -= 1
            if self._is_closed:
                visitor.cut()
                self._all_answered.notify_all()

    def leave(self, visitor: Visitor) -> None:
        """Safe to repeat."""
        self.end_call(visitor)
        with self._lock:
            self._greeting.pop(visitor, None)
            self._admitted.discard(visitor)
            # Half, so that a count that moves around the limit is logged once and not at each crossing.
            if len(self._greeting) <= self._maximum_greeting // 2:
                self._greeting_is_full = False
            if self._is_full and len(self._admitted) <= self._maximum_connections() // 2:
                self._is_full = False

    def close(self) -> None:
        """Closes all connections except those whose calls are being executed; new ones are closed, too."""
        with self._lock:
            self._is_closed = True
            for visitor in (*self._greeting, *self._admitted):
                if not visitor.is_calling:
                    visitor.cut()

    def wait(self) -> None:
        """Waits until no call is being executed, after `close`."""
        with self._lock:
            self._all_answered.wait_for(lambda: not self._calls)
