"""The memory that a job's plans must have, from measurements of its servers and tables; live and simulated jobs."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from elastrec.platform.scaling.amounts import Allocation
from elastrec.platform.scaling.memory import (
    Action,
    Forecast,
    MemoryRules,
    Servers,
    TableHistory,
    fit_growth,
    forecast,
    memory_curve,
)
from elastrec.platform.scaling.types import Limits, MemoryCurve, MemoryNeed, MemoryWish
from elastrec.platform.specs.errors import ScalingError

LEAST_POINTS = 3
"""Least points of a table at different numbers of samples: two for the unknowns of the law, one for its error."""


class MemorySeen(msgspec.Struct, frozen=True, kw_only=True):
    """Measurements of a job's memory.

    Attributes:
        servers: None: some servers have not reported their use.
        worker_used_bytes: of the fullest worker; 0: none has reported it.
        trained, remaining: samples; `fresh`: of the remaining ones, those that may bring new ids.
        samples_per_second: at present, also in a configuration without a full measurement; None: not known.
        speed_deviation: one standard deviation of it, samples/s.
    """

    tables: tuple[TableHistory, ...]
    servers: Servers | None
    worker_used_bytes: float
    trained: float
    remaining: float
    samples_per_second: float | None
    speed_deviation: float = 0.0
    fresh: float = math.inf


class MemoryOutlook(msgspec.Struct, frozen=True, kw_only=True):
    """The memory that plans must have, and the forecast.

    Attributes:
        forecast: None while a table has too few points.
        problem: why there is no forecast, if measurements are invalid.
    """

    need: MemoryNeed
    forecast: Forecast | None = None
    problem: str = ""

    @property
    def in_words(self) -> str:
        """The outlook as text for users."""
        if self.forecast is not None:
            return self.forecast.reason
        return self.problem or "not forecast before its servers were seen and its tables counted three times"


def look_ahead(seen: MemorySeen, allocation: Allocation) -> MemoryOutlook:
    """The memory that every plan of the job must have.

    As long as the growth of the tables is unknown, servers keep all of their memory: if a plan reduced it, a later one
    could not restore it in time.
    """
    rules = MemoryRules()
    worker = math.ceil(seen.worker_used_bytes / (1.0 - rules.margin)) or allocation.worker_memory_bytes
    servers, problem = seen.servers, ""
    if servers is not None and _is_enough(seen):
        try:
            found = forecast(
                [fit_growth(each) for each in seen.tables], servers, seen.trained, seen.remaining,
                seen.samples_per_second, rules, speed_deviation=seen.speed_deviation, fresh_samples=seen.fresh,
            )  # fmt: skip
            return MemoryOutlook(need=_need_of(found, servers, worker, rules), forecast=found)
        except ScalingError as error:
            problem = str(error)
    everything = allocation.parameter_servers * allocation.parameter_server_memory_bytes
    need = MemoryNeed(worker_bytes=worker, server_base_bytes=0, embedding_bytes=everything, imbalance=1.0)
    return MemoryOutlook(need=need, problem=problem)


def _is_enough(seen: MemorySeen) -> bool:
    return bool(seen.tables) and all(_has_points(each.samples) for each in seen.tables)


def _has_points(samples: Sequence[float]) -> bool:
    # Usually the last counts differ already.
    return len(set(samples[-LEAST_POINTS:])) >= LEAST_POINTS or len(set(samples)) >= LEAST_POINTS


def curve_of(seen: MemorySeen) -> MemoryCurve | None:
    """The forecast of `look_ahead` as a curve; None where there is none."""
    rules = MemoryRules()
    if seen.servers is None or not _is_enough(seen):
        return None
    try:
        growths = [fit_growth(each) for each in seen.tables]
    except ScalingError:
        # `MemoryOutlook.problem` says so.
        return None
    return memory_curve(growths, seen.servers, seen.trained, seen.remaining, rules, seen.fresh)


def _need_of(found: Forecast, servers: Servers, worker_bytes: int, rules: MemoryRules) -> MemoryNeed:
    keep = 1.0 - rules.margin
    return MemoryNeed(
        worker_bytes=worker_bytes,
        server_base_bytes=math.ceil(found.base_bytes / keep),
        embedding_bytes=math.ceil(found.rows_bytes / keep),
        imbalance=servers.imbalance,
    )


def wish_of(allocation: Allocation, found: Forecast | None, limits: Limits) -> MemoryWish | None:
    """The change that a forecast requests; None if memory is sufficient, or the job has the requested or the allowed
    memory.

    If the job is not allowed the needed number of servers, it requests the allowed number: the limit is then reached
    later.
    """
    if found is None or found.action is Action.NONE:
        return None
    most = max(allocation.parameter_servers, limits.parameter_servers[1])
    servers = min(max(allocation.parameter_servers, found.needed_servers), most)
    wanted = msgspec.structs.replace(
        allocation,
        parameter_servers=servers,
        parameter_server_memory_bytes=max(allocation.parameter_server_memory_bytes, found.needed_bytes),
    )
    if wanted == allocation:
        return None
    reason = f"{found.action.value}: {found.reason}"
    if servers < found.needed_servers:
        reason += (
            f"; the job is allowed {servers} (scaling.maximum_parameter_servers) of this memory at most "
            "(scaling.maximum_parameter_server_memory)"
        )
    earliest = None if found.seconds_to_limit is None else found.seconds_to_limit[0]
    return MemoryWish(allocation=wanted, reason=reason, seconds_to_limit=earliest)
