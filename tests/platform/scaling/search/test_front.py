from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from elastrec.platform.scaling.amounts import Capacity, Change, Resources
from elastrec.platform.scaling.search.front import SearchSettings, exhaustive_front, pareto_front
from elastrec.platform.scaling.search.genetic import genetic_front
from elastrec.platform.scaling.search.pareto import hypervolume
from elastrec.platform.scaling.search.space import space_of
from elastrec.platform.scaling.types import Limits, MemoryNeed
from elastrec.platform.specs.errors import ScalingError
from tests.platform.scaling.jobs import GIB, PLENTY, allocation, coefficients, profile, situation

SMALL = Limits(workers=(1, 12), parameter_servers=(1, 4), worker_cores=(0.5, 4), parameter_server_cores=(0.5, 4))


def test_nsga_ii_finds_the_front_of_an_exhaustive_search() -> None:
    asked = situation(limits=SMALL)
    space = space_of(asked.job, PLENTY)
    exact, found = (
        exhaustive_front(asked, PLENTY, space).outcomes,
        genetic_front(asked, PLENTY, space, SearchSettings()),
    )
    reference = (float(exact.cost_per_hour.max()) * 1.1, 0.0)
    ours = hypervolume(found.outcomes.cost_per_hour, -found.outcomes.gain, reference)
    assert ours >= 0.99 * hypervolume(exact.cost_per_hour, -exact.gain, reference) > 0


def test_equal_seeds_give_equal_fronts() -> None:
    asked = situation(limits=SMALL)
    space = space_of(asked.job, PLENTY)
    settings = SearchSettings(seed=7, polish_rounds=0, generations=5)
    one, other = (genetic_front(asked, PLENTY, space, settings) for _ in range(2))
    assert np.array_equal(one.points, other.points)


def test_a_small_space_is_searched_without_pymoo() -> None:
    code = (
        "import sys; from tests.platform.scaling.jobs import PLENTY, situation;"
        "from elastrec.platform.scaling.search.candidates import propose;"
        "from elastrec.platform.scaling.amounts import Change;"
        "propose(situation(movable=frozenset({Change.WORKERS})), PLENTY); print('pymoo' in sys.modules)"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert answer.stdout.strip() == "False"


def test_no_plan_needs_more_than_is_free() -> None:
    tight = Capacity(free=Resources(3.0, 5.0 * GIB))
    asked = situation(limits=SMALL)
    found = pareto_front(asked, tight, space_of(asked.job, tight), SearchSettings())
    assert len(found.points)
    assert (found.outcomes.more_cores <= 3.001).all()
    assert (found.outcomes.more_memory_bytes <= 5 * GIB + 1).all()


def test_only_savings_are_allowed_if_jobs_hold_more_than_the_capacity() -> None:
    overdrawn = Capacity(free=Resources(-10.0, -20.0 * GIB))
    asked = situation(coefficients((0.1, 0.8, 0, 0, 0.1)), allocation=allocation(12, 1), limits=SMALL)
    found = pareto_front(asked, overdrawn, space_of(asked.job, overdrawn), SearchSettings())
    assert len(found.points)
    assert (found.outcomes.more_cores <= 0.001).all()
    assert (found.outcomes.cost_per_hour <= 0).all()


def test_no_pod_is_larger_than_the_largest_node() -> None:
    nodes = Capacity(free=PLENTY.free, largest_pod=Resources(2.0, 8.0 * GIB))
    asked = situation(limits=SMALL)
    columns = pareto_front(asked, nodes, space_of(asked.job, nodes), SearchSettings()).outcomes.columns
    assert columns.worker_cores.max() <= 2
    assert columns.parameter_server_cores.max() <= 2


def test_servers_hold_their_rows_in_every_plan() -> None:
    need = MemoryNeed(worker_bytes=GIB, server_base_bytes=GIB, embedding_bytes=12 * GIB, imbalance=1.2)
    asked = situation(limits=SMALL, memory=need)
    columns = pareto_front(asked, PLENTY, space_of(asked.job, PLENTY), SearchSettings()).outcomes.columns
    assert len(columns)
    for row in range(len(columns)):
        servers = int(columns.parameter_servers[row])
        assert columns.parameter_server_memory_bytes[row] >= need.server_bytes(servers)


def test_sizes_that_a_running_job_cannot_change_stay() -> None:
    asked = situation(movable=frozenset({Change.WORKERS}))
    space = space_of(asked.job, PLENTY)
    assert [len(ladder) for ladder in space.ladders[1:]] == [1, 1, 1, 1]
    columns = pareto_front(asked, PLENTY, space, SearchSettings()).outcomes.columns
    assert set(columns.parameter_servers) == {1.0}
    assert len(set(columns.workers)) > 3


def test_the_ladders_contain_the_present_allocation_even_outside_of_the_limits() -> None:
    odd = allocation(100, 30, worker_cores=0.7, server_cores=50.0)
    space = space_of(profile(allocation=odd, limits=SMALL), PLENTY)
    assert space.columns(np.array([space.start])).allocation(0) == odd


def test_a_search_that_cannot_hold_a_front_is_refused() -> None:
    with pytest.raises(ScalingError, match=r"search\.most"):
        SearchSettings(most=1)


def test_a_worker_keeps_its_memory_unless_it_is_far_too_large_or_small() -> None:
    for needed, expected in ((1.9 * GIB, 2 * GIB), (1.0 * GIB, GIB), (3.0 * GIB, 3 * GIB)):
        need = MemoryNeed(worker_bytes=int(needed), server_base_bytes=1, embedding_bytes=1)
        assert space_of(profile(limits=SMALL, memory=need), PLENTY).worker_memory_bytes == expected
        fixed = profile(limits=SMALL, memory=need, movable=frozenset({Change.WORKERS}))
        assert space_of(fixed, PLENTY).worker_memory_bytes == 2 * GIB
