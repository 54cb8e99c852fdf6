"""The state of one job as a pure state machine: `handle(event) -> effects`. No clock, no socket, no file.

A state is a plain value: equal events give equal states, a state can be encoded and decoded without loss, and the
journal of events is the job's history.
"""

from __future__ import annotations

import math

import msgspec

from elastrec.platform.master.machine import handlers, migration, notice, rollback, saving, stages, stalls
from elastrec.platform.master.machine.effects import (
    Decided,
    Effect,
    RecordAttempt,
)
from elastrec.platform.master.machine.events import Event, PodReported
from elastrec.platform.master.machine.migration import Migration
from elastrec.platform.master.machine.ownership import Ownership
from elastrec.platform.master.machine.phases import Phases
from elastrec.platform.master.machine.plan import JobPlan
from elastrec.platform.master.machine.recovery import Recovery
from elastrec.platform.master.machine.saves import WRITING, Saves
from elastrec.platform.master.machine.shards import Ended, ShardQueue
from elastrec.platform.master.measuring.fault_profile import FaultProfile
from elastrec.platform.master.measuring.sketches import merge_sketches
from elastrec.platform.master.measuring.time_profile import TimeProfile
from elastrec.platform.master.pods import losses, more_memory, orders, shape, succession
from elastrec.platform.master.pods.membership import Member, Membership, MemberStage
from elastrec.platform.master.pods.requests import RequestedShape
from elastrec.platform.specs.metrics import Phase, Role
from elastrec.platform.specs.shape import Shape
from elastrec.platform.specs.splits import EVALUATION_STREAM, TRAINING_STREAM, Positions, Split
from elastrec.platform.transport.messages.directive import Directive, Mode, PodOrders, RoutingTable, WorkerProcess
from elastrec.platform.transport.messages.job import ShardProgress
from elastrec.platform.transport.messages.observer import WorkerOrder

_MODES = {Phase.TRAINING: Mode.TRAIN, Phase.SAVING: Mode.PAUSE, Phase.EVALUATING: Mode.EVALUATE}
KEPT_PREDICTION_ROWS = 10_000
"""Evaluation rows whose predictions are kept for the check of the exported model."""


