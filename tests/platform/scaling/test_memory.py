from __future__ import annotations

import math

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elastrec.platform.scaling.growth_law import heaps_law, samples_to
from elastrec.platform.scaling.memory import (
    Action,
    MemoryRules,
    Servers,
    TableHistory,
    _compiled,
    fit_growth,
    forecast,
)
from elastrec.platform.specs.errors import ScalingError

GIB = 2**30
SPEED = 10_000.0


def history(
    exponent: float = 0.7, scale: float = 30.0, noise: float = 0.0, seed: int = 0, **changes: object
) -> TableHistory:
    samples = np.linspace(1e6, 1e7, 20)
    rows = scale * samples**exponent * np.exp(noise * np.random.default_rng(seed).standard_normal(20))
    found = TableHistory(table="user", samples=tuple(samples), rows=tuple(rows), bytes_per_row=100.0)
    return msgspec.structs.replace(found, **changes)


def rows_at(samples: float, exponent: float = 0.7, scale: float = 30.0) -> float:
    return scale * samples**exponent


def servers(limit: float, count: int = 1, largest: float = 64.0 * GIB, base: float = 0.0) -> Servers:
    used = base + rows_at(1e7) * 100.0 / count
    return Servers(count=count, used_bytes=used, limit_bytes=limit, imbalance=1.0, largest_bytes=largest)


@settings(deadline=None)
@given(st.floats(0.05, 1.0), st.floats(0.1, 1000))
def test_heaps_law_is_found_again(exponent: float, scale: float) -> None:
    growth = fit_growth(history(exponent, scale))
    assert growth.exponent == pytest.approx(exponent, rel=1e-6)
    assert math.exp(growth.log_k) == pytest.approx(scale, rel=1e-4)
    assert growth.rows(np.array([1e8]))[0] == pytest.approx(rows_at(1e8, exponent, scale), rel=1e-4)


@settings(deadline=None)
@given(st.integers(0, 40), st.floats(-0.5, 1.5), st.sampled_from([0.0, 0.1, 2.0]), st.integers(0, 1000), st.booleans())
def test_the_compiled_law_is_the_plain_one(
    points: int, exponent: float, noise: float, seed: int, is_sorted: bool
) -> None:
    random = np.random.default_rng(seed)
    samples_P = random.integers(1, 30, points).astype(np.float64)
    if is_sorted:
        samples_P.sort()
    rows_P = samples_P**exponent * np.exp(noise * random.standard_normal(points))
    assert _compiled(heaps_law)(samples_P, rows_P) == pytest.approx(heaps_law(samples_P, rows_P), rel=1e-6, abs=1e-9)


def test_points_without_a_usable_number_count_as_if_they_were_not_there() -> None:
    good, rows = history().samples, history().rows
    odd = (0.0, 2.0, 2e6, 3e6, math.inf)
    odd_rows = (5.0, math.nan, math.inf, -1.0, 1e6)
    expected = fit_growth(history())
    for at in (0, 7, len(good)):
        found = fit_growth(history(samples=good[:at] + odd + good[at:], rows=rows[:at] + odd_rows + rows[at:]))
        assert found == expected


@settings(deadline=None)
@given(st.floats(1.0, 1e15), st.floats(-50.0, 50.0), st.floats(0.0, 0.2), st.sampled_from([None, 5e6]))
def test_one_number_of_rows_is_that_of_many(samples: float, deviations: float, noise: float, cap: float | None) -> None:
    growth = fit_growth(history(noise=noise, cap=cap))
    above, likely, below = growth.rows(np.array([samples]), deviations * np.array([1.0, 0.0, -1.0]))
    assert growth.at(samples) == pytest.approx(likely, rel=1e-12)
    assert growth.band(samples, deviations) == pytest.approx((above, likely, below), rel=1e-12)


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.floats(0.05, 1.0), st.floats(0.0, 0.2)), min_size=1, max_size=3), st.floats(0.0, 3.0),
    st.floats(0.5, 60.0), st.floats(0.5, 1e4), st.sampled_from([math.inf, 3e7]), st.sampled_from([None, 5e6]),
)  # fmt: skip
def test_the_curve_is_below_the_limit_until_it_meets_it(
    tables: list[tuple[float, float]], deviations: float, base: float, factor: float, fresh: float, cap: float | None
) -> None:
    growths = [fit_growth(history(exponent, noise=noise, cap=cap)) for exponent, noise in tables]
    table_T7 = np.array([
        (each.exponent, each.exponent_error, each.scatter, each.last_samples, each.last_rows, 100.0, each.cap)
        for each in growths
    ])  # fmt: skip
    now, share = 1e7, 0.5

    def bytes_at(samples: float, number: float) -> float:
        rows = sum(float(growth.rows(np.array(min(samples, now + fresh)), number)) for growth in growths)
        return base + share * 100.0 * rows

    safe = factor * bytes_at(now, 0.0)
    asked = (table_T7, deviations, base, share, safe, now, now + fresh)
    found = samples_to(*asked)
    assert _compiled(samples_to)(*asked) == pytest.approx(found, rel=1e-6)
    for samples, number in zip(found, (deviations, 0.0, -deviations), strict=True):
        if samples == math.inf:
            assert bytes_at(now * 2.0**60, number) <= safe * (1 + 1e-9)
        else:
            assert bytes_at(now + samples, number) >= safe * (1 - 1e-9)
            assert samples == 0.0 or bytes_at(now + samples * (1 - 1e-6), number) <= safe * (1 + 1e-9)


