"""How long a trigger waits for a job that it cannot observe; pure code."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from elastrec.operators import settings


class Doubt(StrEnum):
    """Why the state of a job cannot be observed; also the outcome with which a trigger fires if this lasts too long."""

    LOST = "lost"
    """The cluster answers, but does not know the job."""
    SILENT = "silent"
    """The cluster knows the job's master, which does not answer."""
    UNREACHABLE = "unreachable"
    """The cluster does not answer."""

    @property
    def limit_seconds(self) -> float:
        """How long this may last."""
        if self is Doubt.LOST:
            return settings.LOST_AFTER_SECONDS
        if self is Doubt.SILENT:
            return settings.SILENT_AFTER_SECONDS
        return settings.UNREACHABLE_AFTER_SECONDS

    @property
    def words(self) -> str:
        """The doubt as part of a sentence."""
        words = {
            Doubt.LOST: "the cluster does not know the job",
            Doubt.SILENT: "its master does not answer",
            Doubt.UNREACHABLE: "the cluster does not answer",
        }
        return words[self]


@dataclass
class Patience:
    """Measures how long a job has not been observed, and decides when to log that and when to end the wait.

    The time of one kind of doubt is measured from its first observation. Different kinds may alternate; together they
    last at most as long as the longest of the limits.
    """

    every_seconds: float
    _doubt: Doubt | None = field(default=None, init=False)
    _doubt_since: float = field(default=0.0, init=False)
    _since: float = field(default=0.0, init=False)
    _next_line: float = field(default=0.0, init=False)
    _is_logged: bool = field(default=False, init=False)

    def add(self, doubt: Doubt, now: float) -> bool:
        """Counts a failed observation at the time `now` (seconds, monotonic); returns whether to give up."""
        if self._doubt is None:
            self._since = now
        if doubt is not self._doubt:
            self._doubt, self._doubt_since, self._next_line = doubt, now, now + self.every_seconds
        longest = max(kind.limit_seconds for kind in Doubt)
        return now - self._doubt_since >= doubt.limit_seconds or now - self._since >= longest

    def line(self, reason: str, now: float) -> str:
        """The log line about the last doubt; empty if no line is due."""
        if self._doubt is None or now < self._next_line:
            return ""
        self._next_line, self._is_logged = now + self.every_seconds, True
        waited = now - self._doubt_since
        limit = self._doubt.limit_seconds
        return f"{self._doubt.words}, for {waited:.0f} s so far; this try fails after {limit:.0f} s: {reason}"

    def reset(self, now: float) -> str:
        """Counts a successful observation; returns a log line, which is empty if no doubt was logged."""
        was_logged, self._doubt, self._is_logged = self._is_logged, None, False
        return f"the job is observed again after {now - self._since:.0f} s" if was_logged else ""
