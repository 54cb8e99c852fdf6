"""Where a job's plans are looked for: a ladder of values per decision, bounded by what the cluster can grant.

Decisions: workers, servers, cores of a worker, cores of a server, memory of a server. Shape legend: N points, 5
decisions; a point is a row of indexes into the ladders.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache, lru_cache

import msgspec
import numpy as np
import numpy.typing as npt

from elastrec.platform.scaling.amounts import Allocation, Capacity, Change
from elastrec.platform.scaling.model.columns import Columns, forget_columns
from elastrec.platform.scaling.types import JobProfile

Indexes = npt.NDArray[np.int64]
_LONGEST_LADDER = 128
_MEMORY_STEP = 256 * 2**20
_FAR_TOO_MUCH = 0.75
"""A worker's memory is only taken back where so large a share of it would do: every worker starts anew for it."""


@dataclass(frozen=True, eq=False)
class Points:
    """Points of a space and their allocations; kept between rounds, so neither is to be written to.

    Attributes:
        indexes_N5: into the ladders.
    """

    indexes_N5: Indexes
    columns: Columns


class Space(msgspec.Struct, frozen=True):
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

    def columns(self, points_N5: Indexes) -> Columns:
        """The allocations of N points."""
        values = [np.asarray(ladder, dtype=np.float64)[points_N5[:, k]] for k, ladder in enumerate(self.ladders)]
        return Columns(
            workers=values[0],
            parameter_servers=values[1],
            worker_cores=values[2],
            parameter_server_cores=values[3],
            worker_memory_bytes=np.full(len(points_N5), float(self.worker_memory_bytes)),
            parameter_server_memory_bytes=values[4],
        )

    def points(self, points_N5: Indexes) -> Points:
        """Points that are looked at once."""
        return Points(points_N5, self.columns(points_N5))

    def whole(self) -> Points:
        """`everything`."""
        return _whole(self) if self.size <= _KEPT_POINTS else self.points(self.everything())

    def grid(self, most: int) -> Points:
        """`spread`, the point that the job has with its `neighbours`, and `lines`: each point once."""
        return _grid(self, most)

    def around(self, points_N5: Indexes) -> Points:
        """Points and their `neighbours`, each once."""
        return _around(self, points_N5.tobytes())

    def single_steps(self) -> Points:
        """One or two steps up or down in one decision from what the job has; memory stays."""
        return _single_steps(self)

    def everything(self) -> Indexes:
        """All points, shape (size, 5)."""
        grid = np.indices([len(ladder) for ladder in self.ladders])
        return grid.reshape(len(self.ladders), -1).T.astype(np.int64)

    def lines(self) -> Indexes:
        """The points that differ from what the job has in one decision; of shape (N, 5)."""
        found = np.repeat(np.array([self.start]), sum(map(len, self.ladders)), axis=0)
        first = 0
        for decision, ladder in enumerate(self.ladders):
            found[first : first + len(ladder), decision] = np.arange(len(ladder))
            first += len(ladder)
        return found.astype(np.int64)

    def neighbours(self, points_N5: Indexes) -> Indexes:
        """The points one step away in one or in two decisions, each once."""
        moves = _moves(len(self.ladders))
        highest = np.array([len(ladder) - 1 for ladder in self.ladders])
        found = (points_N5[:, None, :] + moves[None, :, :]).reshape(-1, len(self.ladders))
        return self.unique(found[((found >= 0) & (found <= highest)).all(axis=1)])

    def unique(self, points_N5: Indexes) -> Indexes:
        """Each point once, in the order of their indexes."""
        lengths = tuple(map(len, self.ladders))
        flat_N = np.unique(np.ravel_multi_index(tuple(points_N5.T), lengths))
        return np.stack(np.unravel_index(flat_N, lengths), axis=1).astype(np.int64)

    def spread(self, most: int) -> Indexes:
        """At most so many points of a grid whose values rise by ratio, the ends of every ladder among them."""
        return _spread(self.ladders, most)


@lru_cache(maxsize=1024)
def _spread(ladders: tuple[tuple[float, ...], ...], most: int) -> Indexes:
    """`Space.spread`; not to be written to."""
    rungs = [
        _rungs(ladder, count)
        for ladder, count in zip(ladders, _rung_counts(tuple(map(len, ladders)), most), strict=True)
    ]
    shape = tuple(map(len, rungs))
    grid = [chosen[axis.reshape(-1)] for chosen, axis in zip(rungs, np.indices(shape), strict=True)]
    found = np.stack(grid, axis=1).astype(np.int64)
    found.setflags(write=False)
    return found


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


_KEPT_POINTS = 5000
"""A larger space is not kept: some megabytes per job."""


@lru_cache(maxsize=128)
def _whole(space: Space) -> Points:
    return space.points(space.everything())


@lru_cache(maxsize=128)
def _grid(space: Space, most: int) -> Points:
    start_5 = np.array([space.start], dtype=np.int64)
    found = np.concatenate([start_5, space.neighbours(start_5), space.lines(), space.spread(most)])
    return space.points(space.unique(found))


@lru_cache(maxsize=256)
def _around(space: Space, points: bytes) -> Points:
    points_N5 = np.frombuffer(points, dtype=np.int64).reshape(-1, len(space.ladders))
    return space.points(space.unique(np.concatenate([points_N5, space.neighbours(points_N5)])))


@lru_cache(maxsize=256)
def _single_steps(space: Space) -> Points:
    found = []
    for decision in range(4):
        for step in (-2, -1, 1, 2):
            point = list(space.start)
            point[decision] += step
            if 0 <= point[decision] < len(space.ladders[decision]):
                found.append(point)
    return space.points(np.array(found, dtype=np.int64).reshape(-1, 5))


def forget() -> None:
    """Drops all points that are kept between rounds: decisions are the same without them, only later."""
    for kept in (_whole, _grid, _around, _single_steps, _spread):
        kept.cache_clear()
    forget_columns()


@cache
def _moves(decisions: int) -> Indexes:
    steps = [(*step,) for step in np.ndindex(*(3,) * decisions) if 0 < sum(value != 1 for value in step) <= 2]
    return np.array(steps, dtype=np.int64) - 1


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
    values = {0.25 * 2**power * half for power in range(14) for half in (1.0, 1.5)} | {*bounds}
    return tuple(sorted({value for value in values if bounds[0] <= value <= min(bounds[1], room)} | {now}))


def _memory(low: int, high: int, now: int, job: JobProfile, servers: tuple[float, ...]) -> tuple[float, ...]:
    """For every number of servers the least memory, in whole steps, with which one of them holds its rows."""
    if job.memory is None:
        return (float(now),)
    needed = {job.memory.server_bytes(int(count)) for count in servers}
    steps = {min(max(math.ceil(each / _MEMORY_STEP) * _MEMORY_STEP, low), high) for each in needed}
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
    return Space(ladders, _start(ladders, now), _worker_memory(job))


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
    needed = max(math.ceil(job.memory.worker_bytes / _MEMORY_STEP) * _MEMORY_STEP, low)
    if needed > high:
        # What is allowed would not do. A plan that left it so would be refused, and with it all others of the job.
        return now
    return needed if needed > now or needed < _FAR_TOO_MUCH * now else now
