"""The search space of a job's plans: a ladder of values per decision, bounded by the cluster's capacity.

Decisions: workers, servers, cores of a worker, cores of a server, memory of a server. Shape legend: N points, 5
decisions; a point is a row of indexes into the ladders.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache
from types import ModuleType

import msgspec
import numpy as np
import numpy.typing as npt

from elastrec.platform.scaling.amounts import CORES_STEP, MEMORY_STEP, Allocation, Capacity, Change
from elastrec.platform.scaling.model.columns import Columns, forget_columns
from elastrec.platform.scaling.types import JobProfile

Indexes = npt.NDArray[np.int64]
_LONGEST_LADDER = 128
"""Values of one decision. Chosen: up to this many workers, each number is searched; above it, steps of a few per
cent."""
_FAR_TOO_MUCH = 0.75
"""A worker's memory is reduced only if at most this share of it is needed. Chosen: to save a quarter of its price is
worth a restart of every worker that its node cannot resize."""


@dataclass(frozen=True, eq=False)
class Points:
    """Points of a space and their allocations.

    Attributes:
        indexes_N5: into the ladders.
    """

    indexes_N5: Indexes
    columns: Columns


class Space(msgspec.Struct, frozen=True, dict=True):
    """The rising ladders; `start` are the indexes of the present allocation.

    Attributes:
        worker_memory_bytes: of every worker; not a decision, because no plan gains from more than is needed.
    """

    ladders: tuple[tuple[float, ...], ...]
    start: tuple[int, ...]
    worker_memory_bytes: int

    @property
    def size(self) -> int:
        """Number of points."""
        return math.prod(map(len, self.ladders))

    @cached_property
    def lengths(self) -> Indexes:
        """Of the ladders, shape (5,)."""
        return np.array([len(ladder) for ladder in self.ladders], dtype=np.int64)

    @cached_property
    def start_5(self) -> Indexes:
        """Indexes of the present allocation, shape (5,)."""
        return np.array(self.start, dtype=np.int64)

    @cached_property
    def values(self) -> npt.NDArray[np.float64]:
        """Of all ladders, one after the other."""
        return np.concatenate([_array(ladder) for ladder in self.ladders])

    def columns(self, points_N5: Indexes) -> Columns:
        """The allocations of N points."""
        return self.points(self.numbers(points_N5)).columns

    def numbers(self, points_N5: Indexes) -> Indexes:
        """Numbers of points, shape (N,): positions in the space, with the last decision changing fastest."""
        found: Indexes = np.ravel_multi_index(tuple(points_N5.T), tuple(map(len, self.ladders))).astype(np.int64)
        return found

    def points(self, numbers: Indexes) -> Points:
        """The points with these numbers; of consecutive equal ones, only the first."""
        indexes_N5, table_FN = _points().unfold(numbers, self.values, self.lengths, float(self.worker_memory_bytes))
        return Points(indexes_N5, Columns(table_FN))

    def whole(self) -> Indexes:
        """Numbers of all points."""
        return np.arange(self.size)

    def grid(self, most: int) -> Indexes:
        """Rising numbers of `spread`, `around` the present allocation, and `lines`. Cached: do not write to them."""
        if most not in self._grids:
            self._grids[most] = _points().grid(*self._rungs(most), self.start_5, self.lengths)
        return self._grids[most]

    @cached_property
    def _grids(self) -> dict[int, Indexes]:
        return {}

    def around(self, points_N5: Indexes) -> Indexes:
        """Numbers of points and of those one step away in one or in two decisions; rising."""
        found: Indexes = np.sort(_points().around(points_N5, self.lengths))
        return found

    def lines(self) -> Indexes:
        """Rising numbers of the points that differ from the present allocation in at most one decision."""
        found: Indexes = np.sort(_points().lines(self.start_5, self.lengths))
        return found

    def spread(self, most: int) -> Indexes:
        """Rising numbers of at most so many points of a grid with geometric steps, including the ends of every
        ladder."""
        found: Indexes = _points().product(*self._rungs(most), self.lengths)
        return found

    def _rungs(self, most: int) -> tuple[Indexes, Indexes]:
        """The indexes of every ladder in a grid, one ladder after the other, and their number for each."""
        return _rungs_of_all(self.ladders, most)


@cache
def _points() -> ModuleType:
    """Loaded when the first job's plans are looked for: numba alone takes a quarter of a second."""
    from elastrec.platform.scaling.search import point_kernels

    return point_kernels


@lru_cache(maxsize=1024)
def _array(ladder: tuple[float, ...]) -> npt.NDArray[np.float64]:
    return np.asarray(ladder, dtype=np.float64)


@lru_cache(maxsize=512)
def _rungs_of_all(ladders: tuple[tuple[float, ...], ...], most: int) -> tuple[Indexes, Indexes]:
    """`Space._rungs`. A job has the same ladders from many allocations."""
    counts = _rung_counts(tuple(map(len, ladders)), most)
    rungs = [_rungs(ladder, count) for ladder, count in zip(ladders, counts, strict=True)]
    return np.concatenate(rungs), np.array([len(each) for each in rungs], dtype=np.int64)


@lru_cache(maxsize=1024)
def _rung_counts(lengths: tuple[int, ...], most: int) -> tuple[int, ...]:
    """The number of values of each ladder, with a product of at most `most`; the longest ladder is reduced first."""
    counts = list(lengths)
    while math.prod(counts) > most and max(counts) > 2:
        counts[counts.index(max(counts))] -= 1
    return tuple(counts)


