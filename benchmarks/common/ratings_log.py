"""A generated ratings log of users, items and histories, by planted tastes; equal shapes give equal rows.

Columns: `label` (a good rating), `user` and its `group`, `item` and its `genre`, `history` (the last items that the
user rated well, newest last), `user_ratings` and `item_ratings` so far. Rows are in order of time; days follow each
other, so that some users and items of a later day are new.
"""

from __future__ import annotations

from collections import defaultdict, deque
from dataclasses import dataclass
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from elastrec.platform.data.partitions import Partition

_TASTES, _HISTORY = 8, 12


@dataclass(frozen=True)
class RatingsShape:
    """What the log looks like."""

    rows_per_day: int = 60_000
    days: int = 3
    users: int = 4_000
    items: int = 2_000
    seed: int = 0


def ratings_data(folder: str) -> dict[str, Any]:
    """The data section of a job that reads the log."""
    # Features of one table must be pooled alike.
    item = {"table": "item", "pooling": "mean"}
    return {
        "path": folder,
        "dense": [{"name": "user_ratings"}, {"name": "item_ratings"}],
        "sparse": [
            {"name": "user"},
            {"name": "group"},
            {"name": "item", **item},
            {"name": "genre"},
            {"name": "history", "is_list": True, **item},
        ],
    }


def write_ratings(folder: Path, shape: RatingsShape) -> None:
    """Writes the log as one Parquet file per day."""
    rows = shape.rows_per_day * shape.days
    random = np.random.default_rng(shape.seed)
    user_N = _by_zipf(random, shape.users, rows)
    item_N = _by_zipf(random, shape.items, rows)
    user_UT = random.normal(size=(shape.users, _TASTES))
    item_IT = random.normal(size=(shape.items, _TASTES))
    group_U = (user_UT[:, :3] > 0) @ np.array([1, 2, 4])
    genre_I = np.abs(item_IT).argmax(axis=1) * 2 + (item_IT.sum(axis=1) > 0)
    logit_N = (
        1.2 * (user_UT[user_N] * item_IT[item_N]).sum(axis=1) / _TASTES**0.5
        + random.normal(0, 0.6, shape.users)[user_N]
        + random.normal(0, 0.8, shape.items)[item_N]
    )
    label_N = (random.random(rows) < 1 / (1 + np.exp(-logit_N))).astype(np.int64)
    histories, user_before_N, item_before_N = _so_far(user_N, item_N, label_N)
    table = pa.table(
        {
            "label": label_N,
            "user": user_N,
            "group": group_U[user_N],
            "item": item_N,
            "genre": genre_I[item_N],
            "history": pa.array(histories, pa.list_(pa.int64())),
            "user_ratings": user_before_N,
            "item_ratings": item_before_N,
        }
    )
    for number in range(shape.days):
        part = folder / Partition(date(2026, 1, 1) + timedelta(days=number)).folder
        part.mkdir(parents=True)
        pq.write_table(table.slice(number * shape.rows_per_day, shape.rows_per_day), part / "part-0.parquet")


def _by_zipf(random: np.random.Generator, size: int, rows: int) -> NDArray[np.int64]:
    """Numbers below `size`, the n-th as frequent as 1 / n^0.8."""
    weights = np.arange(1, size + 1) ** -0.8
    return random.choice(size, rows, p=weights / weights.sum())


def _so_far(
    user_N: NDArray[np.int64], item_N: NDArray[np.int64], label_N: NDArray[np.int64]
) -> tuple[list[list[int]], NDArray[np.int64], NDArray[np.int64]]:
    """Per row, the values before it: the user's history, and numbers of ratings of the user and of the item."""
    liked: dict[int, deque[int]] = defaultdict(lambda: deque(maxlen=_HISTORY))
    by_user, by_item = np.zeros(user_N.max() + 1, np.int64), np.zeros(item_N.max() + 1, np.int64)
    histories, user_before, item_before = [], np.empty_like(user_N), np.empty_like(item_N)
    for row, (user, item, label) in enumerate(zip(user_N.tolist(), item_N.tolist(), label_N.tolist(), strict=True)):
        histories.append(list(liked[user]))
        user_before[row], item_before[row] = by_user[user], by_item[item]
        by_user[user] += 1
        by_item[item] += 1
        if label:
            liked[user].append(item)
    return histories, user_before, item_before
