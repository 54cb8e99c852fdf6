"""Writes and deletes checkpoint records in separate threads, because a store may hang."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import msgspec
import structlog

from elastrec.checkpoints import (
    PartManifest,
    RecordManifest,
    StoreError,
    SupersededError,
    commit_record,
    discard,
    open_record,
    prune,
    prune_final,
)
from elastrec.platform.history.points import Costs
from elastrec.platform.master.machine import events
from elastrec.platform.master.machine.effects import CommitRecord, DiscardRecord
from elastrec.platform.master.machine.recovery import Recovery
from elastrec.platform.master.pods.launch import LaunchRequest
from elastrec.platform.master.reporting.kept_costs import keep_costs
from elastrec.platform.master.service import earlier_times
from elastrec.platform.master.service.resumption import ATTRIBUTE, KeptOrders, KeptShape, Numbering
from elastrec.platform.master.service.term_watch import TermWatch
from elastrec.platform.specs.errors import CheckpointError

log = structlog.get_logger(__name__)
CLOSE_SECONDS = 10.0


class RecordLane:
    """A thread for each effect, so that a hanging effect delays neither other effects nor the end of the process.

    The state machine begins no save while it waits for another, so there are few threads.

    Args:
        submit: takes the event with the outcome of a commit.
        in_progress: returns the URIs of records that the job is writing, or whose outcome is unknown.
        term: checked before a record is committed and before one is deleted.
        costs: returns those of the job until now, which are kept with each record; None: they are not counted.

    Attributes:
        threads: of the running effects, in their order.
    """

    def __init__(
        self,
        request: LaunchRequest,
        submit: events.Submit,
        in_progress: Callable[[], list[str]],
        term: TermWatch,
        costs: Callable[[], Costs | None] = lambda: None,
    ) -> None:
        self._request = request
        self._job = request.training_job
        self._submit = submit
        self._in_progress = in_progress
        self._term = term
        self._costs = costs
        self._closing = threading.Event()
        self._lock = threading.Lock()
        self._committing: set[str] = set()
        self.threads: list[threading.Thread] = []

    def submit(self, effect: CommitRecord | DiscardRecord) -> None:
        """Executes an effect soon; a commit that is running already, as after a suspension of the process, only
        once."""
        with self._lock:
            if isinstance(effect, CommitRecord):
                if effect.order_id in self._committing:
                    return
                self._committing.add(effect.order_id)
            self._start(lambda: self._run(effect))

    def prune(self, recovery: Recovery) -> None:
        """Prunes records as after a commit, soon: the process before this one may have been killed while it did.

        What the job knows stays, damaged records included: a newer one may be complete whose commit it does not know.
        """
        kept, damaged = [record.uri for record in recovery.records], list(recovery.damaged)
        is_final = bool(recovery.record and recovery.record.is_final)
        with self._lock:
            self._start(lambda: self._prune([*kept, *damaged], damaged, is_final=is_final))

    def _start(self, work: Callable[[], None]) -> None:
        thread = threading.Thread(target=work, name="record", daemon=True)
        self.threads = [*(other for other in self.threads if other.is_alive()), thread]
        thread.start()

    def close(self) -> None:
        """Waits a limited time for running effects; after that, no events are reported."""
        self.wait(CLOSE_SECONDS)
        self._closing.set()

    def wait(self, seconds: float) -> None:
        """Waits until no effect is running, or until the time is over."""
        deadline = time.monotonic() + seconds
        with self._lock:
            threads = list(self.threads)
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    def _run(self, effect: CommitRecord | DiscardRecord) -> None:
        try:
            if isinstance(effect, CommitRecord):
                self._commit(effect)
            else:
                self._discard(effect)
        except Exception:
            # The state machine continues; the deadline of a commit handles the missing outcome.
            log.exception("effect_failed", effect=type(effect).__name__)
        finally:
            if isinstance(effect, CommitRecord):
                with self._lock:
                    self._committing.discard(effect.order_id)

    def _submit_unless_closing(self, make: Callable[[float], events.Event]) -> None:
        # While the master is closing, events are not handled; its successor commits again, and finds the record.
        if not self._closing.is_set():
            self._submit(make)

    def _commit(self, effect: CommitRecord) -> None:
        try:
            parts = [PartManifest.from_json(part.manifest_json) for part in effect.parts]
            # With these, `elastrec inspect` converts raw keys to ids; steps would need the whole row.
            encodings = {
                feature.name: feature.encoding
                for feature in self._job.spec.data.sparse
                if feature.name not in self._job.spec.data.features
            }
            manifest = commit_record(
                effect.uri,
                parts,
                msgspec.json.encode(effect.positions),
                job=self._job,
                job_id=self._request.job_id,
                kind="final" if effect.is_final else "periodic",
                step=effect.step,
                generation=effect.generation,
                interval=self._request.data_interval,
                attributes={
                    "encodings": msgspec.json.encode(encodings).decode(),
                    ATTRIBUTE: msgspec.json.encode(Numbering.of(self._request)).decode(),
                    **KeptShape.attribute(self._request, effect.shape),
                    **KeptOrders.attribute(self._request, effect.orders),
                    **earlier_times.attribute(effect.times),
                },
                term=self._term.term,
                cut=effect.order_id,
                base=effect.base,
                check=self._term.check,
            )
        except SupersededError:
            return
        except Exception as error:
            committed = self._committed(effect.uri)
            if committed is None:
                reason, away = f"{type(error).__name__}: {error}", isinstance(error, StoreError)
                self._submit_unless_closing(
                    lambda now: events.RecordFailed(time=now, order_id=effect.order_id, reason=reason, store_away=away)
                )
                return
            manifest = committed
        base = effect.base if manifest.base else ""
        self._submit_unless_closing(lambda now: events.RecordCommitted(time=now, order_id=effect.order_id, base=base))
        self._keep_costs()
        self._prune([effect.uri], effect.damaged, is_final=effect.is_final)

    def _keep_costs(self) -> None:
        costs = self._costs()
        if costs is None:
            return
        try:
            keep_costs(self._request, self._term.term, costs)
        except CheckpointError as error:
            log.warning("costs_not_kept", job=self._request.job_id, reason=str(error))

    def _prune(self, kept: list[str], damaged: list[str], *, is_final: bool) -> None:
        try:
            prune(
                self._request.store,
                self._job.metadata.name,
                self._request.job_id,
                self._job.spec.checkpoint.keep,
                in_progress=lambda: [*kept, *self._in_progress()],
                damaged=damaged,
                check=self._term.check,
            )
            if is_final and (keep := self._job.spec.checkpoint.keep_final) is not None:
                prune_final(
                    self._request.store,
                    self._job.metadata.name,
                    keep,
                    kept=kept,
                    check=self._term.check,
                )
        except CheckpointError as error:
            log.warning("records_not_pruned", reason=str(error))

    def _discard(self, effect: DiscardRecord) -> None:
        try:
            if effect.may_be_complete:
                # A later master may continue from it.
                self._term.check()
            discard(effect.uri, may_be_complete=effect.may_be_complete)
        except CheckpointError as error:
            # It is pruned after the next complete record.
            log.warning("torn_record_not_discarded", record=effect.uri, reason=str(error))

    def _committed(self, uri: str) -> RecordManifest | None:
        """The manifest that a master of this job has written, but not journalled before it was killed."""
        try:
            manifest = open_record(uri).manifest
        except CheckpointError:
            return None
        return manifest if manifest.job_id == self._request.job_id else None
