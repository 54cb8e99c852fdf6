"""Deduplicated jagged features: nothing is lost, and different rows are not merged."""

from __future__ import annotations

import io

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elastrec.platform.data.deduplicating.deduplication import InverseJagged, deduplicate
from elastrec.platform.specs.errors import DataError
from tests.platform.data.jagged import assert_well_formed, list_column, repeated_lists, rows_of


def _expanded(group: InverseJagged) -> dict[str, list[list[int]]]:
    values, offsets = group.expand()
    rows = rows_of(values, offsets)
    return {key: rows[k * group.rows : (k + 1) * group.rows] for k, key in enumerate(group.keys)}


@given(repeated_lists())
@settings(max_examples=60, deadline=None)
def test_expanding_gives_back_every_row(column: pa.Array) -> None:
    group = deduplicate({"a": column})
    assert_well_formed(group, distinct=True)
    assert _expanded(group) == {"a": column.to_pylist()}
    assert group.distinct_rows == len({tuple(row) for row in column.to_pylist()})


@given(st.integers(0, 20).flatmap(lambda n: st.tuples(*[repeated_lists(rows=n) for _ in range(3)])))
@settings(max_examples=60, deadline=None)
def test_a_group_gives_back_every_row_of_every_member(columns: tuple[pa.Array, ...]) -> None:
    named = dict(zip("abc", columns, strict=True))
    group = deduplicate(named)
    assert_well_formed(group, distinct=True)
    assert _expanded(group) == {key: column.to_pylist() for key, column in named.items()}


@given(repeated_lists(), st.data())
@settings(max_examples=50, deadline=None)
def test_a_slice_of_a_column_is_deduplicated_as_if_it_were_whole(column: pa.Array, data: st.DataObject) -> None:
    begin = data.draw(st.integers(0, len(column)))
    part = column.slice(begin, data.draw(st.integers(0, len(column) - begin)))
    assert _expanded(deduplicate({"a": part})) == {"a": part.to_pylist()}


@given(st.integers(1, 10).flatmap(lambda n: st.tuples(repeated_lists(rows=n), repeated_lists(rows=n))))
@settings(max_examples=50, deadline=None)
def test_a_group_is_restored_from_arrow(columns: tuple[pa.Array, pa.Array]) -> None:
    group = deduplicate({"a": columns[0], "b": columns[1]})
    batch = pa.RecordBatch.from_arrays([group.to_arrow()], names=["group"])
    stream = io.BytesIO()
    with pa.ipc.new_stream(stream, batch.schema) as writer:
        writer.write_batch(batch)
    arrived = pa.ipc.open_stream(stream.getvalue()).read_next_batch()
    assert _expanded(InverseJagged.from_arrow(arrived.column(0))) == _expanded(group)


def test_rows_that_differ_in_one_member_are_distinct() -> None:
    group = deduplicate({"a": list_column([[1], [1], [1]]), "b": list_column([[2], [2], [3]])})
    assert group.inverse_lookup.tolist() == [0, 0, 1]


def test_the_boundary_between_lists_counts() -> None:
    group = deduplicate({"a": list_column([[1, 2], [1], []]), "b": list_column([[3], [2, 3], [1, 2, 3]])})
    assert group.distinct_rows == 3


def test_the_example_of_the_paper_keeps_six_of_nine_values() -> None:
    group = deduplicate({"b": list_column([[3, 4, 5], [4, 5, 6], [3, 4, 5]])})
    assert (group.values.tolist(), group.inverse_lookup.tolist()) == ([3, 4, 5, 4, 5, 6], [0, 1, 0])


@pytest.mark.parametrize(
    "rows",
    [[], [[]], [[], [], []], [[7]], [[1], [2], [3]], [[5, 5]] * 100, [[], [1], []]],
    ids=["no rows", "one empty", "all empty", "one row", "no repeats", "all equal", "some empty"],
)
def test_extreme_batches_are_restored_exactly(rows: list[list[int]]) -> None:
    assert _expanded(deduplicate({"a": list_column(rows)})) == {"a": rows}


@pytest.mark.parametrize("constant", [True, False])
def test_lists_of_a_million_ids_take_linear_time(constant: bool) -> None:
    long = np.zeros(10**6, np.int64) if constant else np.arange(10**6)
    values = np.concatenate([long, long, np.append(long[1:], -1)])
    column = pa.ListArray.from_arrays(pa.array([0, 10**6, 2 * 10**6, 3 * 10**6], pa.int32()), pa.array(values))
    group = deduplicate({"a": column})
    assert group.inverse_lookup.tolist() == [0, 0, 1]
    assert (group.expand()[0] == values).all()


def test_ids_beyond_63_bits_wrap_and_stay_different() -> None:
    column = pa.array([[2**64 - 1], [2**63], [2**64 - 1]], pa.list_(pa.uint64()))
    group = deduplicate({"a": column})
    assert group.values.tolist() == [-1, -(2**63)]
    assert group.inverse_lookup.tolist() == [0, 1, 0]


def test_single_ids_and_fixed_size_lists_are_jagged_features_too() -> None:
    assert _expanded(deduplicate({"a": pa.array([4, 4, 5])})) == {"a": [[4], [4], [5]]}
    dense = pa.FixedSizeListArray.from_arrays(pa.array([1.0, 2.0, 1.0, 2.0], pa.float32()), 2)
    assert deduplicate({"dense": dense}).distinct_rows == 1


def test_numbers_are_compared_by_their_bits() -> None:
    column = pa.array([float("nan"), float("nan"), 0.0, -0.0], pa.float32())
    assert deduplicate({"x": column}).inverse_lookup.tolist() == [0, 0, 1, 2]


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"a": pa.array([[1], None])}, "null rows are not allowed"),
        ({"a": pa.array([[1, None]])}, "nulls inside lists"),
        ({"a": pa.array(["x"])}, "string is not allowed"),
    ],
)
def test_columns_that_are_not_trainer_ready_are_refused(columns: dict[str, pa.Array], message: str) -> None:
    with pytest.raises(DataError, match=message):
        deduplicate(columns)


def test_a_column_of_another_type_is_refused_as_a_group() -> None:
    with pytest.raises(DataError, match="expected dictionary"):
        InverseJagged.from_arrow(pa.array([1]))
