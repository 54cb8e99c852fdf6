"""The exported model's columns: raw ones in, a prediction of each head out; and raw rows in the types that it takes."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from mlflow.models import ModelSignature
from mlflow.types.schema import ColSpec, DataType, Schema

from elastrec.platform.data.features.columns import encoding_of, ignore_marks, read_column
from elastrec.platform.data.features.plan import Reading
from elastrec.platform.data.reading.encode import RowEncoder
from elastrec.platform.data.reading.numbers import as_float64, combined, is_text
from elastrec.platform.specs.data import TrainingData
from elastrec.trainers.models.heads import IS_BAD, REASON, JobHeads

PROBABILITY, VALUE = "probability", "value"


def prediction_columns(heads: JobHeads) -> tuple[str, ...]:
    """A column for each head: `probability` or `value` of a single one, else the heads' names."""
    if len(heads.names) == 1:
        return (PROBABILITY,) if heads.kinds[0] == "binary" else (VALUE,)
    return heads.names


def signature(columns: Sequence[str]) -> ModelSignature:
    """The signature, with outputs only, because the model checks each input row by itself.

    MLflow would look at every value of a column whose type depends on what it holds, as pandas' do: one of whole
    numbers is int64, or float64 where a value is missing, or text before `elastrec data convert`. That costs several
    times the CPU time of the predictions, and refuses a request for one bad value.

    Args:
        columns: of `prediction_columns`.
    """
    outputs = [*(ColSpec(DataType.float, name) for name in columns), ColSpec(DataType.boolean, IS_BAD)]
    return ModelSignature(outputs=Schema([*outputs, ColSpec(DataType.string, REASON, required=False)]))


def described_inputs(data: TrainingData) -> dict[str, str]:
    """The raw columns and their allowed types, for readers of the model's metadata."""
    if data.transform:
        return {"*": f"what {data.transform} takes"}
    found: dict[str, dict[str, None]] = {}
    for reading in RowEncoder(data).readings:
        found.setdefault(reading.column, {})[_described(reading)] = None
    # A step that looks only at missing values takes the types that the other steps take.
    anything = "anything, or empty"
    return {
        column: "; also ".join(kind for kind in kinds if kind != anything) or anything
        for column, kinds in found.items()
    }


def _described(reading: Reading) -> str:
    if reading.kind == "presence":
        return "anything, or empty"
    what = {"integer": "a 64-bit id", "hexadecimal": "1 to 16 hexadecimal digits", "string": "text"}
    kinds = dict.fromkeys(what[kind] for kind in (reading.encoding, reading.raw_encoding) if kind)
    value = "a number" if reading.kind == "numbers" else " or ".join(kinds)
    return f"a list of {value}" if reading.is_list else f"{value}, or empty"


def raw_frame(data: TrainingData, rows: pa.Table) -> pd.DataFrame:
    """Raw rows as a frame of one dtype per column, whatever is missing; with a user's transform, as they are.

    An empty integer id becomes what the encoder would make of it anyway, where no step looks at it first; an id from
    2**63 on becomes the negative number of the same 64 bits.

    Args:
        rows: that the encoder can use.
    """
    if data.transform:
        targets = [target.name for target in data.targets if target.name in rows.schema.names]
        return rows.drop_columns(targets).to_pandas()
    readings: dict[str, list[Reading]] = {}
    for reading in RowEncoder(data).readings:
        readings.setdefault(reading.column, []).append(reading)
    columns = {name: _frame_column(rows.column(name), ways, data.csv.list_separator) for name, ways in readings.items()}
    return pd.DataFrame(columns)


def _frame_column(column: pa.ChunkedArray, readings: list[Reading], separator: str) -> object:
    if len(readings) == 1 and readings[0].kind == "numbers" and not readings[0].is_list:
        value_B, missing_B, wrong_B = as_float64(combined(column), readings[0].column)
        return np.where(missing_B | wrong_B, np.nan, value_B)
    if len(readings) == 1 and readings[0].kind == "ids" and (readings[0].is_list or readings[0].fill is not None):
        return _ids(combined(column), readings[0], separator)
    # Read in several ways, or with steps that look at what is missing: the values themselves, None where there is none.
    return pd.Series(column.to_pylist(), dtype=object)


def _ids(column: pa.Array, feature: Reading, separator: str) -> object:
    if feature.is_list and is_text(column.type):
        column = pc.split_pattern(column, separator)
    element = column.type.value_type if feature.is_list and pa.types.is_nested(column.type) else column.type
    if encoding_of(feature, element) == "integer":
        # As the encoder reads them, which takes more than Arrow casts: white space, a plus sign, all of 64 bits.
        ids = read_column(column, feature, separator, ignore_marks)
        return ids.values if ids.offsets is None else np.split(ids.values, ids.offsets[1:-1])
    if feature.is_list:
        return [
            np.array([value for value in (row or []) if value not in (None, "")], object) for row in column.to_pylist()
        ]
    with suppress(pa.ArrowInvalid):  # binary values that are no text
        column = column.cast(pa.string())
    return np.array(column.to_pylist(), object)
