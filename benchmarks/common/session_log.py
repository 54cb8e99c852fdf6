"""A click log with the statistics of RecD §3: long interleaved sessions, user lists that rarely change, changing item
ids.

Columns: label, session, time; user lists `u0`, `u1`, ... that a session keeps with probability `stays` from row to row
and else shifts by one new id; item lists `i0`, `i1`, ... that are new in every row. `item_share` is the share of item
bytes among all bytes of lists.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray


@dataclass(frozen=True)
class LogShape:
    """The statistics of the log.

    Attributes:
        samples_per_session: mean; sessions' sizes are geometric.
        open_sessions: number of interleaved sessions at any time, as in an hour of a large service.
        user_lists, length: lists per row that describe the user, and their ids.
        item_share: bytes of item lists ÷ bytes of all lists.
        stays: probability that a row's user lists are those of the session's row before.
    """

    rows: int = 400_000
    samples_per_session: float = 16.2
    open_sessions: int = 25_000
    user_lists: int = 1
    length: int = 128
    item_share: float = 0.19
    stays: float = 0.95
    vocabulary: int = 10_000_000
    seed: int = 0

    @property
    def user_names(self) -> list[str]:
        return [f"u{i}" for i in range(self.user_lists)]

    @property
    def item_length(self) -> int:
        """Ids of the one item list, so that items have their share of bytes."""
        user = self.user_lists * self.length
        return max(1, round(user * self.item_share / (1 - self.item_share)))


def session_log(shape: LogShape) -> pa.Table:
    """The log in order of time; `session` numbers are random and independent of time."""
    rng = np.random.default_rng(shape.seed)
    sessions = max(1, round(shape.rows / shape.samples_per_session))
    sizes = rng.geometric(1 / shape.samples_per_session, sessions)
    session_N = np.repeat(np.arange(sessions), sizes)
    rows = len(session_N)
    # A session lasts until `open_sessions` others have begun.
    duration = shape.open_sessions / sessions
    time_N = np.repeat(rng.random(sessions), sizes) + rng.random(rows) * duration
    order = np.lexsort((time_N, session_N))
    time_N = time_N[order]
    columns: dict[str, pa.Array] = {
        "label": pa.array(rng.integers(0, 2, rows).astype(np.int8)),
        "session": pa.array(rng.integers(0, 2**62, sessions)[session_N]),
        "time": pa.array((time_N * 3.6e6).astype(np.int64)),
    }
    for name in shape.user_names:
        columns[name] = _lists(_histories(shape, session_N, rng))
    columns["i0"] = _lists(_ids(shape, rng, (rows, shape.item_length)))
    return pa.table(columns).take(pa.array(np.argsort(time_N, kind="stable")))


def _ids(shape: LogShape, rng: np.random.Generator, size: tuple[int, ...] | int) -> NDArray[np.int64]:
    """Ranks by Zipf's law with exponent 1, mixed so that ids are as spread as hashes are."""
    rank = (shape.vocabulary ** rng.random(size)).astype(np.uint64)
    return ((rank * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(1)).astype(np.int64)


def _histories(shape: LogShape, session_N: NDArray[np.int64], rng: np.random.Generator) -> NDArray[np.int64]:
    """Each row is a window of `length` ids on its session's stream, moved by one where the history changed."""
    changed_N = rng.random(len(session_N)) >= shape.stays
    first_N = np.diff(session_N, prepend=-1) != 0
    step_N = np.where(first_N, shape.length, changed_N)
    end_N = np.cumsum(step_N)
    stream = _ids(shape, rng, int(end_N[-1]))
    return stream[(end_N - shape.length)[:, None] + np.arange(shape.length)]


def _lists(values: NDArray[np.int64]) -> pa.Array:
    rows, length = values.shape
    offsets = np.arange(0, (rows + 1) * length, length, dtype=np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(values.reshape(-1)))
