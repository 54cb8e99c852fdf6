"""Preprocessing distinct rows and then expanding them is preprocessing all rows."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elastrec.platform.data import ids_of
from elastrec.platform.data.deduplicating.deduplication import InverseJagged, deduplicate
from elastrec.platform.data.preprocessing import Bucketize, Clip, HashIds, LogNormalize, Step, Truncate, preprocess
from elastrec.platform.specs.errors import DataError
from tests.platform.data.jagged import list_column, repeated_lists, rows_of

_steps = st.lists(
    st.builds(HashIds, st.integers(1, 100), st.integers(0, 2**64))
    | st.builds(Truncate, st.integers(0, 4), st.sampled_from(["last", "first"]))
    | st.builds(Clip, st.integers(-5, 0), st.integers(0, 5))
    | st.builds(Bucketize, st.just((0.0, 1.0, 1000.0))),
    max_size=4,
)


@given(st.integers(1, 12).flatmap(lambda n: st.tuples(repeated_lists(rows=n), repeated_lists(rows=n))), _steps, _steps)
@settings(max_examples=80, deadline=None)
def test_the_plain_and_the_deduplicated_form_are_preprocessed_alike(
    columns: tuple[pa.Array, pa.Array], first: list[Step], second: list[Step]
) -> None:
    steps = {"a": first, "b": second}
    batch = pa.RecordBatch.from_arrays(list(columns), names=["a", "b"])
    plain = preprocess(ids_of(batch), steps)
    values, offsets = preprocess(deduplicate({"a": columns[0], "b": columns[1]}), steps).expand()
    assert values.tolist() == plain.values.tolist()
    assert np.diff(offsets).tolist() == plain.lengths.reshape(-1).tolist()


def _once(step: Step, lists: list[list[float]], kind: pa.DataType) -> list[list[float]]:
    group = preprocess(deduplicate({"a": pa.array(lists, pa.list_(kind))}), {"a": [step]})
    return rows_of(*group.expand())


def test_each_step_does_what_its_name_says() -> None:
    assert _once(Truncate(2), [[1, 2, 3], [4]], pa.int64()) == [[2, 3], [4]]
    assert _once(Truncate(2, "first"), [[1, 2, 3], [4]], pa.int64()) == [[1, 2], [4]]
    assert _once(Truncate(0), [[1, 2, 3], [4]], pa.int64()) == [[], []]
    assert _once(Clip(-1, 5), [[-7, 3, 9]], pa.int64()) == [[-1, 3, 5]]
    assert _once(Bucketize((0.0, 10.0)), [[-1.0, 0.0, 5.0, 10.0, float("nan")]], pa.float32()) == [[0, 1, 1, 2, 2]]
    assert _once(LogNormalize(), [[0.0, np.e - 1, 1 - np.e]], pa.float64())[0] == pytest.approx([0, 1, -1])


def test_hashes_are_splitmix64_and_spread() -> None:
    # The first output of the published generator with seed 0.
    hashed = HashIds(2**63)(np.array([0]), np.array([0, 1]))[0]
    assert hashed[0] == 0xE220A8397B1DCDAF % 2**63
    counts = np.bincount(HashIds(16, salt=7)(np.arange(16_000), np.array([0, 16_000]))[0], minlength=16)
    assert counts.min() > 850


def test_the_input_is_left_as_it_was() -> None:
    group = deduplicate({"a": list_column([[5, 6, 7]])})
    preprocess(group, {"a": [Clip(0, 1), Truncate(1)]})
    assert group.values.tolist() == [5, 6, 7]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: HashIds(0), "buckets: 0 is not allowed"),
        (lambda: Truncate(-1), "longest: -1 is not allowed"),
        (lambda: Clip(2, 1), "low: 2 is not allowed"),
        (lambda: Clip(float("nan"), 1), "low: nan"),
        (lambda: Bucketize(()), "borders"),
        (lambda: Bucketize((1.0, 1.0)), "numbers that rise"),
    ],
)
def test_impossible_steps_are_refused(make: object, message: str) -> None:
    with pytest.raises(DataError, match=message):
        make()  # type: ignore[operator]


def _group() -> InverseJagged:
    return deduplicate({"a": pa.array([1.5]), "b": pa.array([2.5])})


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        ({"c": []}, "allowed: a, b"),
        ({"a": [HashIds(5)]}, "hash: float64 is not allowed; allowed: int64 ids"),
        ({"a": [Bucketize((0.0,))]}, "'a' int64, 'b' float64 are not allowed together"),
    ],
)
def test_steps_that_do_not_fit_are_refused(steps: dict[str, list[Step]], message: str) -> None:
    with pytest.raises(DataError, match=message):
        preprocess(_group(), steps)
