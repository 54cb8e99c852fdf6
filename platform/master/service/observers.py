"""The calls of observers (the command line, Airflow's operators and triggers) to a master."""

from __future__ import annotations

import threading

import msgspec
import pyarrow as pa

from elastrec.platform.master.machine import events, migration
from elastrec.platform.master.machine.effects import Decided
from elastrec.platform.master.measuring.speed_profile import (
    are_servers_settled,
    configuration_of,
    is_settled,
    server_use,
    worker_use,
)
from elastrec.platform.master.pods import orders, requests, shape_checks
from elastrec.platform.master.pods.requests import RequestedShape
from elastrec.platform.master.reporting.earlier_story import EarlierStory
from elastrec.platform.master.reporting.explanation import explanation, with_earlier
from elastrec.platform.master.reporting.ledger import attempts_of, earlier_lines, running_attempts, streams_now
from elastrec.platform.master.reporting.status import totals, training_metrics
from elastrec.platform.master.service.journal import LEDGER_PAGE
from elastrec.platform.master.service.parts import ServicePart
from elastrec.platform.specs.metrics import TrainingMetrics
from elastrec.platform.specs.text import plain_words
from elastrec.platform.transport.messages.job import Done
from elastrec.platform.transport.messages.ledger import Explanation, GetExplanation, GetLedger, LedgerPage, OwnPlan
from elastrec.platform.transport.messages.observer import (
    CancelShape,
    ChangeShape,
    FinishJob,
    GetStatus,
    NameRun,
    OrdersAnswer,
    OrderWorkers,
    SaveNow,
    ShapeAnswer,
    ShapeOutcome,
    Status,
    StopJob,
    TakeOver,
)
from elastrec.platform.transport.messages.profile import GetProfile, Profile, ShapeChanged


