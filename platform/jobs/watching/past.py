"""The past of a job: from its master while it runs, otherwise from the checkpoint store."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, TypeVar

import structlog

from elastrec.platform.jobs.known import without_run
from elastrec.platform.jobs.starting.kept_launch import launch_of
from elastrec.platform.jobs.starting.preparation import resolved
from elastrec.platform.jobs.surroundings import DEFAULT_STORE, Platform
from elastrec.platform.jobs.types import Prepared
from elastrec.platform.jobs.watching.masters import is_gone, live_master, pod_of_master
from elastrec.platform.jobs.watching.observation import observe
from elastrec.platform.master.reporting.unsent_metrics import read_result
from elastrec.platform.specs.errors import CheckpointError, ClusterError
from elastrec.platform.specs.metrics import Phase, TrainingMetrics
from elastrec.platform.specs.text.loading import job_from_json
from elastrec.platform.transport import RpcClient
from elastrec.platform.transport.messages.ledger import (
    Attempt,
    Explanation,
    GetExplanation,
    GetLedger,
    LedgerPage,
    StreamNow,
)

if TYPE_CHECKING:
    import pyarrow as pa

log = structlog.get_logger(__name__)
Left = TypeVar("Left")


class NothingLeftError(CheckpointError):
    """Neither the cluster nor the checkpoint store knows the job."""


def ledger(platform: Platform, job_id: str, store: str = DEFAULT_STORE) -> pa.Table:
    """Every attempt at every shard; the columns are `platform.master.reporting.ledger.SCHEMA`.

    Args:
        store: URI of the checkpoint store, which has the ledger of a job that has ended; relative as in job files.

    Raises:
        ClusterError: the job's master does not answer.
        NothingLeftError: the job is not in the cluster, and the store has no ledger of it.
        CheckpointError: the store could not be asked.
    """
    from elastrec.platform.master.reporting.ledger import ledger_table, read_ledger

    with live_master(platform, job_id) as client:
        if client is not None:
            streams: list[StreamNow] = []
            return ledger_table(_pages(client, streams), streams)
    return _left(read_ledger, platform, job_id, store)


def explanation(platform: Platform, job_id: str, store: str = DEFAULT_STORE) -> Explanation:
    """Events of a job, their causes, and where its time went; arguments and errors as in `ledger`."""
    from elastrec.platform.master.reporting.explanation import read_explanation

    with live_master(platform, job_id) as client:
        if client is not None:
            return client.call(GetExplanation(), Explanation, timeout_seconds=30)
    return _left(read_explanation, platform, job_id, store)


def report(platform: Platform, job_id: str, experiment: str, store: str = DEFAULT_STORE) -> str:
    """The report of a job's newest run in MLflow, an HTML page.

    Args:
        experiment: of its runs; store: as in `ledger`.

    Raises:
        SpecError: the experiment has no run of the job.
        HistoryError: MLflow does not answer.
    """
    from elastrec.platform.history import History, JobFilter
    from elastrec.platform.jobs.watching.story import story_of

    history = History(platform.tracking_uri, experiment, platform.ui_url)
    records = history.job_records(JobFilter(job_id=job_id), 1)
    if not records:
        raise without_run(platform, job_id, experiment, store)
    try:
        story = story_of(explanation(platform, job_id, store))
    except (CheckpointError, ClusterError) as error:
        log.warning("job_not_explained", job_id=job_id, error=str(error))
        story = None
    return history.report(records[0].run_id, story)


def result_of(platform: Platform, prepared: Prepared) -> TrainingMetrics:
    """The job's last metrics, from its master or, after the master has ended, from the store.

    Raises:
        ClusterError: the job is neither in the cluster nor in the store, the cluster does not answer, or (retryable)
            the master does not.
        CheckpointError: the store could not be asked.
    """
    job_id = prepared.job_id
    left = left_result(platform, prepared) if is_gone(pod_of_master(platform, job_id)) else None
    if left is not None:
        return left
    seen = observe(platform, job_id)
    if seen.reachable:
        return seen.metrics
    # The master ends if another process has published the job, or restarts. A job that has succeeded is not launched
    # again, so its result is of this launch; that of a failed job may be of an earlier one.
    left = left_result(platform, prepared)
    if left is None or left.phase is not Phase.SUCCEEDED:
        raise ClusterError(f"job {job_id}: {seen.metrics.reason}", retryable=True)
    return left


def left_result(platform: Platform, prepared: Prepared) -> TrainingMetrics | None:
    """The result of a finished job in its store; None if there is none of its last launch.

    Raises:
        CheckpointError: the store could not be asked.
    """
    job = job_from_json(prepared.job_json)
    store = resolved(job.spec.checkpoint.store, platform.work_uri)
    launch = launch_of(store, job.metadata.name, prepared.job_id)
    return read_result(store, job.metadata.name, prepared.job_id, launch.earlier_terms if launch else 0)


def is_trained(platform: Platform, prepared: Prepared) -> bool:
    """Whether a job with this id has been trained and evaluated, and its master has ended, so that it need not run
    again.

    Raises:
        CheckpointError: the store could not be asked.
    """
    if not is_gone(pod_of_master(platform, prepared.job_id)):
        return False
    result = left_result(platform, prepared)
    return result is not None and result.phase is Phase.SUCCEEDED


def _left(read: Callable[[str, str], Left | None], platform: Platform, job_id: str, store: str) -> Left:
    where = resolved(store, platform.work_uri)
    value = read(where, job_id)
    if value is None:
        raise NothingLeftError(
            f"job {job_id}: it is not in the cluster, and nothing of it was left in {where}; "
            "name the store that its job file names with --store"
        )
    return value


def _pages(client: RpcClient, streams: list[StreamNow]) -> Iterator[Sequence[Attempt]]:
    """The master's lines; fills `streams` from the last page."""
    after = 0
    while True:
        page = client.call(GetLedger(after=after), LedgerPage, timeout_seconds=30)
        yield page.attempts
        if not page.next:
            yield page.running
            streams += page.streams
            return
        after = page.next
