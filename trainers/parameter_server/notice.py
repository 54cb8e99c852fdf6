"""The time between a server's SIGTERM and its end, in which it serves, so that others can take over its buckets."""

from __future__ import annotations

import time
from collections.abc import Callable

ALONE_SECONDS = 3.0
"""Time without an answer of the master after which a take-over is no longer expected."""


class Notice:
    """Notice of the process's end.

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
        """Seconds until the process is killed; None: there is no notice."""
        if self._given is None:
            return None
        return max(0.0, self._given + self._grace_seconds - self._clock())

    def give(self) -> None:
        """Records the notice; uses no lock, so that a signal handler may call it."""
        self._given = self._clock()

    def answered(self) -> None:
        """Records an answer of the master."""
        self._answered = self._clock()

    @property
    def is_over(self) -> bool:
        """Whether the process should end: its time is over, or no master answers."""
        if self._given is None:
            return False
        now = self._clock()
        return now >= self._given + self._grace_seconds or now >= max(self._given, self._answered) + ALONE_SECONDS
