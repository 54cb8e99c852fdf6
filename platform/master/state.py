"""The whole truth about one job as a pure state machine: `handle(event) -> effects`. No clock, no socket, no file.

A state is a plain value: equal events give equal states, a state survives encoding, and the journal of its events is
the job's history.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from elastrec.platform.master import leasing, losses, saving, shape, stages
from elastrec.platform.master.effects import (
    Decided,
    Effect,
    RecordAttempt,
)
from elastrec.platform.master.events import (
    Begun,
    Event,
    Measured,
    OwnerChanged,
    PodDeleted,
    PodFailed,
    PodGone,
    PodRefused,
    PodRegistered,
    PodReported,
    PodResized,
    PodSeen,
    PodSilent,
    RecordCommitted,
    RecordFailed,
    ResizeRefused,
    Restarted,
    SaveAsked,
    ShapeAsked,
    ShapeTakenBack,
    ShardsAsked,
    StopAsked,
    TermBegun,
    Ticked,
)
from elastrec.platform.master.membership import Membership
from elastrec.platform.master.phases import COMMITTING, PAUSING, WRITING, Phases
from elastrec.platform.master.plan import JobPlan
from elastrec.platform.master.shards import Ended, ShardQueue
from elastrec.platform.master.sketches import merge_sketches
from elastrec.platform.master.time_book import WITHOUT_MASTER, TimeBook
from elastrec.platform.specs.metrics import Phase, Role
from elastrec.platform.specs.shape import Shape
from elastrec.platform.transport.job_messages import (
    Directive,
    Mode,
    RestoreOrder,
    RoutingTable,
    SaveOrder,
    ShardProgress,
    WorkerProcess,
)

_MODES = {Phase.TRAINING: Mode.TRAIN, Phase.SAVING: Mode.PAUSE, Phase.EVALUATING: Mode.EVALUATE}
KEPT_PREDICTION_ROWS = 10_000
"""Evaluation rows whose predictions are kept for the check of the exported model."""


class JobState(msgspec.Struct, kw_only=True):
    """One job.

    Attributes:
        wanted_shape: other servers are reached at the next restore (see ShapeAsked).
        requested_shape: the last request for one.
        routing_epoch: grows with every change of the servers or their addresses.
        evaluation_sketch: merged over the completed evaluation shards.
        reason: why the job is in its phase, one line; `failure`: reason and traceback once it failed.
        poisoned: kind, first row and length of the shard that failed the job.
        address: `host:port` of the master.
        is_resumed: it began from a record of an earlier master.
        owner: the only observer that may stop the job; empty: anybody.
        exit_deadline: when pods that have not left by themselves are deleted.
        time: of the last event.
        times: where the time until then went.
    """

    plan: JobPlan
    phases: Phases
    training: ShardQueue
    evaluation: ShardQueue
    membership: Membership
    wanted_shape: Shape
    requested_shape: shape.RequestedShape | None = None
    routing_epoch: int = 1
    evaluation_sketch: bytes = b""
    reason: str = ""
    failure: str = ""
    address: str = ""
    is_resumed: bool = False
    owner: str = ""
    poisoned: tuple[str, int, int] | None = None
    exit_deadline: float | None = None
    time: float = 0.0
    times: TimeBook = msgspec.field(default_factory=TimeBook)

    @staticmethod
    def new(plan: JobPlan) -> JobState:
        """The state before the first event."""
        return JobState(
            plan=plan,
            phases=Phases(
                record_template=plan.record_template,
                restore=RestoreOrder("restore-1", plan.start_record),
            ),
            training=ShardQueue(
                kind="train",
                rows=plan.training_rows,
                shard_rows=plan.shard_rows,
                lease_seconds=plan.lease_seconds,
                epochs=plan.epochs,
                shuffle=plan.shuffle,
                seed=plan.seed,
            ),
            evaluation=ShardQueue(
                kind="evaluate",
                rows=plan.evaluation_rows,
                shard_rows=plan.shard_rows,
                lease_seconds=plan.lease_seconds,
                keep_rows=KEPT_PREDICTION_ROWS,
            ),
            membership=Membership(job_id=plan.job_id),
            wanted_shape=plan.shape,
        )

    @property
    def phase(self) -> Phase:
        return self.phases.phase

    @property
    def has_wanted_servers(self) -> bool:
        """Whether there are as many servers as are wanted."""
        return len(self.membership.servers()) == self.wanted_shape[Role.PARAMETER_SERVER].count

    @property
    def start_record(self) -> str | None:
        """What the job goes back to where it has no record: a URI, '' for nothing; None: all of them are damaged."""
        candidates = [self.plan.start_record, *self.plan.older_start_records]
        return next((uri for uri in candidates if uri not in self.phases.damaged), None)

    def handle(self, event: Event) -> list[Effect]:
        """Takes one event in; returns what is to be done because of it."""
        self.times.pass_time(self, event.time - self.time)
        self.time = max(self.time, event.time)
        effects: list[Effect] = []
        _HANDLERS[type(event)](self, event, effects)
        while saving.step(self, self.time, effects):
            pass
        shape.step(self, effects)
        stages.discard_abandoned(self, effects)
        return effects

    def queue(self, kind: str) -> ShardQueue:
        return self.training if kind == "train" else self.evaluation

    def routing(self) -> RoutingTable:
        return self.membership.routing(self.routing_epoch, self.plan.virtual_buckets)

    def directive(self, pod: str, incarnation: str) -> Directive:
        """The whole of what a pod's process should be doing; one without a place, or superseded, should exit."""
        phases = self.phases
        member = self.membership.members.get(pod)
        mode = _MODES.get(phases.phase, Mode.IDLE)
        if member is None or member.retiring or phases.phase.is_final or member.is_held_by_another(incarnation):
            mode = Mode.EXIT
        elif phases.save is not None:
            mode = Mode.PAUSE
        save = restore = None
        members: list[WorkerProcess] = []
        if member is not None and member.role is Role.PARAMETER_SERVER and mode is not Mode.EXIT:
            # Servers refuse all others; to a thousand workers the list would be most of each answer.
            members = self.training_members()
            restore = phases.restore
            if phases.save is not None and phases.save.stage != PAUSING:
                save = SaveOrder(phases.save.order_id, phases.save.uri)
        return Directive(
            term=phases.term,
            version=phases.version,
            mode=mode,
            generation=phases.generation,
            routing=self.routing(),
            members=members,
            save=save,
            restore=restore,
        )

    def training_members(self) -> list[WorkerProcess]:
        """Workers whose pushes count; in bsp and ssp only those that have, or may still get, something to train.

        One that retires counts until it has gone: it finishes its round and leaves by itself.
        """
        return [
            WorkerProcess(worker.name, worker.incarnation)
            for worker in self.membership.workers()
            if worker.is_registered and not (self.plan.is_synchronous and worker.starved)
        ]

    def is_news(self, report: PodReported) -> bool:
        """Whether a heartbeat changes the state and so has to be journalled."""
        member = self.membership.members.get(report.pod)
        if member is None or member.incarnation != report.incarnation:
            return False
        save = self.phases.save
        return (
            report.reached_version > member.reached_version
            or (report.restored_order_id or member.restored_order_id) != member.restored_order_id
            or stages.is_news(self, member, report)
            or (report.damaged is not None and losses.is_restoring(self, report.damaged.order_id))
            or (
                report.saved is not None
                and save is not None
                and report.saved.order_id == save.order_id
                and report.pod not in save.parts
            )
            or (
                report.generation == self.phases.generation
                and any(self.queue(p.kind).is_news(report.pod, p) for p in report.progress)
            )
        )

    def is_swept(self) -> bool:
        """Whether the job is over and none of its pods runs any more."""
        return self.phase.is_final and not self.membership.members and not self.membership.leaving

    def next_deadline(self) -> float | None:
        """When `Ticked` has to come, on the job's clock; None: nothing is waited for."""
        phases = self.phases
        if phases.phase.is_final:
            return self.exit_deadline
        deadlines: list[float] = []
        if (shape_deadline := shape.deadline(self)) is not None:
            deadlines.append(shape_deadline)
        stage = stages.deadline(self)
        if stage is not None:
            deadlines.append(stage)
        elif phases.phase in (Phase.TRAINING, Phase.EVALUATING, Phase.SAVING):
            running = {Phase.TRAINING: self.training, Phase.EVALUATING: self.evaluation}.get(phases.phase)
            deadlines.extend(running.deadlines.values() if running else ())
            if phases.next_save is not None:
                deadlines.append(phases.next_save)
        return min(deadlines, default=None)

    def ledger(self, ended: list[Ended], effects: list[Effect]) -> None:
        """Notes attempts that ended."""
        generation = self.phases.generation
        effects.extend(RecordAttempt(generation=generation, time=self.time, ended=attempt) for attempt in ended)

    def fail(self, reason: str, effects: list[Effect], traceback: str = "") -> None:
        """The job ends here."""
        if not self.phase.is_final:
            self.failure = f"{reason}\n\n{traceback}".strip() if traceback else reason
            effects.append(Decided(decision="job_failed", inputs={"reason": reason}))
            self.finish(Phase.FAILED, reason, effects)

    def finish(self, phase: Phase, reason: str, effects: list[Effect]) -> None:
        """Into a final phase; pods are told to exit and deleted when they do not, or cannot hear it."""
        self.phases.move(phase, self.time)
        save, self.phases.save = self.phases.save, None
        if save is not None and save.stage == WRITING:
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
            accepted = self.queue(report.kind).advance(pod, report, self.time)
            # A lost evaluation shard begins anew: only one that is completed is progress.
            if accepted.rows and (report.kind == "train" or accepted.completed is not None):
                self.membership.made_progress(Role.WORKER)
                self.membership.members[pod].oom_bytes = 0
            if accepted.completed is None:
                continue
            self.ledger([accepted.completed], effects)
            if report.kind == "evaluate":
                # No rollback repeats it, so the servers, too, have got further.
                self.membership.made_progress(Role.PARAMETER_SERVER)
                self.evaluation_sketch = merge_sketches(self.evaluation_sketch, report.sketch)


