"""The exported model's signature: raw columns in, `probability` out; and raw rows in exactly those types."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from mlflow.models import ModelSignature
from mlflow.types.schema import Array, ColSpec, DataType, Schema

from elastrec.platform.data.encode import MISSING_ID
from elastrec.platform.specs.data import SparseFeature, TrainingData

PROBABILITY = "probability"


def feature_columns(data: TrainingData) -> list[str]:
    """Raw columns that scoring needs, dense first."""
    return [feature.name for feature in (*data.dense, *data.sparse)]


def signature(data: TrainingData) -> ModelSignature | None:
    """Dense columns are doubles (NaN: empty), ids are longs or strings, lists are arrays of them.

    An empty integer id is `MISSING_ID`, because a pandas column of longs has no empty value. With a transform of the
    user's the raw columns are only known to that transform: no signature.
    """
    if data.transform:
        return None
    columns = [ColSpec(DataType.double, feature.name) for feature in data.dense]
    for feature in data.sparse:
        element = DataType.long if feature.encoding == "integer" else DataType.string
        columns.append(ColSpec(Array(element) if feature.is_list else element, feature.name))
    return ModelSignature(inputs=Schema(columns), outputs=Schema([ColSpec(DataType.float, PROBABILITY)]))


def raw_frame(data: TrainingData, rows: pa.Table) -> pd.DataFrame:
    """Raw rows as a frame in the signature's types; with a user's transform, the columns as they are."""
    if data.transform:
        return rows.drop_columns([data.label] if data.label in rows.schema.names else []).to_pandas()
    columns: dict[str, object] = {}
    for feature in data.dense:
        columns[feature.name] = np.asarray(_numbers(rows.column(feature.name)), np.float64)
    for sparse in data.sparse:
        columns[sparse.name] = _ids(rows.column(sparse.name).combine_chunks(), sparse, data.csv.list_separator)
    return pd.DataFrame(columns)


def _numbers(column: pa.ChunkedArray) -> pa.ChunkedArray:
    if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
        column = pc.replace_with_mask(column, pc.fill_null(pc.equal(column, ""), False), pa.scalar(None, column.type))
    return column.cast(pa.float64())


def _ids(column: pa.Array, feature: SparseFeature, separator: str) -> object:
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if feature.is_list:
        if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
            column = pc.split_pattern(column, separator)
        kind = np.int64 if feature.encoding == "integer" else object
        return [
            np.array([value for value in (row or []) if value not in (None, "")], kind) for row in column.to_pylist()
        ]
    if feature.encoding == "integer":
        if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
            column = pc.replace_with_mask(column, pc.equal(column, ""), pa.scalar(None, column.type))
        return np.asarray(pc.fill_null(column.cast(pa.int64()), MISSING_ID), np.int64)
    return np.array(column.cast(pa.string()).to_pylist(), object)
