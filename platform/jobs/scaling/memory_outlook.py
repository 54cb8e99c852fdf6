"""Whether a job's servers hold its tables to the end: `platform.scaling.memory` on what its master has measured."""

from __future__ import annotations

import msgspec
import structlog

from elastrec.platform.scaling.amounts import Allocation
from elastrec.platform.scaling.memory import Action, Forecast, Growth, Servers, TableHistory, fit_growth, forecast
from elastrec.platform.scaling.types import MemoryWish
from elastrec.platform.specs.errors import ScalingError
from elastrec.platform.specs.job import TrainingJob
from elastrec.platform.transport.messages.profile import Profile, TableGrowth

log = structlog.get_logger(__name__)
_LEAST_POINTS = 3


def memory_forecast(
    job: TrainingJob, told: Profile, samples_per_second: float, largest_bytes: float
) -> Forecast | None:
    """What the fullest server will hold; None while too little was seen of a table to tell.

    Args:
        largest_bytes: no pod can have more memory.

    Raises:
        ScalingError: what was measured means nothing, or no node could hold a server.
    """
    if not told.servers or not told.tables_growth:
        return None
    if any(len(set(each.samples)) < _LEAST_POINTS for each in told.tables_growth):
        return None
    held = [each.table_bytes for each in told.servers]
    mean = sum(held) / len(held)
    servers = Servers(
        count=len(told.servers),
        used_bytes=float(max(each.used_bytes for each in told.servers)),
        limit_bytes=float(min(each.limit_bytes for each in told.servers)),
        imbalance=max(1.0, max(held) / mean) if mean else 1.0,
        largest_bytes=largest_bytes,
    )
    growths = [_growth(job, each) for each in told.tables_growth]
    epoch_samples = (told.trained_samples + told.remaining_samples) / job.spec.training.epochs
    return forecast(
        growths, servers, told.trained_samples, told.remaining_samples, samples_per_second,
        fresh_samples=max(0.0, epoch_samples - told.trained_samples),
    )  # fmt: skip


def memory_wish(
    job: TrainingJob, told: Profile, allocation: Allocation, samples_per_second: float, largest_bytes: float
) -> MemoryWish | None:
    """What the forecast asks for; None where memory lasts, or nothing can be told yet (the log says why)."""
    try:
        found = memory_forecast(job, told, samples_per_second, largest_bytes)
    except ScalingError as error:
        log.warning("memory_not_forecast", job=job.metadata.name, reason=str(error))
        return None
    if found is None or found.action is Action.NONE:
        return None
    wanted = msgspec.structs.replace(
        allocation,
        parameter_servers=found.needed_servers,
        parameter_server_memory_bytes=max(found.needed_bytes, allocation.parameter_server_memory_bytes),
    )
    if wanted == allocation:
        return None
    return MemoryWish(
        allocation=wanted, reason=f"{found.action.value}: {found.reason}", seconds_to_limit=found.seconds_to_limit[0]
    )


def _growth(job: TrainingJob, grown: TableGrowth) -> Growth:
    cap = job.spec.table(grown.table).hash_size
    return fit_growth(
        TableHistory(
            table=grown.table,
            samples=tuple(map(float, grown.samples)),
            rows=tuple(map(float, grown.rows)),
            bytes_per_row=grown.bytes_per_row,
            cap=None if cap is None else float(cap),
        )
    )
