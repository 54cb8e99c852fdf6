"""Timed work of a master: deadlines, silent pods, windows of figures, the report at the end."""

from __future__ import annotations

import abc
import threading
import time
from collections.abc import Callable, Mapping

import msgspec
import structlog

from elastrec.platform.clusters.pods import PodPhase
from elastrec.platform.history.points import Costs
from elastrec.platform.master.machine import events
from elastrec.platform.master.measuring.observations import Remembered
from elastrec.platform.master.measuring.saved_measurements import SavedMeasurements
from elastrec.platform.master.measuring.slow_pods import SlowPod, has_room_elsewhere
from elastrec.platform.master.measuring.time_profile import SUSPENSION_SECONDS
from elastrec.platform.master.reporting.earlier_story import EarlierStory
from elastrec.platform.master.reporting.final_artifacts import FinalArtifacts
from elastrec.platform.master.reporting.kept_costs import earlier_costs
from elastrec.platform.master.service.history_sink import Report
from elastrec.platform.master.service.journal import JournalError
from elastrec.platform.master.service.parts import ServicePart
from elastrec.platform.specs.errors import TransportError
from elastrec.platform.specs.metrics import Phase, TrainingMetrics
from elastrec.platform.transport.messages.ledger import OwnPlan
from elastrec.platform.transport.messages.observer import ChangeShape, ShapeAnswer
from elastrec.platform.transport.messages.profile import GetProfile, Profile

log = structlog.get_logger(__name__)
_TICK_SECONDS = 0.1


