"""Decides when a slow or hot pod has cost enough to justify a change. Pure.

An outlier costs the job time until it is changed; a change has a cost, too, even if it is not needed. How long the pod
will be an outlier is not known. Acting when the loss equals the cost of the change is never more than twice as
expensive as the optimal decision with knowledge of the future (ski rental: Karlin et al., "Competitive snoopy caching",
Algorithmica 3, 1988). So a large excess leads to a change sooner than a small one. Nothing is changed if the job will
end before the change has paid for itself.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass
class _Excess:
    """The cost of a pod: for how long it was an outlier, and how much of the job's time was lost meanwhile."""

    since: float
    seconds: float = 0.0
    lost: float = 0.0

    def is_enough(self, least_seconds: float, price_seconds: float) -> bool:
        return self.seconds >= least_seconds and self.lost >= price_seconds

    def decline(self, seconds: float) -> bool:
        """Reduces the excess by a time without it; returns False if nothing is left."""
        if seconds >= self.seconds:
            return False
        self.lost *= 1 - seconds / self.seconds
        self.seconds -= seconds
        return True


class Lasting:
    """Records which pods have been outliers for long enough, and when one was changed.

    A window in which a pod is not an outlier cancels one of the same length in which it was. So a single window delays
    a decision, and a pod that is an outlier for half of the time is not changed.

    Args:
        least_seconds: a pod must be an outlier for at least this time.
        cool_down_seconds: time between two changes.
    """

    def __init__(self, least_seconds: float, cool_down_seconds: float) -> None:
        self._least_seconds, self._cool_down_seconds = least_seconds, cool_down_seconds
        self._excess: dict[str, _Excess] = {}
        self._looked: float | None = None
        self._done: float | None = None

    def look(
        self, losses: Mapping[str, float] | None, price_seconds: float, now: float, left_seconds: float = math.inf
    ) -> dict[str, float]:
        """Returns the pods that should be changed, each with the time since when it has been an outlier.

        Args:
            losses: share of the job's time, 0 to 1, that each outlier has cost since the last call; None: not measured.
            price_seconds: of a change, in seconds of the job's time.
            left_seconds: until the job ends at its present speed; inf: not known.
        """
        # Nothing is known about the time before the first call.
        seconds = 0.0 if self._looked is None else now - self._looked
        self._looked = now
        if losses is None:
            return {}
        for pod in self._excess.keys() - losses.keys():
            if not self._excess[pod].decline(seconds):
                del self._excess[pod]
        for pod, loss in losses.items():
            excess = self._excess.setdefault(pod, _Excess(now - seconds))
            # The excess is limited, so that a pod that waits for room is soon not an outlier any more when it recovers.
            if not excess.is_enough(self._least_seconds, price_seconds):
                excess.seconds += seconds
                excess.lost += seconds * loss
        if self._done is not None and now - self._done < self._cool_down_seconds:
            return {}
        return {
            pod: self._excess[pod].since
            for pod, loss in losses.items()
            if self._excess[pod].is_enough(self._least_seconds, price_seconds) and loss * left_seconds > price_seconds
        }

    def done(self, now: float) -> None:
        """A pod is changed."""
        self._done = now

    def forget(self) -> None:
        """Discards all observations."""
        self._excess.clear()
        self._looked = None
