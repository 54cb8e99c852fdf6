"""Files of evaluation shards with features, pooled rows and predictions, with which the export is checked.

A Parquet file per shard, `{predictions folder}/{shard index}.parquet`: the trainer-ready columns, `prediction`
list<float32> [H] and `pooled` list<float32> [sum of R], heads and features in the order that the file's metadata names.
The metadata also contains the shard's range of rows, so that a reader finds the raw rows.
"""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from elastrec.checkpoints import open_store
from elastrec.platform.specs.errors import CheckpointError

PREDICTION, POOLED = "prediction", "pooled"
_METADATA = b"elastrec.predictions"


class PredictionsMetadata(msgspec.Struct, frozen=True, kw_only=True):
    """The range of the rows: `[start, start + length)` of the evaluation manifest, without bad rows."""

    start: int
    length: int
    features: list[str]
    heads: list[str]


class Predictions(msgspec.Struct, frozen=True, kw_only=True):
    """One file: `batch` trainer-ready rows, `prediction` float32 [B, H], `pooled` float32 [B, sum of R]."""

    metadata: PredictionsMetadata
    batch: pa.RecordBatch
    prediction: Any
    pooled: Any


def write_predictions(folder_uri: str, index: int, predictions: Predictions) -> None:
    """Writes one shard's file atomically; replaces an older one.

    Raises:
        CheckpointError: the store refused.
    """
    rows, width = predictions.pooled.shape
    table = pa.Table.from_batches([predictions.batch])
    table = table.append_column(PREDICTION, _lists(predictions.prediction, len(predictions.metadata.heads)))
    table = table.append_column(POOLED, _lists(predictions.pooled, width))
    table = table.replace_schema_metadata({_METADATA: msgspec.json.encode(predictions.metadata)})
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink)
    assert rows == table.num_rows
    open_store(folder_uri).put(f"{index:08d}.parquet", sink.getvalue())


def _lists(values: Any, width: int) -> pa.Array:
    flat = pa.array(np.ascontiguousarray(values, np.float32).reshape(-1))
    return pa.FixedSizeListArray.from_arrays(flat, width).cast(pa.list_(pa.float32()))


def read_predictions(folder_uri: str) -> list[Predictions]:
    """All files of a job, in the order of their rows.

    Raises:
        CheckpointError: a file is not a file of predictions.
    """
    store = open_store(folder_uri)
    predictions = []
    for key in store.keys():  # noqa: SIM118 (a store is no mapping)
        if not key.endswith(".parquet"):
            continue
        try:
            table = pq.read_table(pa.BufferReader(store.get(key)))
            metadata = msgspec.json.decode((table.schema.metadata or {})[_METADATA], type=PredictionsMetadata)
        except (pa.ArrowException, msgspec.MsgspecError, KeyError) as error:
            raise CheckpointError(f"{folder_uri}/{key}: is no file of predictions: {error}") from error
        prediction, values = (
            np.asarray(table.column(name).combine_chunks().flatten(), np.float32) for name in (PREDICTION, POOLED)
        )
        batch = table.drop_columns([PREDICTION, POOLED]).combine_chunks()
        batches = batch.to_batches() or [pa.RecordBatch.from_pylist([], schema=batch.schema)]
        predictions.append(
            Predictions(
                metadata=metadata,
                batch=batches[0],
                prediction=prediction.reshape(table.num_rows, len(metadata.heads)),
                pooled=values.reshape(table.num_rows, -1),
            )
        )
    return sorted(predictions, key=lambda item: item.metadata.start)
