"""What has to be lost before a job is changed for it, and what has to show before it is changed again. Pure.

A pod that stands out costs the job time until something is done about it; a change has its price, needed or not. How
long the pod will stand out is not known. To act once as much was lost as the change costs is never more than twice as
dear as what somebody would do who knew it (ski rental: Karlin et al., "Competitive snoopy caching", Algorithmica 3,
1988). So a large excess has to last for less time than a small one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass
class _Excess:
    """What a pod has cost: for how long it stood out, and how much of the job's time was lost by it meanwhile."""

    since: float
    seconds: float = 0.0
    lost: float = 0.0

    def is_enough(self, least_seconds: float, price_seconds: float) -> bool:
        return self.seconds >= least_seconds and self.lost >= price_seconds

    def decline(self, seconds: float) -> bool:
        """As many seconds without as with it, and nothing counts any more; false: none does now."""
        if seconds >= self.seconds:
            return False
        self.lost *= 1 - seconds / self.seconds
        self.seconds -= seconds
        return True


class Lasting:
    """Which pods have stood out for long enough, and when something was done about one.

    A window in which a pod does not stand out takes back what one as long has added: a single one delays a decision,
    and a pod that stands out half of the time is left alone.

    Args:
        least_seconds: for so long a pod has to stand out, whatever it costs.
        cool_down_seconds: between two that something is done about.
    """

    def __init__(self, least_seconds: float, cool_down_seconds: float) -> None:
        self._least_seconds, self._cool_down_seconds = least_seconds, cool_down_seconds
        self._excess: dict[str, _Excess] = {}
        self._looked: float | None = None
        self._done: float | None = None

    def look(self, losses: Mapping[str, float] | None, price_seconds: float, now: float) -> dict[str, float]:
        """Pods that something is to be done about, each with the time since which it stands out.

        Args:
            losses: share of the job's time, 0 to 1, that was lost since the last look by each pod that stands out;
                None: nothing was measured that says it.
            price_seconds: of a change, in seconds of the job's time.
        """
        # What was before the first look was not looked at.
        seconds = 0.0 if self._looked is None else now - self._looked
        self._looked = now
        if losses is None:
            return {}
        for pod in self._excess.keys() - losses.keys():
            if not self._excess[pod].decline(seconds):
                del self._excess[pod]
        for pod, loss in losses.items():
            excess = self._excess.setdefault(pod, _Excess(now - seconds))
            # Beyond it nothing is added: a pod that waits for room is soon none that has stood out once it does not.
            if not excess.is_enough(self._least_seconds, price_seconds):
                excess.seconds += seconds
                excess.lost += seconds * loss
        if self._done is not None and now - self._done < self._cool_down_seconds:
            return {}
        return {
            pod: self._excess[pod].since
            for pod in losses
            if self._excess[pod].is_enough(self._least_seconds, price_seconds)
        }

    def done(self, now: float) -> None:
        """Something is done about one."""
        self._done = now

    def forget(self) -> None:
        """No pod has stood out until now."""
        self._excess.clear()
        self._looked = None
