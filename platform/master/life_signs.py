"""Which pods were heard when, how often each was told to speak, and who has been silent for too long.

Nothing of it is journalled: a restarted master has heard nobody and blames nobody. No clock and no lock in here.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from elastrec.platform.master.membership import Member
from elastrec.platform.master.pace import heartbeat_seconds, look_seconds, silence_seconds
from elastrec.platform.specs.job import FaultTolerance


@dataclass(frozen=True)
class Silence:
    """A process that counts as dead; without incarnation it has never registered."""

    pod: str
    incarnation: str
    seconds: float


class LifeSigns:
    """Of one job; all times are seconds on one clock of the caller's."""

    def __init__(self, faults: FaultTolerance) -> None:
        self._faults = faults
        self._last_seen: dict[str, float] = {}
        self._told_seconds: dict[str, float] = {}
        self._up_since: dict[str, float] = {}
        self._looked = -math.inf

    def heard(self, pod: str, now: float) -> None:
        self._last_seen[pod] = now

    def forget_all(self) -> None:
        """Nobody could be heard for a while: everybody's time begins anew."""
        self._last_seen.clear()
        self._up_since.clear()

    def pace(self, pod: str, pods: int) -> float:
        """How often the pod, of so many, shall beat; what it is told here it is judged by."""
        seconds = self._told_seconds[pod] = heartbeat_seconds(self._faults, pods)
        return seconds

    def is_look_due(self, pods: int, now: float) -> bool:
        """Whether it is time for `silent` with so many pods; told once."""
        if now - self._looked < look_seconds(pods):
            return False
        self._looked = now
        return True

    def silent(self, members: Mapping[str, Member], up: Collection[str], now: float) -> list[Silence]:
        """Members that have said nothing for longer than they may; forgets who is none any more.

        Args:
            up: pods that run, as the cluster says; while one waits for room nothing is expected of it.
        """
        self._last_seen = {pod: seen for pod, seen in self._last_seen.items() if pod in members}
        self._told_seconds = {pod: told for pod, told in self._told_seconds.items() if pod in members}
        self._up_since = {pod: since for pod, since in self._up_since.items() if pod in members and pod in up}
        found = []
        for name, member in members.items():
            if not member.is_registered:
                # It is not expected to speak before; the time that it took to come up is no silence.
                self._last_seen[name] = now
                seconds = now - self._up_since.setdefault(name, now) if name in up else 0.0
                if seconds > self._faults.start_timeout:
                    found.append(Silence(name, member.incarnation, seconds))
                continue
            seconds = now - self._last_seen.setdefault(name, now)
            # A pod does what it was told last: that it may beat faster now it does not know yet.
            told_seconds = self._told_seconds.get(name) or heartbeat_seconds(self._faults, len(members))
            if seconds > silence_seconds(self._faults, told_seconds):
                found.append(Silence(name, member.incarnation, seconds))
        return found
