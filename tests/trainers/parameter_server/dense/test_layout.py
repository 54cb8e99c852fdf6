"""Splitting the flat vector of dense parameters into buckets, and joining it again."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastrec.platform.specs.errors import TransportError
from elastrec.trainers.parameter_server.dense.layout import DenseRouting, dense_runs, layout_size, pieces_of
from elastrec.trainers.parameter_server.messages import Parameter


def mask(*numbers: int, buckets: int = 8) -> np.ndarray:
    return np.isin(np.arange(buckets), numbers)


def test_bucket_k_of_b_holds_the_elements_from_k_p_by_b_on() -> None:
    assert dense_runs(mask(0), 20) == [(0, 2)]
    assert dense_runs(mask(7), 20) == [(17, 20)]
    assert dense_runs(mask(), 20) == []


def test_neighbouring_buckets_make_one_run() -> None:
    assert dense_runs(mask(0, 1, 2, 5, 6), 80) == [(0, 30), (50, 70)]
    assert dense_runs(mask(*range(8)), 80) == [(0, 80)]


def test_buckets_without_elements_make_no_run() -> None:
    assert dense_runs(mask(*range(8)), 3) == [(0, 3)]
    assert dense_runs(mask(0, 1), 3) == []
    assert dense_runs(mask(*range(8)), 0) == []


@given(st.lists(st.integers(0, 3), min_size=1, max_size=12), st.integers(0, 60))
def test_the_shares_of_all_servers_make_the_vector(owners: list[int], elements: int) -> None:
    vector = np.arange(elements, dtype=np.float32)
    routing = DenseRouting(owners, 4)
    runs = routing.runs(elements)
    shares = [np.concatenate([vector[:0], *(vector[start:end] for start, end in mine)]) for mine in runs]
    np.testing.assert_array_equal(routing.joined(shares), vector)
    out = np.full(elements, -1, np.float32)
    routing.joined(shares, out)
    np.testing.assert_array_equal(out, vector)
    assert all(start < end for mine in runs for start, end in mine)


def test_the_share_of_a_single_server_is_not_copied() -> None:
    share = np.zeros(10, np.float32)
    assert DenseRouting([0] * 4, 1).joined([share]) is share


def test_a_share_of_another_length_is_refused() -> None:
    routing = DenseRouting([0, 1], 2)
    with pytest.raises(TransportError, match="server 0 sent 6 dense parameters; 5 are its own"):
        routing.joined([np.zeros(6, np.float32), np.zeros(4, np.float32)])
    with pytest.raises(TransportError, match="server 0 sent 1 dense parameters; 10 are its own"):
        DenseRouting([0] * 4, 1).joined([np.zeros(1, np.float32)], out=np.zeros(10, np.float32))


@given(st.lists(st.integers(0, 3), min_size=4, max_size=12), st.lists(st.integers(0, 9), min_size=1, max_size=5))
def test_a_vector_in_parts_is_cut_into_the_shares_of_all_servers(owners: list[int], lengths: list[int]) -> None:
    vector = np.arange(sum(lengths), dtype=np.float32)
    parts = np.split(vector, np.cumsum(lengths)[:-1])
    routing = DenseRouting(owners, 4)
    for pieces in (parts, [vector], parts):  # other parts of a vector of the same size
        shares = routing.shares(pieces)
        received = [np.frombuffer(b"".join(share), np.float32) for share in shares]
        np.testing.assert_array_equal(routing.joined(received), vector)


@given(st.lists(st.integers(0, 7), max_size=5), st.lists(st.booleans(), min_size=1, max_size=9))
def test_pieces_are_the_parameters_of_a_share_in_the_order_of_the_vector(sizes: list[int], owned: list[bool]) -> None:
    layout = [Parameter(f"p{number}", (size,)) for number, size in enumerate(sizes)]
    names = [(parameter.name, place) for parameter in layout for place in range(parameter.shape[0])]
    runs = dense_runs(np.array(owned), layout_size(layout))
    found = [
        (piece.parameter.name, piece.start + place)
        for piece in pieces_of(layout, runs)
        for place in range(piece.length)
    ]
    assert found == [names[element] for start, end in runs for element in range(start, end)]
    places = [(piece.place, piece.length) for piece in pieces_of(layout, runs)]
    assert all(length > 0 for _, length in places)
    assert [place for place, _ in places] == [0, *np.cumsum([length for _, length in places]).tolist()][: len(places)]
