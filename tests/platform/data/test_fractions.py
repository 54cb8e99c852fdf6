"""Where the days of a conversion by fractions begin."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date, datetime, timedelta

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastrec.platform.data.fractions import (
    check_fractions,
    check_row_counts,
    check_written_partitions,
    first_rows,
    first_seconds,
)
from elastrec.platform.data.partitions import Partition
from elastrec.platform.specs.errors import DataError

FIRST = date(2026, 1, 1)


@given(st.integers(1, 10_000), st.integers(1, 50), st.integers(0, 1_000))
def test_days_of_at_least_one_row_each_get_rows(rows: int, days: int, seed: int) -> None:
    weights = np.random.default_rng(seed).random(days)
    # Shares of `rows`, the smallest of which is exactly one row if there are enough.
    counts = 1 + weights / weights.sum() * (rows - days)
    if rows < days:
        with pytest.raises(DataError, match=rf"fractions: .* of {rows} rows? is not allowed"):
            check_row_counts([1 / days] * days, rows, FIRST)
        return
    fractions = (counts / counts.sum()).tolist()
    check_fractions(fractions)
    check_row_counts(fractions, rows, FIRST)
    assert np.diff([0, *first_rows(fractions, rows), rows]).sum() == rows


def test_a_row_that_two_halves_share_belongs_to_the_earlier_day() -> None:
    """Rounded to even numbers, the day between 1.5 and 2.5 rows would get none."""
    assert first_rows([0.15, 0.1, 0.75], 10).tolist() == [2, 3]


def test_the_message_has_fractions_that_are_allowed() -> None:
    with pytest.raises(DataError, match=r"with the sum 0\.99 is not allowed; ") as refused:
        check_fractions([0.33, 0.33, 0.33])
    proposed = str(refused.value).rpartition(" ")[2]
    assert proposed == "0.333333333,0.333333333,0.333333333"
    check_fractions([float(fraction) for fraction in proposed.split(",")])


@pytest.mark.parametrize("fractions", [[], [0.5, 0.5, 0.0], [1.5, -0.5], [1e308, 1e308], [float("nan"), 0.5]])
def test_shares_that_are_none_are_refused(fractions: list[float]) -> None:
    with pytest.raises(DataError, match=r"fractions: .* is not allowed; allowed: shares above 0 with the sum 1"):
        check_fractions(fractions)


def test_fractions_with_few_digits_are_allowed() -> None:
    check_fractions([0.3333333] * 3)
    check_fractions([0.1] * 10)


@pytest.mark.parametrize(
    ("good", "bad", "stray"),
    [
        ((1, 2), (4,), (4,)),
        ((1, 3), (5,), None),
        ((1, 3), (6, 20, 2), None),
        ((1, 3), (6, 20), (6, 20)),
        ((5,), (4,), None),
        ((5,), (3, 7), (3, 7)),
        ((5,), (5,), ()),
        ((5,), (), ()),
    ],
)
@pytest.mark.parametrize("unit", ["day", "hour"])
def test_days_of_bad_rows_are_of_the_log_up_to_the_widest_gap_between_its_days(
    good: tuple[int, ...], bad: tuple[int, ...], stray: tuple[int, ...] | None, unit: str
) -> None:
    """With holidays, the day after the next ones is of the log, too."""

    def partitions(places: Sequence[int]) -> list[Partition]:
        if unit == "day":
            return [Partition(FIRST + timedelta(days=place)) for place in places]
        # Around midnight.
        moments = [datetime(2026, 1, 1, 20) + timedelta(hours=place) for place in places]
        return [Partition(moment.date(), moment.hour) for moment in moments]

    if stray is None:
        with pytest.raises(DataError, match=f"a partition per {unit} is not allowed, because all rows of "):
            check_written_partitions(partitions(good), partitions(bad))
    else:
        assert check_written_partitions(partitions(good), partitions(bad)) == partitions(stray)


@given(st.lists(st.integers(0, 5), min_size=3, max_size=30), st.integers(2, 3))
def test_each_day_has_rows_of_later_seconds_or_the_fractions_are_refused(seconds: list[int], days: int) -> None:
    fractions, second_N = [1 / days] * days, np.array(seconds)
    try:
        begins = first_seconds(fractions, second_N, FIRST)
    except DataError as refused:
        assert "would have no row" in str(refused)
        begins = np.sort(seconds)[first_rows(fractions, len(seconds))]
        assert len(np.unique(np.searchsorted(begins, seconds, side="right"))) < days
    else:
        assert np.unique(np.searchsorted(begins, seconds, side="right")).tolist() == list(range(days))
