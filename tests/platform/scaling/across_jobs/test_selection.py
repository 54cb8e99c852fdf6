from __future__ import annotations

import itertools
import math
import time

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elastrec.platform.scaling.across_jobs.selection import (
    STAY,
    Items,
    Weights,
    choose,
    exact,
    greedy,
    items_of,
    value_of,
    weight,
)
from elastrec.platform.scaling.amounts import Resources
from elastrec.platform.scaling.explain import plans_of, rows
from elastrec.platform.scaling.types import Candidate, CandidateKind, Proposal
from elastrec.platform.specs.errors import ScalingError
from tests.platform.scaling.jobs import GIB, allocation


def candidate(gain: float, cost: float, cores: float, gib: float = 1.0, kind: CandidateKind | None = None) -> Candidate:
    if kind is None:
        kind = CandidateKind.GROW if cost > 0 else CandidateKind.SAVE
    # Plans that only add workers are divided in another way.
    servers = 1 if kind is CandidateKind.STAY else 2
    return Candidate(
        allocation=allocation(workers=max(1, 2 + round(cores)), servers=servers),
        kind=kind,
        samples_per_second=1000.0 + gain,
        gain=float(gain),
        overhead=0.0,
        cost_per_hour=float(cost),
        needs=Resources(cores, gib * GIB),
    )


STAYING = candidate(0.0, 0.0, 0.0, 0.0, CandidateKind.STAY)


def proposal(name: str, *candidates: Candidate, remaining: float = 1e6, priority: float = 1.0) -> Proposal:
    return Proposal(
        job_id=name,
        allocation=allocation(),
        remaining_samples=remaining,
        samples_per_second=1000.0,
        candidates=(STAYING, *candidates),
        priority=priority,
    )


def of_workers(*gains: float) -> tuple[Candidate, ...]:
    """Plans that add one worker of a core, two, and so on, each with its gain."""
    return tuple(
        msgspec.structs.replace(candidate(gain, 0.1 * more, more), allocation=allocation(2 + more))
        for more, gain in enumerate(gains, 1)
    )


def free(cores: float, gib: float = 1000.0) -> Resources:
    return Resources(cores, gib * GIB)


def random_items(seed: int, jobs: int = 6, each: int = 4) -> Items:
    random = np.random.default_rng(seed)
    count = jobs * each
    return Items(
        job=np.repeat(np.arange(jobs), each),
        candidate=np.tile(np.arange(1, each + 1), jobs),
        value=random.uniform(0.1, 1, count) * np.repeat(random.uniform(0.1, 10, jobs), each),
        cores=random.integers(0, 10, count).astype(float),
        memory_bytes=random.integers(0, 10, count) * float(GIB),
    )


def best_by_trying_all(items: Items, room: Resources) -> float:
    per_job = [[None, *np.flatnonzero(items.job == job)] for job in np.unique(items.job)]
    best = 0.0
    for picked in itertools.product(*per_job):
        index = [row for row in picked if row is not None]
        if items.cores[index].sum() <= room.cores and items.memory_bytes[index].sum() <= room.memory_bytes:
            best = max(best, float(items.value[index].sum()))
    return best


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10_000), st.integers(0, 40), st.integers(0, 40))
def test_no_choice_breaks_a_capacity_or_takes_two_plans_of_a_job(seed: int, cores: int, gib: int) -> None:
    items, room = random_items(seed), free(cores, gib)
    for knapsack in (greedy, exact):
        chosen = knapsack(items, room)
        assert len(set(items.job[chosen])) == len(chosen)
        assert items.cores[chosen].sum() <= room.cores + 1e-3
        assert items.memory_bytes[chosen].sum() <= room.memory_bytes + 1e3


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 30), st.integers(1, 30))
def test_the_exact_choice_equals_a_complete_enumeration(seed: int, cores: int, gib: int) -> None:
    items, room = random_items(seed, jobs=4, each=3), free(cores, gib)
    best = best_by_trying_all(items, room)
    assert items.value[exact(items, room)].sum() == pytest.approx(best, rel=1e-4)
    assert items.value[greedy(items, room)].sum() <= best * (1 + 1e-9)


def test_the_greedy_choice_is_the_best_one_in_most_cases_and_near_it_in_the_others() -> None:
    shares = []
    for seed in range(200):
        random = np.random.default_rng(seed)
        items, room = random_items(seed, jobs=4, each=3), free(*random.integers(1, 31, 2).tolist())
        best = best_by_trying_all(items, room)
        shares.append(items.value[greedy(items, room)].sum() / best if best else 1.0)
    # No bound holds for each case: the worst that was found has three quarters of the best. One order alone, instead of
    # the best of three, finds the best choice in at most 91 % of these.
    assert np.mean(shares) >= 0.995 and np.mean(np.array(shares) > 1 - 1e-9) >= 0.95


def test_greedy_takes_everything_when_there_is_room() -> None:
    items = random_items(1)
    chosen = greedy(items, free(1e6, 1e6))
    best = sum(items.value[items.job == job].max() for job in range(6))
    assert items.value[chosen].sum() == pytest.approx(best)


