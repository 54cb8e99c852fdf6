"""A shuffle that moves whole sessions."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from elastrec.platform.data.clustering.session_order import session_order


@given(st.lists(st.none() | st.integers(0, 5), max_size=40), st.integers(0, 100))
@settings(max_examples=60, deadline=None)
def test_a_shuffle_of_sessions_keeps_each_ones_rows_together_and_in_order(
    sessions: list[int | None], seed: int
) -> None:
    ordered = sorted(sessions, key=lambda s: (s is None, s))
    order = session_order(pa.array(ordered, pa.int64()), np.random.default_rng(seed).permutation(len(ordered)))
    assert sorted(order.tolist()) == list(range(len(ordered)))
    for session in set(ordered) - {None}:
        rows = [row for row in order.tolist() if ordered[row] == session]
        places = [place for place, row in enumerate(order.tolist()) if ordered[row] == session]
        assert rows == sorted(rows)
        assert places == list(range(places[0], places[0] + len(places)))


def test_sessions_are_shuffled_and_only_by_the_seed() -> None:
    sessions = pa.array(np.repeat(np.arange(100), 5))
    first, again, other = (session_order(sessions, np.random.default_rng(seed).permutation(500)) for seed in (1, 1, 2))
    assert (first == again).all()
    assert (first != other).any() and (first != np.arange(500)).any()


@given(st.lists(st.integers(0, 3), max_size=30))
@settings(max_examples=60, deadline=None)
def test_scattered_sessions_are_moved_piece_by_piece_without_losing_rows(sessions: list[int]) -> None:
    order = session_order(pa.array(sessions, pa.int64()), np.random.default_rng(0).permutation(len(sessions)))
    assert sorted(order.tolist()) == list(range(len(sessions)))
