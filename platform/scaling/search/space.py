"""Where a job's plans are looked for: a ladder of values per decision, bounded by what the cluster can grant.

Decisions: workers, servers, cores of a worker, cores of a server, memory of a server. Shape legend: N points, 5
decisions; a point is a row of indexes into the ladders.
"""

from __future__ import annotations

import math
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
"""Values of one decision. Chosen: up to so many workers each number is looked at, above it steps of a few per cent."""
_FAR_TOO_MUCH = 0.75
"""A worker's memory is only taken back where no larger share of it would do. Chosen: a quarter of its price is worth
that every worker starts anew where its node has no room to resize it."""


@dataclass(frozen=True, eq=False)
class Points:
    """Points of a space and their allocations.

    Attributes:
        indexes_N5: into the ladders.
    """

    indexes_N5: Indexes
    columns: Columns


class Space(msgspec.Struct, frozen=True, dict=True):
    """The ladders, rising; `start` are the indexes of what the job has now.

    Attributes:
        worker_memory_bytes: of every worker; no decision, because no plan gains by more than is needed.
    """

    ladders: tuple[tuple[float, ...], ...]
    start: tuple[int, ...]
    worker_memory_bytes: int

    @property
    def size(self) -> int:
        """Points in it."""
        return math.prod(map(len, self.ladders))

    @cached_property
    def lengths(self) -> Indexes:
        """Of the ladders, shape (5,)."""
        return np.array([len(ladder) for ladder in self.ladders], dtype=np.int64)

    @cached_property
    def values(self) -> npt.NDArray[np.float64]:
        """Of all ladders, one after the other."""
        return np.concatenate([_array(ladder) for ladder in self.ladders])

    def columns(self, points_N5: Indexes) -> Columns:
        """The allocations of N points."""
        return self.points(self.numbers(points_N5)).columns

    def numbers(self, points_N5: Indexes) -> Indexes:
        """Of points, shape (N,): they count all points of the space, the last decision fastest."""
        found: Indexes = np.ravel_multi_index(tuple(points_N5.T), tuple(map(len, self.ladders))).astype(np.int64)
        return found

    def points(self, numbers: Indexes) -> Points:
        """The points with these numbers; of equal ones that follow each other the first."""
        indexes_N5, table_FN = _points().unfold(numbers, self.values, self.lengths, float(self.worker_memory_bytes))
        return Points(indexes_N5, Columns(table_FN))

    def whole(self) -> Indexes:
        """Numbers of all points."""
        return np.arange(self.size)

    def grid(self, most: int) -> Indexes:
        """Numbers of `spread`, of what is `around` the point that the job has, and of `lines`; rising. Made once: not
        to be written to."""
        if most not in self._grids:
            start_5 = np.array(self.start, dtype=np.int64)
            self._grids[most] = _points().grid(*self._rungs(most), start_5, self.lengths)
        return self._grids[most]

    @cached_property
    def _grids(self) -> dict[int, Indexes]:
        return {}

    def around(self, points_N5: Indexes) -> Indexes:
        """Numbers of points and of those one step away in one or in two decisions; rising."""
        found: Indexes = np.sort(_points().around(points_N5, self.lengths))
        return found

    @cached_property
    def single_steps(self) -> Points:
        """One or two steps up or down in one decision from what the job has; memory stays. Not to be written to."""
        return self.points(_points().single_steps(np.array(self.start, dtype=np.int64), self.lengths))

    def lines(self) -> Indexes:
        """Numbers of the points that differ from what the job has in at most one decision; rising."""
        found: Indexes = np.sort(_points().lines(np.array(self.start, dtype=np.int64), self.lengths))
        return found

    def spread(self, most: int) -> Indexes:
        """Numbers of at most so many points of a grid whose values rise by ratio, the ends of every ladder among
        them; rising."""
        found: Indexes = _points().product(*self._rungs(most), self.lengths)
        return found

    def _rungs(self, most: int) -> tuple[Indexes, Indexes]:
        """The indexes that a grid has of every ladder, one ladder after the other, and how many of each."""
        counts = _rung_counts(tuple(map(len, self.ladders)), most)
        rungs = [_rungs(ladder, count) for ladder, count in zip(self.ladders, counts, strict=True)]
        return np.concatenate(rungs), np.array([len(each) for each in rungs], dtype=np.int64)


