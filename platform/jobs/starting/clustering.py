"""Clusters partitions of a click log by session, and records in MLflow what clustering and deduplication save."""

from __future__ import annotations

import msgspec
import structlog

from elastrec.platform.data.clustering.clustering import cluster, clustered_data
from elastrec.platform.data.clustering.inspection import inspect_data
from elastrec.platform.data.manifest import build_manifest
from elastrec.platform.data.partitions import Partition
from elastrec.platform.history.inspections import Inspections
from elastrec.platform.jobs.starting.preparation import resolved
from elastrec.platform.jobs.surroundings import Platform
from elastrec.platform.specs.data import Partitioning, TrainingData
from elastrec.platform.specs.job import TrainingJob

log = structlog.get_logger(__name__)


class Clustered(msgspec.Struct, frozen=True, kw_only=True):
    """A clustered partition; `partition` is empty for data without partitions."""

    path: str
    partition: str
    rows: int
    sessions: int
    source_bytes: int
    bytes: int


class Inspected(msgspec.Struct, frozen=True, kw_only=True):
    """Figures of a partition's sample; `run_url` is its page in MLflow, or empty.

    Attributes:
        groups: features that a job with `deduplication: auto` and such batches would deduplicate.
        stored, sent, pooled: factors by which stored bytes, bytes from reader to worker, and pooled ids are reduced.
    """

    run_id: str
    run_url: str
    rows: int
    sessions: int
    groups: list[list[str]]
    stored: float
    sent: float
    pooled: float


def cluster_partition(platform: Platform, job: TrainingJob, destination: str, partition: str) -> Clustered:
    """Writes one partition of the job's log, clustered by session; an existing partition is not written again.

    Args:
        destination: folder or URI; relative paths are resolved against the platform's base folder.
        partition: `2026-01-31` or `2026-01-31T07`; empty if the data has no partitions.

    Raises:
        DataError: the data is no Parquet or names no session column, or the partition cannot be read or written.
    """
    data, target = _source(platform, job), resolved(destination, str(platform.base_folder))
    chosen = [Partition.parse(partition)] if partition else None
    (report,) = cluster(data, target, partitions=chosen)
    log.info("partition_clustered", path=target, partition=partition, rows=report.rows, sessions=report.sessions)
    return Clustered(
        path=target,
        partition=partition,
        rows=report.rows,
        sessions=report.sessions,
        source_bytes=report.source_bytes,
        bytes=report.bytes,
    )


def inspect_partition(platform: Platform, job: TrainingJob, path: str, partition: str) -> Inspected:
    """Measures a partition's first rows with the job's batches, and records the figures in MLflow.

    Args:
        path: of the log, clustered or not; empty: the job's own.
        partition: as in `cluster_partition`.

    Raises:
        DataError: the data names no session column, or a row or file is unusable.
        HistoryError: MLflow is not reachable.
    """
    data = _source(platform, job)
    if path:
        data = clustered_data(data, resolved(path, str(platform.base_folder)))
    chosen = [Partition.parse(partition)] if partition and data.partitioning is not Partitioning.NONE else None
    facts = inspect_data(
        data,
        build_manifest(data, chosen, try_rows=False),
        batch_rows=job.spec.training.batch_size,
        computed_pooling=frozenset(job.spec.sequence_features),
    )
    history = Inspections(platform.tracking_uri, job.spec.history.experiment, platform.ui_url)
    run_id = history.record(facts, data.path, partition)
    groups = [list(group) for group in facts.proposal.groups]
    log.info("partition_inspected", path=data.path, partition=partition, groups=groups, run_id=run_id)
    return Inspected(
        run_id=run_id,
        run_url=history.run_url(run_id),
        rows=facts.rows,
        sessions=facts.sessions,
        groups=groups,
        stored=facts.storage.ratio,
        sent=facts.sent.ratio,
        pooled=facts.pooled.ratio,
    )


def _source(platform: Platform, job: TrainingJob) -> TrainingData:
    data = job.spec.data
    return data.model_copy(update={"path": resolved(data.path, str(platform.base_folder))})
