"""Each step compared with plain Python, and on distinct rows compared with all rows."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from elastrec.platform.data.features.steps import (
    MISSING_ID,
    Bucketize,
    Clip,
    Column,
    FillNull,
    Hash,
    Keep,
    Log1p,
    MissingIndicator,
    Standardize,
    Step,
    Vocabulary,
    crossed,
    run_steps,
    xxh3_of_ids,
)

_ids = st.integers(-(2**63), 2**63 - 1)
_seeds = st.integers(0, 2**64 - 1)


def numbers(*values: float | None) -> Column:
    missing = np.array([value is None for value in values])
    held = np.array([99.0 if value is None else value for value in values], np.float64)
    return Column(held, None, missing if missing.any() else None)


def lists(*rows: Sequence[float], kind: type = np.int64) -> Column:
    offsets = np.concatenate(([0], np.cumsum([len(row) for row in rows]))).astype(np.int64)
    return Column(np.array([value for row in rows for value in row], kind), offsets)


def shown(column: Column) -> list[object]:
    """Rows as Python values; None where one is missing."""
    if column.offsets is None:
        missing = [False] * column.rows if column.missing is None else column.missing.tolist()
        return [None if gone else value for gone, value in zip(missing, column.values.tolist(), strict=True)]
    bounds = column.offsets.tolist()
    return [column.values[a:b].tolist() for a, b in itertools.pairwise(bounds)]


def python_xxh3(id_: int, seed: int) -> int:
    return xxhash.xxh3_64_intdigest(id_.to_bytes(8, "little", signed=True), seed=seed)


@given(st.lists(_ids, min_size=1, max_size=20), _seeds)
@settings(max_examples=200, deadline=None)
def test_hashes_are_those_of_xxhash(ids: list[int], seed: int) -> None:
    expected = [python_xxh3(id_, seed) for id_ in ids]
    assert xxh3_of_ids(np.array(ids), np.uint64(seed)).tolist() == expected
    assert shown(Hash(97, seed)(Column(np.array(ids)))) == [value % 97 for value in expected]


@given(st.lists(st.tuples(_ids, st.none() | _ids), min_size=1, max_size=12))
@settings(max_examples=100, deadline=None)
def test_a_cross_chains_hashes_and_counts_a_missing_value_as_one(rows: list[tuple[int, int | None]]) -> None:
    second = [MISSING_ID if b is None else b for _, b in rows]
    missing = np.array([b is None for _, b in rows])
    held = np.array([7 if b is None else b for _, b in rows], np.int64)
    found = crossed([Column(np.array([a for a, _ in rows], np.int64)), Column(held, None, missing)])
    expected = [python_xxh3(b, python_xxh3(a, 0)) for (a, _), b in zip(rows, second, strict=True)]
    assert found.values.view(np.uint64).tolist() == expected


def test_a_cross_depends_on_the_order_of_its_columns() -> None:
    one, two = Column(np.array([1, 2])), Column(np.array([2, 1]))
    a, b = crossed([one, two]).values.tolist()
    assert a != b
    assert crossed([two, one]).values.tolist() == [b, a]


@pytest.mark.parametrize(
    ("step", "column", "expected"),
    [
        (FillNull(5.0), numbers(1, None), [1, 5]),
        (FillNull(5), lists([1, 2], [], [3], []), [[1, 2], [5], [3], [5]]),
        (MissingIndicator(as_ids=False), numbers(1, None), [0.0, 1.0]),
        (MissingIndicator(as_ids=False), numbers(1, 2), [0.0, 0.0]),
        (MissingIndicator(as_ids=True), lists([1], []), [[0], [1]]),
        (Clip(0, 3), numbers(-1, 2, 9, None), [0, 2, 3, None]),
        (Clip(None, 3), numbers(-1, 9), [-1, 3]),
        (Log1p(), numbers(0, math.e - 1, 1 - math.e), [0, 1, -1]),
        (Standardize(2, 4), numbers(2, 10, None), [0, 2, None]),
        (Bucketize((0.0, 10.0)), numbers(-1, 0, 5, 10, 11, None), [0, 1, 1, 2, 2, None]),
        (Bucketize((0.0,)), lists([-1.5, 0.0], [], kind=np.float64), [[0, 1], []]),
        (Vocabulary((30, -10, 20), 7), Column(np.array([20, 30, 5, -10, 2**62])), [2, 0, 7, 1, 7]),
        (Keep(2), lists([1, 2, 3], [4], []), [[2, 3], [4], []]),
        (Keep(2, is_first=True), lists([1, 2, 3], [4], []), [[1, 2], [4], []]),
    ],
)
def test_each_step_computes_its_defined_result(step: Step, column: Column, expected: list[object]) -> None:
    held = column.values.copy()
    assert shown(step(column)) == expected
    assert column.values.tolist() == held.tolist(), "the argument was changed"


_steps = st.lists(
    st.builds(Hash, st.integers(1, 100), st.integers(0, 2**64 - 1))
    | st.builds(Keep, st.integers(1, 4), st.booleans())
    | st.builds(FillNull, st.integers(-3, 3))
    | st.builds(Vocabulary, st.just((1, 2, 3)), st.integers(0, 5)),
    max_size=4,
)


@given(st.lists(st.lists(st.integers(0, 4), max_size=5), min_size=1, max_size=12), _steps, st.data())
@settings(max_examples=100, deadline=None)
def test_steps_on_distinct_rows_equal_steps_on_all_rows(
    rows: list[list[int]], steps: list[Step], data: st.DataObject
) -> None:
    picked = np.array(data.draw(st.lists(st.integers(0, len(rows) - 1), min_size=1, max_size=20)))
    distinct = lists(*rows)
    assert shown(run_steps(distinct, steps).take(picked)) == shown(run_steps(distinct.take(picked), steps))
