"""Start times of pods, from the request until they work, and what they compute until then: the cost of a new pod. Pure.

A worker works from its first step on, a server from its registration on. The first pods of a job also wait for each
other, so they count only until a pod was added to the running job. The core-seconds of a start are those that the first
heartbeat of the working pod reports; for a worker they include its first steps.
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
_SECONDS = {Role.WORKER: names.WORKER_START_SECONDS, Role.PARAMETER_SERVER: names.SERVER_START_SECONDS}
_CORE_SECONDS = {
    Role.WORKER: names.WORKER_START_CORE_SECONDS, Role.PARAMETER_SERVER: names.SERVER_START_CORE_SECONDS,
}  # fmt: skip


class Start(msgspec.Struct):
    """The start of one pod.

    Attributes:
        added: whether the job was training.
        core_seconds: None until the pod has reported them.
    """

    role: Role
    added: bool
    seconds: float
    core_seconds: float | None = None


class StartProfile:
    """One job's starts. Not thread-safe: its owner locks.

    Attributes:
        revision: the last observed revision of the membership.
    """

    def __init__(self) -> None:
        self._asked: dict[str, tuple[Role, float, bool]] = {}
        self._known: dict[tuple[Role, bool], list[Start]] = {}
        self._unreported: dict[str, Start] = {}
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
        self._unreported = {pod: start for pod, start in self._unreported.items() if pod in membership.members}

    def works(self, pod: str, time: float) -> None:
        """Called when the pod works; repeated calls have no effect."""
        if (start := self._asked.pop(pod, None)) is None:
            return
        role, since, added = start
        self._unreported[pod] = ended = Start(role, added, max(0.0, time - since))
        self._keep(ended)

    def reported(self, pod: str, core_seconds: float) -> None:
        """Called for each heartbeat of the pod; only the first one of a working pod counts."""
        if (start := self._unreported.pop(pod, None)) is not None:
            start.core_seconds = core_seconds

    def _keep(self, start: Start) -> None:
        starts = self._known.setdefault((start.role, start.added), [])
        starts.append(start)
        del starts[:-_MOST_STARTS]

    def starts(self) -> list[Start]:
        """All completed starts that count, for `recall`."""
        return [start for starts in self._known.values() for start in starts]

    def recall(self, starts: Iterable[Start]) -> None:
        """Goes on where the profile of a master before this one ended."""
        for start in starts:
            self._keep(start)

    def _counted(self) -> dict[Role, list[Start]]:
        """The starts that count, by role; absent if no pod of the role has started yet."""
        starts = {role: self._known.get((role, True)) or self._known.get((role, False)) for role in _SECONDS}
        return {role: of_role for role, of_role in starts.items() if of_role}

    def seconds(self) -> dict[Role, float]:
        """Medians by role; absent if no pod of the role has started yet."""
        counted = self._counted()
        return {role: statistics.median(start.seconds for start in of_role) for role, of_role in counted.items()}

    def medians(self) -> dict[str, float]:
        """Seconds and core-seconds by metric name; absent if no pod has reported them yet."""
        found = {_SECONDS[role]: seconds for role, seconds in self.seconds().items()}
        for role, of_role in self._counted().items():
            reported = [start.core_seconds for start in of_role if start.core_seconds is not None]
            if reported:
                found[_CORE_SECONDS[role]] = statistics.median(reported)
        return found
