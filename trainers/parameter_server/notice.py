"""The time between a server's SIGTERM and its end: it serves on, so that others can take its buckets over."""

from __future__ import annotations

import time
from collections.abc import Callable

ALONE_SECONDS = 3.0
"""Without an answer of the master for so long, nobody takes anything over."""


class Notice:
    """That the process is about to be ended.

    Args:
        grace_seconds: between SIGTERM and SIGKILL.
        clock: monotonic seconds.
    """

    def __init__(self, grace_seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._grace_seconds, self._clock = grace_seconds, clock
        self._given: float | None = None
        self._answered = clock()

    @property
    def is_given(self) -> bool:
        return self._given is not None

    @property
    def left_seconds(self) -> float | None:
        """Until the process is ended; None: it is not about to be."""
        if self._given is None:
            return None
        return max(0.0, self._given + self._grace_seconds - self._clock())

    def give(self) -> None:
        """Now; takes no lock, so that a signal handler may call it."""
        self._given = self._clock()

    def answered(self) -> None:
        """The master has answered."""
        self._answered = self._clock()

    @property
    def is_over(self) -> bool:
        """Whether the process should end by itself: its time is over, or there is no master that could use it."""
        if self._given is None:
            return False
        now = self._clock()
        return now >= self._given + self._grace_seconds or now >= max(self._given, self._answered) + ALONE_SECONDS