def _term_begun(state: JobState, event: TermBegun, effects: list[Effect]) -> None:
    state.address = event.address
    if state.phases.term:
        state.phases.begin_next_term(event.term)
        effects.append(Decided(decision="term_begun", inputs={"term": event.term, "address": event.address}))
        return
    resumed = event.resumed.records if event.resumed else []
    state.phases.begin_first_term(event.term, resumed)
    state.routing_epoch = state.phases.version
    record = state.phases.record
    if event.resumed is None or record is None:
        return
    state.is_resumed = True
    state.training.restore(record.positions)
    covered = state.training.covered_rows()
    held = max(record.step, covered)
    # What was thrown away was trained, too; and so the records of this term are further than the one before them.
    state.training.samples = max(held, event.resumed.trained_rows)
    state.phases.saved_rows = covered
    effects.append(
        Decided(
            decision="job_resumed",
            inputs={
                "term": event.term,
                "record": record.uri,
                "step": record.step,
                "repeated_rows": state.training.samples - held,
                "generation": state.phases.generation,
            },
        )
    )


def _begun(state: JobState, event: Begun, effects: list[Effect]) -> None:
    plan = state.plan
    for role, places in plan.shape.places.items():
        for index in range(places.count):
            state.membership.add(role, index, places.size, event.time)
    inputs = {
        "workers": plan.shape[Role.WORKER].count,
        "parameter_servers": plan.shape[Role.PARAMETER_SERVER].count,
        "record": state.phases.restore.uri,
    }
    effects.append(Decided(decision="job_begun", inputs=inputs))


