"""The days of a conversion: where those begin that divide rows by number or share, and that all days have rows."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Sequence
from datetime import date, timedelta

import numpy as np
from numpy.typing import NDArray

from elastrec.platform.data.partitions import Partition
from elastrec.platform.specs.errors import DataError
from elastrec.platform.specs.text.some import counted

_TOLERANCE = 1e-6
"""Of the sum of the fractions, which may be written with few digits."""


def check_fractions(fractions: Sequence[float]) -> None:
    """Refuses fractions that cannot divide rows, or whose sum is not 1.

    Raises:
        DataError: says which fractions to use.
    """
    total, written = sum(fractions), _written(fractions)
    if not fractions or min(fractions) <= 0 or not math.isfinite(total):
        raise DataError(f"fractions: {written} is not allowed; allowed: shares above 0 with the sum 1, such as 0.8,0.2")
    if abs(total - 1) > _TOLERANCE:
        scaled = _written([fraction / total for fraction in fractions])
        raise DataError(
            f"fractions: {written} with the sum {total:.9g} is not allowed; allowed: shares with the sum 1; "
            f"with the same proportions, these are {scaled}"
        )


def first_rows(fractions: Sequence[float], rows: int) -> NDArray[np.int64]:
    """Numbers of the rows with which the second and later days begin, shape (days - 1,)."""
    ends = np.cumsum(fractions)[:-1] / sum(fractions)
    # Halves are rounded up, not to even numbers: a fraction of one row or more always gets a row. The sums may be
    # slightly below a half.
    return np.floor(ends * rows + 0.5 + 1e-9).astype(np.int64)


def check_row_counts(fractions: Sequence[float], rows: int, start: date) -> None:
    """Refuses fractions with which a day would have none of so many rows.

    Args:
        start: the first day.

    Raises:
        DataError: names the first day without rows, and the least fraction.
    """
    counts = np.diff([0, *first_rows(fractions, rows), rows])
    if not counts.all():
        day = int(np.argmin(counts))
        raise DataError(
            f"fractions: {fractions[day]:g} of {counted(rows, 'row')} is not allowed, because "
            f"{start + timedelta(days=day)} would have no row; allowed: fractions of at least one row, "
            f"1/{rows}; use fewer or more equal fractions"
        )


def first_seconds(fractions: Sequence[float], second_N: NDArray[np.int64], start: date) -> NDArray[np.int64]:
    """Timestamps with which the second and later days begin, shape (days - 1,), if rows are divided in order of time.

    Rows of the same second belong to the same day.

    Args:
        second_N: timestamps of all N rows, which `check_row_counts` has accepted; sorted in place.
        start: the first day.

    Raises:
        DataError: a day would have no row, because too many rows are of the same second.
    """
    second_N.sort()
    seconds = second_N[first_rows(fractions, len(second_N))]
    counts = np.diff([0, *np.searchsorted(second_N, seconds), len(second_N)])
    if not counts.all():
        day = int(np.argmin(counts))
        # The last day has at least the row with which it begins; any other ends before the second of the next one.
        shared = seconds[day]
        count = int(np.searchsorted(second_N, shared, side="right") - np.searchsorted(second_N, shared))
        raise DataError(
            f"fractions: {fractions[day]:g} in order of time is not allowed, because {start + timedelta(days=day)} "
            f"would have no row: {count} of {counted(len(second_N), 'row')} have the timestamp {shared}, and rows of "
            "one second stay together; allowed: fractions with which each day begins at a later second than the one "
            "before; use fewer or other fractions, or divide the rows in the order of the files"
        )
    return seconds


def check_written_rows(size: Callable[[int], str], rows: Sequence[int], start: date, sizes: str) -> None:
    """Refuses a conversion in which all rows of a day are bad: jobs need consecutive days.

    Args:
        size: the setting of a day, by its number.
        rows: written rows of each day.
        start: the first day.
        sizes: what the settings of days are called.

    Raises:
        DataError: names the first day without rows.
    """
    if 0 in rows:
        day = rows.index(0)
        raise DataError(
            f"{size(day)} is not allowed, because all rows of {start + timedelta(days=day)} are bad; "
            f"allowed: {sizes} with which each day has good rows; correct the rows, or use other {sizes}"
        )


def check_written_partitions(written: Collection[Partition], of_bad_rows: Iterable[Partition]) -> list[Partition]:
    """Refuses a conversion by time in which all rows of a day or hour are bad: jobs need consecutive ones.

    A day or hour of bad rows alone is none of the log, and its rows are only bad rows, if it is farther from all those
    with good rows than any of these is from the next one.

    Args:
        written: partitions with good rows; at least one.
        of_bad_rows: partitions with bad ones.

    Returns:
        The partitions that are none of the log, the oldest first.

    Raises:
        DataError: names the first partition of the log without good rows.
    """
    without_good = sorted(set(of_bad_rows).difference(written))
    number_P = np.array([_number(each) for each in without_good], np.int64)
    of_good_G = np.array([_number(each) for each in sorted(written)], np.int64)
    after_P = np.searchsorted(of_good_G, number_P)
    nearest_2P = of_good_G[np.clip([after_P - 1, after_P], 0, len(of_good_G) - 1)]
    is_stray_P = np.abs(nearest_2P - number_P).min(axis=0) > np.diff(of_good_G).max(initial=1)
    missing = next((each for each, is_stray in zip(without_good, is_stray_P, strict=True) if not is_stray), None)
    if missing is not None:
        unit, name = ("day", missing.day) if missing.hour < 0 else ("hour", missing)
        raise DataError(
            f"by time: a partition per {unit} is not allowed, because all rows of {name} are bad; "
            f"allowed: a log in which each {unit} has good rows; correct the rows, or remove them"
        )
    return without_good


def _number(partition: Partition) -> int:
    """Consecutive days, or hours, have consecutive numbers."""
    days = partition.day.toordinal()
    return days if partition.hour < 0 else 24 * days + partition.hour


def _written(fractions: Sequence[float]) -> str:
    return ",".join(f"{fraction:.9g}" for fraction in fractions)
