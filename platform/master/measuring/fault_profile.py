"""The cost of each fault of a job, measured from the job's events. Pure.

Each second of a pause belongs to one fault: while the job recovers, to the newest fault from which it recovers; while
it has no worker, to the worker that was lost last. So the pauses of rollbacks and lost servers add up to the time in
`recovering`, and the rows that rollbacks discard add up to the repeated samples.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from elastrec.platform.master.machine.effects import Decided
from elastrec.platform.specs.metrics import FaultCost, Phase, Role

if TYPE_CHECKING:
    from elastrec.platform.master.machine.effects import Effect
    from elastrec.platform.master.machine.state import JobState
    from elastrec.platform.master.pods.membership import Member

FAULT_ENDED = "fault_ended"
"""The decision under which a cost is logged: with the number of the fault, which its own line has, too."""
_NOT_BEGUN = (Phase.PENDING, Phase.STARTING)


class OpenFault(msgspec.Struct, kw_only=True):
    """A fault that is not over.

    Attributes:
        pod: the successor whose registration it waits for; empty: a rollback, which is over when the job has recovered.
        role: of the lost pod; None: a rollback.
        rolls_back: a rollback follows from it, which has the pause and the rows of both.
        is_pause_known: false where the job had not begun to train: how much longer its start takes is not known.
    """

    number: int
    pod: str = ""
    role: Role | None = None
    rolls_back: bool = False
    is_pause_known: bool = True
    paused_seconds: float = 0.0
    core_seconds: float = 0.0
    byte_seconds: float = 0.0
    repeated_rows: int = 0
    repeated_seconds: float = 0.0
    vacant_seconds: float = 0.0

    def cost(self, *, is_over: bool) -> FaultCost:
        """Its figures up to now."""
        has_pause = self.is_pause_known and not self.rolls_back
        return FaultCost(
            paused_seconds=self.paused_seconds if has_pause else None,
            core_seconds=self.core_seconds if has_pause else None,
            byte_seconds=self.byte_seconds if has_pause else None,
            repeated_rows=None if self.rolls_back else self.repeated_rows,
            repeated_seconds=None if self.rolls_back else self.repeated_seconds,
            vacant_seconds=self.vacant_seconds if self.pod else None,
            is_over=is_over,
        )


class FaultProfile(msgspec.Struct, kw_only=True):
    """The faults of one job.

    Attributes:
        count: number of faults so far, which is the number of the last one.
        open: faults that are not over, the oldest first.
    """

    count: int = 0
    open: list[OpenFault] = []

    def pod_lost(self, state: JobState, lost: Member, successor: Member, *, rolls_back: bool) -> int:
        """A pod was lost, and another one is to take its place; returns the fault's number.

        Args:
            rolls_back: `rolled_back` follows in the same event.
        """
        fault = self._begin(state)
        fault.pod, fault.role, fault.rolls_back = successor.name, lost.role, rolls_back
        return fault.number

    def rolled_back(self, state: JobState, repeated_rows: int, repeated_seconds: float) -> int:
        """The job rolls back to a record; returns the fault's number.

        Args:
            repeated_rows, repeated_seconds: discarded training (see FaultCost).
        """
        fault = self._begin(state)
        fault.repeated_rows, fault.repeated_seconds = repeated_rows, repeated_seconds
        return fault.number

    def _begin(self, state: JobState) -> OpenFault:
        self.count += 1
        fault = OpenFault(number=self.count, is_pause_known=state.phase not in _NOT_BEGUN)
        self.open.append(fault)
        return fault

    def pass_time(self, state: JobState, seconds: float) -> None:
        """Counts the time since the last event; `state` is that before the next one."""
        if not self.open or seconds <= 0 or state.phase.is_final:
            return
        for fault in self.open:
            if fault.pod and not _is_registered(state, fault.pod):
                fault.vacant_seconds += seconds
        if (cause := self._pausing(state)) is not None:
            members = [member for member in state.membership.members.values() if member.is_registered]
            cause.paused_seconds += seconds
            cause.core_seconds += seconds * sum(member.cores for member in members)
            cause.byte_seconds += seconds * sum(member.memory_bytes for member in members)

    def _pausing(self, state: JobState) -> OpenFault | None:
        """The fault because of which training pauses; None if training does not pause, or pauses for another reason."""
        if state.phase is Phase.RECOVERING:
            awaited = state.ownership.servers
            causes = [fault for fault in self.open if fault.role is None or fault.pod in awaited]
        elif state.phase in (Phase.TRAINING, Phase.EVALUATING) and not state.saves.is_paused:
            causes = [fault for fault in self.open if fault.role is Role.WORKER]
            if any(worker.is_registered for worker in state.membership.workers()):
                return None
        else:
            return None
        return causes[-1] if causes else None

    def end(self, state: JobState, effects: list[Effect]) -> None:
        """Logs the costs of faults that are over; called after every event."""
        for fault in [fault for fault in self.open if self._is_over(state, fault)]:
            self.open.remove(fault)
            cost = msgspec.to_builtins(fault.cost(is_over=True))
            effects.append(Decided(decision=FAULT_ENDED, inputs={"fault": fault.number, **cost}))

    def _is_over(self, state: JobState, fault: OpenFault) -> bool:
        if state.phase.is_final:
            return True
        if fault.pod:
            return fault.pod not in state.membership.members or _is_registered(state, fault.pod)
        newer = any(other.role is None and other.number > fault.number for other in self.open)
        return newer or state.phase is not Phase.RECOVERING

    def costs_at(self, state: JobState, time: float) -> dict[int, FaultCost]:
        """Costs of the open faults at `time`, if there is no event until then, by their numbers."""
        copy = FaultProfile(open=[msgspec.structs.replace(fault) for fault in self.open])
        copy.pass_time(state, time - state.time)
        return {fault.number: fault.cost(is_over=False) for fault in copy.open}


def _is_registered(state: JobState, pod: str) -> bool:
    member = state.membership.members.get(pod)
    return member is not None and member.is_registered