def test_rows_never_grow_faster_than_samples() -> None:
    growth = fit_growth(history(1.6))
    assert growth.exponent == 1.0
    assert growth.rows(np.array([2e7]), deviations=50.0)[0] <= 2.0 * growth.last_rows * (1 + 1e-9)


def test_a_table_that_evicts_as_much_as_it_admits_stays() -> None:
    growth = fit_growth(history(-0.3))
    assert growth.rows(np.array([1e9]))[0] == pytest.approx(growth.last_rows)


def test_a_hash_size_bounds_its_table() -> None:
    growth = fit_growth(history(cap=5e6))
    assert growth.rows(np.array([1e12]))[0] == 5e6


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 1000), st.floats(1, 1000))
def test_the_band_holds_the_likely_value_and_widens(seed: int, factor: float) -> None:
    growth = fit_growth(history(noise=0.05, seed=seed))
    at = np.array([1e7, 1e7 * factor])
    low, middle, high = (growth.rows(at, deviations) for deviations in (-2, 0, 2))
    assert (low <= middle).all()
    assert (middle <= high).all()
    assert (high - low)[1] >= (high - low)[0]


def test_the_band_contains_the_truth_with_its_stated_probability() -> None:
    held = []
    for seed in range(200):
        growth = fit_growth(history(noise=0.02, seed=seed))
        low, high = (growth.rows(np.array([5e7]), deviations)[0] for deviations in (-2, 2))
        held.append(low <= rows_at(5e7) <= high)
    assert np.mean(held) >= 0.85


def test_time_to_the_limit_is_where_the_curve_meets_it() -> None:
    limit = rows_at(5e7) * 100.0 / 0.9
    answer = forecast([fit_growth(history())], servers(limit), 1e7, 9e7, SPEED)
    early, likely, late = answer.seconds_to_limit
    assert likely == pytest.approx(4e7 / SPEED, rel=1e-3)
    assert early <= likely <= late
    assert answer.samples_to_limit[1] == pytest.approx(4e7, rel=1e-3)
    assert answer.bytes_at_end[1] == pytest.approx(rows_at(1e8) * 100.0, rel=1e-6)


def test_needed_memory_is_known_without_a_speed_and_only_the_times_are_missing() -> None:
    limit = rows_at(5e7) * 100.0 / 0.9
    known = forecast([fit_growth(history(noise=0.02))], servers(limit), 1e7, 9e7, SPEED)
    unknown = forecast([fit_growth(history(noise=0.02))], servers(limit), 1e7, 9e7, None)
    assert unknown.action is Action.MORE_MEMORY and unknown.seconds_to_limit is None
    for field in ("action", "needed_bytes", "needed_servers", "bytes_at_end", "samples_to_limit"):
        assert getattr(unknown, field) == getattr(known, field), field
    assert f"in {known.samples_to_limit[0]:,.0f} samples at the earliest, 90,000,000 are left" in unknown.reason