def _restarted(state: JobState, event: Restarted, effects: list[Effect]) -> None:
    phases = state.phases
    if not phases.phase.is_final:
        state.times.add(WITHOUT_MASTER, event.away_seconds)
        effects.append(Decided(decision="master_resumed", inputs={"away_seconds": round(event.away_seconds, 3)}))
    state.training.rearm(event.time)
    state.evaluation.rearm(event.time)
    if phases.save is not None and phases.save.stage == COMMITTING:
        effects.append(saving.commit_effect(state, phases.save))
    stages.begin(state)
    if not phases.phase.is_final:
        effects.extend(saving.commit_effect(state, save) for save in phases.unknown)
    if event.away_seconds:
        # Another process wrote those manifests, or did not; nobody does now.
        for entry in phases.abandoned.values():
            entry.is_committing = False
    if state.exit_deadline is not None:
        state.exit_deadline = event.time + state.plan.exit_seconds


def _seen(state: JobState, event: PodSeen, effects: list[Effect]) -> None:
    state.membership.seen(event.pod, event.uid)


def _registered(state: JobState, event: PodRegistered, effects: list[Effect]) -> None:
    member = state.membership.members.get(event.pod)
    if member is None or member.role is not event.role or state.phase.is_final:
        return
    if event.incarnation in member.superseded:
        # Who registered last stays: two that live would take the place from each other until its budget is spent.
        return
    if member.is_held_by_another(event.incarnation):
        losses.process_replaced(state, member, event, effects)
        if state.phase.is_final:
            return
        member.superseded.append(member.incarnation)
    elif not member.is_registered:
        effects.append(
            Decided(
                decision="pod_registered",
                inputs={"pod": event.pod, "node": event.node, "address": event.address, "phase": str(state.phase)},
            )
        )
    is_new = member.incarnation != event.incarnation
    if is_new:
        member.reached_version = 0
        member.starved = False
        member.transfers, member.active = 0, state.time
        state.phases.version += 1
    member.incarnation, member.node = event.incarnation, event.node
    if member.role is Role.PARAMETER_SERVER:
        if is_new or event.restored_order_id:
            member.restored_order_id = event.restored_order_id
        if member.address != event.address:
            member.address = event.address
            state.routing_epoch += 1
            state.phases.version += 1


