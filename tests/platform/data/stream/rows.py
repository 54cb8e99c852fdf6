"""A small log with sessions, text and empty fields, and its data section."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from elastrec.platform.specs.data import TrainingData

MIDNIGHT = 1_767_312_000
"""2026-01-02, 00:00 UTC; the log begins 1,000 s before."""


def small_log(folder: Path, *, rows: int = 2_000, sessions: int = 150, text: bool = False) -> TrainingData:
    """Writes two files of one unpartitioned log; every feature kind, every tenth field empty."""
    rng = np.random.default_rng(7)
    number_B = rng.integers(0, sessions, rows)
    empty_B = rng.random(rows) < 0.1
    table = pa.table(
        {
            "label": pa.array(rng.integers(0, 2, rows)),
            "price": pa.array(rng.random(rows), mask=empty_B),
            "item": pa.array(rng.integers(-(2**62), 2**62, rows), mask=empty_B),
            "shop": pa.array([f"shop {n % 7}" for n in rng.integers(0, 50, rows)]),
            "history": pa.array([rng.integers(0, 99, n % 5).tolist() for n in number_B.tolist()]),
            "when": pa.array(MIDNIGHT - 1_000 + np.arange(rows)),
            "visit": pa.array([f"v{n}" for n in number_B]) if text else pa.array(number_B * 10**15),
        }
    )
    folder.mkdir(parents=True)
    pq.write_table(table.slice(0, rows // 2), folder / "part-0.parquet")
    pq.write_table(table.slice(rows // 2), folder / "part-1.parquet")
    return TrainingData.model_validate(
        {
            "path": str(folder),
            "partitioning": "none",
            "evaluation_path": str(folder),
            "dense": [{"name": "price"}],
            "sparse": [
                {"name": "item"}, {"name": "shop", "encoding": "string"}, {"name": "history", "is_list": True},
            ],
            "session": "visit",
            "timestamp": "when",
        }
    )  # fmt: skip


def change(data: TrainingData, column: str, values: pa.Array) -> None:
    """Gives the log's second file another column."""
    file = Path(data.path) / "part-1.parquet"
    table = pq.read_table(file)
    pq.write_table(table.set_column(table.schema.get_field_index(column), column, values), file)
