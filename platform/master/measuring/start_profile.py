"""Start times of pods, from the request until they work, which are the cost of adding a pod on this cluster. Pure.

A worker works from its first step on, a server from its registration on. The first pods of a job also wait for each
other, so they count only until a pod was added to the running job.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from typing import TYPE_CHECKING

import msgspec

from elastrec.platform.history import metric_names as names
from elastrec.platform.specs.metrics import Phase, Role

if TYPE_CHECKING:
    from elastrec.platform.master.machine.state import JobState

_MOST_STARTS = 256
_NAMES = {Role.WORKER: names.WORKER_START_SECONDS, Role.PARAMETER_SERVER: names.SERVER_START_SECONDS}


class Start(msgspec.Struct, frozen=True):
    """The start of one pod; `added`: whether the job was training."""

    role: Role
    added: bool
    seconds: float


class StartProfile:
    """One job's starts. Not thread-safe: its owner locks.

    Attributes:
        revision: the last observed revision of the membership.
    """

    def __init__(self) -> None:
        self._asked: dict[str, tuple[Role, float, bool]] = {}
        self._first: dict[Role, list[float]] = {}
        self._added: dict[Role, list[float]] = {}
        self.revision = -1

    def asked(self, state: JobState, time: float) -> None:
        """Called after an event; adds the pods that became members."""
        membership = state.membership
        if membership.revision == self.revision:
            return
        self.revision = membership.revision
        for member in membership.members.values():
            if member.created == state.time and not member.uid:
                self._asked.setdefault(member.name, (member.role, time, state.phase is Phase.TRAINING))
        self._asked = {pod: start for pod, start in self._asked.items() if pod in membership.members}

    def works(self, pod: str, time: float) -> None:
        """Called when the pod works; repeated calls have no effect."""
        if (start := self._asked.pop(pod, None)) is None:
            return
        role, since, added = start
        starts = (self._added if added else self._first).setdefault(role, [])
        starts.append(max(0.0, time - since))
        del starts[:-_MOST_STARTS]

    def starts(self) -> list[Start]:
        """All completed starts that count, for `recall`."""
        return [
            Start(role, added, start)
            for added, profile in ((False, self._first), (True, self._added))
            for role, starts in profile.items()
            for start in starts
        ]

    def recall(self, starts: Iterable[Start]) -> None:
        """Goes on where the profile of a master before this one ended."""
        for start in starts:
            (self._added if start.added else self._first).setdefault(start.role, []).append(start.seconds)

    def seconds(self) -> dict[Role, float]:
        """Medians by role; absent if no pod of the role has started yet."""
        starts = {role: self._added.get(role) or self._first.get(role) for role in _NAMES}
        return {role: statistics.median(seconds) for role, seconds in starts.items() if seconds}

    def medians(self) -> dict[str, float]:
        """The same by metric name."""
        return {_NAMES[role]: seconds for role, seconds in self.seconds().items()}
