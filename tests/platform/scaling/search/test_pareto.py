from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pymoo.indicators.hv import HV

from elastrec.platform.scaling.search.pareto import front, hypervolume, thin

points = st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20)), min_size=1, max_size=40)


@settings(deadline=None)
@given(points)
def test_the_front_has_the_points_that_no_other_dominates(chosen: list[tuple[int, int]]) -> None:
    a = np.array(chosen, dtype=float)
    rows = front(a[:, 0], a[:, 1])
    expected = {
        tuple(p) for p in chosen if not any(q != p and q[0] <= p[0] and q[1] <= p[1] for q in map(tuple, chosen))
    }  # fmt: skip
    assert {tuple(a[row].astype(int)) for row in rows} == expected
    assert len(rows) == len(expected)


@settings(deadline=None)
@given(points)
def test_the_hypervolume_agrees_with_pymoo(chosen: list[tuple[int, int]]) -> None:
    a = np.array(chosen, dtype=float)
    assert hypervolume(a[:, 0], a[:, 1], (21.0, 21.0)) == pytest.approx(float(HV(ref_point=np.array([21.0, 21.0]))(a)))


def test_points_beyond_the_reference_do_not_count() -> None:
    assert hypervolume(np.array([5.0]), np.array([0.0]), (4.0, 4.0)) == 0.0


@settings(deadline=None)
@given(st.integers(2, 200), st.integers(2, 20))
def test_thinning_keeps_both_ends_and_the_requested_number(size: int, most: int) -> None:
    x = np.sort(np.random.default_rng(size).uniform(0, 1, size))
    rows = thin(x, -x, most)
    assert rows[0] == 0
    assert rows[-1] == size - 1
    assert len(rows) <= most


def test_an_empty_front_is_empty() -> None:
    assert len(front(np.zeros(0), np.zeros(0))) == 0
