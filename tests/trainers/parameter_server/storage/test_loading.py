"""Columns of a full record are loaded directly into slabs and index, in the same layout as pushed rows."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from elastrec.platform.specs.job import TableSpec
from elastrec.trainers.parameter_server.plan import make_plan
from elastrec.trainers.parameter_server.storage import RowStore, ServerMemoryError
from elastrec.trainers.parameter_server.storage.columns import Columns, row_columns
from elastrec.trainers.parameter_server.storage.copying import ROWS, Copied
from elastrec.trainers.parameter_server.storage.kernels.arrays import COUNT, LINES, TABLE
from elastrec.trainers.parameter_server.storage.loading import (
    ForeignCellError,
    load_columns,
    look_up_cells,
    reserve_rows,
)
from tests.trainers.parameter_server.storage.copies import copied

BUCKETS, DIMENSION = 48, 3
IDS = np.arange(20_000)
NONE = np.empty(0, np.int32)
TABLES = np.arange(2)
COUNTS = np.array([15_000, 5_000], np.int32)


def store_of(*, capacity_rows: int = 1_000_000, table: TableSpec | None = None, stripes: int = 4) -> RowStore:
    settings = {"a": table, "b": table} if table else {}
    plan = make_plan({"a": DIMENSION, "b": DIMENSION}, settings=settings, virtual_buckets=BUCKETS)
    return RowStore(plan, plan.groups[0], np.ones(BUCKETS, np.bool_), capacity_rows, stripes)


def push(store: RowStore, seconds: float = 7.0) -> None:
    gradients = np.sin(np.arange(len(IDS) * DIMENSION, dtype=np.float32)).reshape(-1, DIMENSION)
    store.push(COUNTS, IDS, NONE, gradients, seconds)


def rows_of(store: RowStore) -> list[Copied]:
    return [chunk for chunk in copied(store) if chunk.kind == ROWS]


def contents(store: RowStore) -> dict[int, list[bytes]]:
    """Cells by bucket, in the order of their bytes."""
    held: dict[int, list[bytes]] = {}
    for chunk in rows_of(store):
        for bucket, cell in zip(np.repeat(chunk.buckets, chunk.counts).tolist(), chunk.cells, strict=True):
            held.setdefault(bucket, []).append(cell.tobytes())
    return {bucket: sorted(cells) for bucket, cells in held.items()}


def load_all(store: RowStore, chunks: list[Copied], numbers: np.ndarray = TABLES) -> None:
    buckets = np.concatenate([chunk.buckets for chunk in chunks])
    counts = np.concatenate([chunk.counts for chunk in chunks])
    once = np.unique(buckets)
    assert reserve_rows(store, once, np.bincount(buckets, counts, BUCKETS).astype(np.int64)[once])
    for chunk in chunks:
        load_columns(store, chunk.buckets, chunk.counts, numbers, row_columns(store.layout, chunk.cells))


def assert_as_pushed(loaded: RowStore, pushed: RowStore) -> None:
    """Rows of `IDS` are found, counted, trained and dropped alike; both stores are used up."""
    assert contents(loaded) == contents(pushed)
    np.testing.assert_array_equal(loaded.entries, pushed.entries)
    assert loaded.rows == len(IDS) and loaded.memory_bytes <= pushed.memory_bytes
    for store in (pushed, loaded):
        push(store, 9.0)
    assert loaded.rows == len(IDS)
    expected = pushed.pull(COUNTS, IDS, read_only=True)[0]
    np.testing.assert_array_equal(loaded.pull(COUNTS, IDS, read_only=True)[0], expected)
    for bucket in range(BUCKETS):
        loaded.bucket(bucket).drop()
    assert loaded.rows == 0 and not loaded.rows_memory.indexed.hash_index.runs[:, LINES].any()


def one(column: Columns, chosen: np.ndarray) -> Columns:
    return {name: values[chosen] for name, values in column.items()}


@pytest.mark.parametrize("table", [None, TableSpec(evict_after=60.0)], ids=["kept", "evicted"])
def test_rows_are_found_counted_and_trained_as_those_that_were_pushed(table: TableSpec | None) -> None:
    pushed, loaded = store_of(table=table), store_of(table=table)
    push(pushed)
    load_all(loaded, rows_of(pushed))
    assert_as_pushed(loaded, pushed)


def test_tables_have_the_numbers_of_this_store() -> None:
    pushed, loaded = store_of(), store_of()
    push(pushed)
    with pytest.raises(ForeignCellError):
        load_all(loaded, rows_of(pushed), TABLES[::-1].copy())  # other tables' ids lie in other buckets


def test_buckets_with_rows_or_with_a_log_take_no_columns() -> None:
    pushed, logged = store_of(), store_of()
    push(pushed)
    buckets, counts = np.arange(BUCKETS), np.full(BUCKETS, 10)
    assert not reserve_rows(pushed, buckets, counts)
    logged.bucket(3).mark()
    assert not reserve_rows(logged, buckets, counts)
    assert reserve_rows(logged, np.array([4]), counts[:1])


def test_a_row_of_another_bucket_and_an_unknown_bucket_are_named() -> None:
    pushed = store_of()
    push(pushed)
    chunk = rows_of(pushed)[0]
    columns = row_columns(pushed.layout, chunk.cells)
    columns["ids"][50] += 1
    store = store_of()
    assert reserve_rows(store, chunk.buckets, chunk.counts)
    with pytest.raises(ForeignCellError) as refused:
        load_columns(store, chunk.buckets, chunk.counts, TABLES, columns)
    assert refused.value.number == 50 and store.locks.words[::8].sum() == 0
    for bucket in (BUCKETS, -1):
        runs = np.array([bucket]), np.array([3])
        assert reserve_rows(store, *runs)
        with pytest.raises(ForeignCellError):
            load_columns(store, *runs, TABLES, one(columns, np.arange(3)))


def test_a_cell_of_an_unknown_table_is_named() -> None:
    pushed = store_of()
    push(pushed)
    cells = rows_of(pushed)[0].cells
    cells[50, TABLE] = len(TABLES)
    with pytest.raises(ForeignCellError) as refused:
        look_up_cells(pushed, cells, None)
    assert refused.value.number == 50


def test_a_duplicate_id_is_inserted_once() -> None:
    pushed, loaded = store_of(), store_of()
    push(pushed)
    chunk = rows_of(pushed)[0]
    bucket, count = int(chunk.buckets[0]), int(chunk.counts[0])
    columns = one(row_columns(pushed.layout, chunk.cells), np.r_[0:count, 0:5])
    runs = np.array([bucket]), np.array([count + 5])
    assert reserve_rows(loaded, *runs)
    load_columns(loaded, *runs, TABLES, columns)
    pool = loaded.rows_memory.indexed.pool
    assert pool.buckets[bucket, COUNT] == count == loaded.entries[bucket, :, 0].sum()
    # Room that was taken for rows which came twice was given back.
    twice = np.tile(np.arange(count), 20)
    other = store_of()
    assert reserve_rows(other, runs[0], np.array([len(twice)]))
    load_columns(other, runs[0], np.array([len(twice)]), TABLES, one(columns, twice))
    memory = other.rows_memory.rows
    assert memory.bytes == -(-count // memory.pool.shape.per_slab) * memory.slab_bytes


def test_a_bucket_may_be_loaded_in_pieces_of_any_size() -> None:
    pushed, loaded = store_of(), store_of()
    push(pushed)
    chunk = rows_of(pushed)[0]
    bucket, count = chunk.buckets[:1], int(chunk.counts[0])
    columns = row_columns(pushed.layout, chunk.cells[:count])
    assert reserve_rows(loaded, bucket, np.array([count]))
    memory = loaded.rows_memory.rows
    ends = [0, 1, 90, 90, count - 1, count]
    for first, last in itertools.pairwise(ends):
        load_columns(loaded, bucket, np.array([last - first]), TABLES, one(columns, np.arange(first, last)))
    assert contents(loaded) == {int(bucket[0]): contents(pushed)[int(bucket[0])]}
    assert memory.bytes == -(-count // memory.pool.shape.per_slab) * memory.slab_bytes


def test_no_more_slabs_are_allocated_than_exist() -> None:
    memory = store_of(capacity_rows=1000).rows_memory.rows
    left = len(memory.pool.slabs)
    with pytest.raises(ServerMemoryError, match=f"all {left} slabs"):
        memory.allocate(left + 1)
    taken = memory.allocate(left)
    assert sorted(taken.tolist()) == list(range(left))
    memory.return_unused(taken[5:])
    assert memory.bytes == 5 * memory.slab_bytes and memory.allocate(2).tolist() == [5, 6]


def test_rows_beyond_the_servers_room_are_refused() -> None:
    pushed = store_of()
    push(pushed)
    with pytest.raises(ServerMemoryError, match="no room for another row"):
        load_all(store_of(capacity_rows=len(IDS) - 1), rows_of(pushed))