def test_plans_that_save_are_chosen_first_and_free_capacity_for_others() -> None:
    choice = choose(
        [proposal("grows", candidate(500, 1.0, 8)), proposal("saves", candidate(-10, -1.0, -8, -8))], free(1)
    )
    assert choice.chosen == (1, 1)
    assert choice.left.cores == pytest.approx(1.0)


def test_without_the_saving_the_other_job_could_not_grow() -> None:
    assert choose([proposal("grows", candidate(500, 1.0, 8))], free(1)).chosen == (STAY,)


def test_in_an_overdrawn_cluster_nothing_grows_until_savings_have_made_it_good() -> None:
    jobs = [proposal("grows", candidate(500, 1.0, 4)), proposal("saves", candidate(-10, -1.0, -8, -8))]
    assert choose(jobs, free(-10)).chosen == (STAY, 1)
    assert choose(jobs, free(-4)).chosen == (1, 1)


def test_workers_go_where_they_save_most_beyond_a_plan_that_saves() -> None:
    loses_much = (*of_workers(50), candidate(-400, -0.1, -1))
    loses_little = (*of_workers(50), candidate(-10, -0.1, -1))
    # Of two free cores, one of them from the plan that saves, the other job would use one for 91 seconds.
    other = proposal("other", *of_workers(100))
    assert choose([proposal("job", *loses_much), other], free(1)).chosen == (1, STAY)
    assert choose([proposal("job", *loses_little), other], free(1)).chosen == (2, 1)


def test_a_job_that_ends_soon_goes_first_with_a_large_rho() -> None:
    jobs = [proposal("long", candidate(500, 1.0, 4), remaining=1e8), proposal("short", candidate(400, 1.0, 4))]
    assert choose(jobs, free(4), weights=Weights(rho=2.5)).chosen == (STAY, 1)
    assert choose(jobs, free(4), weights=Weights(rho=0.0)).chosen == (1, STAY)


def test_a_priority_goes_before_a_larger_gain() -> None:
    jobs = [proposal("normal", candidate(500, 1.0, 4)), proposal("first", candidate(400, 1.0, 4), priority=3.0)]
    assert choose(jobs, free(4)).chosen == (STAY, 1)


@pytest.mark.parametrize("rho", [-2.5, 1.0, 2.5])
def test_a_priority_of_two_counts_as_half_of_the_time_left(rho: float) -> None:
    weights = Weights(rho=rho, epsilon_seconds=1e-9)
    left = 1e6 / 2 if rho > 0 else 2e6
    assert weight(1e6, 1000.0, 2.0, weights) == pytest.approx(weight(left, 1000.0, 1.0, weights))


def test_a_priority_counts_where_all_jobs_are_equal_otherwise() -> None:
    assert weight(1e6, 1000.0, 2.0, Weights(rho=0.0)) == 2.0 * weight(1e6, 1000.0, 1.0, Weights(rho=0.0))


def test_a_saving_without_loss_precedes_a_larger_one_with_loss() -> None:
    job = proposal("job", candidate(-20, -3.0, -3), candidate(5, -1.0, -1))
    assert choose([job], free(0)).chosen == (2,)


def test_exploring_gets_the_remaining_capacity() -> None:
    explore = candidate(10, 0.1, 2, kind=CandidateKind.EXPLORE)
    jobs = [proposal("young", explore), proposal("known", candidate(500, 1.0, 4))]
    assert choose(jobs, free(6)).chosen == (1, 1)
    assert choose(jobs, free(5)).chosen == (STAY, 1)


def test_weights_follow_equation_14() -> None:
    job = proposal("job", candidate(1000, 2.0, 1), remaining=1e6, priority=2.0)
    own, value = value_of(job.candidates[1], job, Weights(rho=2.0, epsilon_seconds=1.0))
    assert own == pytest.approx((2.0 / (1e6 / 2000 + 1.0)) ** 2)
    assert value == pytest.approx(1000 / 2.0 * own)
    assert value_of(job.candidates[0], job, Weights())[1] is None
    assert items_of([job], Weights(rho=2.0)).value[0] == pytest.approx(value)


def test_workers_alone_go_where_each_saves_most_seconds_per_core() -> None:
    long = proposal("long", *of_workers(400, 700, 900), remaining=1e7)
    short = proposal("short", *of_workers(500, 1000, 1500), remaining=1e5)
    # With all the room, both get their best plan; eq. 12 would give the short job everything that is scarce.
    assert choose([long, short], free(6)).chosen == (3, 3)
    assert choose([long, short], free(4)).chosen == (3, 1)
    assert choose([long, short], free(2)).chosen == (2, STAY)
    assert choose([long, msgspec.structs.replace(short, priority=1000.0)], free(4)).chosen == (1, 3)
    # A plan of another kind competes, so that eq. 12 decides about all.
    larger = proposal("larger", candidate(100, 1.0, 1), remaining=1e9)
    assert choose([long, short, larger], free(3)).chosen[1] == 3


