"""The exported model's signature: raw columns in, `probability` out; and raw rows in exactly those types."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from mlflow.models import ModelSignature
from mlflow.types.schema import AnyType, Array, ColSpec, DataType, Schema

from elastrec.platform.data.encode import MISSING_ID, encoding_of
from elastrec.platform.specs.data import SparseFeature, TrainingData

PROBABILITY = "probability"


def signature(data: TrainingData) -> ModelSignature | None:
    """Types of the raw columns: as loose as pandas makes them, as strict as they are known.

    A pandas column of whole numbers is int64 or float64 depending on whether a value is missing in this very frame,
    and MLflow converts neither into the other: such columns are `any`, and the encoder judges each value. So are those
    with a `raw_encoding`, which hold text or ids. Ids above 2^53 must not go through float64: use the nullable type
    Int64. With a user's transform only that transform knows the raw columns: no signature.
    """
    if data.transform:
        return None
    columns = [ColSpec(AnyType(), feature.name) for feature in data.dense]
    for sparse in data.sparse:
        element = DataType.long if sparse.encoding == "integer" else DataType.string
        if sparse.raw_encoding is not None:
            columns.append(ColSpec(AnyType(), sparse.name, required=not sparse.is_list))
        elif sparse.is_list:
            columns.append(ColSpec(Array(element), sparse.name, required=False))
        else:
            columns.append(ColSpec(AnyType() if sparse.encoding == "integer" else element, sparse.name))
    return ModelSignature(inputs=Schema(columns), outputs=Schema([ColSpec(DataType.float, PROBABILITY)]))


def raw_frame(data: TrainingData, rows: pa.Table) -> pd.DataFrame:
    """Raw rows as a frame of one dtype per column, whatever is missing; with a user's transform, as they are.

    An empty integer id becomes `MISSING_ID`, which the encoder would make of it anyway.
    """
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
        element = column.type.value_type if pa.types.is_nested(column.type) else column.type
        kind = np.int64 if encoding_of(feature, element) == "integer" else object
        return [
            np.array([value for value in (row or []) if value not in (None, "")], kind) for row in column.to_pylist()
        ]
    if encoding_of(feature, column.type) == "integer":
        if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
            column = pc.replace_with_mask(column, pc.equal(column, ""), pa.scalar(None, column.type))
        return np.asarray(pc.fill_null(column.cast(pa.int64()), MISSING_ID), np.int64)
    return np.array(column.cast(pa.string()).to_pylist(), object)
