"""The training order of clustered rows: shuffled sessions, the rows of each in order of time.

A shuffle of single rows would distribute a session over many batches, so that no rows would repeat within one.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from elastrec.platform.data.clustering.sorting import session_starts
from elastrec.platform.data.reading.numbers import is_text


def session_order(pieces: Sequence[pa.Array], order: NDArray[np.int64]) -> NDArray[np.int64]:
    """A permutation int64 [N] of clustered rows that moves whole sessions, in the order of their first rows in `order`.

    Args:
        pieces: the session of each row, equal ones side by side; a row without one is a session of its own. Pieces of
            different files may have different types.
        order: a permutation of the rows, from a shuffle of single rows.
    """
    begins = np.flatnonzero(np.concatenate([session_starts(piece) for piece in pieces]) & ~_continued(pieces))
    lengths = np.diff(np.append(begins, len(order)))
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    moved = np.argsort(place[begins])
    ends = np.cumsum(lengths[moved])
    return np.arange(len(order)) + np.repeat(begins[moved] - (ends - lengths[moved]), lengths[moved])


def _continued(pieces: Sequence[pa.Array]) -> NDArray[np.bool_]:
    """bool [N]: where a piece begins with the session with which the piece before it ends."""
    continued_N = np.zeros(sum(map(len, pieces)), np.bool_)
    begin = 0
    for before, after in pairwise(piece for piece in pieces if len(piece)):
        begin += len(before)
        session = _comparable(after[0])
        continued_N[begin] = session is not None and session == _comparable(before[-1])
    return continued_N


def _comparable(session: pa.Scalar) -> Any:
    """Equal for equal sessions of different types; text as its bytes, which are not always UTF-8."""
    if pa.types.is_dictionary(session.type):
        session = session.value
    return session.as_buffer().to_pybytes() if session.is_valid and is_text(session.type) else session.as_py()
