"""Sizes that a caller names for a job that runs already: a launch does not change them, `elastrec scale` does."""

from __future__ import annotations

import contextlib
from collections.abc import Collection

from elastrec.platform.clusters.pods import PodStatus
from elastrec.platform.jobs.starting.kept_launch import KeptLaunch
from elastrec.platform.jobs.surroundings import Platform
from elastrec.platform.jobs.types import Prepared
from elastrec.platform.jobs.watching.masters import is_gone, wait_for_master
from elastrec.platform.specs.errors import OtherJobError
from elastrec.platform.specs.metrics import TrainingMetrics
from elastrec.platform.specs.shape import Shape, ShapeChange, named_fields, sizes_of_fields
from elastrec.platform.specs.text.loading import job_from_json
from elastrec.platform.specs.text.quantities import format_bytes
from elastrec.platform.transport.messages.observer import GetStatus, Status

_OPTIONS = {
    "workers": "--workers",
    "worker_cores": "--worker-cores",
    "worker_memory_bytes": "--worker-memory",
    "parameter_servers": "--servers",
    "parameter_server_cores": "--server-cores",
    "parameter_server_memory_bytes": "--server-memory",
}
_ANSWER_SECONDS = 15.0


def named_sizes_note(
    platform: Platform, master: PodStatus, prepared: Prepared, kept: KeptLaunch | None, named: Collection[str]
) -> str:
    """What a running job has otherwise than its caller names, for people, if its launch has named the same: the caller
    repeats the command of the launch, and the job was scaled since. Empty if nothing differs.

    Args:
        master: of the running job, which has the job file of `prepared`.
        kept: the job's last launch; None: unknown.
        named: fields of the job file, by dotted path, that the caller names; empty for a task of Airflow.

    Raises:
        OtherJobError: its launch has not named them, so the caller wants another size, which the job would not get.
        ClusterError, TransportError: the master does not answer.
    """
    sizes = Shape.of(job_from_json(prepared.job_json).spec.resources)
    if is_gone(master) or not named_fields(sizes_of_fields(sizes, named)):
        return ""
    with contextlib.closing(wait_for_master(platform, prepared.job_id)) as client:
        status = client.call(GetStatus(), Status, timeout_seconds=_ANSWER_SECONDS)
    if status.shape is None or TrainingMetrics.model_validate_json(status.metrics_json).phase.is_final:
        return ""
    differing = [
        field for field in sorted(named) if sizes_of_fields(sizes, [field]) != sizes_of_fields(status.shape, [field])
    ]
    if not differing:
        return ""
    words = "; ".join(
        f"{field} is {_value(status.shape, field)} there and {_value(sizes, field)} here" for field in differing
    )
    job_id, remedy = prepared.job_id, scale_command(prepared.job_id, sizes_of_fields(sizes, differing))
    if kept is not None and set(differing).issubset(kept.named_fields):
        return f"Job {job_id} has other sizes by now than its launch named: {words}. To change it: {remedy}"
    raise OtherJobError(
        f"job {job_id} runs already, and --set does not change a running job: {words}. To change it: `{remedy}`; to "
        f"wait for it as it is: `elastrec resume {job_id}`"
    )


def scale_command(job_id: str, change: ShapeChange) -> str:
    """The command that changes a running job like this; empty for no change."""
    options = [f"{_OPTIONS[name]} {_text(name, value)}" for name, value in named_fields(change).items()]
    return " ".join(["elastrec scale", job_id, *options]) if options else ""


def _value(sizes: Shape, field: str) -> str:
    ((name, value),) = named_fields(sizes_of_fields(sizes, [field])).items()
    return _text(name, value)


def _text(name: str, value: float) -> str:
    return format_bytes(int(value)) if name.endswith("_bytes") else f"{value:g}"
