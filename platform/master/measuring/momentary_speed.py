"""How fast a job trains at the moment: the samples of its last windows. Pure.

`speed_profile` knows the speed of a configuration, without what disturbs it. This is the speed that the job has, its
pauses for saves included, from its first window on: what a forecast of its memory turns samples into time with.
"""

from __future__ import annotations

import math
from collections import deque

_WINDOWS = 12


class MomentarySpeed:
    """Of one job. Not safe for several threads: its owner locks."""

    def __init__(self) -> None:
        self._windows: deque[tuple[int, float]] = deque(maxlen=_WINDOWS)

    def add(self, samples: int, seconds: float) -> None:
        """A window in which the job was to train. Those before its first sample are its start."""
        if seconds > 0 and (samples or self._windows):
            self._windows.append((samples, seconds))

    @property
    def samples_per_second(self) -> float:
        """Of the last windows together; 0: nothing was trained in them."""
        seconds = sum(seconds for _, seconds in self._windows)
        return sum(samples for samples, _ in self._windows) / seconds if seconds else 0.0

    @property
    def deviation(self) -> float:
        """Of single windows from it, one standard deviation in samples/s; a longer window counts for more."""
        total, mean = sum(seconds for _, seconds in self._windows), self.samples_per_second
        squares = sum(seconds * (samples / seconds - mean) ** 2 for samples, seconds in self._windows)
        return math.sqrt(squares / total) if total else 0.0
