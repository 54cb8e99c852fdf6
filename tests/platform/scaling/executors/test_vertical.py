from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elastrec.platform.scaling.executors.vertical import VerticalSettings, scale_vertically, trend
from elastrec.platform.specs.errors import ScalingError

LONG_AGO = 1e6
BOUNDS = (0.25, 64.0)
usage = st.lists(st.floats(0, 32), min_size=1, max_size=30)


@settings(deadline=None)
@given(usage)
def test_the_trend_is_equation_2(used: list[float]) -> None:
    count = len(used) - 1
    expected = sum((used[i] - used[i - 1]) / (count - i + 1) / count for i in range(1, count + 1)) if count else 0.0
    assert trend(used) == pytest.approx(expected, abs=1e-9)


def test_recent_changes_weigh_more() -> None:
    assert trend([0, 0, 0, 1]) > trend([0, 1, 1, 1]) > 0


def test_the_allocation_is_the_sum_of_use_trend_and_margin() -> None:
    settings = VerticalSettings(safety=0.2, step=0.001)
    plan = scale_vertically([4.0, 4.0, 5.0], 10.0, BOUNDS, LONG_AGO, settings)
    assert plan.trend == pytest.approx(0.5)
    assert plan.allocated == pytest.approx(5.0 + 0.5 + 1.0, abs=0.001)


def test_ten_cores_that_are_half_used_become_six() -> None:
    # Primus, Fig. 8: 10 → 6 cores, use from 50 to 80 %.
    used = [5.0, 4.8, 4.9, 5.0, 4.9, 5.0]
    plan = scale_vertically(used, 10.0, BOUNDS, LONG_AGO, VerticalSettings(safety=0.2))
    assert plan.allocated == pytest.approx(6.0, abs=0.26)
    assert 0.75 <= 5.0 / plan.allocated <= 0.85


def test_small_adjustments_are_skipped() -> None:
    plan = scale_vertically([5.0, 5.0], 6.25, BOUNDS, LONG_AGO)
    assert plan.allocated == 6.25
    assert "by too little" in plan.reason


@pytest.mark.parametrize(("allocated", "wanted"), [(10.5, 10.0), (0.95, 1.0)])
def test_an_allocation_outside_of_the_bounds_is_corrected_at_once(allocated: float, wanted: float) -> None:
    plan = scale_vertically([20.0 if allocated > 10 else 0.1], allocated, (1.0, 10.0), 0.0)
    assert plan.allocated == wanted
    assert "is outside of 1 to 10" in plan.reason


def test_a_change_is_given_time_to_work() -> None:
    plan = scale_vertically([1.0], 10.0, BOUNDS, 100.0)
    assert plan.allocated == 10.0
    assert "cooling down for 500 s" in plan.reason


@settings(deadline=None)
@given(usage, st.floats(0.25, 64))
def test_no_executor_gets_less_than_it_used_unless_its_use_falls(used: list[float], allocated: float) -> None:
    plan = scale_vertically(used, allocated, BOUNDS, LONG_AGO)
    assert BOUNDS[0] <= plan.allocated <= BOUNDS[1]
    if plan.trend >= 0 and plan.allocated != allocated:
        assert plan.allocated >= min(max(used), BOUNDS[1])


@settings(deadline=None)
@given(usage)
def test_the_same_measurements_ask_for_no_second_change(used: list[float]) -> None:
    once = scale_vertically(used, 64.0, BOUNDS, LONG_AGO)
    assert scale_vertically(used, once.allocated, BOUNDS, LONG_AGO).allocated == once.allocated


@pytest.mark.parametrize("wrong", [math.nan, -1.0, math.inf])
def test_an_invalid_use_is_refused(wrong: float) -> None:
    with pytest.raises(ScalingError, match="used"):
        scale_vertically([1.0, wrong], 2.0, BOUNDS, LONG_AGO)


def test_no_measurement_is_refused() -> None:
    with pytest.raises(ScalingError, match="used: nothing"):
        scale_vertically([], 2.0, BOUNDS, LONG_AGO)


@settings(deadline=None)
@given(st.floats(0.1, 32), st.sampled_from([0.25, 0.5, 1.0]))
def test_rounding_takes_at_most_half_of_the_safety_and_adds_less_than_a_step(used: float, step: float) -> None:
    plan = scale_vertically([used, used], 64.0, (0.01, 64.0), LONG_AGO, VerticalSettings(step=step, threshold=0.0))
    assert 1.1 * used - 1e-6 <= plan.allocated <= 1.2 * used + step
    if 0.1 * used > 0.5 * step:
        assert plan.allocated <= 1.2 * used + 0.5 * step + 1e-6
