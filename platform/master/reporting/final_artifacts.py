"""Writes the files that a master leaves in its checkpoint store when the job has ended, for commands about past
jobs."""

from __future__ import annotations

import threading
import time

import structlog

from elastrec.checkpoints import StoreError
from elastrec.platform.history.points import Costs
from elastrec.platform.master.machine.state import JobState
from elastrec.platform.master.pods.launch import LaunchRequest
from elastrec.platform.master.reporting.earlier_story import EarlierStory
from elastrec.platform.master.reporting.explanation import write_explanation
from elastrec.platform.master.reporting.kept_costs import keep_costs
from elastrec.platform.master.reporting.ledger import write_ledger
from elastrec.platform.master.reporting.unsent_metrics import write_result
from elastrec.platform.master.service.journal import Journal
from elastrec.platform.specs.errors import CheckpointError, ElastrecError
from elastrec.platform.specs.metrics import TrainingMetrics
from elastrec.platform.transport.messages.ledger import Explanation

log = structlog.get_logger(__name__)
LONGEST_SECONDS = 10.0
_PAUSES_SECONDS = (0.0, 1.0, 5.0)


class FinalArtifacts:
    """Writes in a separate thread, so that a slow store does not delay the orders to pods to exit.

    Args:
        state, metrics: of a job that has ended.
        earlier: the story of earlier masters, if the job was resumed.
        costs: None: they are not counted.
    """

    def __init__(
        self,
        request: LaunchRequest,
        state: JobState,
        metrics: TrainingMetrics,
        journal: Journal,
        earlier: EarlierStory,
        costs: Costs | None,
    ) -> None:
        self._request = request
        self._earlier = earlier
        self._costs = costs
        self._state = state
        self._metrics = metrics
        self._journal = journal
        self._thread = threading.Thread(target=self._run, name="final-artifacts", daemon=True)
        self._thread.start()

    def wait(self) -> None:
        """Waits until everything is written or has failed."""
        self._thread.join(LONGEST_SECONDS)

    def _run(self) -> None:
        request, reason = self._request, ""
        job_name = request.training_job.metadata.name
        for pause in _PAUSES_SECONDS:
            time.sleep(pause)
            try:
                # First: it is only of this run of the job if the result is, which is replaced now.
                before = self._read_earlier() if self._state.is_resumed else None
                write_result(request.store, job_name, request.job_id, self._metrics)
                if self._costs is not None:
                    keep_costs(request, self._state.phases.term, self._costs)
                of_job = (request.store, job_name, request.job_id, self._state, self._journal)
                ledger, story = write_ledger(*of_job, request.earlier_terms), write_explanation(*of_job, before)
            except ElastrecError as error:
                reason = str(error)
                continue
            log.info("ledger_left", job=request.job_id, ledger=ledger, explanation=story)
            return
        log.error("ledger_not_left", job=request.job_id, reason=reason)

    def _read_earlier(self) -> Explanation | None:
        try:
            return self._earlier.read()
        except StoreError:
            raise
        except CheckpointError as error:
            # It stays damaged; the job's result matters more.
            log.warning("earlier_explanation_not_read", job=self._request.job_id, reason=str(error))
            return None
