"""Results of compiled loops equal the formulas, which are written in plain Python here."""

from __future__ import annotations

import itertools
import math
import statistics
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elastrec.platform.scaling.amounts import GIBIBYTE, Allocation, Capacity, Change, Resources
from elastrec.platform.scaling.model.columns import FIELDS, Columns
from elastrec.platform.scaling.model.step_form import vector
from elastrec.platform.scaling.search import front_kernels, point_kernels
from elastrec.platform.scaling.search.exploration import MOST, explore
from elastrec.platform.scaling.search.front import allowed_rows, excess, front_of, room_of
from elastrec.platform.scaling.search.objectives import Rules, Situation
from elastrec.platform.scaling.search.pareto import front
from elastrec.platform.scaling.search.space import Space, space_of
from elastrec.platform.scaling.types import Limits, MemoryNeed, Overheads
from tests.platform.scaling.jobs import (
    GIB,
    PRICES,
    allocation,
    coefficients,
    horizon_seconds,
    known_model,
    measure,
    profile,
    spread,
)

TRUE = coefficients((0.5, 0.15, 0.05, 0.2, 0.1))
MODEL = known_model(TRUE)
TRAINED_WITH = ([allocation(12, 2), allocation(1, 1)], [allocation(1, 1)])
LIMITS = Limits(workers=(1, 20), parameter_servers=(1, 6), worker_cores=(0.5, 8), parameter_server_cores=(0.5, 8))
OVERHEADS = Overheads(
    worker_start_seconds=40.0, server_start_seconds=70.0, migration_pause_seconds=20.0, migration_copy_seconds=15.0,
    worker_start_core_seconds=5.0, server_start_core_seconds=2.0,
)  # fmt: skip
NEED = MemoryNeed(worker_bytes=int(1.5 * GIB), server_base_bytes=GIB, embedding_bytes=9 * GIB, imbalance=1.2)

SITUATIONS = st.builds(
    lambda workers, servers, cores, remaining, trained_with, payback, need, movable: Situation(
        profile(
            allocation=allocation(workers, servers, cores, 2.0), remaining_samples=remaining, limits=LIMITS,
            observations=trained_with, memory=need, movable=movable,
        ),
        MODEL, PRICES, OVERHEADS, Rules(payback_seconds=payback),
    ),
    st.integers(1, 20), st.integers(1, 6), st.sampled_from([0.5, 1.0, 3.0]), st.floats(0.0, 1e10),
    st.sampled_from([(), *(measure(TRUE, each) for each in TRAINED_WITH)]), st.sampled_from([0.0, 600.0, 3600.0]),
    st.sampled_from([None, NEED]), st.sampled_from([frozenset(Change), frozenset({Change.WORKERS})]),
)  # fmt: skip
CAPACITIES = st.builds(
    lambda cores, memory, largest: Capacity(free=Resources(cores, memory * GIB), largest_pod=largest),
    st.floats(-20.0, 200.0), st.floats(-50.0, 500.0), st.sampled_from([None, Resources(4.0, 8.0 * GIB)]),
)  # fmt: skip


def price(of: Allocation) -> float:
    amount = of.resources
    return PRICES.core_hour * amount.cores + PRICES.gibibyte_hour * amount.memory_bytes / GIBIBYTE


def error_of_change(asked: Situation, plan: Allocation) -> float:
    """One standard deviation of the logarithm of Ψ with a plan over Ψ now."""
    columns = Columns.of([asked.job.allocation, plan])
    seconds_N, slopes_NK = MODEL.form.slopes(MODEL.form.rows(MODEL.shape, columns), vector(MODEL.coefficients))
    now_K, then_K = slopes_NK / seconds_N[:, None]
    return float(np.sqrt((then_K - now_K) @ MODEL.covariance_KK @ (then_K - now_K)))


def is_trusted(asked: Situation, plan: Allocation) -> bool:
    """Whether a prediction is to be acted on, by the rule of `objectives`."""
    fields = ("parameter_servers", "worker_cores", "parameter_server_cores")
    now = asked.job.allocation
    is_alike = all(getattr(plan, field) == getattr(now, field) for field in fields)
    if is_alike and plan.workers > now.workers:
        return True
    found = expected(asked, plan)
    if plan.workers < now.workers and found["cost_per_hour"] <= 0:
        least = asked.present(0.0).least_kept  # type: ignore[attr-defined]
        if is_alike and plan.workers / now.workers - 1.0 >= least:
            return True
        if found["gain"] / asked.samples_per_second - error_of_change(asked, plan) < least:
            return False
    return float(MODEL.relative_error(Columns.of([plan]))[0]) <= asked.rules.trusted_error


