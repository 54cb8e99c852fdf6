"""Runs in MLflow that a job has left open, because MLflow did not answer at its end or because its master was lost.

The checkpoint store has what such a run lacks: the figures that were not sent, the outcome, and the explanation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

from elastrec.checkpoints import concluded_term
from elastrec.platform.history import History
from elastrec.platform.jobs.starting.kept_launch import KeptLaunch, last_launch
from elastrec.platform.jobs.surroundings import Platform
from elastrec.platform.jobs.types import Prepared
from elastrec.platform.jobs.watching.past import explanation, left_result
from elastrec.platform.master.reporting.unsent_metrics import forget_points, read_points
from elastrec.platform.specs.errors import CheckpointError
from elastrec.platform.specs.job import TrainingJob
from elastrec.platform.specs.metrics import Phase
from elastrec.platform.specs.text.loading import job_from_json

if TYPE_CHECKING:
    from elastrec.platform.history.report import Story

log = structlog.get_logger(__name__)


def deliver(history: History, job: TrainingJob, job_id: str, run_id: str) -> bool:
    """Sends the figures in the store that MLflow has not received; returns whether there were any.

    Raises:
        HistoryError: MLflow does not answer or refuses.
        CheckpointError: the store could not be asked.
    """
    store, name = job.spec.checkpoint.store, job.metadata.name
    points = read_points(store, name, job_id)
    if not points:
        return False
    history.log_series(run_id, points)
    forget_points(store, name, job_id)
    log.info("history_delivered", job_id=job_id, run_id=run_id, points=len(points))
    return True


def close_left_run(platform: Platform, history: History, prepared: Prepared, run_id: str) -> None:
    """Closes the run of a job whose master is gone, with the outcome and the explanation in its store.

    A job whose model was published has succeeded. The run of a job that has left no outcome is closed as stopped.

    Raises:
        HistoryError: MLflow does not answer or refuses.
        CheckpointError: the store could not be asked.
    """
    store = job_from_json(prepared.job_json).spec.checkpoint.store
    phase, reason, story = Phase.STOPPED, "the master was gone and left no result", None
    if (left := left_result(platform, prepared)) is not None:
        phase, reason = left.phase, left.reason
        # The explanation in the store is of the job that has left the result there.
        story = _story(platform, prepared.job_id, store)
    elif _is_published(prepared, last_launch(prepared)):
        phase, reason = Phase.SUCCEEDED, ""
    history.finish_run(run_id, phase, reason, story=story)


def close_run_of_earlier_training(platform: Platform, history: History, prepared: Prepared) -> None:
    """Closes the run that an earlier training of the job has left open, before the job is trained from its first row:
    a run has the figures of one training. To be called if the cluster has no pod of the job's master.

    An open run without figures is left for the next training: it is of a launch that has come no further.

    Raises:
        HistoryError, CheckpointError: as in `close_left_run`.
    """
    kept = last_launch(prepared)
    if kept is None:
        return
    job, job_id = job_from_json(prepared.job_json), prepared.job_id
    run_id = history.open_run(job_id)
    if not run_id and read_points(job.spec.checkpoint.store, job.metadata.name, job_id):
        # MLflow was away during the whole training.
        run_id = history.start_run(kept.prepared, kept.allocation, begins=True, earlier_terms=kept.earlier_terms)
    if run_id and (deliver(history, job, job_id, run_id) or history.has_figures(run_id)):
        log.warning("run_of_earlier_training_closed", job_id=job_id, run_id=run_id)
        close_left_run(platform, history, prepared, run_id)


def drop_points_of_earlier_training(prepared: Prepared) -> None:
    """Removes the figures that an earlier training of the job has left, before the job is trained from its first row
    without a run: later, nobody could tell them from its own.

    Raises:
        CheckpointError: the store could not be asked.
    """
    job = job_from_json(prepared.job_json)
    place = (job.spec.checkpoint.store, job.metadata.name, prepared.job_id)
    if points := read_points(*place):
        forget_points(*place)
        log.warning("figures_of_earlier_training_dropped", job_id=prepared.job_id, points=len(points))


def _is_published(prepared: Prepared, kept: KeptLaunch | None) -> bool:
    job = job_from_json(prepared.job_json)
    concluded = concluded_term(job.spec.checkpoint.store, job.metadata.name, prepared.job_id)
    return concluded > (kept.earlier_terms if kept else 0)


def _story(platform: Platform, job_id: str, store: str) -> Story | None:
    from elastrec.platform.jobs.watching.story import story_of

    try:
        return story_of(explanation(platform, job_id, store))
    except CheckpointError as error:
        log.warning("job_not_explained", job_id=job_id, error=str(error))
        return None
