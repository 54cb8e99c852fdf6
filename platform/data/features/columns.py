"""read_column: reads a raw column as numbers, ids or missing marks, and marks unusable rows."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from elastrec.platform.data.deduplicating.deduplication import Longs, Values, list_parts, offsets_of
from elastrec.platform.data.features.plan import Reading
from elastrec.platform.data.features.steps import Column
from elastrec.platform.data.reading.ids import encode_ids, integer_ids
from elastrec.platform.data.reading.numbers import as_float64, is_text, missing_of, trimmed
from elastrec.platform.specs.errors import DataError

Marker = Callable[[str, pa.Array, NDArray[np.bool_], str], None]
"""Called with the column, its values [B], a mask of the wrong ones, bool [B], and the expected form."""
_EXPECTED = {"integer": "64-bit integers", "hexadecimal": "1 to 16 hexadecimal digits", "string": "text"}


def ignore_marks(column: str, values: pa.Array, wrong_B: NDArray[np.bool_], expected: str) -> None:
    """A Marker for columns whose bad rows are known or left out already."""


def encoding_of(reading: Reading, type_: pa.DataType) -> str:
    """The encoding of single values of this type as ids."""
    if pa.types.is_dictionary(type_):
        type_ = type_.value_type
    return reading.raw_encoding if reading.raw_encoding is not None and is_text(type_) else reading.encoding


def read_column(values: pa.Array, reading: Reading, list_separator: str, mark: Marker) -> Column:
    """The values [B] of a raw column.

    Raises:
        DataError: the column's type does not fit.
    """
    if reading.is_list:
        return _lists(values, reading, list_separator, mark)
    if reading.kind == "presence":
        missing_B = _gaps(values)
        return Column(np.zeros(len(values), np.int64), None, missing_B if missing_B.any() else None)
    if reading.kind == "numbers":
        return _numbers(values, reading, mark)
    encoding = encoding_of(reading, values.type)
    if encoding == "integer" and not values.null_count and (plain_B := integer_ids(values)) is not None:
        # Most columns of ids: the checks below would take longer than all else here.
        return Column(plain_B)
    id_B, missing_B, wrong_B = encode_ids(values, encoding, reading.column)
    mark(reading.column, values, wrong_B, f"{_EXPECTED[encoding]}, or empty")
    return _filled(id_B, missing_B, reading)


def _numbers(values: pa.Array, reading: Reading, mark: Marker) -> Column:
    value_B, missing_B, wrong_B = as_float64(values, reading.column)
    wrong_B = wrong_B | ~np.isfinite(value_B)
    mark(reading.column, values, wrong_B, "a finite number, or empty")
    if wrong_B.any():
        value_B = np.where(wrong_B, 0.0, value_B)
    return _filled(value_B, missing_B, reading)


def _filled(value_B: NDArray[np.float64] | NDArray[np.int64], missing_B: NDArray[np.bool_], reading: Reading) -> Column:
    if not missing_B.any():
        return Column(value_B)
    if reading.fill is None:
        return Column(value_B, None, missing_B)
    if reading.fill:  # otherwise they are 0 already
        if not value_B.flags.writeable:
            value_B = value_B.copy()
        np.putmask(value_B, missing_B, reading.fill)
    return Column(value_B)


def _lists(values: pa.Array, reading: Reading, separator: str, mark: Marker) -> Column:
    """Lists without their missing values; those of wrong rows are arbitrary."""
    offsets, elements = _list_parts(values, reading.column, separator)
    value_L: Values
    if reading.kind == "numbers":
        value_L, missing_L, wrong_L = as_float64(elements, reading.column)
        wrong_L = wrong_L | ~np.isfinite(value_L)
        expected = "a list of finite numbers"
        if wrong_L.any():
            value_L = np.where(wrong_L, 0.0, value_L)
    elif reading.kind == "ids":
        encoding = encoding_of(reading, elements.type)
        value_L, missing_L, wrong_L = encode_ids(elements, encoding, reading.column)
        expected = f"a list of {_EXPECTED[encoding]}"
    else:
        value_L, missing_L, wrong_L = np.zeros(len(elements), np.int64), _gaps(elements), np.zeros(0, np.bool_)
        expected = ""
    if wrong_L.any():
        row_L = np.repeat(np.arange(len(values)), np.diff(offsets))
        wrong_B = np.zeros(len(values), np.bool_)
        wrong_B[row_L[wrong_L]] = True
        mark(reading.column, values, wrong_B, expected)
    if missing_L.any():
        value_L, offsets = value_L[~missing_L], offsets_of(~missing_L)[offsets]
    return Column(value_L, offsets)


def _gaps(values: pa.Array) -> NDArray[np.bool_]:
    """bool [B]: missing values, including blank text and NaN."""
    if pa.types.is_dictionary(values.type):
        values = values.dictionary_decode()
    if pa.types.is_null(values.type):
        return np.ones(len(values), np.bool_)
    if is_text(values.type):
        return missing_of(trimmed(values))
    if pa.types.is_floating(values.type):
        return np.asarray(pc.fill_null(pc.is_nan(values), True))
    return missing_of(values)


def _list_parts(values: pa.Array, column: str, separator: str) -> tuple[Longs, pa.Array]:
    """Offsets int64 [B + 1] (beginning at 0) and elements [L] of a list column."""
    if pa.types.is_string(values.type) or pa.types.is_large_string(values.type):
        values = pc.split_pattern(values, separator)
    elif pa.types.is_null(values.type):
        return np.zeros(len(values) + 1, np.int64), pa.nulls(0)
    parts = list_parts(values)
    if parts is None:
        raise DataError(
            f"column {column!r}: found {values.type}, expected a list; set is_list: false for single values"
        )
    return parts
