"""Admission: how many connections a port of streams holds, before and after they have sent the token.

Anybody who reaches the port can open connections. Those that have not sent the token are few and can be cut at any
time: when one more arrives, the oldest of them goes. A client needs milliseconds for its greeting, so connections that
stay silent never keep it out. Connections that have sent the token have a limit of their own and are never cut.
"""

from __future__ import annotations

import contextlib
import socket
import threading

import structlog

log = structlog.get_logger(__name__)


class Visitor:
    """One connection that was accepted. `link` is replaced when TLS takes its socket over."""

    def __init__(self, link: socket.socket) -> None:
        self.link = link

    def cut(self) -> None:
        """Ends what any thread does on the connection; for any thread."""
        # Not SSLSocket.shutdown: that takes the TLS state away from under the thread that reads.
        with contextlib.suppress(OSError):
            socket.socket.shutdown(self.link, socket.SHUT_RDWR)


class Admission:
    """The connections of one port; safe to use from several threads.

    Args:
        maximum_greeting: connections that have not sent the token.
        maximum_streams: connections that have.
    """

    def __init__(self, maximum_greeting: int, maximum_streams: int) -> None:
        self.maximum_streams = maximum_streams
        self._maximum_greeting = maximum_greeting
        self._lock = threading.Lock()
        self._greeting: dict[Visitor, None] = {}  # oldest first
        self._streams: set[Visitor] = set()
        self._is_closed = self._greeting_is_full = self._streams_are_full = False

    def enter(self, link: socket.socket) -> Visitor:
        """Counts a connection that was just accepted; the oldest one without a token is cut if there are too many."""
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
        """Cuts the connection that has waited longest without sending the token, if there is one."""
        with self._lock:
            self._cut_oldest()

    def _cut_oldest(self) -> None:
        if self._greeting:
            oldest = next(iter(self._greeting))
            del self._greeting[oldest]
            oldest.cut()

    def greet(self, visitor: Visitor) -> bool:
        """Counts a connection that has sent the token as a stream; False if there are too many streams."""
        with self._lock:
            self._greeting.pop(visitor, None)
            if self._is_closed:
                visitor.cut()
            if len(self._streams) < self.maximum_streams:
                self._streams.add(visitor)
                return True
            if not self._streams_are_full:
                self._streams_are_full = True
                log.warning("streams_refused", reason="too many streams", maximum=self.maximum_streams)
            return False

    def leave(self, visitor: Visitor) -> None:
        """Safe to repeat."""
        with self._lock:
            self._greeting.pop(visitor, None)
            self._streams.discard(visitor)
            # Half, so that a count that moves around the limit is logged once and not at each crossing.
            if len(self._greeting) <= self._maximum_greeting // 2:
                self._greeting_is_full = False
            if len(self._streams) <= self.maximum_streams // 2:
                self._streams_are_full = False

    def close(self) -> None:
        """Cuts all connections, and those that enter from now on."""
        with self._lock:
            self._is_closed = True
            for visitor in (*self._greeting, *self._streams):
                visitor.cut()
