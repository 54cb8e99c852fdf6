"""The Pareto front of one job's plans: all points of a small space; `genetic` has NSGA-II for a large one (§4.3).

Minimised are RC and −TG. −TG orders plans as the paper's 1/TG does, without its pole at 0, and goes on below 0, where
plans that save lie. Shape legend: N points, 5 decisions.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import msgspec
import numpy as np

from elastrec.platform.scaling.amounts import Capacity, Change, require
from elastrec.platform.scaling.model.columns import Floats
from elastrec.platform.scaling.search.objectives import Outcomes, Situation
from elastrec.platform.scaling.search.pareto import Rows, front
from elastrec.platform.scaling.search.space import Indexes, Points, Space

_LOOKED_AT = 500


class SearchSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How hard plans are looked for.

    Attributes:
        exhaustive_points: spaces up to this size are gone through whole.
        population, generations: of NSGA-II.
        coarse_points: of a grid that is looked at with every value of each single decision, and with its neighbours; 0:
            NSGA-II instead. On 24 random problems of 10^5 plans (`benchmarks.scaling.candidates`) the grid covers at
            least 0.998 of the exact front in 18 ms of CPU time, NSGA-II 0.997 in 450 ms.
        polish_rounds: how often the neighbours of the front found are looked at afterwards.
        most: candidates kept of a front, spread along it.
    """

    seed: int = 0
    exhaustive_points: int = 1500
    population: int = 48
    generations: int = 30
    coarse_points: int = 1000
    polish_rounds: int = 8
    most: int = 20

    def __post_init__(self) -> None:
        require(self.most >= 2, "search.most", self.most, "at least 2", "a front has two ends")
        require(self.population >= 4, "search.population", self.population, "at least 4", "raise it")
        coarse = self.coarse_points
        require(
            coarse == 0 or coarse >= 32,
            "search.coarse_points",
            coarse,
            "0, or at least 32",
            "1000 is usual, 0 is NSGA-II",
        )
        require(self.generations >= 1, "search.generations", self.generations, "at least 1", "raise it")


@dataclass(frozen=True)
class Front:
    """Allowed plans that no other allowed plan beats in both cost and gain, by rising cost.

    Attributes:
        points: indexes into the space's ladders, int64 of shape (N, 5).
        looked_at: what the points that the search began with would bring, all over the space.
        exhaustive: these are all of its points.
    """

    points: Indexes
    outcomes: Outcomes
    looked_at: Outcomes
    exhaustive: bool = False


def excess(situation: Situation, capacity: Capacity, outcomes: Outcomes) -> Floats:
    """By how much plans break capacity or memory, as shares; ≤ 0 where they fit. Shape (N, 4)."""
    job, columns = situation.job, outcomes.columns
    now = job.allocation.resources
    over_cores = (outcomes.more_cores - max(capacity.free.cores, 0.0) - 1e-3) / now.cores
    over_bytes = (outcomes.more_memory_bytes - max(capacity.free.memory_bytes, 0.0) - 1.0) / now.memory_bytes
    short = np.full(len(columns), -1.0)
    # What cannot be changed is no reason against a plan that leaves it as it is.
    if job.memory is not None and job.movable & {Change.SERVERS, Change.SERVER_SIZE}:
        needed = np.ceil(
            job.memory.server_base_bytes
            + job.memory.imbalance * job.memory.embedding_bytes / columns.parameter_servers
        )  # fmt: skip
        short = 1.0 - columns.parameter_server_memory_bytes / needed
    if job.memory is not None and Change.WORKER_SIZE in job.movable:
        short = np.maximum(short, 1.0 - columns.worker_memory_bytes / job.memory.worker_bytes)
    too_large = np.full(len(columns), -1.0)
    if capacity.largest_pod is not None:
        most = capacity.largest_pod
        too_large = np.maximum.reduce(
            [
                columns.worker_cores / most.cores,
                columns.parameter_server_cores / most.cores,
                columns.worker_memory_bytes / most.memory_bytes,
                columns.parameter_server_memory_bytes / most.memory_bytes,
            ]
        ) - (1.0 + 1e-9)
    return np.stack([over_cores, over_bytes, short, too_large], axis=1)


def allowed_rows(situation: Situation, capacity: Capacity, outcomes: Outcomes) -> Rows:
    """Which plans fit the cluster, obey the rules and have a prediction to be trusted; their indexes, rising."""
    # Few plans obey the rules: how far the others' predictions go, and whether they would fit, nobody asks.
    open_rows = np.flatnonzero(outcomes.against_rules <= 0)
    few = outcomes.take(open_rows)
    fits = (few.violation <= 0) & (excess(situation, capacity, few) <= 0).all(axis=1) if len(open_rows) else open_rows
    return open_rows[fits]


def best_of(situation: Situation, capacity: Capacity, points: Points, outcomes: Outcomes) -> Front:
    """The front of these points alone."""
    good = allowed_rows(situation, capacity, outcomes)
    chosen = good[front(outcomes.cost_per_hour[good], -outcomes.gain[good])]
    return Front(points.indexes_N5[chosen], outcomes.take(chosen), outcomes)


def exhaustive_front(situation: Situation, capacity: Capacity, space: Space) -> Front:
    """The exact front; time and memory grow with `space.size`."""
    points = space.whole()
    outcomes = situation.outcomes(points.columns)
    return replace(best_of(situation, capacity, points, outcomes), exhaustive=True)


def coarse_front(situation: Situation, capacity: Capacity, space: Space, settings: SearchSettings) -> Front:
    """The front of a grid of at most `coarse_points`, spread by ratio over every ladder, then of its neighbours.

    Every value of each single decision is looked at, too: a job whose next size is too small a step for the rules must
    not rest as long as a larger step is allowed. So are the neighbours of what the job has.
    """
    points = space.grid(settings.coarse_points)
    return polish(situation, capacity, space, points, settings.polish_rounds)


def polish(situation: Situation, capacity: Capacity, space: Space, points: Points, rounds: int) -> Front:
    """The front of these points, then of its own neighbours, until it stays the same; at most so many rounds."""
    found = best_of(situation, capacity, points, situation.outcomes(points.columns))
    for _ in range(rounds if len(found.points) else 0):
        tried = space.around(found.points)
        better = best_of(situation, capacity, tried, situation.outcomes(tried.columns))
        if np.array_equal(better.points, found.points):
            break
        found = replace(better, looked_at=found.looked_at)
    return found


def pareto_front(situation: Situation, capacity: Capacity, space: Space, settings: SearchSettings) -> Front:
    """Exhaustive where the space is small; where it is not NSGA-II, or a grid where the settings ask for one."""
    if space.size <= settings.exhaustive_points:
        return exhaustive_front(situation, capacity, space)
    if settings.coarse_points:
        return coarse_front(situation, capacity, space, settings)
    # pymoo takes a second to load; most jobs that only move workers never need it.
    from elastrec.platform.scaling.search.genetic import genetic_front

    # Its population crowds along the front; who explores looks all over the space.
    looked_at = situation.outcomes(space.grid(_LOOKED_AT).columns)
    return replace(genetic_front(situation, capacity, space, settings), looked_at=looked_at)
