"""Operators for a click log: cluster a partition by session, and measure the savings."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow.sdk import Asset

from elastrec.operators import settings
from elastrec.operators.base import ElastrecOperator, give, no_retry_for_bad_input
from elastrec.operators.links import push_link
from elastrec.operators.params import read_job
from elastrec.platform.specs.errors import FieldProblem, SpecError

if TYPE_CHECKING:
    from airflow.providers.openlineage.extractors import OperatorLineage
    from airflow.sdk import Context

    from elastrec.platform.jobs.starting.clustering import Clustered
    from elastrec.platform.specs.job import TrainingJob


class _LogOperator(ElastrecOperator):
    """Reads the job file whose data section describes the log.

    Args:
        jobs_folder: the folder of relative job files.
        job_file: a job that trains on the log.
        partition: the day `2026-01-31` or hour `2026-01-31T07`; empty for data without partitions.
    """

    template_fields: Sequence[str] = (*ElastrecOperator.template_fields, "job_file", "partition", "path")

    def __init__(self, *, jobs_folder: str | Path, job_file: str, path: str, partition: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.jobs_folder = str(jobs_folder)
        self.job_file = job_file
        self.path = path
        self.partition = partition

    def _job(self) -> TrainingJob:
        return read_job(Path(self.jobs_folder), self.job_file, None, None, None)


class ClusterPartitionOperator(_LogOperator):
    """Writes a partition ordered by session. Output: `Clustered`.

    An existing partition is not written again, so a retry or a cleared task does nothing twice. Each asset among
    `outlets` gets an event for the partition.

    Args:
        path: location of the clustered log.
    """

    _clustered: tuple[str, Clustered] | None = None

    def execute(self, context: Context) -> dict[str, Any]:
        """Clusters; bad data fails without a retry."""
        from elastrec.platform.jobs.starting.clustering import cluster_partition
        from elastrec.platform.jobs.starting.preparation import resolved

        with no_retry_for_bad_input():
            if not self.path:
                advice = f"fill in the field, or set the Airflow variable {settings.CLUSTERED_LOG_VARIABLE}"
                problem = FieldProblem("destination", "empty", "where the clustered log goes", advice)
                raise SpecError([problem], "the form")
            job = self._job()
            result = cluster_partition(self.platform, job, self.path, self.partition)
        self._clustered = resolved(job.spec.data.path, str(self.platform.base_folder)), result
        self.log.info(
            "%s %s: %s rows, %s sessions; %s bytes became %s",
            result.path, result.partition, f"{result.rows:,}", f"{result.sessions:,}", f"{result.source_bytes:,}",
            f"{result.bytes:,}",
        )  # fmt: skip
        for asset in self.outlets:
            if isinstance(asset, Asset):
                event = context["outlet_events"][asset]
                event.extra = {"path": result.path, "rows": result.rows, "sessions": result.sessions}
                if self.partition:
                    event.add_partitions(self.partition)
        return give(result)

    def get_openlineage_facets_on_complete(self, task_instance: Any) -> OperatorLineage[Any, Any] | None:
        """Lineage from the log to the clustered log; empty if the task failed."""
        from elastrec.operators import lineage

        return lineage.clustered(*self._clustered) if self._clustered else None


class InspectPartitionOperator(_LogOperator):
    """Measures repeated features on a sample, and records the figures as a run in MLflow. Output: `Inspected`.

    Args:
        path: of the log; empty: the job's own.
    """

    def execute(self, context: Context) -> dict[str, Any]:
        """Inspects; bad data fails without a retry."""
        from elastrec.platform.jobs.starting.clustering import inspect_partition

        with no_retry_for_bad_input():
            result = inspect_partition(self.platform, self._job(), self.path, self.partition)
        push_link(context, result.run_url)
        self.log.info(
            "%s rows, %s sessions; %.2f times fewer bytes stored, %.2f sent, %.2f times fewer ids pooled; groups: %s",
            f"{result.rows:,}", f"{result.sessions:,}", result.stored, result.sent, result.pooled,
            result.groups or "none",
        )  # fmt: skip
        return give(result)
