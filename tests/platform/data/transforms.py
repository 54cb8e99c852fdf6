"""User functions that the reader's tests name by import path."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc


def negative_numbers(batch: pa.RecordBatch) -> pa.RecordBatch:
    index = batch.schema.get_field_index("number")
    return batch.set_column(index, "number", pc.negate(batch.column("number")))


def half(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch.slice(0, batch.num_rows // 2)


def without_label(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch.drop_columns(["label"])


def nothing(batch: pa.RecordBatch) -> None:
    return None