def expected(asked: Situation, plan: Allocation) -> dict[str, float]:
    """RC, TG and the rules of `objectives`, for one plan."""
    job, rules, overheads, now = asked.job, asked.rules, asked.overheads, asked.job.allocation
    speed, then = (
        float(MODEL.predict(Columns.of([each])).samples_per_second[0]) for each in (now, plan)
    )  # fmt: skip
    cost = price(plan) - price(now)
    cost = 0.0 if abs(cost) < 1e-9 * price(now) else cost
    dearer = math.log((price(now) + cost) / price(now))
    changes = now.changes(plan)
    pause = overheads.migration_pause_seconds if changes & {Change.SERVERS, Change.SERVER_SIZE} else 0.0
    workers, servers = plan.workers, plan.parameter_servers
    if all(getattr(plan, field) <= getattr(now, field) for field in ("worker_cores", "worker_memory_bytes")):
        workers -= min(workers, now.workers)
    size = ("parameter_server_cores", "parameter_server_memory_bytes")
    if all(getattr(plan, field) <= getattr(now, field) for field in size):
        servers -= min(servers, now.parameter_servers)
    server_start = overheads.server_start_seconds if servers > 0 else 0.0
    if servers > 0 or Change.SERVERS in changes:
        server_start += overheads.migration_copy_seconds
    start = max(overheads.worker_start_seconds if workers > 0 else 0.0, server_start)
    core_seconds = workers * overheads.worker_start_core_seconds + servers * overheads.server_start_core_seconds
    payback = max(rules.payback_seconds, job.until_next_change_seconds)
    horizon = min(job.remaining_samples / max(speed, then), payback)

    def share(seconds: float) -> float:
        return seconds / horizon if horizon > seconds else 1.0

    starting = core_seconds / now.resources.cores / max(horizon, 1e-9)
    overhead = speed * (share(pause) + starting) + max(then - speed, 0.0) * share(start)
    gain = then - speed - overhead
    saved, least = dearer * (1.0 - share(start)), math.log1p(rules.least_change)
    known = [float(MODEL.predict(Columns.of([each.allocation])).samples_per_second[0]) for each in job.observations]
    keeps = math.expm1(rules.save_efficiency * saved) if saved <= -least else math.inf
    keeps = max(keeps, min((1.0 - rules.max_slowdown) * max([speed, *known]) / speed - 1.0, 0.0))
    rises = math.expm1(max(rules.grow_efficiency * dearer, least))
    return {
        "samples_per_second": then, "gain": gain, "overhead": overhead, "cost_per_hour": cost,
        "more_cores": plan.resources.cores - now.resources.cores,
        "more_memory_bytes": plan.resources.memory_bytes - now.resources.memory_bytes,
        "against_rules": min(rises, keeps) - gain / speed,
    }  # fmt: skip


def fits(asked: Situation, capacity: Capacity, plan: Allocation) -> bool:
    job, needs = asked.job, plan.resources - asked.job.allocation.resources
    room = needs.cores <= max(capacity.free.cores, 0.0) + 1e-3
    room &= needs.memory_bytes <= max(capacity.free.memory_bytes, 0.0) + 1.0
    if job.memory is not None and Change.SERVERS in job.movable:
        now, holders = job.allocation, plan.parameter_servers
        if plan.parameter_server_memory_bytes < now.parameter_server_memory_bytes:
            holders = min(holders, now.parameter_servers)
        room &= plan.parameter_server_memory_bytes >= job.memory.server_bytes(holders)
        room &= plan.worker_memory_bytes >= job.memory.worker_bytes
    if (most := capacity.largest_pod) is not None:
        room &= max(plan.worker_cores, plan.parameter_server_cores) <= most.cores
        room &= max(plan.worker_memory_bytes, plan.parameter_server_memory_bytes) <= most.memory_bytes
    return room


PLANS = [
    *spread(30, seed=3),
    *(msgspec.structs.replace(each, parameter_server_memory_bytes=16 * GIB) for each in spread(10, seed=4)),
    allocation(3, 2, 1.0, 2.0),
    *(msgspec.structs.replace(each, worker_memory_bytes=GIB) for each in spread(6, seed=5)),
]


@settings(max_examples=60, deadline=None)
@given(SITUATIONS)
def test_cost_and_gain_of_a_plan_are_those_of_the_formulas(asked: Situation) -> None:
    plans = [asked.job.allocation, *PLANS]
    found = asked.outcomes(Columns.of(plans))
    for row, plan in enumerate(plans):
        for name, value in expected(asked, plan).items():
            assert getattr(found, name)[row] == pytest.approx(value, rel=1e-9, abs=1e-9), name


