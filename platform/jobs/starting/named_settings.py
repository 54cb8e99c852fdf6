"""Settings that a caller names for a job that runs already: a launch does not change them, `elastrec scale` and
`elastrec order` do."""

from __future__ import annotations

import contextlib
from collections.abc import Collection

from elastrec.platform.clusters.pods import PodStatus
from elastrec.platform.jobs.starting.kept_launch import KeptLaunch
from elastrec.platform.jobs.surroundings import Platform
from elastrec.platform.jobs.types import Prepared
from elastrec.platform.jobs.watching.masters import is_gone, wait_for_master
from elastrec.platform.specs.errors import OtherJobError
from elastrec.platform.specs.job import TrainingJob
from elastrec.platform.specs.metrics import TrainingMetrics
from elastrec.platform.specs.shape import Shape, ShapeChange, named_fields, sizes_of_fields
from elastrec.platform.specs.text.loading import job_from_json
from elastrec.platform.specs.text.quantities import format_bytes
from elastrec.platform.transport.messages.directive import PodOrders
from elastrec.platform.transport.messages.observer import GetStatus, Status

_OPTIONS = {
    "workers": "--workers",
    "worker_cores": "--worker-cores",
    "worker_memory_bytes": "--worker-memory",
    "parameter_servers": "--servers",
    "parameter_server_cores": "--server-cores",
    "parameter_server_memory_bytes": "--server-memory",
}
_BATCH_SIZE = "spec.training.batch_size"
_ANSWER_SECONDS = 15.0


def named_settings_note(
    platform: Platform, master: PodStatus, prepared: Prepared, kept: KeptLaunch | None, named: Collection[str]
) -> str:
    """What a running job has otherwise than its caller names, for people, if its launch has named the same: the caller
    repeats the command of the launch, and the job was changed since. Empty if nothing differs.

    Args:
        master: of the running job, which has the job file of `prepared`.
        kept: the job's last launch; None: unknown.
        named: fields of the job file, by dotted path, that the caller names; empty for a task of Airflow.

    Raises:
        OtherJobError: its launch has not named them, so the caller wants another value, which the job would not get.
        ClusterError, TransportError: the master does not answer.
    """
    job = job_from_json(prepared.job_json)
    sizes, rates = Shape.of(job.spec.resources), _learning_rates(job)
    can_change = named_fields(sizes_of_fields(sizes, named)) or {_BATCH_SIZE, *rates}.intersection(named)
    if is_gone(master) or not can_change:
        return ""
    with contextlib.closing(wait_for_master(platform, prepared.job_id)) as client:
        status = client.call(GetStatus(), Status, timeout_seconds=_ANSWER_SECONDS)
    if TrainingMetrics.model_validate_json(status.metrics_json).phase.is_final:
        return ""
    of_sizes, of_orders = _of_sizes(sizes, status.shape, named), _of_orders(job, status.orders, named)
    if not of_sizes and not of_orders:
        return ""
    job_id, words = prepared.job_id, "; ".join([*of_sizes.values(), *of_orders.values()])
    scale, order = scale_command(job_id, sizes_of_fields(sizes, of_sizes)), _order_command(job, job_id, of_orders)
    remedy = " and ".join(f"`{command}`" for command in (scale, order) if command)
    if kept is not None and {*of_sizes, *of_orders}.issubset(kept.named_fields):
        return f"Job {job_id} has other settings by now than its launch named: {words}. To change it: {remedy}"
    raise OtherJobError(
        f"job {job_id} runs already, and --set does not change a running job: {words}. To change it: {remedy}; to "
        f"wait for it as it is: `elastrec resume {job_id}`"
    )


def scale_command(job_id: str, change: ShapeChange) -> str:
    """The command that changes a running job like this; empty for no change."""
    options = [f"{_OPTIONS[name]} {_text(name, value)}" for name, value in named_fields(change).items()]
    return " ".join(["elastrec scale", job_id, *options]) if options else ""


def _of_sizes(sizes: Shape, present: Shape | None, named: Collection[str]) -> dict[str, str]:
    """Sizes of the caller's job file that the job does not have: by field, in words."""
    if present is None:
        return {}
    words = {}
    for field in sorted(named):
        here, there = (named_fields(sizes_of_fields(each, [field])) for each in (sizes, present))
        if here != there:
            ((name, value),) = here.items()
            words[field] = f"{field} is {_text(name, there[name])} there and {_text(name, value)} here"
    return words


def _of_orders(job: TrainingJob, given: PodOrders | None, named: Collection[str]) -> dict[str, str]:
    """Values of the caller's job file that an order for all workers has replaced: by field, in words."""
    if given is None:
        return {}
    values: dict[str, tuple[float, float]] = {
        field: (rate * given.learning_rate_scale, rate) for field, rate in _learning_rates(job).items()
    }
    if given.batch_size is not None:
        values[_BATCH_SIZE] = (given.batch_size, job.spec.training.batch_size)
    return {
        field: f"{field} is {there:g} there and {here:g} here"
        for field, (there, here) in sorted(values.items())
        if field in named and there != here
    }


def _order_command(job: TrainingJob, job_id: str, fields: Collection[str]) -> str:
    options = [f"--batch-size {job.spec.training.batch_size}"] if _BATCH_SIZE in fields else []
    if _learning_rates(job).keys() & set(fields):
        options.append("--learning-rate-scale 1")
    return " ".join(["elastrec order", job_id, *options]) if options else ""


def _learning_rates(job: TrainingJob) -> dict[str, float]:
    optimizers = job.spec.optimizers
    return {
        "spec.optimizers.rows.learning_rate": optimizers.rows.learning_rate,
        "spec.optimizers.dense.learning_rate": optimizers.dense.learning_rate,
    }


def _text(name: str, value: float) -> str:
    return format_bytes(int(value)) if name.endswith("_bytes") else f"{value:g}"
