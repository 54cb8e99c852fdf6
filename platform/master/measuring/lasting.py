"""What has to last before a job is changed for it, and what has to show before it is changed again."""

from __future__ import annotations


class Lasting:
    """Since when the same pod stands out, and when something was done about one.

    Args:
        seconds: for so long, without a break, a pod has to stand out.
        cool_down_seconds: between two that something is done about.

    Attributes:
        since: when the pod that stands out began to.
    """

    def __init__(self, seconds: float, cool_down_seconds: float) -> None:
        self._seconds, self._cool_down_seconds = seconds, cool_down_seconds
        self._pod = ""
        self.since = 0.0
        self._done: float | None = None

    def is_due(self, pod: str, now: float) -> bool:
        """Whether something is to be done about the pod that stands out now; empty: none does."""
        if pod != self._pod:
            self._pod, self.since = pod, now
        if not pod or now - self.since < self._seconds:
            return False
        return self._done is None or now - self._done >= self._cool_down_seconds

    def done(self, now: float) -> None:
        """Something is done about it."""
        self._done = now

    def forget(self) -> None:
        """No pod has stood out until now."""
        self._pod = ""
