"""The present speed of a job: the samples of its last windows. Pure.

`speed_profile` has the undisturbed speed of a configuration. This is the actual speed of the job, including pauses for
saves, from its first window on. The memory forecast uses it to convert samples to time.
"""

from __future__ import annotations

import math
from collections import deque

_WINDOWS = 12


class MomentarySpeed:
    """The speed of one job. Not thread-safe: its owner locks."""

    def __init__(self) -> None:
        self._windows: deque[tuple[int, float]] = deque(maxlen=_WINDOWS)

    def add(self, samples: int, seconds: float) -> None:
        """Adds a window in which the job should train. Windows before the first sample belong to the start and are
        ignored."""
        if seconds > 0 and (samples or self._windows):
            self._windows.append((samples, seconds))

    @property
    def samples_per_second(self) -> float:
        """Mean over the last windows; 0 if nothing was trained in them."""
        seconds = sum(seconds for _, seconds in self._windows)
        return sum(samples for samples, _ in self._windows) / seconds if seconds else 0.0

    @property
    def deviation(self) -> float:
        """Standard deviation of single windows, in samples/s, weighted by their length."""
        total, mean = sum(seconds for _, seconds in self._windows), self.samples_per_second
        squares = sum(seconds * (samples / seconds - mean) ** 2 for samples, seconds in self._windows)
        return math.sqrt(squares / total) if total else 0.0
