"""The clock of a job: seconds since the epoch as its master counts them, alike on all servers.

Rows keep when they were last seen, and take that along when their bucket moves. If each server asked its own node, rows
would be evicted too early or too late by as much as the nodes' clocks differ.
"""

from __future__ import annotations

import time
from collections.abc import Callable


class JobClock:
    """Seconds since the epoch; once it follows a master it never goes back. One thread follows, any thread reads.

    Until a master is followed it is the clock of this node. Between two registrations it goes on by the monotonic
    clock, which nobody can set.

    Args:
        wall, monotonic: of this node, seconds.
    """

    def __init__(self, wall: Callable[[], float] = time.time, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._offset = wall() - monotonic()
        self._is_following = False

    def follow(self, master_seconds: float) -> None:
        """The master's clock says so now; a later master that is behind the one before does not set the clock back."""
        offset = master_seconds - self._monotonic()
        self._offset = max(self._offset, offset) if self._is_following else offset
        self._is_following = True

    def __call__(self) -> float:
        return self._offset + self._monotonic()
