"""Compiled kernels add ranges of numbers like numpy."""

from __future__ import annotations

import numba
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastrec.trainers.embedding.numbers import add_numbers

LONGEST = 40


@numba.njit
def added(target, at, source, begin, scale, count):
    add_numbers(target, at, source, begin, scale, count)


@given(
    at=st.integers(0, 9), begin=st.integers(0, 9), count=st.integers(0, LONGEST), seed=st.integers(0, 99),
    scale=st.sampled_from([1.0, 0.5, 0.25]),
)  # fmt: skip
def test_a_run_is_added_bit_for_bit_and_nothing_beside_it(
    at: int, begin: int, count: int, seed: int, scale: float
) -> None:
    target, source = np.random.default_rng(seed).random((2, LONGEST + 20), np.float32)
    expected = target.copy()
    expected[at : at + count] += np.float32(scale) * source[begin : begin + count]
    added(target, at, source, begin, np.float32(scale), count)
    np.testing.assert_array_equal(target, expected)


@pytest.mark.parametrize("width", [8, 4, 2])
def test_runs_are_added_in_vectors(width: int) -> None:
    added(np.zeros(4, np.float32), 0, np.zeros(4, np.float32), 0, np.float32(1.0), 1)
    assert f"fmul <{width} x float>" in added.inspect_llvm(added.signatures[0])
