"""NSGA-II over the ladders of one job's space (DLRover-RM §4.3), then the neighbours of its front.

Shape legend: N points, 5 decisions.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from pymoo.algorithms.moo.nsga2 import NSGA2
from pymoo.core.problem import Problem
from pymoo.operators.crossover.sbx import SBX
from pymoo.operators.mutation.pm import PM
from pymoo.operators.repair.rounding import RoundingRepair
from pymoo.optimize import minimize

from elastrec.platform.scaling.amounts import Capacity
from elastrec.platform.scaling.model.columns import Floats
from elastrec.platform.scaling.search.front import Front, SearchSettings, excess, front_of
from elastrec.platform.scaling.search.objectives import Situation
from elastrec.platform.scaling.search.space import Space


class _Problem(Problem):
    """Maps the indexes of a population to RC, −TG and constraints."""

    def __init__(self, situation: Situation, capacity: Capacity, space: Space) -> None:
        self._asked = (situation, capacity, space)
        highest = [len(ladder) - 1 for ladder in space.ladders]
        super().__init__(n_var=5, n_obj=2, n_ieq_constr=5, xl=np.zeros(5), xu=np.array(highest), vtype=int)

    def _evaluate(self, points: Floats, out: dict[str, Floats], *_: Any, **__: Any) -> None:
        situation, capacity, space = self._asked
        outcomes = situation.outcomes(space.columns(points.astype(np.int64)))
        out["F"] = np.stack([outcomes.cost_per_hour, -outcomes.gain], axis=1)
        out["G"] = np.column_stack([excess(situation, capacity, outcomes), outcomes.violation])


def genetic_front(situation: Situation, capacity: Capacity, space: Space, settings: SearchSettings) -> Front:
    """NSGA-II over the indexes, started around the job's allocation, then its front's neighbours; deterministic by
    seed."""
    random = np.random.default_rng(settings.seed)
    start_5 = np.array([space.start])
    highest_5 = np.array([len(ladder) - 1 for ladder in space.ladders])
    near = space.points(space.around(start_5)).indexes_N5
    near = near[(near != start_5).any(axis=1)]
    near = near[random.permutation(len(near))[: settings.population // 2]]
    spread = random.integers(0, highest_5 + 1, size=(settings.population - len(near), 5))
    algorithm = NSGA2(
        pop_size=settings.population,
        sampling=np.concatenate([near, spread]),
        crossover=SBX(prob=0.9, eta=10, vtype=float, repair=RoundingRepair()),
        mutation=PM(prob_var=0.3, eta=10, vtype=float, repair=RoundingRepair()),
        eliminate_duplicates=True,
    )
    result = minimize(
        _Problem(situation, capacity, space),
        algorithm,
        ("n_gen", settings.generations),
        seed=settings.seed,
        copy_algorithm=False,
    )
    points = np.concatenate([start_5, result.pop.get("X").astype(np.int64)])
    return front_of(situation, capacity, space, np.sort(space.numbers(points)), settings.polish_rounds)