@settings(max_examples=60, deadline=None)
@given(SITUATIONS, CAPACITIES)
def test_allowed_are_the_plans_that_fit_obey_the_rules_and_are_to_be_trusted(
    asked: Situation, capacity: Capacity
) -> None:
    found = asked.outcomes(Columns.of(PLANS))
    fitting = [fits(asked, capacity, plan) for plan in PLANS]
    assert (excess(asked, capacity, found) <= 0).all(axis=1).tolist() == fitting
    obeys = found.against_rules <= 0
    trusted = np.array([is_trusted(asked, plan) for plan in PLANS])
    assert ((found.violation <= 0) == (obeys & trusted)).all()
    for doubted in (False, True):
        rows = np.flatnonzero(np.array(fitting) & obeys & (trusted != doubted))
        assert allowed_rows(asked, capacity, found, doubted=doubted).tolist() == rows.tolist()


LADDERS = st.lists(st.integers(1, 6), min_size=5, max_size=5)


def spaces(draw: Any) -> Space:
    lengths = draw(LADDERS)
    ladders = tuple(tuple(float(2 + 3 * k) * 1.5**value for value in range(length)) for k, length in enumerate(lengths))
    return Space(ladders, tuple(draw(st.integers(0, length - 1)) for length in lengths), GIB)


def everything(space: Space) -> list[tuple[int, ...]]:
    return list(itertools.product(*(range(len(ladder)) for ladder in space.ladders)))


def is_near(one: tuple[int, ...], other: tuple[int, ...]) -> bool:
    steps = [abs(a - b) for a, b in zip(one, other, strict=True)]
    return max(steps) <= 1 and sum(steps) <= 2


def rows(space: Space, numbers: Any) -> list[tuple[int, ...]]:
    return [tuple(each) for each in space.points(numbers).indexes_N5.tolist()]


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_points_are_visited_once_and_in_the_order_of_their_indexes(data: st.DataObject) -> None:
    space = spaces(data.draw)
    points = everything(space)
    assert rows(space, space.whole()) == points
    some = data.draw(st.lists(st.sampled_from(points), min_size=1, max_size=4))
    near = [point for point in points if any(is_near(point, each) for each in some)]
    assert rows(space, space.around(np.array(some, dtype=np.int64))) == near
    apart = [sum(a != b for a, b in zip(point, space.start, strict=True)) for point in points]
    lines = [point for point, differing in zip(points, apart, strict=True) if differing <= 1]
    assert rows(space, space.lines()) == lines
    grid = {*lines, *rows(space, space.spread(40)), *(point for point in points if is_near(point, space.start))}
    assert rows(space, space.grid(40)) == sorted(grid)
    steps = [
        (*space.start[:k], space.start[k] + step, *space.start[k + 1 :])
        for k in range(4)
        for step in (-2, -1, 1, 2)
        if 0 <= space.start[k] + step < len(space.ladders[k])
    ]
    assert rows(space, point_kernels.single_steps(space.start_5, space.lengths)) == steps


@settings(max_examples=30, deadline=None)
@given(st.data())
def test_a_point_is_the_allocation_that_its_indexes_name(data: st.DataObject) -> None:
    space = spaces(data.draw)
    for numbers in (space.whole(), space.whole()[::-1].copy()):
        points = space.points(numbers)
        assert np.array_equal(space.numbers(points.indexes_N5), numbers)
        for k, field in enumerate(field for field in FIELDS if field != "worker_memory_bytes"):
            values = [space.ladders[k][index] for index in points.indexes_N5[:, k]]
            assert getattr(points.columns, field).tolist() == values
        assert set(points.columns.worker_memory_bytes) == {float(GIB)}


@settings(max_examples=40, deadline=None)
@given(SITUATIONS, CAPACITIES)
def test_a_front_is_not_dominated_and_neighbours_are_searched_until_it_is_stable(
    asked: Situation, capacity: Capacity
) -> None:
    space = space_of(asked.job, capacity)
    numbers = space.grid(200)

    def best(tried: Any) -> Any:
        points = space.points(tried)
        found = asked.outcomes(points.columns)
        good = allowed_rows(asked, capacity, found)
        return points.indexes_N5[good[front(found.cost_per_hour[good], -found.gain[good])]]

    expected_N5, first = best(numbers), space.points(numbers).columns
    doubted = allowed_rows(asked, capacity, asked.outcomes(first), doubted=True)
    for rounds in range(3):
        found = front_of(asked, capacity, space, numbers, rounds)
        assert np.array_equal(found.points, expected_N5)
        assert np.array_equal(found.outcomes.columns.table_FN, space.columns(found.points).table_FN)
        assert np.array_equal(found.outcomes.found_7N, asked.outcomes(found.outcomes.columns).found_7N)
        assert found.outcomes.relative_error == pytest.approx(MODEL.relative_error(found.outcomes.columns))
        assert np.array_equal(found.doubted.table_FN, first.take(doubted).table_FN)
        if not len(expected_N5):
            # What an empty one leads to: `test_chains`.
            break
        expected_N5 = best(space.around(expected_N5))


