"""The clock of a job: seconds since the epoch by the clock of its master at its start, equal on all servers.

Rows store the time of their last sighting, and keep it when their bucket moves. If each server used its own node's
clock, rows would be evicted too early or too late by the difference of the clocks.
"""

from __future__ import annotations

import time
from collections.abc import Callable


class JobClock:
    """Seconds since the epoch; after the first update it never decreases. One thread updates it, any thread reads it.

    Until the first update it is the clock of this node. Between two registrations it advances by the monotonic clock,
    which cannot be set.

    Args:
        wall, monotonic: of this node, seconds.
    """

    def __init__(self, wall: Callable[[], float] = time.time, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._offset = wall() - monotonic()
        self._is_following = False

    def follow(self, master_seconds: float) -> None:
        """Updates the clock with the master's; a later master whose clock is behind does not set it back."""
        offset = master_seconds - self._monotonic()
        self._offset = max(self._offset, offset) if self._is_following else offset
        self._is_following = True

    def __call__(self) -> float:
        return self._offset + self._monotonic()
