"""Compiled kernels copy words like numpy."""

from __future__ import annotations

import numba
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from elastrec.trainers.parameter_server.words import copy_row, copy_words, end_streams, stream_words

LONGEST = 80


@numba.njit
def copied(target, at, source, begin, count):
    copy_words(target, at, source, begin, count)


@numba.njit
def streamed(target, at, source, begin, count):
    stream_words(target, at, source, begin, count)
    end_streams()


@numba.njit
def copied_row(target, at, source, row):
    copy_row(target, at, source, row)


@given(at=st.integers(0, 9), begin=st.integers(0, 9), count=st.integers(0, LONGEST), seed=st.integers(0, 99))
def test_a_run_is_copied_and_nothing_beside_it(at: int, begin: int, count: int, seed: int) -> None:
    target, source = np.random.default_rng(seed).random((2, LONGEST + 20), np.float32)
    expected = target.copy()
    expected[at : at + count] = source[begin : begin + count]
    copied(target, at, source, begin, count)
    np.testing.assert_array_equal(target, expected)


@given(at=st.integers(0, 9), row=st.integers(0, 4), width=st.integers(1, LONGEST), seed=st.integers(0, 99))
def test_a_row_is_copied_and_nothing_beside_it(at: int, row: int, width: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    target, source = random.random(LONGEST + 20, np.float32), random.random((5, width), np.float32)
    expected = target.copy()
    expected[at : at + width] = source[row]
    copied_row(target, at, source, row)
    np.testing.assert_array_equal(target, expected)


@given(at=st.integers(0, 9), begin=st.integers(0, 9), count=st.integers(0, LONGEST), seed=st.integers(0, 99))
def test_a_run_of_words_is_copied_past_the_caches_and_nothing_beside_it(
    at: int, begin: int, count: int, seed: int
) -> None:
    target, source = np.random.default_rng(seed).integers(0, 2**32, (2, LONGEST + 20), np.uint32)
    expected = target.copy()
    expected[at : at + count] = source[begin : begin + count]
    streamed(target, at, source, begin, count)
    np.testing.assert_array_equal(target, expected)