class ObserverCalls(ServicePart):
    """The calls of observers."""

    _finished: threading.Event
    _job_json: bytes
    _earlier_lines: pa.Table | None = None
    _earlier_story: EarlierStory

    def metrics(self) -> TrainingMetrics:
        """The present state of the job."""
        with self._lock:
            elapsed = self.state.phases.since if self.state.phase.is_final else self.now()
            metrics = training_metrics(
                self.state,
                self.request.job_id,
                elapsed,
                self._seen.window,
                self._seen.monitor.pods,
                self._reconciler.statuses(),
                self._reconciler.problem(),
            )
        stall = self.journal.stall
        return metrics.model_copy(update={"reason": f"the journal has no room: {stall}"}) if stall else metrics

    def totals(self) -> dict[str, float]:
        """Totals of the job so far, by metric name (see `status.totals`)."""
        with self._lock:
            time = self.state.phases.since if self.state.phase.is_final else self.now()
            return totals(self.state, time) | self._seen.costs_of_changes() | self._seen.monitor.traffic()

    def status(self, message: GetStatus) -> Status:
        """For observers."""
        with self._lock:
            shape_requests = [request.reported() for request in self.state.shape_requests]
            shape, for_workers = self.state.wanted_shape, orders.for_all(self.state)
        return Status(
            metrics_json=self.metrics().model_dump_json().encode(),
            failure=self._failure(),
            run_id=self._history.run_id if self._history else "",
            shape_requests=shape_requests,
            shape=shape,
            orders=for_workers,
        )

    def ledger(self, message: GetLedger) -> LedgerPage:
        """One page of the ledger; lines of earlier masters come first.

        Raises:
            CheckpointError: the store with the earlier lines could not be asked.
        """
        earlier, self._earlier_lines = self._earlier_lines, None
        if earlier is None:
            job = (self.request.store, self.job.metadata.name, self.request.job_id)
            earlier = earlier_lines(*job, self.state, self.request.earlier_terms)
        if message.after < earlier.num_rows:
            # Only kept between pages, because a ledger may need as much memory as the rest of a master.
            self._earlier_lines = earlier
            attempts = attempts_of(earlier.slice(message.after, LEDGER_PAGE))
            return LedgerPage(attempts=attempts, next=message.after + len(attempts))
        with self._lock:
            last = self.journal.last
            running, streams = running_attempts(self.state), streams_now(self.state)
        self.journal.wait(last)
        attempts = self.journal.ledger(message.after - earlier.num_rows, last, LEDGER_PAGE)
        if len(attempts) == LEDGER_PAGE:
            self._earlier_lines = earlier
            return LedgerPage(attempts=attempts, next=message.after + len(attempts))
        return LedgerPage(attempts=attempts, running=running, streams=streams)

    def explain(self, message: GetExplanation) -> Explanation:
        """Events, their causes, and where the time went; of a job that was resumed, events of earlier masters, too."""
        with self._lock:
            last, phase = self.journal.last, str(self.state.phase)
            times = self.state.times.at(self.state, self.now())
            own_plans = requests.own_plans(self.state)
            open_costs = self.state.faults.costs_at(self.state, self.now())
            shape, shape_changes = self.state.wanted_shape, self.state.shape_version
            earlier_seconds, is_resumed = self.state.earlier_seconds, self.state.is_resumed
        self.journal.wait(last)
        story = explanation(
            self.request.job_id,
            phase,
            times,
            self.journal,
            own_plans,
            open_costs,
            shape,
            shape_changes,
            earlier_seconds,
        )
        if not is_resumed:
            return story
        before, problem = self._earlier_story.look()
        story = story if before is None else with_earlier(story, before)
        return msgspec.structs.replace(story, earlier_problem=problem)

    def profile(self, message: GetProfile) -> Profile:
        """The measured speed of the job in each of its configurations."""
        if message.next_round_seconds:
            self._memory_watch.round_announced(message.next_round_seconds)
        with self._lock:
            # Measurements are also requested from a job without pods, and after its end.
            configuration = configuration_of(self.state) or self.state.wanted_shape
            queue, now = self.state.training, self.now()
            return Profile(
                job_json=self._job_json,
                phase=str(self.state.phase),
                configuration=configuration,
                is_settled=is_settled(self.state) and self._seen.is_current(self.state),
                measured=self._seen.profile.measured(),
                remaining_samples=queue.splits.total_rows - queue.covered_rows(),
                dense_bytes=self._seen.monitor.dense_bytes(),
                tables=self._seen.monitor.tables(),
                trained_samples=queue.samples,
                tables_growth=self._seen.growth.tables(),
                servers=server_use(self.state, self._seen.monitor),
                run_id=self._history.run_id if self._history else "",
                shape_version=self.state.shape_version,
                shape_changes=[
                    ShapeChanged(
                        before=each.before,
                        after=each.after,
                        asked_by=each.asked_by,
                        seconds_ago=max(0.0, now - each.time),
                    )
                    for each in self.state.shape_changes
                ],
                worker_used_bytes=worker_use(self.state, self._seen.monitor),
                servers_move=migration.is_possible(self.state),
                are_servers_settled=are_servers_settled(self.state) and self._seen.is_current(self.state),
                samples_per_second=self._seen.speed.samples_per_second,
                speed_deviation=self._seen.speed.deviation,
            )

    def _failure(self) -> str:
        with self._lock:
            failure = self.state.failure
        notes = self._executor.failure_notes
        return f"{failure}\n\n{notes}" if failure and notes else failure

    def stop_job(self, message: StopJob) -> Done:
        """Stops the job, unless another observer owns it."""
        with self._lock:
            owner = self.state.owner
            if message.owner and owner and message.owner != owner:
                return Done(accepted=False, reason=f"the job was taken over by {owner}")
            if self.state.phase.is_final:
                return Done()
        self.submit(lambda now: events.StopAsked(time=now, reason=message.reason))
        return Done()

    def take_over(self, message: TakeOver) -> Done:
        """Makes an observer the job's owner."""
        self.submit(lambda now: events.OwnerChanged(time=now, owner=message.owner))
        return Done()

    def name_run(self, message: NameRun) -> Done:
        """Sets the run for the job's figures, if it was launched without one."""
        if self._history is None:
            return Done(accepted=False, reason="the job was launched without history")
        self._history.name_run(message.run_id)
        return Done()

    def save_now(self, message: SaveNow) -> Done:
        """Asks for a record as soon as possible."""
        if self.state.phase.is_final:
            return Done(accepted=False, reason=f"the job {plain_words.phase(self.state.phase)}")
        self.submit(lambda now: events.SaveAsked(time=now))
        return Done()

    def order_workers(self, message: OrderWorkers) -> OrdersAnswer:
        """Gives workers orders of their own."""
        if self.state.phase.is_final:
            return OrdersAnswer(reason=f"the job {plain_words.phase(self.state.phase)}")
        with self._lock:
            reason = orders.refusal(self.state, self.job.spec.training, message)
            workers = [] if reason else orders.preview(self.state, message)
        if reason or message.dry_run:
            return OrdersAnswer(reason=reason, workers=workers)
        if not message.pods:
            self.submit(lambda now: events.WorkersOrdered(time=now, order=message.order))
        for pod in message.pods:
            self.submit(lambda now, pod=pod: events.PodOrdered(time=now, pod=pod, order=message.order))  # type: ignore[misc]
        return OrdersAnswer(workers=workers)

    def change_shape(self, message: ChangeShape, own_plan: OwnPlan | None = None) -> ShapeAnswer:
        """Requests another number or size of the running job's pods.

        Args:
            own_plan: set if the master itself makes the request.
        """
        if self.state.phase.is_final:
            return ShapeAnswer(reason=f"the job {plain_words.phase(self.state.phase)}")
        with self._lock:
            earlier = requests.of_plan(self.state, message.plan_id)
            used_bytes = {name: sample.memory_bytes for name, sample in self._seen.monitor.pods.items()}
            version = self.state.shape_version
            row_bytes = {use.pod: use.table_bytes for use in server_use(self.state, self._seen.monitor)}
            reason = "" if earlier is not None else shape_checks.refusal(self.state, message, used_bytes, row_bytes)
        if earlier is not None:
            return _same_plan(earlier, message)
        if message.dry_run and not reason and message.expected_version not in (None, version):
            reason = _other_version(message, version)
        if reason or message.dry_run:
            return ShapeAnswer(reason=reason, prospects=[] if reason else self._prospects(message))
        effects = self.submit(
            lambda now: events.ShapeAsked(
                time=now,
                change=message.change,
                expected_version=message.expected_version,
                asked_by=message.asked_by,
                reason=message.reason,
                moves=message.moves,
                plan_id=message.plan_id,
                timeout_seconds=message.timeout_seconds,
                own_plan=own_plan,
            )
        )
        for effect in effects:
            if isinstance(effect, Decided) and effect.decision == "shape_asked":
                return ShapeAnswer(request_id=effect.inputs["request"])
            if isinstance(effect, Decided) and effect.decision == "shape_refused":
                return ShapeAnswer(reason=_other_version(message, effect.inputs["version"]))
        with self._lock:
            earlier = requests.of_plan(self.state, message.plan_id)
        if earlier is None:
            return ShapeAnswer(reason=f"the job {plain_words.phase(self.state.phase)}")
        return _same_plan(earlier, message)

    def _prospects(self, message: ChangeShape) -> list[str]:
        nodes = self._reconciler.nodes()
        node_of = {name: pod.node for name, pod in self._reconciler.statuses().items()}
        with self._lock:
            return shape_checks.prospects(self.state, message, nodes, node_of)

    def cancel_shape(self, message: CancelShape) -> Done:
        """Cancels a request for a shape, unless it has ended or its hand-over of buckets has begun."""
        with self._lock:
            if requests.find(self.state, message.request_id) is None:
                known = (
                    ", ".join(request.request_id for request in requests.open_requests(self.state)) or "none is open"
                )
                return Done(
                    accepted=False, reason=f"request_id: {message.request_id!r} is not allowed; allowed: {known}"
                )
        self.submit(
            lambda now: events.ShapeCancelled(time=now, request_id=message.request_id, frees_plan=message.frees_plan)
        )
        with self._lock:
            request = requests.find(self.state, message.request_id)
            outcome = request.outcome if request is not None else ShapeOutcome.SUPERSEDED
        if outcome is ShapeOutcome.CANCELLED:
            return Done()
        if outcome is ShapeOutcome.OPEN:
            reason = "buckets change hands at this moment; ask for another shape afterwards"
        else:
            reason = f"it has ended: {outcome}; ask for another shape"
        return Done(accepted=False, reason=f"{plain_words.numbered(message.request_id)}: {reason}")

    def finish_job(self, message: FinishJob) -> Done:
        """The result has been read, so the master may end."""
        if not self.state.phase.is_final:
            return Done(accepted=False, reason=f"the job {plain_words.phase(self.state.phase)}; stop it first")
        self._finished.set()
        return Done()


def _other_version(message: ChangeShape, version: int) -> str:
    """Why a plan is refused that was made for another version of the shape."""
    return (
        "the job's shape has changed since the plan was made (expected_version: "
        f"{message.expected_version} is not allowed; allowed: {version}); plan again"
    )


def _same_plan(earlier: RequestedShape, message: ChangeShape) -> ShapeAnswer:
    """The answer to a repeated plan: the same request; an error if another plan has the same id."""
    if (earlier.change, earlier.moves) == (message.change, message.moves):
        return ShapeAnswer(request_id=earlier.request_id)
    return ShapeAnswer(
        reason=f"plan_id: {message.plan_id!r} is not allowed: {earlier.request_id} was asked for under it, which is "
        "something else; give every plan an id of its own"
    )