@settings(max_examples=60, deadline=None)
@given(SITUATIONS, CAPACITIES)
def test_near_are_the_points_that_fit_and_lack_less_than_to_stay(asked: Situation, capacity: Capacity) -> None:
    """Most others are left out by bounds, without their outcome."""
    space = space_of(asked.job, capacity)
    numbers = space.grid(300)
    found = asked.outcomes(space.points(numbers).columns)
    fitting = (excess(asked, capacity, found) <= 0).all(axis=1)
    close = fitting & ((found.against_rules < asked.rules.least_change) | (found.against_rules <= 0))
    present = asked.present(asked.rules.payback_seconds)
    near = front_kernels.near(
        np.sort(np.concatenate([numbers, numbers[::3]])), space.values, space.lengths, float(space.worker_memory_bytes),
        room_of(asked.job, capacity), *MODEL.terms, present,
    )  # fmt: skip
    assert near.tolist() == np.unique(numbers)[close].tolist()


def value_of_information(mean: float, deviation: float) -> float:
    """E[max(x, 0)] − max(E[x], 0) of a normally distributed x."""
    if deviation == 0:
        return 0.0
    normal = statistics.NormalDist(mean, deviation)
    return mean * (1.0 - normal.cdf(0.0)) + deviation**2 * normal.pdf(0.0) - max(mean, 0.0)


@settings(max_examples=60, deadline=None)
@given(SITUATIONS, CAPACITIES, st.floats(0.01, 0.2))
def test_steps_that_explore_are_those_of_most_information_per_cost(
    asked: Situation, capacity: Capacity, trusted_error: float
) -> None:
    asked = replace(asked, rules=msgspec.structs.replace(asked.rules, trusted_error=trusted_error))
    job, rules, space = asked.job, asked.rules, space_of(asked.job, capacity)
    columns = space.points(point_kernels.single_steps(space.start_5, space.lengths)).columns
    window = job.until_next_change_seconds
    later = msgspec.structs.replace(
        job, remaining_samples=max(job.remaining_samples - window * asked.samples_per_second, 0.0)
    )
    doubted = Columns.of(PLANS[:20])
    at_once = replace(asked, rules=msgspec.structs.replace(rules, payback_seconds=0.0))
    found, error_N = at_once.outcomes(columns), MODEL.relative_error(columns)
    measured = [each.allocation.workers * job.shape.batch_size / each.iteration_seconds for each in job.observations]
    known, slowest = 0.25 * trusted_error, (1.0 - rules.max_slowdown) * max([asked.reference, *measured])
    teaches_N = np.where(error_N > known, np.log1p((error_N / known) ** 2), 0.0)
    teaches_N *= (excess(asked, capacity, found) <= 0).all(axis=1) & (found.samples_per_second >= slowest)
    cost_N = np.maximum(found.cost_per_hour, 0.0) / price(job.allocation) + found.overhead / asked.samples_per_second
    rest = horizon_seconds(replace(asked, job=later))
    promise = -float(replace(asked, job=later).outcomes(doubted).against_rules.min())
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        lost_N = np.maximum(-found.gain, 0.0) / asked.samples_per_second * np.float64(window) / rest
    short_N = replace(asked, job=later).outcomes(columns).against_rules
    use = []
    for row, cost in enumerate(found.cost_per_hour):
        error = error_of_change(asked, columns.allocation(row))
        deviation = error * float(found.samples_per_second[row]) / asked.samples_per_second
        alone = value_of_information(-float(short_N[row]), deviation) - 18.0 / rest if rest > 0 else promise
        use.append(max(promise, alone) if cost > 0 and error <= trusted_error else promise)
    use_N = np.array(use)
    worth_N = np.where((lost_N <= use_N) & (rest > 0), teaches_N / (cost_N + 0.05), 0.0)
    best = [row for row in np.argsort(-worth_N, kind="stable")[:MOST] if worth_N[row] > 0]
    explored = explore(asked, capacity, space, doubted)
    assert [each.allocation for each in explored] == [columns.allocation(int(row)) for row in best]
    assert [each.relative_error for each in explored] == pytest.approx(error_N[best])
    assert [each.gain for each in explored] == pytest.approx(found.gain[best])
