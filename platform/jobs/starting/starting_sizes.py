"""Start-up sizes of a job: those in its file, or those of similar finished jobs (DLRover-RM, Algorithm 1).

The sizes are chosen by `platform.scaling.warm_start`, which does not depend on MLflow.
"""

from __future__ import annotations

from collections.abc import Collection

import msgspec
import structlog

from elastrec.platform.history import metric_names as names
from elastrec.platform.history.decisions import read_coefficients
from elastrec.platform.history.history import History
from elastrec.platform.history.records import JobFilter, JobRecord
from elastrec.platform.jobs.ending.tracking import wait_for_tracking
from elastrec.platform.jobs.scaling.standing import room_of
from elastrec.platform.jobs.surroundings import Platform
from elastrec.platform.jobs.types import Allocation, Prepared
from elastrec.platform.scaling import amounts
from elastrec.platform.scaling.warm_start import Features, PastJob, WarmStart, with_memory_used
from elastrec.platform.scaling.warm_start import warm_start as choose
from elastrec.platform.specs.elasticity import SIZES
from elastrec.platform.specs.job import TrainingJob
from elastrec.platform.specs.metrics import Phase
from elastrec.platform.specs.shape import Shape, named_fields, sizes_of_fields
from elastrec.platform.specs.text.loading import job_from_json
from elastrec.platform.specs.text.uris import masked

log = structlog.get_logger(__name__)
LOOKED_AT = 200
_NAMED = "; named by the caller: "
_MEMORY_OF_SERVERS = names.named(names.MEMORY_BYTES, role="parameter_server")


def warm_start(platform: Platform, prepared: Prepared, named: Collection[str] = ()) -> Allocation:
    """Start-up sizes; `source` lists the jobs from which they come.

    A job with `scaling.start: history` starts with the sizes of its file if MLflow does not answer within
    `spec.history.launch_wait`.

    Args:
        named: fields of the job file, by dotted path, that the caller names: these sizes are not chosen by history.

    Raises:
        HistoryError: MLflow refuses, or stopped answering.
    """
    job = job_from_json(prepared.job_json)
    asked = asked_for(job)
    if job.spec.scaling.start == "job_file":
        log.info("warm_start", job_id=prepared.job_id, source="job file", allocation=str(asked))
        return _allocation(asked, "job file (scaling.start: job_file)")
    if not wait_for_tracking(platform, job.spec.history.launch_wait):
        log.warning("warm_start", job_id=prepared.job_id, source="job file", reason="MLflow does not answer")
        return _allocation(asked, f"job file (MLflow at {masked(platform.tracking_uri)} does not answer)")
    history = History(platform.tracking_uri, job.spec.history.experiment, platform.ui_url)
    past = [past_job(each) for each in history.job_records(JobFilter(phases=(Phase.SUCCEEDED,)), limit=LOOKED_AT)]
    room = room_of(platform.launcher.nodes())
    found = choose(features_of(job, prepared.training_rows), past, asked, room, servers=_servers(job))
    log.info("warm_start", job_id=prepared.job_id, reason=found.reason, allocation=str(found.allocation))
    return _with_named(_within(found.allocation, job), explained(found), job, named)


def allocation_again(before: Allocation, prepared: Prepared, named: Collection[str]) -> Allocation | None:
    """Start-up sizes for a job that was launched before: those of that launch, except for sizes that the caller names.

    Args:
        before: of the launch before.
        prepared: the job as it is launched now.
        named: fields of the job file, by dotted path, that the caller names.

    Returns:
        Within the limits of the job file; None: the caller names how they are chosen, so they are chosen anew.
    """
    if "spec.scaling.start" in named:
        return None
    job = job_from_json(prepared.job_json)
    sizes = {field: value for field, value in msgspec.structs.asdict(before).items() if field != "source"}
    kept = _within(amounts.Allocation(**sizes), job)
    # Of a launch that was itself called with sizes.
    return _with_named(kept, before.source.partition(_NAMED)[0], job, named)


def _with_named(sizes: amounts.Allocation, source: str, job: TrainingJob, named: Collection[str]) -> Allocation:
    """The same, with the sizes in the job file that the caller names."""
    changes = named_fields(sizes_of_fields(Shape.of(job.spec.resources), named))
    if changes:
        source += _NAMED + ", ".join(changes)
    return _allocation(msgspec.structs.replace(sizes, **changes), source)


def allocation_asked_for(job: TrainingJob) -> Allocation:
    """The sizes in the job file, as start-up sizes."""
    return _allocation(asked_for(job), "job file")


def asked_for(job: TrainingJob) -> amounts.Allocation:
    """The sizes in the job file."""
    return amounts.Allocation.of(Shape.of(job.spec.resources))


def features_of(job: TrainingJob, training_rows: int) -> Features:
    """Features of a job before it runs, by which similar jobs are found; the same as in `past_job`."""
    numbers = {
        "training_rows": float(training_rows),
        "batch_size": float(job.spec.training.batch_size),
        "embedding_dimension": float(job.spec.model.embedding_dimension),
        "dense_features": float(len(job.spec.data.dense)),
        "sparse_features": float(len(job.spec.data.sparse)),
        "tables": float(len(job.spec.data.tables)),
    }
    return Features(
        categories={"name": job.metadata.name, "architecture": job.spec.model.architecture}, numbers=numbers
    )


def past_job(record: JobRecord) -> PastJob:
    """A finished job for warm start: its last sizes, and the memory that servers used."""
    allocation = amounts.Allocation(**msgspec.structs.asdict(record.last))
    fullest = record.metrics.get(_MEMORY_OF_SERVERS, 0.0)
    return PastJob(
        job_id=record.job_id,
        features=Features(
            categories={"name": record.job_name, "architecture": record.architecture},
            numbers=record.features,
        ),
        allocation=allocation,
        needed=with_memory_used(allocation, fullest) if fullest > 0 else None,
        coefficients=read_coefficients(record.metrics),
        ended_unix_seconds=record.ended_unix_seconds or record.started_unix_seconds,
    )


def explained(found: WarmStart) -> str:
    """One line with the similar jobs, their similarity and their shares."""
    shares = "; ".join(
        f"{each.job_id} (similarity {each.similarity.total:.2f}, share {each.share:.0%}: {each.allocation})"
        for each in found.contributions
    )
    return f"history: {found.reason}" + (f": {shares}" if shares else "")


def _servers(job: TrainingJob) -> tuple[int, int]:
    """The fewest and the most parameter servers of a job."""
    bounds = job.spec.scaling
    return bounds.minimum_parameter_servers, min(bounds.maximum_parameter_servers, job.spec.resources.virtual_buckets)


def _within(allocation: amounts.Allocation, job: TrainingJob) -> amounts.Allocation:
    bounds = job.spec.scaling
    workers = min(max(allocation.workers, bounds.minimum_workers), bounds.maximum_workers)
    fewest, most_servers = _servers(job)
    servers = min(max(allocation.parameter_servers, fewest), most_servers)
    sizes = dict[str, float]()
    for field, (role, amount) in SIZES.items():
        least, most = bounds.limits(role, amount)
        size = getattr(allocation, field)
        sizes[field] = min(max(size, least or size), most or max(size, least or size))
    return msgspec.structs.replace(allocation, workers=workers, parameter_servers=servers, **sizes)


def _allocation(sizes: amounts.Allocation, source: str) -> Allocation:
    return Allocation(**msgspec.structs.asdict(sizes), source=source)
