"""Batches whose groups are sent without repeats, and are unchanged after the transfer."""

from __future__ import annotations

import io

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from elastrec.platform.data.deduplicating.deduplicated_batch import (
    deduplicate_batch,
    expand_batch,
    groups_of,
    plain_part,
)
from tests.platform.data.jagged import list_column, repeated_lists


def _batch(rows: int, a: pa.Array, b: pa.Array) -> pa.RecordBatch:
    rng = np.random.default_rng(0)
    dense = pa.FixedSizeListArray.from_arrays(pa.array(rng.random(2 * rows, np.float32)), 2)
    columns = {
        "label": pa.array(rng.random(rows, np.float32)),
        "dense": dense,
        "a": a,
        "item": pa.array(rng.integers(0, 9, rows)),
        "b": b,
    }
    return pa.RecordBatch.from_pydict(columns)


def _journey(batch: pa.RecordBatch) -> tuple[pa.RecordBatch, int]:
    stream = io.BytesIO()
    with pa.ipc.new_stream(stream, batch.schema) as writer:
        writer.write_batch(batch)
    return pa.ipc.open_stream(stream.getvalue()).read_next_batch(), stream.tell()


@given(
    st.integers(1, 15).flatmap(lambda n: st.tuples(repeated_lists(rows=n), repeated_lists(rows=n))),
    st.sampled_from([[], [["a"]], [["b"], ["a"]], [["b", "a"]], [["item", "b"], ["a"]], [["item"]]]),
)
@settings(max_examples=60, deadline=None)
def test_expanding_a_deduplicated_batch_restores_it(
    columns: tuple[pa.Array, pa.Array], groups: list[list[str]]
) -> None:
    batch = _batch(len(columns[0]), *columns)
    sent = deduplicate_batch(batch, groups)
    assert len(groups_of(sent)) == len(groups)
    assert expand_batch(_journey(sent)[0]).equals(batch, check_metadata=True)


def test_a_slice_of_a_batch_is_sent_without_the_rest() -> None:
    column = list_column([[i, i + 1] for i in range(50) for _ in range(4)])
    batch = _batch(200, column, column)
    part = batch.slice(20, 40)
    sent = deduplicate_batch(part, [["a", "b"]])
    assert groups_of(sent)[0].distinct_rows == 10
    assert expand_batch(sent).equals(part)


def test_repeated_lists_take_fewer_bytes_on_the_wire() -> None:
    rng = np.random.default_rng(0)
    lists = [rng.integers(0, 2**40, 100).tolist() for _ in range(16)]
    column = list_column([lists[i // 16] for i in range(256)])
    batch = _batch(256, column, column)
    assert _journey(batch)[1] > 12 * _journey(deduplicate_batch(batch, [["a", "b"]]))[1]


def test_the_plain_part_has_the_columns_of_no_group() -> None:
    batch = _batch(2, list_column([[1], [1]]), list_column([[2], [3]]))
    assert plain_part(deduplicate_batch(batch, [["a"]])).schema.names == ["label", "dense", "item", "b"]
