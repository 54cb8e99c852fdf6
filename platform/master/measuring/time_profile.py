"""The use of a job's time, measured from its events: every second belongs to exactly one part. Pure.

The state of a job changes only at events, so the time between two events belongs to the activity of the job between
them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from elastrec.platform.specs.metrics import Phase

if TYPE_CHECKING:
    from elastrec.platform.master.machine.state import JobState

PENDING, STARTING, TRAINING, WAITING = "pending", "starting", "training", "waiting_for_data"
CHECKPOINTING, RECOVERING, REDOING = "checkpointing", "recovering", "redoing_lost_work"
EVALUATING, IDLE, WITHOUT_MASTER = "evaluating", "idle", "without_master"
PARTS = {
    PENDING: "no pod had registered yet: pods waited for room, were scheduled and started",
    STARTING: "servers and workers came up",
    TRAINING: "workers trained rows that count",
    WAITING: "workers waited for rows while they had shards",
    CHECKPOINTING: "training paused for a record",
    RECOVERING: "servers were replaced and went back to a record",
    REDOING: "training that a rollback threw away, so that it had to be done again",
    EVALUATING: "workers scored the evaluation rows",
    IDLE: "workers had no shards, or there were none",
    WITHOUT_MASTER: "the master's process was gone or suspended",
}
"""The parts, and what they mean. Where workers differ, a part is the mean over the workers that were up."""

SUSPENSION_SECONDS = 2.0
"""A master notices that its process was suspended if it was for longer than this."""

_BY_PHASE = {
    Phase.PENDING: PENDING,
    Phase.STARTING: STARTING,
    Phase.RECOVERING: RECOVERING,
    Phase.SAVING: CHECKPOINTING,
    Phase.EVALUATING: EVALUATING,
}


class TimeProfile(msgspec.Struct, kw_only=True):
    """Seconds by part.

    Attributes:
        unmeasured: training seconds for which the share of waiting is not known yet.
        unsaved_training, unsaved_waiting: seconds since the last record, which a rollback turns into lost work.
        workers: number of running workers when the directives had this `version`.
        long_pause: what was counted between the last two events that were so far apart that the master may have been
            suspended.
    """

    seconds: dict[str, float] = {}
    unmeasured: float = 0.0
    unsaved_training: float = 0.0
    unsaved_waiting: float = 0.0
    workers: int = 0
    version: int = -1
    long_pause: dict[str, float] = {}

    @property
    def total(self) -> float:
        return sum(self.seconds.values())

    @property
    def goodput(self) -> float:
        """Share of the time in which rows were trained that are in the model; 0 to 1."""
        return self.seconds.get(TRAINING, 0.0) / self.total if self.total else 0.0

    def add(self, part: str, seconds: float) -> None:
        if seconds > 0:
            self.seconds[part] = self.seconds.get(part, 0.0) + seconds

    def pass_time(self, state: JobState, seconds: float) -> None:
        """Counts the time since the last event; `state` is that before the next one."""
        if seconds <= 0 or state.phase.is_final:
            return
        parts = self._parts(state, seconds)
        for part, counted in parts.items():
            self.add(part, counted)
        self.unmeasured += parts.get(TRAINING, 0.0)
        self.unsaved_training += parts.get(TRAINING, 0.0)
        if seconds >= SUSPENSION_SECONDS:
            # The pauses of faults add up to the time in which the job recovered, so it stays there.
            self.long_pause = {} if state.phase is Phase.RECOVERING else parts

    def _parts(self, state: JobState, seconds: float) -> dict[str, float]:
        if state.phase is not Phase.TRAINING or state.saves.is_paused:
            return {_BY_PHASE.get(state.phase, CHECKPOINTING): seconds}
        if self.version != state.phases.version:
            self.version = state.phases.version
            self.workers = sum(worker.is_registered for worker in state.membership.workers())
        busy = min(len(state.training.held), self.workers) / self.workers if self.workers else 0.0
        return {TRAINING: busy * seconds, IDLE: (1.0 - busy) * seconds}

    def suspended(self, seconds: float) -> None:
        """The master was suspended for so long, and did not learn what the job did: this time is counted apart.

        Events may have been handled since it continued, so the time is that of the last long pause between two events.
        """
        share = min(1.0, seconds / total) if (total := sum(self.long_pause.values())) else 0.0
        for part, counted in self.long_pause.items():
            moved = min(share * counted, self.seconds.get(part, 0.0))
            self.seconds[part] = self.seconds.get(part, 0.0) - moved
            self.add(WITHOUT_MASTER, moved)
            if part == TRAINING:
                self.unmeasured = max(0.0, self.unmeasured - moved)
                self.unsaved_training = max(0.0, self.unsaved_training - moved)
        self.long_pause = {}

    def measure(self, waiting_share: float) -> None:
        """Takes the share of their time since the last measurement in which workers waited for rows; 0 to 1."""
        share = min(1.0, max(0.0, waiting_share))
        waited = share * min(self.unmeasured, self.seconds.get(TRAINING, 0.0))
        unsaved = share * min(self.unmeasured, self.unsaved_training)
        if waited:
            self.seconds[TRAINING] -= waited
            self.add(WAITING, waited)
        self.unsaved_training -= unsaved
        self.unsaved_waiting += unsaved
        self.unmeasured = 0.0

    def saved(self, unsaved: tuple[float, float] | None = None) -> None:
        """Called when a record is complete: earlier training cannot be lost any more.

        Args:
            unsaved: of a record that was found complete later: `unsaved_training` and `unsaved_waiting` of its moment.
        """
        training, waiting = unsaved or (self.unsaved_training, self.unsaved_waiting)
        self.unsaved_training = max(0.0, self.unsaved_training - training)
        self.unsaved_waiting = max(0.0, self.unsaved_waiting - waiting)

    def rolled_back(self) -> float:
        """Called at a rollback: the training since the last record is lost. Returns its duration in seconds."""
        lost_seconds = self.unsaved_training + self.unsaved_waiting
        for part, lost in ((TRAINING, self.unsaved_training), (WAITING, self.unsaved_waiting)):
            if lost:
                self.seconds[part] = max(0.0, self.seconds[part] - lost)
                self.add(REDOING, lost)
        self.unmeasured = max(0.0, self.unmeasured - self.unsaved_training)
        self.saved()
        return lost_seconds

    def at(self, state: JobState, time: float) -> TimeProfile:
        """The profile at `time` if there is no event until then."""
        copy = msgspec.structs.replace(self, seconds=dict(self.seconds))
        copy.pass_time(state, time - state.time)
        return copy
