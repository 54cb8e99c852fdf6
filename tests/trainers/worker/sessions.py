"""A clustered log and a job on it: sessions of six rows with constant user, cart and likes, and changing items."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from elastrec.platform.specs.job import TrainingJob

SESSION = 6


def session_job(
    folder: Path, rows: int, batch: int, *, deduplication: Any, likes_pooling: str = "mean", **spec: Any
) -> TrainingJob:
    """Labels follow user and item, so that there is something to learn; rows are trained in their order."""
    random = np.random.default_rng(4)
    number = np.arange(rows) // SESSION
    sessions = int(number[-1]) + 1
    user = random.integers(0, 40, sessions)[number]
    item = random.integers(0, 60, rows)
    logit = (user % 5 - 2.0) + (item % 3 - 1.0)
    lists = {
        name: [random.integers(0, 60, length).tolist() for length in random.integers(0, 12, sessions)]
        for name in ("cart", "likes")
    }
    table = pa.table(
        {
            "label": pa.array((random.random(rows) < 1 / (1 + np.exp(-logit))).astype(np.int8)),
            "x": pa.array(random.normal(size=rows)),
            "session": pa.array(number),
            "user": pa.array(user),
            "item": pa.array(item),
            **{name: pa.array([rows_of[s] for s in number]) for name, rows_of in lists.items()},
        }
    )
    (folder / "log").mkdir(parents=True)
    pq.write_table(table, folder / "log" / "part-0.parquet")
    content = {
        "metadata": {"name": "sessions"},
        "spec": {
            "model": {
                "architecture": "dlrm",
                "embedding_dimension": 8,
                "options": {"bottom_layer_sizes": [16], "top_layer_sizes": [16]},
            },
            "data": {
                "path": str(folder / "log"),
                "partitioning": "none",
                "evaluation_path": str(folder / "log"),
                "session": "session",
                "dense": [{"name": "x", "transform": "none"}],
                "sparse": [
                    {"name": "user"},
                    {"name": "item", "table": "items"},
                    {"name": "cart", "table": "items", "is_list": True},
                    {"name": "likes", "is_list": True, "pooling": likes_pooling},
                ],
            },
            "training": {"batch_size": batch, "seed": 3, "shuffle": False, "consistency": {"mode": "bsp"}},
            "optimizers": {"dense": {"kind": "adam", "learning_rate": 0.005}},
            "deduplication": deduplication,
            "checkpoint": {"store": str(folder / "store")},
            "faults": {"heartbeat_interval": 0.02},
            **spec,
        },
    }
    return TrainingJob.model_validate(content)
