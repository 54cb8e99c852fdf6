"""The Pareto front of one job's plans: all points of a small space; `genetic` has NSGA-II for a large one (§4.3).

RC and −TG are minimised. −TG has the order of the paper's 1/TG without its pole at 0, and includes plans that save, for
which TG is below 0. Shape legend: N points, 5 decisions.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import msgspec

from elastrec.platform.scaling.amounts import Capacity, Change, require
from elastrec.platform.scaling.model.columns import Columns, Floats
from elastrec.platform.scaling.search.objectives import Outcomes, Situation, front_kernels, kernels
from elastrec.platform.scaling.search.pareto import Rows
from elastrec.platform.scaling.search.space import Indexes, Space
from elastrec.platform.scaling.types import JobProfile

_LOOKED_AT = 500
"""Points of the grid for exploration if the front comes from NSGA-II. Chosen: half of `coarse_points`."""


class SearchSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The extent of the search for plans.

    Attributes:
        exhaustive_points: spaces up to this size are searched completely.
        population, generations: of NSGA-II.
        coarse_points: size of a grid that is searched with every value of each single decision, and with the neighbours
            of its front; 0: NSGA-II instead. On 24 random problems of 10^5 plans (`benchmarks.scaling.candidates`) the
            grid covers at least 0.998 of the exact front in 18 ms of CPU time, NSGA-II 0.997 in 450 ms.
        polish_rounds: number of searches among the neighbours of the front.
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
    """Allowed plans that no other allowed plan dominates in cost and gain, by rising cost.

    Attributes:
        points: indexes into the space's ladders, int64 of shape (N, 5).
        doubted: of the points with which the search began, all over the space, those that fit and obey the rules, but
            have an untrusted prediction.
        exhaustive: whether these are all points of the space.
    """

    points: Indexes
    outcomes: Outcomes
    doubted: Columns
    exhaustive: bool = False


def excess(situation: Situation, capacity: Capacity, outcomes: Outcomes) -> Floats:
    """The amounts by which plans exceed capacity or memory, as shares; ≤ 0 where they fit. Shape (N, 4)."""
    found_N4: Floats = kernels().excess(outcomes.columns.table_FN, outcomes.found_7N, room_of(situation.job, capacity))
    return found_N4


def room_of(job: JobProfile, capacity: Capacity) -> tuple[float, ...]:
    """`kernels.Room`."""
    need, now, most = job.memory, job.allocation.resources, capacity.largest_pod
    # A resource that the job cannot change is no objection to a plan that leaves it as it is.
    of_servers = need if job.movable & {Change.SERVERS, Change.SERVER_SIZE} else None
    of_workers = need if Change.WORKER_SIZE in job.movable else None
    found: tuple[float, ...] = kernels().Room(
        free_cores=max(float(capacity.free.cores), 0.0),
        free_bytes=max(float(capacity.free.memory_bytes), 0.0),
        cores=float(now.cores),
        memory_bytes=float(now.memory_bytes),
        largest_cores=math.inf if most is None else float(most.cores),
        largest_bytes=math.inf if most is None else float(most.memory_bytes),
        server_bytes=0.0 if of_servers is None else float(of_servers.server_base_bytes),
        rows_bytes=0.0 if of_servers is None else float(of_servers.imbalance * of_servers.embedding_bytes),
        worker_bytes=0.0 if of_workers is None else float(of_workers.worker_bytes),
        servers=float(job.allocation.parameter_servers),
        present_bytes=float(job.allocation.parameter_server_memory_bytes),
    )
    return found


def allowed_rows(situation: Situation, capacity: Capacity, outcomes: Outcomes, *, doubted: bool = False) -> Rows:
    """The rising indexes of plans that fit the cluster, obey the rules and have a trusted prediction.

    Args:
        doubted: instead, those that fit and obey the rules, but have an untrusted prediction.
    """
    model = situation.model
    found: Rows = kernels().permitted(
        outcomes.columns.table_FN, outcomes.found_7N, room_of(situation.job, capacity), *model.terms,
        model.covariance_KK, outcomes.present, doubted,
    )  # fmt: skip
    return found


def front_of(situation: Situation, capacity: Capacity, space: Space, numbers: Indexes, rounds: int) -> Front:
    """The front of these points, then of its neighbours, until it stays the same; at most the given number of rounds.

    Args:
        numbers: of points, rising (`Space`).
    """
    model, present = situation.model, situation.present(situation.rules.payback_seconds)
    constants, fitted = model.terms
    points_N5, table_FN, found_7N, errors_N, doubted_FN = front_kernels().front_of(
        numbers, space.values, space.lengths, float(space.worker_memory_bytes), tuple(room_of(situation.job, capacity)),
        tuple(constants), tuple(fitted), model.covariance_KK, tuple(present), rounds,
    )  # fmt: skip
    return Front(points_N5, Outcomes(Columns(table_FN), model, found_7N, present, errors_N), Columns(doubted_FN))


def exhaustive_front(situation: Situation, capacity: Capacity, space: Space) -> Front:
    """The exact front; time and memory grow with `space.size`."""
    return replace(front_of(situation, capacity, space, space.whole(), 0), exhaustive=True)


def coarse_front(situation: Situation, capacity: Capacity, space: Space, settings: SearchSettings) -> Front:
    """The front of a grid of at most `coarse_points`, spread by ratio over every ladder, then of its neighbours.

    Every value of each single decision is searched, too, because a larger step may be allowed where the next size is
    too small a step for the rules. So are the neighbours of the job's allocation. If none of these points is allowed,
    chains of neighbours are followed (`front_kernels.front_of`): on a full cluster, perhaps only plans fit that make
    some pods smaller to have more of others.
    """
    return front_of(situation, capacity, space, space.grid(settings.coarse_points), settings.polish_rounds)


def pareto_front(situation: Situation, capacity: Capacity, space: Space, settings: SearchSettings) -> Front:
    """Exhaustive where the space is small; where it is not NSGA-II, or a grid where the settings ask for one."""
    if space.size <= settings.exhaustive_points:
        return exhaustive_front(situation, capacity, space)
    if settings.coarse_points:
        return coarse_front(situation, capacity, space, settings)
    # The import of pymoo takes a second; most jobs that only change workers never need it.
    from elastrec.platform.scaling.search.genetic import genetic_front

    # Its population is concentrated along the front, but exploration needs points all over the space.
    looked_at = situation.outcomes(space.points(space.grid(_LOOKED_AT)).columns)
    doubted = looked_at.columns.take(allowed_rows(situation, capacity, looked_at, doubted=True))
    return replace(genetic_front(situation, capacity, space, settings), doubted=doubted)
