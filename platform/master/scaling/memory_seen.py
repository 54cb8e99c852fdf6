"""Converts a master's measurements of memory to the types of `platform.scaling.memory_outlook`."""

from __future__ import annotations

from elastrec.platform.scaling.memory import Servers, TableHistory
from elastrec.platform.scaling.memory_outlook import MemorySeen
from elastrec.platform.specs.job import TrainingJob
from elastrec.platform.specs.metrics import Role
from elastrec.platform.transport.messages.profile import Profile, TableGrowth


def memory_seen(job: TrainingJob, profile: Profile, largest_bytes: float) -> MemorySeen:
    """Tables, servers and the worker with the most memory in use, as measured by the job's master.

    Args:
        largest_bytes: no pod can have more memory.
    """
    epoch_samples = (profile.trained_samples + profile.remaining_samples) / job.spec.training.epochs
    return MemorySeen(
        tables=tuple(_table(job, each) for each in profile.tables_growth),
        servers=_servers(profile, largest_bytes),
        worker_used_bytes=float(profile.worker_used_bytes),
        trained=float(profile.trained_samples),
        remaining=float(profile.remaining_samples),
        fresh=max(0.0, epoch_samples - profile.trained_samples),
        samples_per_second=profile.samples_per_second or None,
        speed_deviation=profile.speed_deviation,
    )


def _servers(profile: Profile, largest_bytes: float) -> Servers | None:
    """None until each of the job's servers has reported its memory, because a missing one may use most."""
    if not profile.servers or len(profile.servers) < profile.configuration[Role.PARAMETER_SERVER].count:
        return None
    held = [each.table_bytes for each in profile.servers]
    mean = sum(held) / len(held)
    return Servers(
        count=len(profile.servers),
        used_bytes=float(max(each.used_bytes for each in profile.servers)),
        limit_bytes=float(min(each.limit_bytes for each in profile.servers)),
        imbalance=max(1.0, max(held) / mean) if mean else 1.0,
        largest_bytes=largest_bytes,
    )


def _table(job: TrainingJob, grown: TableGrowth) -> TableHistory:
    cap = job.spec.table(grown.table).hash_size
    return TableHistory(
        table=grown.table,
        samples=tuple(map(float, grown.samples)),
        rows=tuple(map(float, grown.rows)),
        bytes_per_row=grown.bytes_per_row,
        cap=None if cap is None else float(cap),
    )