@cache
def _points() -> ModuleType:
    """Loaded when the first job's plans are looked for: numba alone takes a quarter of a second."""
    from elastrec.platform.scaling.search import point_kernels

    return point_kernels


@lru_cache(maxsize=1024)
def _array(ladder: tuple[float, ...]) -> npt.NDArray[np.float64]:
    return np.asarray(ladder, dtype=np.float64)


@lru_cache(maxsize=1024)
def _rung_counts(lengths: tuple[int, ...], most: int) -> tuple[int, ...]:
    """So many values of each ladder that their product is at most `most`; the longest ladder gives first."""
    counts = list(lengths)
    while math.prod(counts) > most and max(counts) > 2:
        counts[counts.index(max(counts))] -= 1
    return tuple(counts)


@lru_cache(maxsize=1024)
def _rungs(ladder: tuple[float, ...], count: int) -> npt.NDArray[np.intp]:
    """So many indexes, whose values rise by ratio; fewer where two would be one."""
    values = np.log(np.asarray(ladder, dtype=np.float64))
    wanted = np.linspace(values[0], values[-1], count)
    return np.unique(np.abs(values[None, :] - wanted[:, None]).argmin(axis=1))


def forget() -> None:
    """Drops all that is kept between rounds: decisions are the same without it, only later."""
    for kept in (_space, _array, _rungs, _rung_counts, _counts, _sizes):
        kept.cache_clear()
    forget_columns()


@lru_cache(maxsize=1024)
def _counts(low: int, high: int, now: int) -> tuple[float, ...]:
    """Whole numbers; every one of them as long as the ladder stays short, else evenly spread by ratio."""
    high = max(low, high)
    if high - low < _LONGEST_LADDER:
        values: Iterable[int] = range(low, high + 1)
    else:
        values = np.unique(np.round(np.geomspace(low, high, _LONGEST_LADDER)).astype(int)).tolist()
    return tuple(sorted({float(value) for value in values} | {float(now)}))


@lru_cache(maxsize=1024)
def _sizes(bounds: tuple[float, float], room: float, now: float) -> tuple[float, ...]:
    """The bounds, and between them 1, 1.5, 2, 3, 4 … times a quarter: steps of at most a half, which clusters grant."""
    values = {CORES_STEP * 2**power * half for power in range(14) for half in (1.0, 1.5)} | {*bounds}
    return tuple(sorted({value for value in values if bounds[0] <= value <= min(bounds[1], room)} | {now}))


def _memory(low: int, high: int, now: int, job: JobProfile, servers: tuple[float, ...]) -> tuple[float, ...]:
    """For every number of servers the least memory, in whole steps, with which one of them holds its rows."""
    if job.memory is None:
        return (float(now),)
    needed = {job.memory.server_bytes(int(count)) for count in servers}
    steps = {min(max(math.ceil(each / MEMORY_STEP) * MEMORY_STEP, low), high) for each in needed}
    return tuple(sorted({float(each) for each in steps} | {float(now)}))


def space_of(job: JobProfile, capacity: Capacity) -> Space:
    """Ladders of one job: its limits, what it can change while it runs, and what is free, whichever is narrowest."""
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
    """The same one for the same ladders: with it stays what was listed of its points."""
    return Space(ladders, start, worker_memory_bytes)


def _rounded_up(room: float) -> float:
    """To a power of √2. Whether it fits is asked of every plan; ladders that follow every free core are never the same
    in two rounds."""
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
    """What a worker needs, in whole steps; what it has where that is enough and not far too much."""
    now, (low, high) = job.allocation.worker_memory_bytes, job.limits.worker_memory_bytes
    if job.memory is None or Change.WORKER_SIZE not in job.movable:
        return now
    needed = max(math.ceil(job.memory.worker_bytes / MEMORY_STEP) * MEMORY_STEP, low)
    if needed > high:
        # What is allowed would not do. A plan that left it so would be refused, and with it all others of the job.
        return now
    return needed if needed > now or needed < _FAR_TOO_MUCH * now else now
