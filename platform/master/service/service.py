"""The shell around a job's state machine: converts messages to events, journals events, and executes effects.

Code that waits, listens or uses a clock is here, in `timed_work.py` and in `executor.py`; all decisions are in the
state machine.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec
import structlog

from elastrec.checkpoints import StoreError, take_term
from elastrec.platform.clusters.pods import PodSpec
from elastrec.platform.clusters.protocol import Fleet
from elastrec.platform.master.machine import events
from elastrec.platform.master.machine.effects import AnswerLease, Decided, Effect, RecordAttempt
from elastrec.platform.master.machine.plan import JobPlan
from elastrec.platform.master.machine.state import JobState
from elastrec.platform.master.measuring.observations import Observations
from elastrec.platform.master.measuring.saved_measurements import SavedMeasurements
from elastrec.platform.master.pods.calls import PodCalls
from elastrec.platform.master.pods.heartbeats import Heartbeats
from elastrec.platform.master.pods.launch import LaunchRequest, member_pod
from elastrec.platform.master.pods.reconciler import Reconciler
from elastrec.platform.master.pods.wanted import Wanted, WantedPod, wanted
from elastrec.platform.master.reporting.earlier_story import EarlierStory
from elastrec.platform.master.scaling.memory_watch import MemoryWatch
from elastrec.platform.master.service.answers import Answers
from elastrec.platform.master.service.executor import Executor
from elastrec.platform.master.service.history_sink import HistorySink
from elastrec.platform.master.service.journal import Journal, JournalError, encode_state
from elastrec.platform.master.service.observers import ObserverCalls
from elastrec.platform.master.service.resumption import resumed_from
from elastrec.platform.master.service.term_watch import TermWatch
from elastrec.platform.master.service.timed_work import TimedWork
from elastrec.platform.specs.errors import TransportError
from elastrec.platform.specs.metrics import Phase
from elastrec.platform.transport import Handler, TlsConfig, connections_for
from elastrec.platform.transport.messages.job import Failed, Heartbeat, LeaseShards, Register
from elastrec.platform.transport.messages.ledger import GetExplanation, GetLedger
from elastrec.platform.transport.messages.observer import (
    CancelShape,
    ChangeShape,
    FinishJob,
    GetStatus,
    NameRun,
    OrderWorkers,
    SaveNow,
    StopJob,
    TakeOver,
)
from elastrec.platform.transport.messages.profile import GetProfile

log = structlog.get_logger(__name__)
JOURNAL_FILE = "journal.sqlite"
_STORE_PAUSE_SECONDS = 2.0
_LEAVE_LOOK_SECONDS = 0.05


class JobService(PodCalls, ObserverCalls, TimedWork):
    """One job's master without its socket.

    Args:
        folder: of the journal; an existing journal is continued.
        history: gets the job's metrics every few seconds and at its end.
        on_fatal: called if the journal cannot be written, or an event fails in the state machine, or timed work fails;
            the process must end, and the next one continues from the journal.

    Raises:
        SpecError, CheckpointError: the request cannot be planned.
        JournalError: the journal in the folder is damaged, or belongs to another job.
    """

    def __init__(
        self,
        request: LaunchRequest,
        fleet: Fleet,
        folder: Path,
        *,
        token: str,
        tls: TlsConfig | None = None,
        clock: Callable[[], float] = time.monotonic,
        history: HistorySink | None = None,
        on_fatal: Callable[[], None] = lambda: os._exit(1),
    ) -> None:
        self.request = request
        self.job = request.training_job
        self._job_json = self.job.model_dump_json(by_alias=True).encode()
        self._clock = clock
        self._history = history
        self._on_fatal = on_fatal
        self._lock = threading.RLock()
        self.journal = Journal(folder / JOURNAL_FILE)
        state = self.journal.load()
        # A master that ended before it had journalled its term has answered no call.
        self.is_continued = state is not None and state.phases.term > 0
        if state is None:
            plan = JobPlan.of(request)
            self.journal.begin(plan)
            state = JobState.new(plan)
        elif state.plan.job_id != request.job_id:
            raise JournalError(f"{folder}: the journal belongs to job {state.plan.job_id}, not to {request.job_id}")
        self.state = state
        # The job's own clock continues from the last event; time without a master does not count.
        self._zero = clock() - state.time
        self._unix_zero = time.time() - clock()
        self._heartbeats = Heartbeats(self.job.spec.faults)
        self._answers = Answers()
        self._seen = Observations(self.now())
        self._seen.recall_changes(state)
        self._earlier_story = EarlierStory(request)
        self._memory_watch = MemoryWatch(request.job_id, self.job)
        self._saved_measurements = SavedMeasurements(folder)
        if self.is_continued:
            self._recall(self._saved_measurements.recall())
        self._token, self._tls, self._address = token, tls, ""
        self._term_watch = TermWatch(request, lambda: (self.state.phases.term, self.state.plan.holder), self._end)
        self._executor = Executor(request, self.submit, self._in_progress, self._term_watch, self._costs)
        self._reconciler = Reconciler(fleet, self._wanted, self._pod_spec, self.submit, self.is_superseded)
        self._compared = (-1, False)
        self._is_broken = False
        self._finished = threading.Event()
        self._stopping = threading.Event()
        self._timer = threading.Thread(target=self._run_timer, name="timer", daemon=True)
        # A separate thread that is not joined, so that a hanging store delays neither the timer nor the end.
        self._looks = threading.Thread(
            target=self._term_watch.look_regularly, args=(self._stopping.wait,), name="terms", daemon=True
        )

    def start(self, address: str, pause: Callable[[float], object] = time.sleep) -> None:
        """Begins or continues the job; pods get `address` as the address of the master.

        If this master first needs a term, waits without a limit for the checkpoint store, because it may not answer
        calls before.

        Args:
            pause: called with the seconds between two tries; an exception ends the wait.

        Raises:
            SpecError: the job's records do not fit the present launch.
            SupersededError: another master has taken the job over since this journal was written.
            CheckpointError: the store refuses a term.
        """
        away = self.journal.seconds_since_last_event()
        self.journal.start()
        if self.state.address != address:
            self._take_term(address, pause)
        self._address = address
        if self.state.phase is Phase.PENDING and not self.state.membership.members:
            self.submit(lambda now: events.Begun(time=now))
        else:
            log.info("master_restarted", job=self.request.job_id, phase=str(self.state.phase), events=self.journal.last)
            self.submit(lambda now: events.Restarted(time=now, away_seconds=away))
        newest = self.state.recovery.record
        if self.is_continued or (newest is not None and newest.is_final):
            # The process before may have been killed while it did; after the final record there is no other occasion.
            self._executor.prune(self.state.recovery)
        self._reconciler.start()
        self._timer.start()
        self._looks.start()

    def _take_term(self, address: str, pause: Callable[[float], object]) -> None:
        resumed: list[events.ResumedFrom | None] = []

        def base() -> str:
            if self.is_continued:
                record = self.state.recovery.record
                return record.uri if record else ""
            resumed[:] = [resumed_from(self.request, self.state.plan)]
            return resumed[0].records[-1].uri if resumed[0] else ""

        def positions() -> str:
            begin = self.state.plan.start_positions
            if resumed and resumed[0]:
                begin = resumed[0].records[-1].positions
            return msgspec.json.encode(begin).decode() if begin else ""

        term = take_term(
            self.request.store,
            self.job.metadata.name,
            self.request.job_id,
            holder=self.state.plan.holder,
            address=address,
            base=base,
            positions=positions,
            wait=pause,
            after=self.state.phases.term,
        )
        while not self.is_continued and not resumed:
            try:
                base()
            except StoreError as error:
                log.warning("records_wait_for_store", job=self.request.job_id, reason=str(error))
                pause(_STORE_PAUSE_SECONDS)
        # Before the journal has the term: of a master with a journal, only its own measurements are read.
        has_costs = self.is_continued or self._recall_earlier_costs()
        self.submit(
            lambda now: events.TermBegun(
                time=now, term=term.term, address=address, resumed=resumed[0] if resumed else None
            )
        )
        if not has_costs:
            self._count_costs_from_now()
        log.info("term_taken", job=self.request.job_id, term=term.term, address=address, base=term.base)

    @property
    def superseded(self) -> str:
        """Why this master must end without changing anything, if another master has taken the job over."""
        return self._term_watch.superseded

    def is_superseded(self) -> bool:
        """Whether another master has taken the job over; False if the store does not answer."""
        return self._term_watch.is_superseded()

    def _end(self) -> None:
        self._stopping.set()
        self._finished.set()

    def leave(self, grace_seconds: float) -> None:
        """For a process that ends while its job continues: saves a record, if there is enough time.

        Call `close` afterwards. The next master continues from the journal or, without it, from that record.
        """
        log.info("master_leaves", job=self.request.job_id, phase=str(self.state.phase))
        if self.journal.stall:
            log.error("journal_given_up", job=self.request.job_id, journal=self.journal.stall)
            self._stopping.set()
            self.journal.give_up()
            return
        if self.state.phase is not Phase.TRAINING:
            return
        saves = self.state.saves
        ended = saves.completed + saves.failed
        self.submit(lambda now: events.SaveAsked(time=now))
        deadline = self._clock() + grace_seconds
        while saves.completed + saves.failed == ended and self._clock() < deadline:
            if self.state.phase is not Phase.TRAINING or self._stopping.wait(_LEAVE_LOOK_SECONDS):
                return

    def close(self) -> None:
        """Ends the threads; pods continue."""
        self._stopping.set()
        if self._timer.is_alive():
            self._timer.join()
        if not self.journal.stall and not self.superseded:
            self._report_end()
        if self._final_artifacts is not None:
            self._final_artifacts.wait()
        with self._lock:
            remembered = self._remembered()
        self._saved_measurements.keep(remembered, self._clock())
        self._reconciler.close()
        self._executor.close()
        with self._lock:
            self.journal.close(None if self._is_broken else encode_state(self.state))

    def delete_pods(self, *, keep_for_logs: bool = False) -> None:
        """Deletes the job's workers and servers; with `keep_for_logs`, pods that ended by themselves are kept.

        Call this after `close`; before, the job would replace the pods.
        """
        with self._lock:
            kept = list(self.state.membership.ended) if keep_for_logs else []
        self._reconciler.delete_all(kept)

    def now(self) -> float:
        """Seconds on the job's clock."""
        return self._clock() - self._zero

    def wait_until_done(self, poll_seconds: float = 0.2, stopped: Callable[[], bool] = lambda: False) -> bool:
        """Returns True after FinishJob or when the linger time after the end is over; False if `stopped` returned True
        before."""
        ended: float | None = None
        while not self._finished.wait(poll_seconds):
            if stopped():
                return False
            if not self.state.phase.is_final:
                continue
            ended = self._clock() if ended is None else ended
            if self._clock() - ended > self.request.linger_seconds:
                return True
        # Pods may exit by themselves before their master ends.
        deadline = self._clock() + self.state.plan.exit_seconds + 5.0
        while not stopped() and not self.superseded and not self.is_swept() and self._clock() < deadline:
            self._stopping.wait(poll_seconds)
        return True

    def maximum_connections(self) -> int:
        """For an RpcServer."""
        return connections_for(len(self.state.membership.members))

    def handlers(self) -> Mapping[type[msgspec.Struct], Handler]:
        """For an RpcServer."""
        handlers: dict[type[msgspec.Struct], Handler] = {
            Register: self.register,
            Heartbeat: self.heartbeat,
            LeaseShards: self.lease,
            Failed: self.failed,
            GetStatus: self.status,
            GetLedger: self.ledger,
            GetExplanation: self.explain,
            StopJob: self.stop_job,
            TakeOver: self.take_over,
            NameRun: self.name_run,
            SaveNow: self.save_now,
            OrderWorkers: self.order_workers,
            ChangeShape: self.change_shape,
            CancelShape: self.cancel_shape,
            GetProfile: self.profile,
            FinishJob: self.finish_job,
        }
        return {kind: self._while_journalled(handler) for kind, handler in handlers.items()}

    def _while_journalled(self, handler: Handler) -> Handler:
        """Refuses calls with a retryable error while the journal cannot be written, because waiting calls would
        accumulate.

        Only requests for the status of a running job are still answered, so that people see the reason.
        """

        watch = self._term_watch

        def handle(message: msgspec.Struct) -> msgspec.Struct:
            if watch.superseded:
                raise TransportError(watch.superseded, retryable=True)
            stall = self.journal.stall
            if stall and not (isinstance(message, GetStatus) and not self.state.phase.is_final):
                reason = f"the master's journal cannot be written: {stall}"
                raise TransportError(reason, retryable=True)
            return handler(message)

        return handle

    def submit(self, make: Callable[[float], events.Event]) -> list[Effect]:
        """Puts an event through the state machine; returns when it is on disk and its effects are under way."""
        with self._lock:
            effects, sequence = self._apply(make(self.now()))
        return self._finish_event(effects, sequence)

    def _apply(self, event: events.Event) -> tuple[list[Effect], int]:
        try:
            effects = self.state.handle(event)
        except Exception:
            self._is_broken = True
            log.exception("event_broke_the_state_machine", received=type(event).__name__)
            self._on_fatal()
            raise
        self._seen.handled(self.state, effects, event.time)
        lines = [effect for effect in effects if isinstance(effect, RecordAttempt | Decided)]
        return effects, self.journal.append(event, lines, lambda: encode_state(self.state))

    def _finish_event(self, effects: list[Effect], sequence: int) -> list[Effect]:
        self._wait(sequence)
        for effect in effects:
            if isinstance(effect, Decided):
                log.info(effect.decision, job=self.request.job_id, **effect.inputs)
            elif not isinstance(effect, AnswerLease | RecordAttempt):
                self._executor.submit(effect)
        # Most events require no action in the cluster.
        if (wish := (self.state.membership.revision, self.state.phase.is_final)) != self._compared:
            self._compared = wish
            self._reconciler.wake()
        return effects

    def _wanted(self) -> Wanted:
        with self._lock:
            target, sequence = wanted(self.state), self.journal.last
        self._wait(sequence)
        return target

    def _pod_spec(self, pod: WantedPod) -> PodSpec:
        return member_pod(
            self.request, pod.role, self._address, pod.index, self._token, self._tls, restart=pod.restart,
            size=pod.size, avoids_nodes=pod.avoids_nodes,
        )  # fmt: skip

    def is_swept(self) -> bool:
        """Whether the job has ended and only pods that are kept for their logs are left."""
        with self._lock:
            kept = wanted(self.state).kept
            return self.state.is_swept() and self._reconciler.is_clean(kept)

    def _wait(self, sequence: int) -> None:
        try:
            self.journal.wait(sequence)
        except JournalError as error:
            if self._stopping.is_set():
                raise TransportError(f"the master ends: {error}", retryable=True) from error
            log.error("journal_failed", reason=str(error))
            self._on_fatal()
            raise

    def _in_progress(self) -> list[str]:
        with self._lock:
            return self.state.saves.in_progress()
