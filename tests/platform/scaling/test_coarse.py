from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastrec.platform.scaling.amounts import Capacity, Resources
from elastrec.platform.scaling.search.front import SearchSettings, allowed_rows, exhaustive_front, pareto_front
from elastrec.platform.scaling.search.pareto import hypervolume
from elastrec.platform.scaling.search.space import _rungs, space_of
from elastrec.platform.scaling.types import Limits
from elastrec.platform.specs.errors import ScalingError
from tests.platform.scaling.jobs import GIB, PLENTY, allocation, situation

LIMITS = Limits(workers=(1, 24), parameter_servers=(1, 6), worker_cores=(0.5, 8), parameter_server_cores=(0.5, 8))


@pytest.mark.parametrize("points", [500, 3000])
def test_a_coarse_grid_with_neighbours_is_close_to_an_exhaustive_search(points: int) -> None:
    asked = situation(limits=LIMITS)
    space = space_of(asked.job, PLENTY)
    assert space.size > points
    exact = exhaustive_front(asked, PLENTY, space).outcomes
    settings = SearchSettings(exhaustive_points=points, coarse_points=points, polish_rounds=2)
    found = pareto_front(asked, PLENTY, space, settings)
    reference = (float(exact.cost_per_hour.max()) * 1.1, 0.0)
    ours = hypervolume(found.outcomes.cost_per_hour, -found.outcomes.gain, reference)
    assert not found.exhaustive
    assert ours >= 0.98 * hypervolume(exact.cost_per_hour, -exact.gain, reference) > 0


def test_a_grid_has_the_ends_of_every_ladder_and_a_limited_number_of_points() -> None:
    space = space_of(situation(limits=LIMITS).job, PLENTY)
    points = space.points(space.spread(400)).indexes_N5
    assert len(points) <= 400
    for decision, ladder in enumerate(space.ladders):
        assert {0, len(ladder) - 1} <= set(points[:, decision].tolist())


@given(st.sets(st.integers(1, 4000), min_size=1, max_size=40), st.integers(1, 12))
def test_the_rungs_of_a_grid_are_the_values_nearest_to_geometric_steps(values: set[int], count: int) -> None:
    ladder = tuple(value / 4.0 for value in sorted(values))
    logs_V = np.log(ladder)
    wanted_R = np.linspace(logs_V[0], logs_V[-1], count)
    nearest_R = np.abs(logs_V[None, :] - wanted_R[:, None]).argmin(axis=1)
    assert _rungs(ladder, count).tolist() == np.unique(nearest_R).tolist()


def test_a_grid_of_a_few_points_is_refused() -> None:
    with pytest.raises(ScalingError, match=r"search\.coarse_points"):
        SearchSettings(coarse_points=5)


@pytest.mark.parametrize(("workers", "servers", "cores"), [(1, 1, 1.0), (2, 2, 4.0), (2, 8, 1.0), (4, 1, 4.0)])
def test_a_job_never_rests_while_one_decision_alone_would_be_worth_a_change(
    workers: int, servers: int, cores: float
) -> None:
    """With little room most of a grid does not fit."""
    limits = Limits(
        workers=(1, 48), parameter_servers=(1, 16), worker_cores=(0.5, 8.0), parameter_server_cores=(0.5, 8.0)
    )
    little = Capacity(free=Resources(4.0, 4000.0 * GIB))
    asked = situation(allocation=allocation(workers, servers, cores, cores), limits=limits)
    space = space_of(asked.job, little)
    assert len(allowed_rows(asked, little, asked.outcomes(space.points(space.lines()).columns)))
    coarsest = SearchSettings(exhaustive_points=10, coarse_points=32, polish_rounds=0)
    assert len(pareto_front(asked, little, space, coarsest).points) > 0


def test_neighbours_in_one_decision_are_all_of_its_values() -> None:
    space = space_of(situation(limits=LIMITS).job, PLENTY)
    points = space.points(space.lines()).indexes_N5
    assert ((points != np.array(space.start)).sum(axis=1) <= 1).all()
    for decision, ladder in enumerate(space.ladders):
        assert set(points[:, decision].tolist()) == set(range(len(ladder)))


def test_the_search_of_a_live_round_is_the_one_of_the_simulator() -> None:
    assert SearchSettings().coarse_points > 0, "NSGA-II is a choice, a grid with its neighbours what all use"
