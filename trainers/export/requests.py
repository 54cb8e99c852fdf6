"""Requests to an exported model: rows with values of any type, each scored as if it were alone.

A column of a request has one type as long as all of its values fit it. One value of another type, as JSON allows, makes
it a column that Arrow cannot hold or the encoder does not take: then rows are scored with those of the same types.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from elastrec.platform.data.reading.numbers import is_text
from elastrec.platform.specs.errors import DataError, MissingColumnError

_NOT_CONVERTED = (ValueError, TypeError, OverflowError, NotImplementedError)
"""The base classes of pyarrow's errors."""


@dataclass(frozen=True)
class Answer:
    """Predictions float32 [B, H], NaN for rows that cannot be used, and why, by their number."""

    prediction_BH: np.ndarray[Any, np.dtype[np.float32]]
    reasons: Mapping[int, str]


def answer(
    score: Callable[[pa.Table], Answer], rows: pd.DataFrame, heads: int, null_tokens: Sequence[str] = ()
) -> Answer:
    """Scores the rows of a request.

    Args:
        score: of rows that are a table; raises DataError for a column whose type it cannot take.
        heads: H.
        null_tokens: see `table_of`.

    Raises:
        MissingColumnError: a column is missing.
    """
    try:
        return score(table_of(rows, null_tokens))
    except MissingColumnError:
        raise
    except DataError:
        values = rows.astype(object).where(rows.notna(), None)
    prediction_BH = np.full((len(rows), heads), np.nan, np.float32)
    reasons: dict[int, str] = {}
    for row_G in _by_types(values):
        try:
            part = score(table_of(values.iloc[row_G], null_tokens))
        except MissingColumnError:
            raise
        except DataError as error:
            reasons |= dict.fromkeys(row_G, str(error))
        else:
            prediction_BH[row_G] = part.prediction_BH
            reasons |= {row_G[row]: reason for row, reason in part.reasons.items()}
    return Answer(prediction_BH, reasons)


def table_of(rows: pd.DataFrame, null_tokens: Sequence[str] = ()) -> pa.Table:
    """The rows as a table, its columns as `pa.Table.from_pandas` makes them, at a third of its cost for a few rows.

    Args:
        null_tokens: texts that count as missing values, as in the files of the log.

    Raises:
        DataError: a column is there twice, has values of several types, or some that no table can hold.
    """
    columns: dict[str, pa.Array] = {}
    for name, column in rows.items():
        if str(name) in columns:
            raise DataError(f"column {str(name)!r} is there twice")
        try:
            values = _array(column)
        except _NOT_CONVERTED as error:
            raise DataError(f"column {str(name)!r}: {error}") from error
        if null_tokens and is_text(values.type):
            is_null = pc.is_in(values, value_set=pa.array(null_tokens, values.type))
            values = pc.if_else(is_null, pa.scalar(None, values.type), values)
        columns[str(name)] = values
    return pa.table(columns)


def _array(column: pd.Series[Any]) -> pa.Array:
    values = column.array
    # Arrow converts numpy arrays faster.
    plain = values.to_numpy() if isinstance(values, pd.arrays.NumpyExtensionArray) else column
    return pa.array(plain, from_pandas=True)


def _by_types(values: pd.DataFrame) -> list[list[int]]:
    """Numbers of the rows whose values are of the same types in all columns."""
    groups: dict[Hashable, list[int]] = {}
    for row, cells in enumerate(zip(*(column.to_list() for _, column in values.items()), strict=True)):
        groups.setdefault(tuple(_type(cell) for cell in cells), []).append(row)
    return list(groups.values())


def _type(value: object) -> Hashable:
    """The type, with Arrow's distinctions within it."""
    if isinstance(value, int) and not isinstance(value, bool):
        return int, value < -(2**63), value < 2**63, value < 2**64
    if isinstance(value, list | tuple | np.ndarray):
        return list, frozenset(_type(element) for element in value)
    return type(value).__name__
