"""The timestamps of raw rows as seconds since the epoch, however the log writes them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from elastrec.platform.data.log_calendar import FIRST_SECOND, LAST_SECOND, LogCalendar
from elastrec.platform.data.reading.encode import RowEncoder
from elastrec.platform.data.reading.numbers import as_float64, combined, is_text, missing_of
from elastrec.platform.data.reading.raw import RawRows
from elastrec.platform.specs.data import TrainingData
from elastrec.platform.specs.errors import DataError

_PER_SECOND = {"seconds": 1, "milliseconds": 10**3, "microseconds": 10**6, "nanoseconds": 10**9}
_PER_UNIT = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_OFFSET = r"(?:[zZ]|[+-]\d{2}:?\d{2})$"
_ISO = r"^\d{4}-\d{2}-\d{2}(?:[T ]\d{2}:\d{2}(?::\d{2}(?:\.\d{1,6})?)?)?"


def seconds_column(data: TrainingData) -> str:
    """The column into which the seconds of a row are written: that of the timestamp; empty without one.

    If a feature or label reads the timestamp, too, it must find the values of the log, which may have another unit;
    then the seconds have a column of their own.
    """
    if not data.timestamp:
        return ""
    taken = RowEncoder(data).columns
    if data.timestamp not in taken:
        return data.timestamp
    name = f"{data.timestamp}_seconds"
    while name in (*taken, data.session):
        name += "_"
    return name


class Times(NamedTuple):
    """int64 [B], rounded down; and bool [B]: the rows that have no time, or one that cannot be read."""

    second_B: NDArray[np.int64]
    wrong_B: NDArray[np.bool_]


def times_of(data: TrainingData, table: pa.Table) -> Times:
    """The times of raw rows [B], with the timestamp's column."""
    assert data.timestamp is not None
    values = combined(table[data.timestamp])
    if pa.types.is_dictionary(values.type):
        values = values.dictionary_decode()
    kind = values.type
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        second_B, wrong_B = _whole_seconds(values)
        if not pa.types.is_timestamp(kind) or kind.tz is None:
            second_B = LogCalendar(data.timezone).seconds_of_clock(second_B)
    elif is_text(kind) and _has_dates(values):
        second_B, wrong_B = _of_text(values, data.timezone)
    elif pa.types.is_signed_integer(kind):
        # Not by way of float64, which has not enough digits for nanoseconds.
        whole_B = np.asarray(pc.fill_null(values.cast(pa.int64()), 0))
        second_B, wrong_B = whole_B // _PER_SECOND[data.timestamp_unit], missing_of(values)
    else:
        value_B, missing_B, wrong_B = as_float64(values, data.timestamp)
        value_B = np.floor_divide(value_B, _PER_SECOND[data.timestamp_unit])
        wrong_B = wrong_B | missing_B | ~(np.abs(value_B) <= LAST_SECOND)
        second_B = np.where(wrong_B, 0.0, value_B).astype(np.int64)
    return Times(second_B, wrong_B | (second_B < FIRST_SECOND) | (second_B > LAST_SECOND))


def refuse_without_time(data: TrainingData, table: pa.Table, piece: RawRows, wrong_B: NDArray[np.bool_]) -> None:
    """Refuses rows without a time.

    Args:
        table: raw rows [B] of `piece`.
        wrong_B: the rows that have no time, or one that cannot be read, and need one.

    Raises:
        DataError: names the first one.
    """
    if wrong_B.any():
        row = int(np.flatnonzero(wrong_B)[0])
        raise DataError(
            f"{piece.file.uri}: row {piece.first_row + row}, column {data.timestamp!r}: found "
            f"{combined(table[data.timestamp])[row]}, expected {data.timestamp_unit} since the epoch, ISO 8601 text, a "
            "time or a date; correct data.timestamp_unit, or the row"
        )


def _whole_seconds(values: pa.Array) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Seconds since the epoch [B], of a clock without a time zone where the type has none; and which rows have none."""
    if pa.types.is_date32(values.type):
        count_B = np.asarray(pc.fill_null(values.cast(pa.int32()), 0)).astype(np.int64) * 86_400
        return count_B, missing_of(values)
    unit = "ms" if pa.types.is_date64(values.type) else values.type.unit
    count_B = np.asarray(pc.fill_null(values.cast(pa.int64()), 0))
    return count_B // _PER_UNIT[unit], missing_of(values)


def _has_dates(values: pa.Array) -> bool:
    dates = pc.match_substring_regex(values.cast(pa.string()), r"^\s*\d{4}-")
    return bool(np.asarray(pc.fill_null(dates, False)).any())


def _of_text(values: pa.Array, timezone: str) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    text = pc.utf8_trim_whitespace(values.cast(pa.string()))
    fits = pc.fill_null(pc.match_substring_regex(text, f"{_ISO}(?:{_OFFSET[:-1]})?$"), False)
    has_offset_B = np.asarray(
        pc.and_(fits, pc.fill_null(pc.match_substring_regex(text, r"\d{2}:\d{2}.*" + _OFFSET), False))
    )
    second_B = np.zeros(len(text), np.int64)
    wrong_B = ~np.asarray(fits)
    for with_offset in (False, True):
        chosen_B = ~wrong_B & (has_offset_B == with_offset)
        if not chosen_B.any():
            continue
        kind = pa.timestamp("us", "UTC" if with_offset else None)
        part = text.filter(pa.array(chosen_B))
        try:
            times = part.cast(kind)
        except pa.ArrowInvalid:
            # Some day or hour does not exist: one by one, to find which.
            times = pa.array([_cast(each, kind) for each in part], kind)
        found_B, bad_B = _whole_seconds(times)
        second_B[chosen_B] = found_B if with_offset else LogCalendar(timezone).seconds_of_clock(found_B)
        wrong_B[np.flatnonzero(chosen_B)[bad_B]] = True
    return second_B, wrong_B


def _cast(value: pa.Scalar, kind: pa.DataType) -> object:
    try:
        return value.cast(kind).as_py()
    except pa.ArrowInvalid:
        return None
