"""A shuffle that moves whole sessions."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from elastrec.platform.data.clustering.session_order import session_order


def _pieces(sessions: list[int | None], cuts: list[int]) -> list[pa.Array]:
    """The sessions, cut into pieces of different types, as different files may have them."""
    bounds = [0, *sorted(min(cut, len(sessions)) for cut in cuts), len(sessions)]
    pieces = [pa.array(sessions[begin:end], pa.int64()) for begin, end in pairwise(bounds)]
    return [piece.cast(pa.float64()) if index % 2 else piece for index, piece in enumerate(pieces)]


@given(
    st.lists(st.none() | st.integers(0, 5), max_size=40), st.integers(0, 100), st.lists(st.integers(0, 40), max_size=3)
)
@settings(max_examples=60, deadline=None)
def test_a_shuffle_of_sessions_keeps_each_ones_rows_together_and_in_order(
    sessions: list[int | None], seed: int, cuts: list[int]
) -> None:
    ordered = sorted(sessions, key=lambda s: (s is None, s))
    order = session_order(_pieces(ordered, cuts), np.random.default_rng(seed).permutation(len(ordered)))
    assert sorted(order.tolist()) == list(range(len(ordered)))
    for session in set(ordered) - {None}:
        rows = [row for row in order.tolist() if ordered[row] == session]
        places = [place for place, row in enumerate(order.tolist()) if ordered[row] == session]
        assert rows == sorted(rows)
        assert places == list(range(places[0], places[0] + len(places)))


def test_sessions_are_shuffled_and_only_by_the_seed() -> None:
    sessions = pa.array(np.repeat(np.arange(100), 5))
    first, again, other = (
        session_order([sessions], np.random.default_rng(seed).permutation(500)) for seed in (1, 1, 2)
    )
    assert (first == again).all()
    assert (first != other).any() and (first != np.arange(500)).any()


@given(st.lists(st.integers(0, 3), max_size=30))
@settings(max_examples=60, deadline=None)
def test_scattered_sessions_are_moved_piece_by_piece_without_losing_rows(sessions: list[int]) -> None:
    order = session_order([pa.array(sessions, pa.int64())], np.random.default_rng(0).permutation(len(sessions)))
    assert sorted(order.tolist()) == list(range(len(sessions)))


def test_text_that_is_no_utf8_is_a_session_like_any_other() -> None:
    """Not every writer of Parquet checks it."""
    raw = pa.array([b"\xff1", b"\xff1", None, b"z"], pa.binary())
    text = pa.Array.from_buffers(pa.string(), 4, raw.buffers(), null_count=1)
    kinds = (text, raw, text.dictionary_encode(), raw.cast(pa.large_binary()))
    for piece in kinds:
        for other in kinds:
            pieces = [piece[:1], other[1:3], piece[3:]]
            assert session_order(pieces, np.array([3, 0, 2, 1])).tolist() == [3, 0, 1, 2]
