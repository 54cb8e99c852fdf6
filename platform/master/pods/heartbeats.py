"""The times of heartbeats, the intervals of pods, and pods that have been silent for too long.

This is not journalled: after a restart, the time of every pod starts again. Uses no clock and no lock.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from elastrec.platform.master.pods.membership import Member
from elastrec.platform.master.pods.pace import heartbeat_seconds, hurried_seconds, look_seconds, silence_seconds
from elastrec.platform.specs.job import FaultTolerance


@dataclass(frozen=True)
class Silence:
    """A process that counts as dead; without an incarnation, it has never registered."""

    pod: str
    incarnation: str
    seconds: float


class Heartbeats:
    """The heartbeats of one job; all times are seconds on a clock of the caller."""

    def __init__(self, faults: FaultTolerance) -> None:
        self._faults = faults
        self._last_seen: dict[str, float] = {}
        self._pace_seconds: dict[str, float] = {}
        self._up_since: dict[str, float] = {}
        self._looked = -math.inf
        self._pace = (-1, 0.0)

    def record(self, pod: str, now: float) -> None:
        """A heartbeat of a member has arrived."""
        self._last_seen[pod] = now

    def forget_all(self) -> None:
        """No heartbeat could be received for a while, so the time of every pod starts again."""
        self._last_seen.clear()
        self._up_since.clear()

    def pace(self, pod: str, pods: int, seconds_to_pause: float = math.inf) -> float:
        """The seconds between two heartbeats of the pod, for a number of pods; `silent` uses the last answer.

        Args:
            seconds_to_pause: until workers pause for a save; 0: they pause. From shortly before, all pods send
                heartbeats more often, so that pods do not wait half an interval for each other.
        """
        if self._pace[0] != pods:
            self._pace = (pods, heartbeat_seconds(self._faults, pods))
        seconds = self._pace[1]
        if seconds_to_pause <= 2 * seconds:
            seconds = min(seconds, hurried_seconds(pods))
        self._pace_seconds[pod] = seconds
        return seconds

    def is_look_due(self, pods: int, now: float) -> bool:
        """Whether `silent` is due, for a number of pods; True once per interval."""
        if now - self._looked < look_seconds(pods):
            return False
        self._looked = now
        return True

    def silent(
        self, members: Mapping[str, Member], running: Callable[[], Collection[str]], now: float
    ) -> list[Silence]:
        """Members whose heartbeat is overdue; removes pods that are no longer members.

        Args:
            running: pods that run, according to the cluster; a pod that waits for room does not count as silent.
        """
        for times in (self._last_seen, self._pace_seconds):
            for gone in times.keys() - members.keys():
                del times[gone]
        for new in members.keys() - self._last_seen.keys():
            self._last_seen[new] = now
        starting = [member for member in members.values() if not member.incarnation]
        silences = self._not_started(starting, running() if starting else (), now)
        # If all pods send heartbeats, single pods need not be checked.
        if now - min(self._last_seen.values(), default=now) <= silence_seconds(self._faults, 0.0):
            return silences
        for name, member in members.items():
            seconds = now - self._last_seen[name]
            # A pod uses the last interval that it received; it may not know a shorter one yet.
            pace_seconds = self._pace_seconds.get(name) or heartbeat_seconds(self._faults, len(members))
            if seconds > silence_seconds(self._faults, pace_seconds):
                silences.append(Silence(name, member.incarnation, seconds))
        return silences

    def _not_started(self, starting: list[Member], up: Collection[str], now: float) -> list[Silence]:
        self._up_since = {m.name: self._up_since.get(m.name, now) for m in starting if m.name in up}
        silences = []
        for member in starting:
            # No heartbeat is expected before it runs.
            self._last_seen[member.name] = now
            seconds = now - self._up_since.get(member.name, now)
            if seconds > self._faults.start_timeout:
                silences.append(Silence(member.name, member.incarnation, seconds))
        return silences