class TimedWork(ServicePart):
    """The work of the timer's thread."""

    _stopping: threading.Event
    _on_fatal: Callable[[], None]
    _saved_measurements: SavedMeasurements
    _earlier_story: EarlierStory
    _final_artifacts: FinalArtifacts | None = None
    _has_reported_end = False
    _deadline: float | None = None
    _deadline_after = -1
    _stays: Mapping[str, float] = {}

    @abc.abstractmethod
    def is_superseded(self) -> bool:
        """Whether another master has taken the job over; False if the store does not answer."""

    @abc.abstractmethod
    def metrics(self) -> TrainingMetrics:
        """The present state of the job."""

    @abc.abstractmethod
    def profile(self, message: GetProfile) -> Profile:
        """The measurements of the job."""

    @abc.abstractmethod
    def change_shape(self, message: ChangeShape, own_plan: OwnPlan | None = None) -> ShapeAnswer:
        """Requests another shape; a refusal has a reason."""

    @abc.abstractmethod
    def totals(self) -> dict[str, float]:
        """Totals of the job so far, by metric name."""

    def _run_timer(self) -> None:
        last = self._clock()
        while not self._stopping.wait(_TICK_SECONDS):
            now = self._clock()
            if self.journal.stall:
                # No heartbeats are handled, so none can be missed; afterwards, the whole time counts as a stall.
                continue
            gap, last = now - last, now
            try:
                if gap > SUSPENSION_SECONDS:
                    # This process was stopped and received no heartbeats, so the pods do not count as silent.
                    log.warning("master_stalled", seconds=gap)
                    with self._lock:
                        self._heartbeats.forget_all()
                    self.submit(lambda now, gap=gap: events.Restarted(time=now, suspended_seconds=gap))  # type: ignore[misc]
                self._check_deadlines(now)
                self._check_silence(now)
                self._close_window()
                self._report_end()
            except (JournalError, TransportError):
                return
            except Exception:
                # Without this thread, no deadline would end any more, and no silent pod be replaced.
                log.exception("timed_work_failed", job=self.request.job_id)
                self._on_fatal()
                return

    def _check_deadlines(self, now: float) -> None:
        with self._lock:
            # Computed from the state, which only events change.
            if self._deadline_after != self.journal.last:
                self._deadline_after, self._deadline = self.journal.last, self.state.next_deadline()
            deadline = self._deadline
        if deadline is not None and deadline <= self.now():
            waiting = {
                name: f"{status.reason}: {status.message}".strip(": ")
                for name, status in self._reconciler.statuses().items()
                if status.phase is PodPhase.PENDING
            }
            with self._lock:
                problems = self._seen.monitor.copy_problems()
            self.submit(lambda now: events.Ticked(time=now, waiting=waiting, problems=problems))

    def _check_silence(self, now: float) -> None:
        with self._lock:
            # After the job has ended, heartbeats are still used.
            if self.state.phase.is_final:
                return
            members = self.state.membership.members
            if not self._heartbeats.is_look_due(len(members), now):
                return
            self._seen.keep_only(members)
            silences = self._heartbeats.silent(members, self._reconciler.running, now)
        # Pods that follow a later master are silent here; only that master may replace them.
        if silences and self.is_superseded():
            return
        for silence in silences:
            self.submit(
                lambda time, silence=silence: events.PodSilent(  # type: ignore[misc]
                    time=time, pod=silence.pod, incarnation=silence.incarnation, silent_seconds=silence.seconds
                )
            )

    def _close_window(self) -> None:
        with self._lock:
            now = self.now()
            self._seen.settle_late(now)
            if not self._seen.close_window(self.state, now):
                return
            remembered = self._remembered() if self._saved_measurements.is_due(self._clock()) else None
        if remembered is not None:
            self._saved_measurements.keep(remembered, self._clock())
        self._measure()
        self._relieve()
        self._leave_slow_nodes()
        self._give_memory()
        if not self.state.phase.is_final:
            self._report()

    def _remembered(self) -> Remembered:
        remembered = self._seen.remembered()
        return msgspec.structs.replace(remembered, costs=self._costs())

    def _recall(self, remembered: Remembered) -> None:
        self._seen.recall(remembered)
        if self._history and remembered.costs:
            self._history.recall(remembered.costs)
        else:
            self._count_costs_from_now()

    def _recall_earlier_costs(self) -> bool:
        """Continues from the costs that earlier masters of a job without a journal have left; False if there are
        none."""
        if self._history is None or (kept := earlier_costs(self.request)) is None:
            return False
        self._history.recall(kept)
        with self._lock:
            self._saved_measurements.keep(self._remembered(), self._clock())
        return True

    def _count_costs_from_now(self) -> None:
        if self._history is not None:
            self._history.recall(Costs(samples_before=self.state.samples_before))

    def _costs(self) -> Costs | None:
        return self._history.costs if self._history else None

    def _measure(self) -> None:
        with self._lock:
            share = self._seen.monitor.take_waiting_share()
        if share is not None:
            self.submit(lambda now: events.Measured(time=now, waiting_share=share))

    def _relieve(self) -> None:
        with self._lock:
            relief, epoch = self._seen.relief(self.state, self.now()), self.state.ownership.epoch
        if relief is not None:
            self.submit(
                lambda now: events.ServerHot(
                    time=now, server=relief.server, ratio=relief.ratio, ratio_after=relief.ratio_after,
                    moves=relief.moves, ownership_epoch=epoch, size_bytes=relief.size_bytes,
                    price_seconds=relief.price_seconds,
                )
            )  # fmt: skip

    def _leave_slow_nodes(self) -> None:
        with self._lock:
            members = self.state.membership.members
            found = [(slow, members[slow.pod]) for slow in self._seen.slow_pods(self.state, self.now())]
        nodes = self._reconciler.nodes() if found else []
        for slow, member in found:
            if member.node and has_room_elsewhere(nodes, member.node, member.asked):
                self._leave_slow_node(slow, member.incarnation)
                return  # one at a time, because the others must be measured again
            if self._stays.get(slow.pod) != slow.since:
                # Checked in every window, but logged once.
                reason = "no other node has the room" if member.node else "its node is not known"
                log.info("slow_pod_stays", pod=slow.pod, ratio=round(slow.ratio, 3), reason=reason)
        self._stays = {slow.pod: slow.since for slow, _ in found}

    def _leave_slow_node(self, slow: SlowPod, incarnation: str) -> None:
        self.submit(
            lambda now: events.PodSlow(
                time=now, pod=slow.pod, incarnation=incarnation, ratio=slow.ratio,
                seconds_per_row=slow.seconds_per_row, others_seconds_per_row=slow.others_seconds_per_row,
            )
        )  # fmt: skip

    def _give_memory(self) -> None:
        """Gives servers more memory before they run out of it, if the next round of scaling would be too late."""
        now = self.now()
        if self.state.phase is not Phase.TRAINING or not self._memory_watch.is_due(now):
            return
        with self._lock:
            costs = self._seen.costs_of_changes()
        found = self._memory_watch.look(
            self.profile(GetProfile()), self._reconciler.nodes(), self._reconciler.statuses().values(), costs, now,
            time.time(),
        )  # fmt: skip
        if found is None:
            return
        request, own_plan = found
        if reason := self.change_shape(request, own_plan).reason:
            log.warning("memory_not_given", job=self.request.job_id, reason=reason, wanted=request.reason)
            self._memory_watch.refused(now)

    def _report_end(self) -> None:
        # Immediately, not with the next window, because callers that wait for the end read the figures.
        if self.state.phase.is_final and not self._has_reported_end and not self.is_superseded():
            self._has_reported_end = True
            with self._lock:
                self._seen.close_last_window(self.state, self.now())
            self._measure()
            self._report()
            if self.state.poisoned is not None:
                self._executor.name_files(self.state.poisoned)
            self._final_artifacts = FinalArtifacts(
                self.request, self.state, self.metrics(), self.journal, self._earlier_story, self._costs()
            )

    def _report(self) -> None:
        if self._history is not None:
            window = self._seen.window
            trained = window.heads if window else ()
            self._history.put(Report(self.metrics(), self.totals(), self.state.evaluation_sketch, trained))
