from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elastrec.platform.scaling.executors.horizontal import HorizontalSettings, Load, load_value, scale_horizontally
from elastrec.platform.specs.errors import ScalingError

LONG_AGO = 1e6
BOUNDS = (1, 1000)
shares = st.floats(0, 1)


def load(fill: float, cpu: float = 0.5, memory: float = 0.1) -> Load:
    return Load(buffer_fill=fill, cpu=cpu, memory=memory)


@settings(deadline=None)
@given(shares, shares, shares)
def test_the_load_is_the_weighted_sum_of_equation_1(fill: float, cpu: float, memory: float) -> None:
    weights = (0.5, 0.3, 0.2)
    assert load_value(load(fill, cpu, memory), weights) == pytest.approx(0.5 * fill + 0.3 * cpu + 0.2 * memory)


def test_empty_buffers_add_executors_and_full_ones_remove_them() -> None:
    assert scale_horizontally(20, [load(0.0)], BOUNDS, LONG_AGO).executors == 25
    assert scale_horizontally(20, [load(1.0)], BOUNDS, LONG_AGO).executors == 15


@settings(deadline=None)
@given(st.floats(0.36, 0.64))
def test_nothing_happens_within_the_band(fill: float) -> None:
    plan = scale_horizontally(20, [load(fill)], BOUNDS, LONG_AGO)
    assert plan.executors == 20
    assert "within the band" in plan.reason


def test_a_change_is_given_time_to_work() -> None:
    plan = scale_horizontally(20, [load(0.0)], BOUNDS, 60.0)
    assert plan.executors == 20
    assert "cooling down for 240 s" in plan.reason


@settings(deadline=None)
@given(st.integers(1, 1000), shares, shares, shares)
def test_the_answer_is_within_bounds_and_a_step(executors: int, fill: float, cpu: float, memory: float) -> None:
    plan = scale_horizontally(executors, [load(fill, cpu, memory)], BOUNDS, LONG_AGO)
    assert BOUNDS[0] <= plan.executors <= BOUNDS[1]
    assert abs(plan.executors - executors) <= max(1, 0.25 * executors)


@pytest.mark.parametrize("start", [4, 20, 150])
@pytest.mark.parametrize("needed", [10.0, 57.0])
def test_a_job_settles_and_does_not_flap(start: int, needed: float) -> None:
    # The buffer fills in proportion to the surplus of executors.
    executors, path = start, []
    for _ in range(60):
        fill = min(max(0.5 + 2.0 * (executors - needed) / needed, 0.0), 1.0)
        executors = scale_horizontally(executors, [load(fill)], BOUNDS, LONG_AGO).executors
        path.append(executors)
    assert len(set(path[-20:])) == 1
    assert abs(path[-1] - needed) <= 0.15 * needed + 1


def test_executors_whose_memory_is_full_are_not_removed() -> None:
    plan = scale_horizontally(20, [load(1.0, memory=0.88)], BOUNDS, LONG_AGO)
    assert plan.executors == 20
    assert "none can be spared" in plan.reason


def test_bounds_are_applied_first() -> None:
    assert scale_horizontally(20, [load(0.5)], (1, 10), 0.0).executors == 10


@pytest.mark.parametrize("wrong", [math.nan, -0.1, 1.1])
def test_a_share_outside_of_0_to_1_is_refused(wrong: float) -> None:
    with pytest.raises(ScalingError, match=r"load\.buffer_fill"):
        scale_horizontally(2, [load(wrong)], BOUNDS, LONG_AGO)


def test_no_measurement_is_refused() -> None:
    with pytest.raises(ScalingError, match="loads: none"):
        scale_horizontally(2, [], BOUNDS, LONG_AGO)


def test_weights_that_do_not_add_up_are_refused() -> None:
    with pytest.raises(ScalingError, match=r"horizontal\.weights"):
        HorizontalSettings(weights=(1.0, 1.0, 0.0))


def run_a_buffer(damping: float) -> list[int]:
    """Numbers of executors, minute by minute, where 100 deliver what is taken and a full buffer lasts five minutes."""
    executors, fill, loads, since, seen = 60, 0.5, list[Load](), 0.0, list[int]()
    for _ in range(300):
        fill = min(max(fill + (executors / 100 - 1.0) / 5.0, 0.0), 1.0)
        loads.append(Load(buffer_fill=fill, cpu=0.5, memory=0.1))
        since += 60.0
        plan = scale_horizontally(executors, loads[-5:], (1, 400), since, HorizontalSettings(damping=damping))
        if plan.executors != executors:
            executors, loads, since = plan.executors, [], 0.0
        seen.append(executors)
    return seen


def test_a_buffer_that_integrates_the_surplus_causes_no_oscillation() -> None:
    calm, swinging = run_a_buffer(1.5)[-120:], run_a_buffer(0.0)[-120:]
    assert max(calm) - min(calm) <= 10
    assert 90 <= min(calm) <= max(calm) <= 110
    assert max(swinging) - min(swinging) > 30


def test_a_load_on_its_way_to_the_band_is_given_time() -> None:
    rising = [Load(buffer_fill=fill, cpu=0.5, memory=0.5) for fill in (0.1, 0.2, 0.3)]
    steady = [Load(buffer_fill=0.2, cpu=0.5, memory=0.5)] * 3
    assert scale_horizontally(10, rising, (1, 100), 1e6).executors == 10
    assert scale_horizontally(10, steady, (1, 100), 1e6).executors > 10