def _reported(state: JobState, event: PodReported, effects: list[Effect]) -> None:
    member = state.membership.members.get(event.pod)
    if member is None or member.incarnation != event.incarnation:
        return
    state.take_progress(event.pod, event.generation, event.progress, effects)
    member.reached_version = max(member.reached_version, event.reached_version)
    stages.take_report(state, member, event)
    if event.restored_order_id:
        member.restored_order_id = event.restored_order_id
    save = state.phases.save
    if event.saved is not None and save is not None and event.saved.order_id == save.order_id:
        save.parts.setdefault(event.pod, event.saved)
    if event.damaged is not None:
        losses.record_damaged(state, member, event.damaged, effects)


def _deleted(state: JobState, event: PodDeleted, effects: list[Effect]) -> None:
    if event.pod in state.membership.leaving:
        state.membership.leaving.remove(event.pod)


def _refused(state: JobState, event: PodRefused, effects: list[Effect]) -> None:
    if event.pod in state.membership.members:
        state.fail(f"pod {event.pod} cannot be created: {event.reason}", effects)


def _record_committed(state: JobState, event: RecordCommitted, effects: list[Effect]) -> None:
    saving.committed(state, event.order_id, effects)


def _record_failed(state: JobState, event: RecordFailed, effects: list[Effect]) -> None:
    saving.record_failed(state, event.order_id, event.reason, effects, store_away=event.store_away)


def _stop(state: JobState, event: StopAsked, effects: list[Effect]) -> None:
    if not state.phase.is_final:
        effects.append(Decided(decision="job_stopped", inputs={"reason": event.reason}))
        state.finish(Phase.STOPPED, event.reason, effects)


def _owner_changed(state: JobState, event: OwnerChanged, effects: list[Effect]) -> None:
    state.owner = event.owner
    effects.append(Decided(decision="owner_changed", inputs={"owner": event.owner}))


def _measured(state: JobState, event: Measured, effects: list[Effect]) -> None:
    state.times.measure(event.waiting_share)


def _save_asked(state: JobState, event: SaveAsked, effects: list[Effect]) -> None:
    state.phases.save_asked = True


_HANDLERS: dict[type[Any], Callable[[JobState, Any, list[Effect]], None]] = {
    TermBegun: _term_begun,
    Begun: _begun,
    Restarted: _restarted,
    PodRegistered: _registered,
    PodReported: _reported,
    ShardsAsked: leasing.shards_asked,
    PodFailed: losses.pod_failed,
    PodSilent: losses.pod_silent,
    PodSeen: _seen,
    PodGone: losses.pod_gone,
    PodDeleted: _deleted,
    PodResized: shape.pod_resized,
    ResizeRefused: shape.resize_refused,
    PodRefused: _refused,
    RecordCommitted: _record_committed,
    RecordFailed: _record_failed,
    StopAsked: _stop,
    OwnerChanged: _owner_changed,
    SaveAsked: _save_asked,
    ShapeAsked: shape.shape_asked,
    ShapeTakenBack: shape.shape_taken_back,
    Ticked: losses.ticked,
    Measured: _measured,
}
