"""Prerequisites for publishing a trained model: waits for MLflow, creates the job's run, and sends figures that were
kept.

The job's master is not needed, because the checkpoint store has the same data.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

import msgspec
import structlog

from elastrec.checkpoints import delete_predictions
from elastrec.platform.history import History
from elastrec.platform.jobs.ending.left_runs import close_left_run, deliver
from elastrec.platform.jobs.ending.tracking import Announce, tracking_answers, wait_for_tracking, warn
from elastrec.platform.jobs.starting.kept_launch import earlier_terms_of
from elastrec.platform.jobs.starting.launching import finish
from elastrec.platform.jobs.starting.preparation import resolved
from elastrec.platform.jobs.starting.starting_sizes import allocation_asked_for
from elastrec.platform.jobs.surroundings import Platform
from elastrec.platform.jobs.types import Launched, Prepared
from elastrec.platform.jobs.watching.job_pods import remove_job
from elastrec.platform.jobs.watching.masters import ask_pod, is_gone, pod_of_master
from elastrec.platform.jobs.watching.past import left_result, result_of
from elastrec.platform.master.reporting.unsent_metrics import forget_result
from elastrec.platform.specs.errors import CheckpointError, HistoryAwayError, HistoryError, TransportError
from elastrec.platform.specs.text.loading import job_from_json
from elastrec.platform.specs.text.uris import masked
from elastrec.platform.transport.messages.job import Done
from elastrec.platform.transport.messages.observer import NameRun

log = structlog.get_logger(__name__)
Found = TypeVar("Found")


def publish_patience_seconds(prepared: Prepared) -> float:
    """How long the steps after training wait for MLflow (`spec.history.publish_wait`)."""
    return job_from_json(prepared.job_json).spec.history.publish_wait


def with_tracking(
    platform: Platform, prepared: Prepared, step: Callable[[], Found], announce: Announce = warn
) -> Found:
    """Executes a step that needs MLflow; repeats it if MLflow stops answering, for `spec.history.publish_wait`.

    Raises:
        HistoryAwayError: MLflow did not answer for longer.
        HistoryError: MLflow answers and refuses.
    """
    deadline = time.monotonic() + publish_patience_seconds(prepared)
    while True:
        if not wait_for_tracking(platform, max(0.0, deadline - time.monotonic()), announce):
            raise HistoryAwayError(away_message(platform, prepared))
        try:
            return step()
        except HistoryError as error:
            if tracking_answers(platform):
                raise
            log.warning("history_went_away", job_id=prepared.job_id, error=str(error))


def away_message(platform: Platform, prepared: Prepared) -> str:
    """The message for people after the wait has ended."""
    patience = publish_patience_seconds(prepared)
    server, record = masked(platform.tracking_uri), result_of(platform, prepared).checkpoint
    return (
        f"MLflow at {server} has not answered for {patience:.0f} s (spec.history.publish_wait). The "
        f"model of job {prepared.job_id} is trained and stored in {record}; it will not be trained again"
    )


def with_run(platform: Platform, prepared: Prepared, launched: Launched) -> Launched:
    """The same job with its run in MLflow, which is created if necessary; sends figures that were kept. Idempotent.

    A run that somebody has deleted meanwhile is replaced, without the figures that it had. If the job was trained again
    since it got the run, because it had failed, its new run is used.

    Raises:
        HistoryError: MLflow does not answer or refuses.
    """
    job = job_from_json(prepared.job_json)
    history = History(platform.tracking_uri, job.spec.history.experiment, platform.ui_url)
    if not launched.run_id or not _is_current(history, launched):
        allocation = launched.allocation or allocation_asked_for(job)
        run_id = history.start_run(prepared, allocation, earlier_terms=earlier_terms_of(prepared))
        launched = msgspec.structs.replace(launched, run_id=run_id, run_url=history.run_url(run_id))
        _name_run(platform, prepared.job_id, run_id)
    deliver(history, job, prepared.job_id, launched.run_id)
    return launched


def _is_current(history: History, launched: Launched) -> bool:
    is_current = history.is_current(launched.run_id)
    if not is_current:
        log.warning("run_is_replaced", job_id=launched.job_id, run_id=launched.run_id, reason="deleted, or it failed")
    return is_current


def _name_run(platform: Platform, job_id: str, run_id: str) -> None:
    """Tells the job's master the run for its figures; a master that has ended has written them to the store."""
    try:
        ask_pod(platform, pod_of_master(platform, job_id), NameRun(run_id=run_id), Done, timeout_seconds=10)
    except TransportError as error:
        log.warning("run_not_named", job_id=job_id, run_id=run_id, error=str(error))


def forget(platform: Platform, prepared: Prepared) -> None:
    """Records that the model is published: another run with the same id trains it again.

    Deletes the predictions with which its export was checked.
    """
    job = job_from_json(prepared.job_json)
    store = resolved(job.spec.checkpoint.store, platform.work_uri)
    try:
        forget_result(store, job.metadata.name, prepared.job_id)
        # Last: without the result, nothing exports the model again, which would fail without its predictions.
        delete_predictions(store, job.metadata.name, prepared.job_id)
    except CheckpointError as error:
        log.warning("result_not_forgotten", job_id=prepared.job_id, error=str(error))


def finish_job(platform: Platform, prepared: Prepared) -> None:
    """`finish`, also for a job whose master has ended: the run is closed with the data in the store. Idempotent.

    The run of a job that has left neither a master nor a result is closed as stopped.

    Raises:
        HistoryAwayError: MLflow does not answer. The job is removed from the cluster; another call closes the run.
    """
    job_id = prepared.job_id
    master = pod_of_master(platform, job_id)
    left = left_result(platform, prepared) if is_gone(master) else None
    if left is None and master is not None:
        if not finish(platform, job_id):
            raise _run_stays_open(platform, job_id)
        return
    remove_job(platform, job_id)
    if not tracking_answers(platform):
        raise _run_stays_open(platform, job_id)
    job = job_from_json(prepared.job_json)
    history = History(platform.tracking_uri, job.spec.history.experiment, platform.ui_url)
    try:
        run_id = history.open_run(job_id)
        if run_id:
            deliver(history, job, job_id, run_id)
            close_left_run(platform, history, prepared, run_id)
    except HistoryError as error:
        if not tracking_answers(platform):
            raise _run_stays_open(platform, job_id) from error
        log.warning("run_not_closed", job_id=job_id, error=str(error))


def _run_stays_open(platform: Platform, job_id: str) -> HistoryAwayError:
    server = masked(platform.tracking_uri)
    return HistoryAwayError(
        f"MLflow at {server} does not answer: job {job_id} is removed from the cluster, and its run stays open"
    )
