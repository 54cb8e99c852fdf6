"""What a master has measured of its job's memory, as `platform.scaling.memory_outlook` wants it."""

from __future__ import annotations

from elastrec.platform.scaling.memory import Servers, TableHistory
from elastrec.platform.scaling.memory_outlook import MemorySeen
from elastrec.platform.specs.job import TrainingJob
from elastrec.platform.specs.metrics import Role
from elastrec.platform.transport.messages.profile import Profile, TableGrowth


def memory_seen(job: TrainingJob, told: Profile, samples_per_second: float, largest_bytes: float) -> MemorySeen:
    """Tables, servers and the fullest worker, as the job's master knows them.

    Args:
        largest_bytes: no pod can have more memory.
    """
    epoch_samples = (told.trained_samples + told.remaining_samples) / job.spec.training.epochs
    return MemorySeen(
        tables=tuple(_table(job, each) for each in told.tables_growth),
        servers=_servers(told, largest_bytes),
        worker_used_bytes=float(told.worker_used_bytes),
        trained=float(told.trained_samples),
        remaining=float(told.remaining_samples),
        fresh=max(0.0, epoch_samples - told.trained_samples),
        samples_per_second=samples_per_second,
    )


def _servers(told: Profile, largest_bytes: float) -> Servers | None:
    """None while not all of the job's servers have told what they use: one that is silent may be the fullest."""
    if not told.servers or len(told.servers) < told.configuration[Role.PARAMETER_SERVER].count:
        return None
    held = [each.table_bytes for each in told.servers]
    mean = sum(held) / len(held)
    return Servers(
        count=len(told.servers),
        used_bytes=float(max(each.used_bytes for each in told.servers)),
        limit_bytes=float(min(each.limit_bytes for each in told.servers)),
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
