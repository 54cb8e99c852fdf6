from __future__ import annotations

from itertools import pairwise

import msgspec
import pytest

from elastrec.platform.scaling.amounts import Capacity, Change, Resources
from elastrec.platform.scaling.policies.optimus_greedy import LEAST_RISE, MOST_STEPS, GreedyOptimus
from elastrec.platform.scaling.policies.three_stage import ThreeStage
from elastrec.platform.scaling.policy import View, decide
from elastrec.platform.scaling.types import JobProfile, Limits, Overheads
from tests.platform.scaling.jobs import GIB, PLENTY, PRICES, allocation, coefficients, measure, profile, speed, spread

VIEW = View(PLENTY, PRICES)
JOB = profile(limits=Limits(workers=(1, 16), parameter_servers=(1, 8)))
POLICY = GreedyOptimus()


def view(cores: float) -> View:
    return View(Capacity(free=Resources(cores, 4000.0 * GIB)), PRICES)


def test_a_path_adds_one_pod_at_a_time_and_each_gains() -> None:
    path = POLICY.propose(JOB, VIEW).candidates
    assert len(path) > 3
    assert path[0].allocation == JOB.allocation
    for one, more in pairwise(path):
        added = (
            more.allocation.workers - one.allocation.workers,
            more.allocation.parameter_servers - one.allocation.parameter_servers,
        )
        assert added in {(1, 0), (0, 1)}
        assert more.samples_per_second - one.samples_per_second > LEAST_RISE * path[0].samples_per_second


def test_a_path_ends_at_the_limits_and_never_takes_a_pod_or_changes_a_size() -> None:
    path = POLICY.propose(JOB, VIEW).candidates
    for each in path[1:]:
        assert JOB.allocation.changes(each.allocation) <= {Change.WORKERS, Change.SERVERS}
        assert JOB.allocation.workers <= each.allocation.workers <= 16
        assert JOB.allocation.parameter_servers <= each.allocation.parameter_servers <= 8
    assert len(path) <= MOST_STEPS + 1


def test_only_movable_roles_grow() -> None:
    path = POLICY.propose(msgspec.structs.replace(JOB, movable=frozenset({Change.WORKERS})), VIEW).candidates
    assert {each.allocation.parameter_servers for each in path} == {JOB.allocation.parameter_servers}


def test_a_round_continues_until_no_capacity_is_left() -> None:
    jobs = [msgspec.structs.replace(JOB, job_id=f"job {number}") for number in range(4)]
    answer = decide(POLICY, jobs, view(10.0))
    assert not answer.problems
    added = [(plan.allocation.resources - plan.before.resources).cores for plan in answer.plans]
    assert sum(added) == pytest.approx(10.0)
    # Equal jobs get equal shares, as far as whole pods go.
    assert max(added) - min(added) <= 1.0


def test_a_job_that_saves_more_time_per_core_goes_first() -> None:
    urgent = msgspec.structs.replace(JOB, job_id="urgent", priority=50.0)
    plans = {plan.job_id: plan for plan in decide(POLICY, [JOB, urgent], view(3.0)).plans}
    assert plans["urgent"].allocation.resources.cores == JOB.allocation.resources.cores + 3
    assert not plans["job"].changes


def test_without_room_everybody_stays() -> None:
    (plan,) = decide(POLICY, [JOB], view(0.0)).plans
    assert not plan.changes


@pytest.mark.parametrize("cores", [3.0, 7.0, 12.0, 500.0])
def test_the_default_policy_divides_workers_alone_in_the_same_way(cores: float) -> None:
    jobs = [
        profile(
            job_id=f"job {number}", allocation=(here := allocation(workers, 1, size, 1.0)),
            movable=frozenset({Change.WORKERS}),
            limits=Limits(workers=(1, 12)), observations=measure(true, spread(20)), priority=priority,
            remaining_samples=seconds * speed(true, here),
        )
        for number, (workers, size, shares, seconds, priority) in enumerate(
            [(2, 1.0, (0.9, 0.01, 0.01, 0.05, 0.03), 900.0, 1.0), (1, 2.0, (0.8, 0.05, 0.05, 0.05, 0.05), 9000.0, 1.0),
             (4, 0.5, (0.7, 0.1, 0.05, 0.1, 0.05), 3000.0, 1.0), (3, 1.0, (0.9, 0.01, 0.01, 0.05, 0.03), 3000.0, 3.0)]
        )
        if (true := coefficients(shares))
    ]  # fmt: skip
    ours, theirs = (
        {plan.job_id: plan.allocation for plan in decide(policy, jobs, view(cores)).plans}
        for policy in (ThreeStage(), POLICY)
    )
    assert ours == theirs
    assert any(allocation != job.allocation for job, allocation in zip(jobs, ours.values(), strict=True))


def served(seconds: float) -> JobProfile:
    """A job whose servers alone may grow, with so long left: one server adds 5 % to its speed, seven add 8 %."""
    true, here = coefficients((0.9, 0.01, 0.01, 0.05, 0.03)), allocation(2, 1)
    return profile(
        allocation=here, limits=Limits(parameter_servers=(1, 8)), movable=frozenset({Change.SERVERS}),
        observations=measure(true, spread(20)), remaining_samples=seconds * speed(true, here),
    )  # fmt: skip


PAUSING = View(PLENTY, PRICES, Overheads(server_start_seconds=0.0, migration_pause_seconds=30.0))


def test_servers_that_pay_together_are_added_although_the_first_one_does_not_pay_for_the_pause() -> None:
    job = served(600.0)
    assert POLICY.propose(job, PAUSING).candidates[1].gain < 0
    (plan,) = decide(POLICY, [job], PAUSING).plans
    assert plan.allocation.parameter_servers > 2
    assert plan.predicted is not None and plan.predicted.gain > 0


def test_growth_that_does_not_pay_for_its_pause_is_left_out() -> None:
    job = served(50.0)
    assert len(POLICY.propose(job, PAUSING).candidates) > 1
    (plan,) = decide(POLICY, [job], PAUSING).plans
    assert not plan.changes
