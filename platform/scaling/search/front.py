"""The Pareto front of one job's plans: all points of a small space; `genetic` has NSGA-II for a large one (§4.3).

Minimised are RC and −TG. −TG orders plans as the paper's 1/TG does, without its pole at 0, and goes on below 0, where
plans that save lie. Shape legend: N points, 5 decisions.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import msgspec
import numpy as np

from elastrec.platform.scaling.amounts import Capacity, Change, require
from elastrec.platform.scaling.model.columns import Floats
from elastrec.platform.scaling.search.objectives import Outcomes, Situation
from elastrec.platform.scaling.search.pareto import front
from elastrec.platform.scaling.search.space import Indexes, Points, Space


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
    exhaustive_points: int = 50_000
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
        looked_at: what every point of the space would bring, where all of them were looked at.
    """

    points: Indexes
    outcomes: Outcomes
    looked_at: Outcomes | None = None

    @property
    def exhaustive(self) -> bool:
        """Every point of the space was looked at."""
        return self.looked_at is not None


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


def allowed(situation: Situation, capacity: Capacity, outcomes: Outcomes) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Which plans fit the cluster and obey the rules; bool of shape (N,)."""
    allowed_N = outcomes.violation <= 0
    # A job that rests has nothing that the rules allow: whether it would fit is not asked.
    if allowed_N.any():
        allowed_N &= (excess(situation, capacity, outcomes) <= 0).all(axis=1)
    return allowed_N


def best_of(situation: Situation, capacity: Capacity, points: Points, outcomes: Outcomes) -> Front:
    """The front of these points alone."""
    good = np.flatnonzero(allowed(situation, capacity, outcomes))
    chosen = good[front(outcomes.cost_per_hour[good], -outcomes.gain[good])]
    return Front(points.indexes_N5[chosen], take(outcomes, chosen))


def take(outcomes: Outcomes, rows: np.ndarray[Any, np.dtype[np.intp]]) -> Outcomes:
    """Some rows of the outcomes."""
    numbers = {name: getattr(outcomes, name)[rows] for name in Outcomes.__dataclass_fields__ if name != "columns"}
    return Outcomes(columns=outcomes.columns.take(rows), **numbers)


def exhaustive_front(situation: Situation, capacity: Capacity, space: Space) -> Front:
    """The exact front; time and memory grow with `space.size`."""
    points = space.whole()
    outcomes = situation.outcomes(points.columns)
    return replace(best_of(situation, capacity, points, outcomes), looked_at=outcomes)


def coarse_front(situation: Situation, capacity: Capacity, space: Space, settings: SearchSettings) -> Front:
    """The front of a grid of at most `coarse_points`, spread by ratio over every ladder, then of its neighbours.

    Every value of each single decision is looked at, too: a job whose next size is too small a step for the rules must
    not rest as long as a larger step is allowed.
    """
    points = space.grid(settings.coarse_points, with_start_and_lines=True)
    return polish(situation, capacity, space, points, settings.polish_rounds)


def polish(situation: Situation, capacity: Capacity, space: Space, points: Points, rounds: int) -> Front:
    """The front of these points, then of its own neighbours, until it stays the same; at most so many rounds."""
    start_5 = np.array([space.start], dtype=np.int64)
    found = best_of(situation, capacity, points, situation.outcomes(points.columns))
    for _ in range(rounds):
        tried = space.around(found.points if len(found.points) else start_5)
        better = best_of(situation, capacity, tried, situation.outcomes(tried.columns))
        if np.array_equal(better.points, found.points):
            break
        found = better
    return found


def pareto_front(situation: Situation, capacity: Capacity, space: Space, settings: SearchSettings) -> Front:
    """Exhaustive where the space is small; where it is not NSGA-II, or a grid where the settings ask for one."""
    if space.size <= settings.exhaustive_points:
        return exhaustive_front(situation, capacity, space)
    if settings.coarse_points:
        return coarse_front(situation, capacity, space, settings)
    # pymoo takes a second to load; most jobs that only move workers never need it.
    from elastrec.platform.scaling.search.genetic import genetic_front

    return genetic_front(situation, capacity, space, settings)
