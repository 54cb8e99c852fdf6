"""A job does not stay if a chain of neighbours, each better than staying, leads to an allowed plan."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elastrec.platform.scaling.amounts import Capacity, Resources
from elastrec.platform.scaling.model.throughput import fit
from elastrec.platform.scaling.search.candidates import propose
from elastrec.platform.scaling.search.front import (
    SearchSettings,
    allowed_rows,
    coarse_front,
    excess,
    exhaustive_front,
    front_of,
)
from elastrec.platform.scaling.search.objectives import Situation
from elastrec.platform.scaling.search.space import Space, space_of
from elastrec.platform.scaling.types import CandidateKind, Limits
from tests.platform.scaling.jobs import GIB, PRICES, allocation, coefficients, measure, profile, situation

LIMITS = Limits(workers=(1, 48), parameter_servers=(1, 16), worker_cores=(0.5, 8.0), parameter_server_cores=(0.5, 8.0))
FEW = Limits(workers=(1, 12), parameter_servers=(1, 6), worker_cores=(0.5, 4.0), parameter_server_cores=(0.5, 4.0))
COARSEST = SearchSettings(exhaustive_points=10, coarse_points=32)


def room(cores: float) -> Capacity:
    return Capacity(free=Resources(cores, 4000.0 * GIB))


@pytest.mark.parametrize(
    ("shares", "workers", "servers", "worker_cores", "server_cores"),
    [
        ((0.24, 0.48, 0.05, 0.17, 0.06), 29, 12, 1.0, 4.0),
        ((0.65, 0.04, 0.01, 0.22, 0.07), 25, 10, 4.0, 4.0),
        ((0.32, 0.21, 0.10, 0.26, 0.11), 40, 11, 1.0, 2.0),
    ],
)
def test_a_job_does_not_rest_where_only_a_change_of_several_decisions_fits(
    shares: Sequence[float], workers: int, servers: int, worker_cores: float, server_cores: float
) -> None:
    """On a full cluster it has to make its pods smaller to have more of them: the grid has no such point."""
    now = allocation(workers, servers, worker_cores, server_cores)
    asked, little = situation(coefficients(shares), allocation=now, limits=LIMITS), room(2.0)
    space, usual = space_of(asked.job, little), SearchSettings()
    assert space.size > usual.exhaustive_points and len(exhaustive_front(asked, little, space).points)
    assert not len(front_of(asked, little, space, space.grid(usual.coarse_points), 0).points)
    proposal = propose(asked, little)
    offered = [each for each in proposal.candidates if each.kind in (CandidateKind.GROW, CandidateKind.SAVE)]
    assert max(each.samples_per_second for each in offered) > 1.05 * proposal.samples_per_second


SHARES = st.lists(st.floats(0.01, 1.0), min_size=5, max_size=5).map(lambda parts: [part / sum(parts) for part in parts])


@st.composite
def situations(draw: st.DrawFn) -> Situation:
    """Jobs whose model is known, or fitted to two noisy measurements, anywhere within their limits."""
    true = coefficients(draw(SHARES))
    now = allocation(
        draw(st.integers(1, 12)), draw(st.integers(1, 6)), draw(st.sampled_from([0.5, 1.0, 2.0, 4.0])),
        draw(st.sampled_from([0.5, 1.0, 2.0, 4.0])),
    )  # fmt: skip
    left = {"remaining_samples": draw(st.sampled_from([1e6, 1e8, 1e10])), "allocation": now, "limits": FEW}
    if draw(st.booleans()):
        return situation(true, **left)
    fewer = allocation(max(1, now.workers - 1), now.parameter_servers, now.worker_cores, now.parameter_server_cores)
    seen = measure(true, [now, fewer], 0.03, draw(st.integers(0, 99)))
    job = profile(observations=seen, **left)
    return Situation(job, fit(job.shape, seen), PRICES)


def leads_on(asked: Situation, capacity: Capacity, space: Space, looked_at: Sequence[int]) -> bool:
    """Whether an allowed plan can be reached from these points over neighbours that fit and gain more than to stay."""
    points = space.points(space.whole())
    found = asked.outcomes(points.columns)
    fits = (excess(asked, capacity, found) <= 0).all(axis=1)
    allowed = {int(each) for each in allowed_rows(asked, capacity, found)}
    stays = asked.rules.least_change
    # A plan within the rules whose prediction is doubted lacks trust alone.
    lacks = np.where(found.against_rules > 0, found.against_rules, found.violation)
    better = {int(each) for each in np.flatnonzero(fits & (lacks < stays))}
    seen, at = set[int](), {int(each) for each in looked_at}
    while at:
        if at & allowed:
            return True
        seen |= at
        near = space.around(points.indexes_N5[sorted(at & better)]) if at & better else []
        at = {int(each) for each in near} - seen
    return False


@settings(max_examples=150, deadline=None)
@given(situations(), st.sampled_from([0.0, 0.5, 2.0, 20.0]))
def test_a_front_is_empty_only_where_no_chain_of_neighbours_leads_on(asked: Situation, cores: float) -> None:
    capacity = room(cores)
    space = space_of(asked.job, capacity)
    found = coarse_front(asked, capacity, space, COARSEST)
    assert bool(len(found.points)) == leads_on(asked, capacity, space, space.grid(COARSEST.coarse_points))
    assert len(allowed_rows(asked, capacity, found.outcomes)) == len(found.points)
