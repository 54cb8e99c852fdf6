"""The training order of clustered rows: shuffled sessions, the rows of each in order of time.

A shuffle of single rows would distribute a session over many batches, so that no rows would repeat within one.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from elastrec.platform.data.clustering.sorting import session_starts


def session_order(sessions: pa.Array | pa.ChunkedArray, order: NDArray[np.int64]) -> NDArray[np.int64]:
    """A permutation int64 [N] of clustered rows that moves whole sessions, in the order of their first rows in `order`.

    Args:
        sessions: the session of each row, equal ones side by side; a row without one is a session of its own.
        order: a permutation of the rows, from a shuffle of single rows.
    """
    begins = np.flatnonzero(session_starts(sessions))
    lengths = np.diff(np.append(begins, len(order)))
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    moved = np.argsort(place[begins])
    ends = np.cumsum(lengths[moved])
    return np.arange(len(order)) + np.repeat(begins[moved] - (ends - lengths[moved]), lengths[moved])