class JobState(msgspec.Struct, kw_only=True, dict=True):
    """One job.

    Attributes:
        wanted_shape: a migration changes the servers to this shape.
        shape_requests: all open requests, and the latest that have ended, the oldest first.
        slow_moves: number of workers and servers that were moved because they were slow; `slow_moved`: when the last
            one of each role was, on the job's clock.
        relieved: when buckets last left a hot server, on the job's clock; None: never.
        shape_version: increases whenever the wanted shape changes.
        shape_changes: the latest changes of the wanted shape, the oldest first.
        evaluation_sketch: merged over the completed evaluation shards.
        reason: why the job is in its phase, one line; `failure`: reason and traceback once it failed.
        poisoned: the split that failed the job.
        address: `host:port` of the master.
        started_from: the record with which this journal began, and the position in the data, for people; empty: none.
        samples_before: value of `training.samples` when this journal began.
        is_resumed: whether it began with a record of an earlier master.
        owner: the only observer that may stop the job; empty: any.
        relief_after: until then, hot servers keep their buckets, because moving some has failed.
        standing_orders: for every worker that joins; `due_orders`: for all workers, to be given between two steps.
        given_up: the change of pods that was undone because it made no progress, and why; empty if there was none, or
            if another change was requested or servers have changed since.
        exit_deadline: when pods that have not ended by themselves are deleted.
        time: of the last event.
        times: use of the time until then; `faults`: costs of the faults that are not over.
        earlier_seconds: time of earlier masters in `times`; None: there were some, and it is unknown.
    """

    plan: JobPlan
    phases: Phases
    saves: Saves
    recovery: Recovery
    training: ShardQueue
    evaluation: ShardQueue
    membership: Membership
    ownership: Ownership
    wanted_shape: Shape
    shape_requests: list[RequestedShape] = []
    slow_moves: int = 0
    slow_moved: dict[Role, float] = {}
    relieved: float | None = None
    shape_version: int = 0
    shape_changes: list[shape.WantedChange] = []
    evaluation_sketch: bytes = b""
    reason: str = ""
    failure: str = ""
    address: str = ""
    started_from: str = ""
    samples_before: int = 0
    is_resumed: bool = False
    owner: str = ""
    migration: Migration | None = None
    relief_after: float = 0.0
    standing_orders: PodOrders | None = None
    due_orders: list[WorkerOrder] = []
    given_up: str = ""
    poisoned: Split | None = None
    exit_deadline: float | None = None
    time: float = 0.0
    times: TimeProfile = msgspec.field(default_factory=TimeProfile)
    faults: FaultProfile = msgspec.field(default_factory=FaultProfile)
    earlier_seconds: float | None = 0.0

    @staticmethod
    def new(plan: JobPlan) -> JobState:
        """The state before the first event."""
        state = JobState(
            plan=plan,
            phases=Phases(),
            saves=Saves(record_template=plan.record_template),
            recovery=Recovery(
                start_records=[plan.start_record, *plan.older_start_records],
                uri=plan.start_record,
                begins_at_positions=plan.start_positions is not None,
            ),
            training=ShardQueue(
                stream=TRAINING_STREAM, kind="train", splits=plan.training, lease_seconds=plan.lease_seconds
            ),
            evaluation=ShardQueue(
                stream=EVALUATION_STREAM,
                kind="evaluate",
                splits=plan.evaluation,
                lease_seconds=plan.lease_seconds,
                keep_rows=KEPT_PREDICTION_ROWS,
            ),
            membership=Membership(job_id=plan.job_id),
            ownership=Ownership(),
            wanted_shape=plan.shape,
            started_from=f"the weights of {plan.start_record}" if plan.start_record else "",
        )
        if plan.start_positions is not None:
            state.begin_at(plan.start_record, plan.start_positions)
        return state

    def begin_at(self, record: str, positions: Positions, samples: int = 0) -> None:
        """Sets the positions before the first event; `samples` of earlier masters count if they are more."""
        self.training.restore(positions.of(self.training.stream))
        covered = self.training.covered_rows()
        self.training.samples = self.samples_before = max(samples, covered)
        self.recovery.saved_rows = covered
        self.started_from = f"{record} at {covered:,} of {self.plan.training.total_rows:,} samples"

    @property
    def samples_of_start(self) -> int:
        """Samples of another job, in the model of its record at whose positions this one began; each counted once."""
        if self.plan.start_positions is None:
            return 0
        positions = self.plan.start_positions.of(self.training.stream)
        return self.plan.training.covered_rows(positions) if positions is not None else 0

    def begin_after(self, times: dict[str, float] | None) -> None:
        """Counts the time of earlier masters, by part, before the first event; None: it is unknown."""
        self.earlier_seconds = None if times is None else sum(times.values())
        for part, seconds in (times or {}).items():
            self.times.add(part, seconds)

    @property
    def phase(self) -> Phase:
        return self.phases.phase

    @property
    def has_wanted_servers(self) -> bool:
        """Whether the wanted number of servers own buckets, and none of them is to be replaced."""
        count = self.wanted_shape[Role.PARAMETER_SERVER].count
        return len(self.ownership.servers) == count and not any(server.outgoing for server in self.owners())

    def handle(self, event: Event) -> list[Effect]:
        """Handles one event; returns its effects."""
        passed_seconds = event.time - self.time
        self.times.pass_time(self, passed_seconds)
        self.faults.pass_time(self, passed_seconds)
        self.time = max(self.time, event.time)
        stalls.pass_time(self, max(0.0, passed_seconds))
        # Cached from the previous event, but not stored in snapshots, because it follows from the rest of the state.
        before = self.__dict__.get("directive_basis") or self._directives_depend_on()
        effects: list[Effect] = []
        handlers.HANDLERS[type(event)](self, event, effects)
        while migration.step(self, effects) or saving.step(self, self.time, effects):
            pass
        shape.step(self, effects)
        stages.discard_abandoned(self, effects)
        self.faults.end(self, effects)
        basis = self._directives_depend_on()
        if basis != before:
            self.phases.version += 1
            self._settle_servers()
            orders.keep_one_at_work(self, effects)
            basis = self._directives_depend_on()
        self.__dict__["directive_basis"] = basis
        return effects

    def _directives_depend_on(self) -> tuple[object, ...]:
        """The contents of directives depend on this and the plan; if it changes, their version increases."""
        phases, saves = self.phases, self.saves
        return (
            phases.term,
            phases.phase,
            phases.generation,
            self.ownership.epoch,
            self.recovery.number,
            self.membership.edition,
            saves.content() if saves.under_way else None,
            saves.held_since is not None,
            self.migration.content() if self.migration is not None else None,
        )

    def _settle_servers(self) -> None:
        """Sets the stage of servers: those that own buckets serve, others stand by."""
        for server in self.membership.servers():
            if server.is_registered and not server.retiring:
                is_owner = server.name in self.ownership.servers
                self.membership.move(server, MemberStage.SERVING if is_owner else MemberStage.STANDBY)

    @property
    def queues(self) -> tuple[ShardQueue, ...]:
        """Of all streams."""
        return self.training, self.evaluation

    def queue(self, stream: str) -> ShardQueue:
        """Raises KeyError when the job has no such stream."""
        for queue in self.queues:
            if queue.stream == stream:
                return queue
        raise KeyError(stream)

    def queue_of_kind(self, kind: str) -> ShardQueue:
        """The queue for a kind of shards."""
        return self.training if kind == "train" else self.evaluation

    def positions(self) -> Positions:
        """The positions of the training, as stored in a checkpoint record."""
        return Positions({self.training.stream: self.training.positions()})

    def owners(self) -> list[Member]:
        """Servers that own buckets, in the order of the routing table."""
        members = self.membership.members
        return [members[name] for name in self.ownership.servers if name in members]

    def routing(self) -> RoutingTable:
        return self.ownership.table({server.name: server.address for server in self.owners()})

    def directive(self, pod: str, incarnation: str) -> Directive:
        """The directive of a pod's process; a process without a place, or a superseded one, is ordered to exit."""
        phases = self.phases
        member = self.membership.members.get(pod)
        mode = _MODES.get(phases.phase, Mode.IDLE)
        if member is None or member.retiring or phases.phase.is_final or member.is_held_by_another(incarnation):
            mode = Mode.EXIT
        elif self.saves.is_paused:
            mode = Mode.PAUSE
        save = restore = take = None
        moving = ""
        members: list[WorkerProcess] = []
        if member is not None and member.role is Role.PARAMETER_SERVER and mode is not Mode.EXIT:
            # Only servers need the list, to refuse other processes; for a thousand workers, it would be most of each
            # answer.
            members = self.training_members()
            ordered = self.recovery.servers.get(pod)
            restore = ordered.order if ordered is not None else None
            save = self.saves.order_for(pod) if pod in self.ownership.servers else None
            if self.migration is not None:
                moving, take = self.migration.order_id, self.migration.order_of(pod, self._addresses())
        return Directive(
            term=phases.term,
            version=phases.version,
            mode=mode,
            generation=phases.generation,
            routing=self.routing(),
            members=members,
            trains_alone=self.membership.has_one_worker_at_work(),
            save=save,
            restore=restore,
            moving=moving,
            take=take,
        )

    def _addresses(self) -> dict[str, str]:
        return {server.name: server.address for server in self.membership.servers()}

    def orders_of(self, pod: str, incarnation: str) -> PodOrders | None:
        """Orders for a pod's process that differ from those of other pods."""
        member = self.membership.members.get(pod)
        return None if member is None or member.is_held_by_another(incarnation) else member.orders

    def training_members(self) -> list[WorkerProcess]:
        """Workers whose pushes count; in bsp and ssp only workers that have shards or may still get some.

        A retiring worker counts until it has ended, because it finishes its round and leaves by itself.
        """
        return [
            WorkerProcess(worker.name, worker.incarnation)
            for worker in self.membership.workers()
            if worker.is_registered and not (self.plan.is_synchronous and worker.starved)
        ]

    def changes_state(self, report: PodReported) -> bool:
        """Whether a heartbeat changes the state, so that it must be journalled."""
        member = self.membership.members.get(report.pod)
        if member is None or member.incarnation != report.incarnation:
            return False
        if report.reached_version > member.reached_version or report.orders_version > member.orders_version:
            return True
        if orders.lets_go(member, report.let_go_version):
            return True
        if member.role is Role.WORKER:
            return report.generation == self.phases.generation and any(
                self.queue(p.stream).changes_state(report.pod, p) for p in report.progress
            )
        return (
            self.recovery.would_restore(report.pod, report.restored_order_id)
            or stages.changes_state(self, member, report)
            or (report.damaged is not None and rollback.is_restoring(self, member, report.damaged.order_id))
            or self.saves.would_freeze(report.pod, report.frozen_order_id)
            or self.saves.would_copy(report.pod, report.in_memory_order_id)
            or self.saves.would_take(report.pod, report.saved)
            or migration.would_take(self, report)
            or stalls.is_news(self, report)
            or notice.is_new(member, report)
        )

    def is_swept(self) -> bool:
        """Whether the job has ended and none of its pods runs any more."""
        return self.phase.is_final and not self.membership.members and not self.membership.leaving

    def seconds_to_pause(self, now: float) -> float:
        """Seconds until workers pause for a save, if known; 0 while they pause."""
        saves = self.saves
        if saves.is_paused or saves.is_asked:
            return 0.0
        if self.phase is not Phase.TRAINING or saves.next_save is None:
            return math.inf
        return max(0.0, saves.next_save - now)

    def next_deadline(self) -> float | None:
        """When `Ticked` is due, on the job's clock; None if there is no deadline."""
        phases = self.phases
        if phases.phase.is_final:
            return self.exit_deadline
        deadlines: list[float] = []
        for part in (shape, stages, migration, more_memory, notice, stalls, succession):
            if (late := part.deadline(self)) is not None:
                deadlines.append(late)
        if not self.saves.is_paused and phases.phase in (Phase.TRAINING, Phase.EVALUATING, Phase.SAVING):
            running = {Phase.TRAINING: self.training, Phase.EVALUATING: self.evaluation}.get(phases.phase)
            deadlines.extend(running.deadlines.values() if running else ())
            if self.saves.next_save is not None:
                deadlines.append(self.saves.next_save)
        return min(deadlines, default=None)

    def ledger(self, ended: list[Ended], effects: list[Effect]) -> None:
        """Records attempts that ended."""
        generation = self.phases.generation
        effects.extend(RecordAttempt(generation=generation, time=self.time, ended=attempt) for attempt in ended)

    def fail(self, reason: str, effects: list[Effect], traceback: str = "") -> None:
        """The job ends here."""
        if not self.phase.is_final:
            self.failure = f"{reason}\n\n{traceback}".strip() if traceback else reason
            effects.append(Decided(decision="job_failed", inputs={"reason": reason}))
            self.finish(Phase.FAILED, reason, effects)

    def finish(self, phase: Phase, reason: str, effects: list[Effect]) -> None:
        """Enters a final phase; pods are ordered to exit, and deleted if they do not exit or do not answer."""
        self.phases.move(phase, self.time)
        under_way, self.saves.under_way = list(self.saves.under_way.values()), {}
        for save in under_way:
            if save.stage == WRITING:
                stages.abandon(self, save)
        self.reason = reason
        self.exit_deadline = self.time + self.plan.exit_seconds
        for member in [m for m in self.membership.members.values() if not m.is_registered]:
            losses.dismiss(self, member, effects, delete=True)

    def take_progress(self, pod: str, generation: int, progress: list[ShardProgress], effects: list[Effect]) -> None:
        """Counts what a worker has trained or evaluated; reports of an older generation are void."""
        if generation != self.phases.generation or self.phase.is_final:
            return
        for report in progress:
            queue = self.queue(report.stream)
            accepted = queue.advance(pod, report, self.time)
            # A lost evaluation shard starts again, so only a completed one is progress.
            if accepted.rows and (queue.kind == "train" or accepted.completed is not None):
                self.membership.made_progress(Role.WORKER)
                self.membership.members[pod].oom_bytes = 0
            if accepted.completed is None:
                continue
            self.ledger([accepted.completed], effects)
            if queue.kind == "evaluate":
                # No rollback undoes it, so it is progress of the servers, too.
                self.membership.made_progress(Role.PARAMETER_SERVER)
                self.evaluation_sketch = merge_sketches(self.evaluation_sketch, report.sketch)
        self._limit_bad_rows(effects)

    def _limit_bad_rows(self, effects: list[Effect]) -> None:
        most, found = self.plan.most_bad_rows, sum(queue.bad_rows for queue in self.queues)
        if most is not None and found > most:
            self.fail(
                f"{found} bad rows in all workers, data.bad_rows.at_most allows {most}; each worker's log names those "
                "that it skipped: fix them, or allow more",
                effects,
            )
