"""written_column: the values that `convert` writes for a raw column, so that every feature reads the same ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pyarrow as pa

from elastrec.platform.data.features.columns import ignore_marks, read_column
from elastrec.platform.data.features.plan import Reading
from elastrec.platform.data.features.steps import MISSING_ID, Column
from elastrec.platform.data.reading.numbers import is_text


def written_column(values: pa.Array, name: str, read: Mapping[Reading, Column], list_separator: str) -> pa.Array:
    """A column of one piece of the log; values of bad rows are arbitrary.

    A column that is read in one way is written in that form: float64 numbers or int64 ids, null for missing values. One
    that is read in several ways, or only for missing values, stays as in the log.

    Args:
        read: the encoder's values of all columns of this piece.
    """
    readings = [reading for reading in read if reading.column == name and reading.kind != "presence"]
    ways = {replace(reading, fill=None) for reading in readings}
    if len(ways) != 1:
        # As few types as possible, because a file has one for each column.
        return values.cast(_shared(values.type))
    reading = readings[0]
    if reading.fill is None or (reading.kind == "ids" and reading.fill == MISSING_ID):
        column = read[reading]
    else:
        column = read_column(values, ways.pop(), list_separator, ignore_marks)
    if column.offsets is not None:
        return pa.ListArray.from_arrays(pa.array(column.offsets.astype(np.int32)), pa.array(column.values))
    missing = column.missing
    if reading.fill is not None and missing is None and reading.kind == "ids":
        missing = column.values == MISSING_ID
    return pa.array(column.values, mask=missing if missing is not None and missing.any() else None)


def _shared(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_dictionary(kind):
        return _shared(kind.value_type)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return pa.list_(_shared(kind.value_type))
    if is_text(kind):
        return pa.string()
    if pa.types.is_floating(kind):
        return pa.float64()
    return pa.int64() if pa.types.is_signed_integer(kind) else kind
