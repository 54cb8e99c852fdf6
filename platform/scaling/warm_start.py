"""Start-up sizes of a new job from similar finished ones (DLRover-RM Algorithm 1), with their explanation.

rank the k most similar jobs so that the most similar one is last
Â_0 = A_0,  Â_i = μ·A_i + (1−μ)·Â_{i−1}       eq. 10;  start with Â_{k−1}
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from elastrec.platform.scaling.amounts import CORES_STEP, GIBIBYTE, MEMORY_STEP, Allocation, Capacity, require
from elastrec.platform.scaling.model.columns import FIELDS, Columns, Floats
from elastrec.platform.scaling.types import Coefficients, Prior
from elastrec.platform.specs.text.some import counted

_MEMORY_STEP = MEMORY_STEP // 2
"""Half a step of plans: a start does not have the costs of a change, so that its sizes may be finer."""
_STAYS_FREE = 0.2
"""Margin of a server's memory. Twice the margin of a forecast, because the next job has other ids and may not be able
to get more memory while it runs."""
_ROWS = "training_rows"
_NAME = "name"
MEMORY_NUMBERS = (_ROWS, "embedding_dimension", "tables")
"""The numbers on which the memory of a job's servers depends: rows, tables and their sizes."""


class Features(msgspec.Struct, frozen=True, kw_only=True):
    """Features of a job that are known before it runs. Missing entries are allowed and make jobs less similar.

    Attributes:
        categories: equal or not, for example name, architecture, optimiser; not who owns the job.
        numbers: compared by their ratio, for example training_rows, embedding_dimension; ≥ 0.
        sets: compared by their intersection, for example the names of tables.
    """

    categories: dict[str, str] = {}
    numbers: dict[str, float] = {}
    sets: dict[str, frozenset[str]] = {}


class PastJob(msgspec.Struct, frozen=True, kw_only=True):
    """A finished job.

    Attributes:
        allocation: the last one it trained with.
        needed: its need, if known: more than it had for a job that ran out of memory, less for one that had too much;
            otherwise None.
        coefficients: its fitted model, for the new job's prior.
        ended_unix_seconds: of equally similar jobs, the later one counts as more similar.
    """

    job_id: str
    features: Features
    allocation: Allocation
    needed: Allocation | None = None
    coefficients: Coefficients | None = None
    ended_unix_seconds: float = 0.0


class Similarity(msgspec.Struct, frozen=True, kw_only=True):
    """0 (nothing in common) to 1 (alike), by type of feature; a type that neither job has is None.

    Attributes:
        memory: of the number among MEMORY_NUMBERS in which they differ most, because an equal dimension does not make a
            table of a thousand times the rows similar.
    """

    categories: float | None
    numbers: float | None
    sets: float | None
    total: float
    memory: float | None = None


class Contribution(msgspec.Struct, frozen=True, kw_only=True):
    """A row of the explanation.

    Attributes:
        share: of the start-up sizes that come from this job; all shares add up to 1.
    """

    job_id: str
    similarity: Similarity
    share: float
    allocation: Allocation
    is_needed: bool


class WarmStart(msgspec.Struct, frozen=True, kw_only=True):
    """The start-up sizes of a new job.

    Attributes:
        smoothed: the numbers before rounding, by field of Allocation.
        contributions: the most similar job first; empty for a cold start.
    """

    allocation: Allocation
    smoothed: dict[str, float]
    contributions: tuple[Contribution, ...]
    reason: str


class WarmStartSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The weight of finished jobs. Algorithm 1 gives none of these values.

    Attributes:
        most: k, the number of jobs. Chosen: with μ = 0.6, a sixth one would have a weight below 1 %.
        smoothing: μ, the weight of the more similar job in every step. Chosen: the most similar job has more weight
            than all others together, which smooth the peculiarities of its last run.
        least_similarity: jobs below it, in total or in memory, are ignored. Chosen: below it, more of a job differs
            than is equal.
        half_ratio: numbers that differ by this factor are half as similar as equal ones. Chosen: a job that trains four
            days at once is still similar to one that trains one day.
        weights: of categories, numbers and sets in the total. Chosen: the name is as important as the size; the names
            of tables are less important than their number of rows.
    """

    most: int = 5
    smoothing: float = 0.6
    least_similarity: float = 0.5
    half_ratio: float = 4.0
    weights: tuple[float, float, float] = (0.4, 0.4, 0.2)

    def __post_init__(self) -> None:
        require(self.most >= 1, "warm_start.most", self.most, "at least 1", "correct the settings")
        require(0 < self.smoothing <= 1, "warm_start.smoothing", self.smoothing, "above 0, at most 1", "0.6 is usual")
        require(self.half_ratio > 1, "warm_start.half_ratio", self.half_ratio, "above 1", "4 is usual")
        good = all(weight >= 0 for weight in self.weights) and sum(self.weights) > 0
        require(good, "warm_start.weights", self.weights, "0 or more, one above 0", "correct the settings")


def similarity(one: Features, other: Features, settings: WarmStartSettings) -> Similarity:
    """Symmetric; 1 for equal features. A feature that only one job has counts as different."""
    by_type = (
        _mean([float(one.categories.get(k) == other.categories.get(k)) for k in {*one.categories, *other.categories}]),
        _mean([_alike(one.numbers.get(k), other.numbers.get(k), settings) for k in {*one.numbers, *other.numbers}]),
        _mean([_shared(one.sets.get(k), other.sets.get(k)) for k in {*one.sets, *other.sets}]),
    )
    known = [(value, weight) for value, weight in zip(by_type, settings.weights, strict=True) if value is not None]
    weight = sum(weight for _, weight in known)
    total = sum(value * weight for value, weight in known) / weight if weight else 0.0
    named = [key for key in MEMORY_NUMBERS if key in one.numbers or key in other.numbers]
    memory = min((_alike(one.numbers.get(key), other.numbers.get(key), settings) for key in named), default=None)
    return Similarity(categories=by_type[0], numbers=by_type[1], sets=by_type[2], total=total, memory=memory)


def _is_close(found: Similarity, settings: WarmStartSettings) -> bool:
    memory = 1.0 if found.memory is None else found.memory
    return min(found.total, memory) >= settings.least_similarity


def _mean(values: Sequence[float]) -> float | None:
    # fsum: the result must not depend on the order of a set's elements.
    return math.fsum(values) / len(values) if values else None


def _alike(one: float | None, other: float | None, settings: WarmStartSettings) -> float:
    if one is None or other is None or not (math.isfinite(one) and math.isfinite(other)) or min(one, other) < 0:
        return 0.0
    if one == other:
        return 1.0
    if min(one, other) == 0:
        return 0.0
    # Not the logarithm of the quotient, which overflows.
    return float(0.5 ** (abs(math.log(one) - math.log(other)) / math.log(settings.half_ratio)))


def _shared(one: frozenset[str] | None, other: frozenset[str] | None) -> float:
    if one is None or other is None:
        return 0.0
    return len(one & other) / len(one | other) if one | other else 1.0


def warm_start(
    features: Features,
    history: Sequence[PastJob],
    default: Allocation,
    capacity: Capacity | None = None,
    settings: WarmStartSettings | None = None,
    servers: tuple[float, float] = (1, math.inf),
) -> WarmStart:
    """Algorithm 1 on the most similar jobs.

    If no job of this name is among them, the job gets at least the memory in its job file: each worker, each server,
    and all servers together. The needs of other models are no measure of it.

    Args:
        default: the cold start, from the job file; used when no finished job is similar.
        capacity: the limit of pods and of their number.
        servers: the fewest and the most that the job may have; on fewer ones, each gets more memory.
    """
    settings = settings or WarmStartSettings()
    scored = [(similarity(features, past.features, settings), past) for past in history]
    close = [pair for pair in scored if _is_close(pair[0], settings)]
    # Ascending: the last one is the most similar.
    close.sort(key=lambda pair: (pair[0].total, pair[1].ended_unix_seconds, pair[1].job_id))
    close = close[-settings.most :]
    if not close:
        best = max((found.total for found, _ in scored), default=0.0)
        reason = (
            f"cold start with what the job file asks for: none of {len(history)} finished jobs is similar enough "
            f"(best {best:.2f}, needed {settings.least_similarity:g})"
        )
        return WarmStart(allocation=default, smoothed={}, contributions=(), reason=reason)

    counting = [_for_as_many_rows(past, features) for _, past in close]
    rows_KF = _rows(counting)
    smoothed_F, shares = rows_KF[0], [1.0]
    for row_F in rows_KF[1:]:
        smoothed_F = settings.smoothing * row_F + (1.0 - settings.smoothing) * smoothed_F
        shares = [share * (1.0 - settings.smoothing) for share in shares] + [settings.smoothing]
    contributions = [
        Contribution(
            job_id=past.job_id,
            similarity=found,
            share=share,
            allocation=allocation,
            is_needed=past.needed is not None,
        )
        for (found, past), allocation, share in zip(close, counting, shares, strict=True)
    ]
    contributions.reverse()
    smoothed = dict(zip(FIELDS, smoothed_F.tolist(), strict=True))
    name = features.categories.get(_NAME)
    own = [each for each, (_, past) in zip(counting, close, strict=True) if past.features.categories.get(_NAME) == name]
    is_known = name is not None and bool(own)
    if not is_known:
        for field in ("parameter_servers", "parameter_server_memory_bytes", "worker_memory_bytes"):
            smoothed[field] = max(smoothed[field], float(getattr(default, field)))
    smoothed["parameter_servers"] = min(max(smoothed["parameter_servers"], servers[0]), servers[1])
    measure = own[-1] if is_known else counting[-1]
    smoothed["parameter_server_memory_bytes"] = max(
        smoothed["parameter_server_memory_bytes"],
        _memory_for(measure, max(1, round(smoothed["parameter_servers"]))),
    )
    allocation, cut = _granted(smoothed, capacity, servers[1])
    reason = f"{len(close)} similar jobs, the closest {close[-1][1].job_id} ({close[-1][0].total:.2f}){cut}"
    if not is_known:
        reason += "; none of this name: no less memory than the job file asks for"
    return WarmStart(allocation=allocation, smoothed=smoothed, contributions=tuple(contributions), reason=reason)


def prior_of(features: Features, history: Sequence[PastJob], settings: WarmStartSettings | None = None) -> Prior | None:
    """The starting point of a new job's throughput model: the fitted model of the most similar finished job.

    None if no similar one has a model.
    """
    settings = settings or WarmStartSettings()
    scored = [
        (similarity(features, past.features, settings), past) for past in history if past.coefficients is not None
    ]
    close = [pair for pair in scored if pair[0].total >= settings.least_similarity]
    if not close:
        return None
    found, past = max(close, key=lambda pair: (pair[0].total, pair[1].ended_unix_seconds, pair[1].job_id))
    assert past.coefficients is not None
    return Prior(coefficients=past.coefficients, source=past.job_id, strength=found.total)


def with_memory_used(allocation: Allocation, server_bytes: float) -> Allocation:
    """The need of a finished job: its own allocation, less the server memory that the fullest server never used.

    Tables only grow, so that the use at the end is the maximum.

    Args:
        server_bytes: used by the fullest server at the last measurement.
    """
    needed = math.ceil(server_bytes / (1.0 - _STAYS_FREE) / _MEMORY_STEP) * _MEMORY_STEP
    least = min(max(needed, _MEMORY_STEP), allocation.parameter_server_memory_bytes)
    return msgspec.structs.replace(allocation, parameter_server_memory_bytes=least)


def _for_as_many_rows(past: PastJob, features: Features) -> Allocation:
    """The need of a past job, scaled to this one. Its memory is enough for its own rows; tables grow at most as rows
    do."""
    if past.needed is None:
        return past.allocation
    now, then = features.numbers.get(_ROWS, 0.0), past.features.numbers.get(_ROWS, 0.0)
    usable = math.isfinite(now) and math.isfinite(then) and then > 0
    more = max(1.0, now / then) if usable else 1.0
    memory = math.ceil(past.needed.parameter_server_memory_bytes * more)
    return msgspec.structs.replace(past.needed, parameter_server_memory_bytes=memory)


def _memory_for(closest: Allocation, servers: int) -> float:
    """Memory of each of so many servers for the tables of the most similar job, which are as large on fewer servers."""
    return closest.parameter_servers * closest.parameter_server_memory_bytes / servers


def _rows(allocations: Sequence[Allocation]) -> Floats:
    """Shape (K, F)."""
    return Columns.of(allocations).table_FN.T


def _granted(smoothed: dict[str, float], capacity: Capacity | None, most_servers: float) -> tuple[Allocation, str]:
    """Rounded to whole steps and limited to the capacity; (allocation, a description of the limits applied).

    If servers are larger than a node, there are more of them instead, because the rows stay the same.
    """

    def stepped(value: float, step: float) -> float:
        return max(step, round(value / step) * step)

    def memory(value: float) -> int:
        # Rounded up, because too little memory ends the job and too much only costs.
        return max(_MEMORY_STEP, math.ceil(value / _MEMORY_STEP - 1e-9) * _MEMORY_STEP)

    workers = max(1, round(smoothed["workers"]))
    servers = max(1, round(smoothed["parameter_servers"]))
    worker_cores = stepped(smoothed["worker_cores"], CORES_STEP)
    server_cores = stepped(smoothed["parameter_server_cores"], CORES_STEP)
    worker_bytes = memory(smoothed["worker_memory_bytes"])
    server_bytes = memory(smoothed["parameter_server_memory_bytes"])
    cut = ""
    if capacity is not None:
        room, pod = capacity.free, capacity.largest_pod
        if pod is not None:
            worker_cores, server_cores = min(worker_cores, pod.cores), min(server_cores, pod.cores)
            largest = int(pod.memory_bytes)
            if worker_bytes > largest:
                cut += f"; memory per worker cut from {_gib(worker_bytes)} to {_gib(largest)} by the largest node"
                worker_bytes = largest
            if server_bytes > largest:
                together, before = servers * server_bytes, f"{counted(servers, 'server')} of {_gib(server_bytes)}"
                servers = int(min(max(servers, math.ceil(together / largest)), max(servers, most_servers)))
                server_bytes = min(memory(together / servers), largest)
                cut += f"; {before} replaced by {servers} of {_gib(server_bytes)}, because of the largest node"
                if servers * server_bytes < together:
                    cut += ", which is less than similar jobs needed"
        left_cores = room.cores - servers * server_cores
        left_bytes = room.memory_bytes - servers * server_bytes
        fitting = min(workers, int(left_cores / worker_cores + 1e-9), int(left_bytes / worker_bytes + 1e-9))
        if fitting < workers:
            cut += f"; {workers} workers cut to {max(1, fitting)} by what is free"
            workers = max(1, fitting)
    return Allocation(
        workers=workers,
        parameter_servers=servers,
        worker_cores=worker_cores,
        parameter_server_cores=server_cores,
        worker_memory_bytes=worker_bytes,
        parameter_server_memory_bytes=server_bytes,
    ), cut


def _gib(amount: int) -> str:
    return f"{amount / GIBIBYTE:.3g} GiB"
