"""Small hand-made click logs for the data room's tests."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from elastrec.platform.specs.data import DenseFeature, SparseFeature, TrainingData


def table(rows: int, first: int = 0) -> pa.Table:
    """`row` numbers every row, so that a test knows which rows came out."""
    number = np.arange(first, first + rows)
    return pa.table(
        {
            "label": pa.array((number % 3 == 0).astype(np.int8)),
            "number": pa.array(number.astype(np.float64)),
            "row": pa.array(number),
            "many": pa.array([[int(n)] * (int(n) % 3) for n in number], pa.list_(pa.int64())),
        }
    )


def data(path: Path | str, **more: object) -> TrainingData:
    return TrainingData.model_validate(
        {
            "path": str(path),
            "partitioning": "none",
            "dense": (DenseFeature(name="number", transform="none"),),
            "sparse": (SparseFeature(name="row"), SparseFeature(name="many", is_list=True)),
            **more,
        }
    )


def write_parquet(path: Path, rows: pa.Table, row_group: int = 100) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(rows, path, row_group_size=row_group)


def write_lines(path: Path, *lines: str, end: str = "\n") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes("".join(line + end for line in lines).encode())