def test_workers_that_do_not_fit_end_the_growth_of_their_job() -> None:
    wide = [msgspec.structs.replace(each, needs=Resources(8 * each.needs.cores)) for each in of_workers(900, 1700)]
    jobs = [proposal("wide", *wide, remaining=1e9), proposal("narrow", *of_workers(100, 200), remaining=1e5)]
    choice = choose(jobs, free(12))
    assert choice.chosen == (1, 2)
    assert choice.left.cores == pytest.approx(2.0)


def test_ten_thousand_jobs_are_chosen_from_in_seconds() -> None:
    random = np.random.default_rng(0)
    jobs = [
        proposal(
            str(k),
            *(candidate(*each) for each in zip(*random.uniform(0.1, 10, (3, 20)), strict=True)),
            remaining=float(random.uniform(1e5, 1e8)),
        )
        for k in range(10_000)
    ]
    started = time.process_time()
    choice = choose(jobs, free(10_000, 1e6))
    # A guard against quadratic time; the benchmark has the figure.
    assert time.process_time() - started < 10
    assert choice.left.cores >= 0
    assert any(choice.chosen)


def test_a_round_without_jobs_has_no_plans() -> None:
    choice = choose([], free(1))
    assert choice.chosen == ()
    assert math.isfinite(choice.value)


@pytest.mark.parametrize("wrong", [math.nan, 50.0])
def test_an_invalid_rho_is_refused(wrong: float) -> None:
    with pytest.raises(ScalingError, match=r"weights\.rho"):
        Weights(rho=wrong)


def test_every_candidate_is_explained() -> None:
    jobs = [
        proposal("grows", candidate(500, 1.0, 4), candidate(600, 5.0, 50), candidate(100, 0.9, 3)),
        proposal("saves", candidate(-10, -1.0, -1, -1), candidate(100, 1.0, 1)),
        proposal("loses", candidate(1, 10.0, 5)),
    ]
    room = free(4)
    choice = choose(jobs, room)
    plans = plans_of("test", jobs, choice, room, Weights())
    assert [plan.job_id for plan in plans] == ["saves", "grows", "loses"]
    saves, grows, loses = plans
    assert "taken first" in saves.reason
    assert "+50 % samples/s" in grows.reason
    assert not loses.changes
    assert "does not fit" in loses.reason
    why = {each.candidate.needs.cores: each.why for each in grows.considered}
    assert "45 cores more than the cluster" in why[50]
    assert "below the chosen one's" in why[3]
    assert all(each.why for plan in plans for each in plan.considered)
    assert [sum(each.chosen for each in plan.considered) for plan in plans] == [1, 1, 1]


def test_a_job_that_can_only_stay_says_how_many_plans_were_examined() -> None:
    alone = msgspec.structs.replace(proposal("stays"), notes=("8 plans examined, none is proposed", "a model"))
    plan = plans_of("test", [alone], choose([alone], free(4)), free(4), Weights())[0]
    assert (
        plan.reason == "stays: no plan remains that pays or saves enough; 8 plans examined, none is proposed; a model"
    )
    assert len(rows(plan)) == 1


def test_the_explanation_is_a_table_of_plain_values() -> None:
    jobs = [proposal("grows", candidate(500, 1.0, 4), candidate(100, 0.9, 3))]
    plan = plans_of("test", jobs, choose(jobs, free(4)), free(4), Weights())[0]
    table = rows(plan)
    assert [row["cost_per_hour"] for row in table] == [1.0, 0.9, 0.0]
    assert [row["chosen"] for row in table] == [True, False, False]
    assert all(isinstance(value, str | float | bool | None) for row in table for value in row.values())


def test_a_job_that_could_save_grows_where_there_is_room() -> None:
    job = proposal("one", candidate(5.0, -1.0, -2.0), candidate(900.0, 2.0, 6.0))
    choice = choose([job], free(6.0))
    assert choice.chosen == (2,)
    assert choice.left.cores == pytest.approx(0.0)


def test_a_job_without_room_to_grow_saves() -> None:
    job = proposal("one", candidate(5.0, -1.0, -2.0), candidate(900.0, 2.0, 6.0))
    choice = choose([job], free(5.0))
    assert choice.chosen == (1,)
    assert choice.left.cores == pytest.approx(7.0)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10_000), st.integers(-10, 60))
def test_savings_and_growth_together_never_overdraw(seed: int, cores: int) -> None:
    random = np.random.default_rng(seed)
    jobs = [
        proposal(
            str(number),
            *(
                candidate(float(random.uniform(-10, 900)), float(size) * 0.1, float(size))
                for size in random.integers(-8, 20, size=5)
                if size
            ),
            remaining=float(10 ** random.uniform(4, 8)),
        )
        for number in range(8)
    ]
    choice = choose(jobs, free(cores))
    needs = sum((job.candidates[c].needs.cores for job, c in zip(jobs, choice.chosen, strict=True)), 0.0)
    assert choice.left.cores == pytest.approx(cores - needs)
    assert needs <= max(cores, 0) + 1e-3