@lru_cache(maxsize=1024)
def _rungs(ladder: tuple[float, ...], count: int) -> npt.NDArray[np.intp]:
    """Up to so many indexes, with geometric steps; without duplicates.

    Not in numpy, whose overhead exceeds the arithmetic of short ladders.
    """
    values = np.log(ladder).tolist()
    first, last = values[0], values[-1]
    step, found = (last - first) / max(count - 1, 1), {0}
    for rung in range(1, count if len(values) > 1 else 1):
        wanted = first + rung * step if rung < count - 1 else last
        above = bisect_left(values, wanted, 1, len(values) - 1)
        # Of two values at the same distance, the smaller one.
        found.add(above - (wanted - values[above - 1] <= values[above] - wanted))
    return np.array(sorted(found))


def forget() -> None:
    """Clears all caches between rounds. Decisions do not depend on them."""
    for kept in (_space, _array, _rungs_of_all, _rungs, _rung_counts, _counts, _sizes):
        kept.cache_clear()
    forget_columns()


@lru_cache(maxsize=1024)
def _counts(low: int, high: int, now: int) -> tuple[float, ...]:
    """Whole numbers: all of them if the ladder stays short, otherwise with geometric steps."""
    high = max(low, high)
    if high - low < _LONGEST_LADDER:
        values: Iterable[int] = range(low, high + 1)
    else:
        values = np.unique(np.round(np.geomspace(low, high, _LONGEST_LADDER)).astype(int)).tolist()
    return tuple(sorted({float(value) for value in values} | {float(now)}))


@lru_cache(maxsize=1024)
def _sizes(bounds: tuple[float, float], room: float, now: float) -> tuple[float, ...]:
    """The bounds, and between them 1, 1.5, 2, 3, 4 … times a quarter: steps of at most a half."""
    values = {CORES_STEP * 2**power * half for power in range(14) for half in (1.0, 1.5)} | {*bounds}
    return tuple(sorted({value for value in values if bounds[0] <= value <= min(bounds[1], room)} | {now}))


def _memory(low: int, high: int, now: int, job: JobProfile, servers: tuple[float, ...]) -> tuple[float, ...]:
    """For every number of servers, the least memory of one that holds its rows, in whole steps."""
    if job.memory is None:
        return (float(now),)
    needed = {job.memory.server_bytes(int(count)) for count in servers}
    steps = {min(max(math.ceil(each / MEMORY_STEP) * MEMORY_STEP, low), high) for each in needed}
    return tuple(sorted({float(each) for each in steps} | {float(now)}))


def space_of(job: JobProfile, capacity: Capacity) -> Space:
    """Ladders of one job, within its limits, its possible changes while it runs, and the free capacity."""
    now, limits = job.allocation, job.limits
    room = _rounded_up(now.resources.cores + max(capacity.free.cores, 0.0))
    pod_cores = capacity.largest_pod.cores if capacity.largest_pod else math.inf
    pod_bytes = capacity.largest_pod.memory_bytes if capacity.largest_pod else math.inf

    def cores(bounds: tuple[float, float], value: float, change: Change) -> tuple[float, ...]:
        if change not in job.movable:
            return (value,)
        return _sizes(bounds, min(pod_cores, room), value)

    worker_cores = cores(limits.worker_cores, now.worker_cores, Change.WORKER_SIZE)
    server_cores = cores(limits.parameter_server_cores, now.parameter_server_cores, Change.SERVER_SIZE)

    def counts(bounds: tuple[int, int], value: int, change: Change, least_cores: float) -> tuple[float, ...]:
        if change not in job.movable:
            return (float(value),)
        return _counts(bounds[0], min(bounds[1], int(room / least_cores)), value)

    workers = counts(limits.workers, now.workers, Change.WORKERS, worker_cores[0])
    servers = counts(limits.parameter_servers, now.parameter_servers, Change.SERVERS, server_cores[0])
    low, high = limits.parameter_server_memory_bytes
    memory: tuple[float, ...] = (float(now.parameter_server_memory_bytes),)
    if Change.SERVER_SIZE in job.movable:
        memory = _memory(low, int(min(high, pod_bytes)), now.parameter_server_memory_bytes, job, servers)
    ladders = (workers, servers, worker_cores, server_cores, memory)
    return _space(ladders, _start(ladders, now), _worker_memory(job))


@lru_cache(maxsize=512)
def _space(ladders: tuple[tuple[float, ...], ...], start: tuple[int, ...], worker_memory_bytes: int) -> Space:
    """Returns the cached space of equal ladders, with its lists of points."""
    return Space(ladders, start, worker_memory_bytes)


def _rounded_up(room: float) -> float:
    """Rounds to a power of √2, because ladders that depend on every free core would never be equal in two rounds. Every
    plan is checked for fit anyway."""
    return float(2.0 ** (math.ceil(2.0 * math.log2(room)) / 2.0))


def _start(ladders: tuple[tuple[float, ...], ...], now: Allocation) -> tuple[int, ...]:
    values = (
        now.workers,
        now.parameter_servers,
        now.worker_cores,
        now.parameter_server_cores,
        now.parameter_server_memory_bytes,
    )
    return tuple(ladder.index(float(value)) for ladder, value in zip(ladders, values, strict=True))


def _worker_memory(job: JobProfile) -> int:
    """A worker's need, in whole steps; its present memory if that is enough and not far too much."""
    now, (low, high) = job.allocation.worker_memory_bytes, job.limits.worker_memory_bytes
    if job.memory is None or Change.WORKER_SIZE not in job.movable:
        return now
    needed = max(math.ceil(job.memory.worker_bytes / MEMORY_STEP) * MEMORY_STEP, low)
    if needed > high:
        # The allowed memory is too small. With it, every plan of the job would be refused.
        return now
    return needed if needed > now or needed < _FAR_TOO_MUCH * now else now
