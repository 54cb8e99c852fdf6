"""A data section with every kind of step, and rows for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

from elastrec.platform.specs.data import TrainingData

SECTION: dict[str, Any] = {
    "dense": [
        {"name": "price"},
        {"name": "no_price", "column": "price"},
        {"name": "no_town", "column": "town"},
        {"name": "age"},
    ],
    "sparse": [
        {"name": "price_range", "column": "price"},
        {"name": "user"},
        {"name": "town", "encoding": "string"},
        {"name": "device", "encoding": "hexadecimal"},
        {"name": "town_and_range"},
        {"name": "user_and_agent", "encoding": "string"},
        {"name": "seen", "is_list": True},
        {"name": "first_seen", "column": "seen", "is_list": True},
        {"name": "tags", "is_list": True, "encoding": "string"},
        {"name": "scores", "is_list": True},
    ],
    "features": {
        "price": [
            {"step": "clip", "low": 0, "high": 1000},
            {"step": "log1p"},
            {"step": "standardize", "mean": 2.5, "scale": 1.25},
        ],
        "no_price": [{"step": "missing_indicator"}],
        "no_town": [{"step": "missing_indicator"}],
        "price_range": [{"step": "fill_null", "value": 0}, {"step": "bucketize", "boundaries": [1, 10, 100]}],
        "user": [{"step": "hash", "size": 50, "seed": 7}],
        "town": [
            {"step": "fill_null", "value": "Bonn"},
            {"step": "vocabulary", "values": ["Ulm", "Köln", "Bonn"]},
        ],
        "device": [{"step": "vocabulary", "values": ["0a", "ff"], "out_of_vocabulary": 9}],
        "town_and_range": [{"step": "cross", "columns": ["town", "price_range"]}, {"step": "hash", "size": 1000}],
        "user_and_agent": [{"step": "cross", "columns": ["user", "agent"]}],
        "first_seen": [{"step": "keep_first", "count": 2}, {"step": "fill_null", "value": -1}],
        "tags": [{"step": "vocabulary", "values": ["new", "sale"]}, {"step": "keep_last", "count": 3}],
        "scores": [{"step": "bucketize", "boundaries": [0, 0.5]}],
    },
}
COLUMNS = {
    "label": pa.int8(),
    "price": pa.float64(),
    "age": pa.int64(),
    "user": pa.int64(),
    "town": pa.string(),
    "device": pa.string(),
    "agent": pa.string(),
    "seen": pa.list_(pa.int64()),
    "tags": pa.list_(pa.string()),
    "scores": pa.list_(pa.float64()),
}


def data_of(path: Path | str, **more: object) -> TrainingData:
    """The section, of a log that lies there."""
    return TrainingData.model_validate(
        {"path": str(path), "partitioning": "none", "evaluation_path": str(path), **SECTION, **more}
    )


_id = st.integers(-(2**63), 2**63 - 1) | st.integers(0, 5)
_number = st.floats(-1e6, 1e6) | st.integers(-3, 1200).map(float)
row = st.fixed_dictionaries(
    {
        "label": st.integers(0, 1),
        "price": st.none() | _number,
        "age": st.none() | st.integers(0, 99),
        "user": st.none() | _id,
        "town": st.none() | st.sampled_from(["Ulm", "Köln", "Rom"]),
        "device": st.none() | st.sampled_from(["0a", "0A", "ff", "00ff", "3"]),
        "agent": st.none() | st.text("abc", min_size=1, max_size=2),
        "seen": st.lists(_id, max_size=4),
        "tags": st.lists(st.sampled_from(["new", "sale", "old"]), max_size=5),
        "scores": st.lists(_number, max_size=3),
    }
)


def table_of_rows(rows: list[dict[str, Any]]) -> pa.Table:
    """The raw log."""
    return pa.Table.from_pylist(rows, schema=pa.schema(list(COLUMNS.items())))