def test_a_speed_that_varies_widens_the_band_of_the_time_to_the_limit() -> None:
    limit = rows_at(5e7) * 100.0 / 0.9
    steady, varying, halting = (
        forecast([fit_growth(history())], servers(limit), 1e7, 9e7, SPEED, speed_deviation=share * SPEED)
        for share in (0.0, 0.1, 0.6)
    )
    assert "reached in 4000 s at 10,000 samples/s, 9000 s are left to train" in steady.reason
    assert steady.seconds_to_limit == pytest.approx((4e3, 4e3, 4e3), rel=1e-3)
    assert varying.seconds_to_limit == pytest.approx((4e3 / 1.2, 4e3, 4e3 / 0.8), rel=1e-3)
    assert halting.seconds_to_limit == pytest.approx((4e3 / 2.2, 4e3, math.inf), rel=1e-3)
    words = "in 3333 to 5000 s, likely in 4000 s, at 10,000 samples/s (± 2,000), 9000 s are left to train"
    assert words in varying.reason
    assert "in 1818 s at the earliest, likely in 4000 s, at 10,000 samples/s" in halting.reason


def test_a_job_that_ends_before_its_limit_is_left_alone() -> None:
    answer = forecast([fit_growth(history())], servers(64.0 * GIB), 1e7, 9e7, SPEED)
    assert answer.action is Action.NONE
    assert answer.seconds_to_limit[1] > 9e7 / SPEED


def test_a_job_that_reaches_its_limit_gets_memory_that_holds_to_the_end() -> None:
    limit = rows_at(2e7) * 100.0
    answer = forecast([fit_growth(history())], servers(limit), 1e7, 9e7, SPEED)
    assert answer.action is Action.MORE_MEMORY
    assert answer.needed_servers == 1
    again = forecast([fit_growth(history())], servers(float(answer.needed_bytes)), 1e7, 9e7, SPEED)
    assert again.action is Action.NONE


def test_where_no_pod_is_large_enough_servers_are_added() -> None:
    limit = rows_at(2e7) * 100.0
    answer = forecast([fit_growth(history())], servers(limit, largest=limit), 1e7, 9e7, SPEED)
    assert answer.action is Action.MORE_SERVERS
    spread = servers(limit, count=answer.needed_servers, largest=limit)
    assert forecast([fit_growth(history())], spread, 1e7, 9e7, SPEED).action is Action.NONE


def test_a_change_is_requested_when_the_band_reaches_the_limit_before_the_likely_curve() -> None:
    growth = fit_growth(history(noise=0.05, seed=1))
    end = 100.0 * growth.rows(np.array([1e8]))[0]
    limit = end * 1.01 / 0.9
    now = Servers(count=1, used_bytes=100.0 * growth.last_rows, limit_bytes=limit, imbalance=1.0, largest_bytes=1e12)
    assert forecast([growth], now, 1e7, 9e7, SPEED, MemoryRules(deviations=0)).action is Action.NONE
    assert forecast([growth], now, 1e7, 9e7, SPEED, MemoryRules(deviations=2)).action is Action.MORE_MEMORY


def test_memory_of_a_server_besides_rows_is_counted() -> None:
    lean = forecast([fit_growth(history())], servers(64.0 * GIB), 1e7, 9e7, SPEED)
    fat = forecast([fit_growth(history())], servers(64.0 * GIB, base=GIB), 1e7, 9e7, SPEED)
    assert fat.bytes_at_end[1] - lean.bytes_at_end[1] == pytest.approx(GIB)


def test_a_server_above_its_limit_has_no_time_left() -> None:
    answer = forecast([fit_growth(history())], servers(rows_at(1e7) * 100.0), 1e7, 9e7, SPEED)
    assert answer.seconds_to_limit[0] == 0.0


def test_too_few_points_are_refused_with_a_remedy() -> None:
    with pytest.raises(ScalingError, match=r"table user: 2 usable points of 3; .*at least 3.*wait"):
        fit_growth(history(samples=(1.0, 2.0, 3.0), rows=(1.0, math.nan, 3.0)))


def test_counts_that_fall_are_refused() -> None:
    with pytest.raises(ScalingError, match="rising counts"):
        fit_growth(history(samples=(3.0, 2.0, 1.0), rows=(1.0, 2.0, 3.0)))


def test_a_speed_that_means_nothing_is_refused() -> None:
    with pytest.raises(ScalingError, match="samples_per_second: 0"):
        forecast([fit_growth(history())], servers(GIB), 1e7, 9e7, 0.0)


def test_nodes_that_cannot_hold_an_empty_server_are_named() -> None:
    tiny = servers(2.0 * GIB, base=1.9 * GIB, largest=1.0 * GIB)
    with pytest.raises(ScalingError, match=r"servers\.largest_bytes"):
        forecast([fit_growth(history())], tiny, 1e7, 9e8, SPEED)
