"""The memory of dropped stores is reused, and their contents are never visible."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elastrec.platform.specs.job import TableSpec
from elastrec.trainers.parameter_server.plan import make_plan
from elastrec.trainers.parameter_server.storage import RowStore
from elastrec.trainers.parameter_server.storage.kernels.arrays import LINES, START
from elastrec.trainers.parameter_server.storage.loading import reserve_rows
from elastrec.trainers.parameter_server.storage.memory import PAGE_BYTES, IndexMemory, PoolMemory, Region, UsedRegions
from tests.trainers.parameter_server.storage.test_loading import contents, load_all, rows_of

BUCKETS, TABLE = 16, TableSpec(admit_after=2)


class User:
    """Of regions."""


def store_on(used: UsedRegions | None = None, *, table: TableSpec | None = None) -> RowStore:
    settings = {"a": table, "b": table} if table else {}
    plan = make_plan({"a": 3, "b": 3}, settings=settings, virtual_buckets=BUCKETS)
    return RowStore(plan, plan.groups[0], np.ones(BUCKETS, np.bool_), 50_000, 4, used)


def push(store: RowStore, ids: range, gradient: float = 1.0) -> None:
    counts = np.array([len(ids), 0], np.int32)
    gradients = np.full((len(ids), 3), gradient, np.float32)
    store.push(counts, np.array(ids, np.int64), np.ones(len(ids), np.int32), gradients, 5.0)


def test_a_freed_region_is_reused_for_the_same_size() -> None:
    gone, alive = User(), User()
    regions = [Region(PAGE_BYTES, huge=False), Region(2 * PAGE_BYTES, huge=False), Region(PAGE_BYTES, huge=False)]
    used = UsedRegions([(alive, regions[2:]), (gone, regions[:2])])
    assert used.take(PAGE_BYTES, huge=False) not in regions
    del gone
    assert used.take(2 * PAGE_BYTES, huge=True) not in regions
    assert used.take(PAGE_BYTES, huge=False) is regions[0]
    assert used.take(PAGE_BYTES, huge=False) not in regions
    used.clear()
    assert used.take(2 * PAGE_BYTES, huge=False) not in regions


def test_lines_of_an_index_are_empty_wherever_they_lie() -> None:
    before = IndexMemory(4, 1000)
    regions = [(User(), [before.region])]
    for pages in (1, 2):
        before.allocate(pages)
    before.allocate_each(np.array([3, 1]))
    before.index.lines[: 7 * PAGE_BYTES // 64] = 7
    used = UsedRegions(regions)
    regions.clear()
    after = IndexMemory(4, 1000, used)
    assert after.index.lines is not before.index.lines and after.index.lines[0, 0] == 7
    after.allocate(1)
    assert not after.index.lines[: PAGE_BYTES // 64].any() and after.index.lines[PAGE_BYTES // 64, 0] == 7
    after.allocate_each(np.array([2, 1]))
    assert not after.index.lines[: 4 * PAGE_BYTES // 64].any() and after.index.lines[4 * PAGE_BYTES // 64, 0] == 7


def test_passed_on_memory_has_no_more_pages_than_were_in_use() -> None:
    before, rows_before = IndexMemory(4, 1000), PoolMemory(4, 4, 1, 100 * PAGE_BYTES, PAGE_BYTES, huge=False)
    # Runs that grow and slabs of buckets that were given away leave others at the end.
    runs = [before.allocate(pages) for pages in (1, 2, 3)]
    for run, pages in zip(runs[:2], (1, 2), strict=True):
        before.free(run, pages * PAGE_BYTES // 64)
    rows_before.allocate(10)
    rows_before.free([0, 1, 2, 3])
    regions = before.region, rows_before.region
    for region in regions:
        region.words[: 10 * PAGE_BYTES // 4] = 7
    used = UsedRegions([(User(), regions)])
    after = IndexMemory(4, 1000, used)
    rows_after = PoolMemory(4, 4, 1, 100 * PAGE_BYTES, PAGE_BYTES, huge=False, used=used)
    assert (after.region, rows_after.region) == regions
    for region, pages in zip(regions, (3, 6), strict=True):
        end = pages * PAGE_BYTES // 4
        assert region.left_bytes == pages * PAGE_BYTES and region.words[:end].all()
        assert not region.words[end : 6 * PAGE_BYTES // 4].any()


def test_unused_memory_is_returned_to_the_system() -> None:
    before = PoolMemory(4, 4, 1, 100 * PAGE_BYTES, PAGE_BYTES, huge=False)
    regions = [(User(), [before.region])]
    before.allocate(10)
    before.pool.words[: 10 * PAGE_BYTES // 4] = 7
    used = UsedRegions(regions)
    regions.clear()
    after = PoolMemory(4, 4, 1, 100 * PAGE_BYTES, PAGE_BYTES, huge=False, used=used)
    after.allocate(3)
    assert (after.pool.words[: 10 * PAGE_BYTES // 4] == 7).all()
    after.trim()
    assert (after.pool.words[: 3 * PAGE_BYTES // 4] == 7).all() and not after.pool.words[3 * PAGE_BYTES // 4 :].any()
    # Its own are kept from then on, also when it has more of them than the one before.
    after.allocate(20)
    after.pool.words[: 23 * PAGE_BYTES // 4] = 9
    after.trim()
    assert (after.pool.words[: 23 * PAGE_BYTES // 4] == 9).all()


@pytest.mark.parametrize("table", [None, TABLE], ids=["admitted", "counted"])
@given(sizes=st.lists(st.integers(0, 4000), min_size=2, max_size=4), seed=st.integers(0, 2**16))
@settings(deadline=None, max_examples=25)
def test_a_store_in_used_memory_equals_one_in_new_memory(table: TableSpec | None, sizes: list[int], seed: int) -> None:
    used = UsedRegions()
    first = seed
    for size in sizes:
        store, expected = store_on(used, table=table), store_on(table=table)
        for each in (store, expected):
            for _ in range(2):
                push(each, range(first, first + size))
                push(each, range(first + size // 2, first + 2 * size), 2.0)
        counts, ids = np.array([3 * size, 0], np.int32), np.arange(first - size // 2, first - size // 2 + 3 * size)
        np.testing.assert_array_equal(
            store.pull(counts, ids, read_only=True)[0], expected.pull(counts, ids, read_only=True)[0]
        )
        assert contents(store) == contents(expected)
        np.testing.assert_array_equal(store.entries, expected.entries)
        store.trim()
        assert contents(store) == contents(expected)
        used = UsedRegions([(store, store.regions)])
        first += size // 3
        del store, each


def test_rows_of_a_record_go_into_used_memory() -> None:
    pushed, before = store_on(), store_on()
    push(pushed, range(5000))
    push(before, range(3000, 20_000))
    words = before.rows_memory.indexed.pool.words
    used = UsedRegions([(before, before.regions)])
    del before
    loaded = store_on(used)
    assert loaded.rows_memory.indexed.pool.words is words
    load_all(loaded, rows_of(pushed))
    loaded.trim()
    assert contents(loaded) == contents(pushed)
    assert not words[loaded.rows_memory.rows.bytes // 4 :].any()
    counts, ids = np.array([30_000, 0], np.int32), np.arange(30_000)
    for store in (loaded, pushed):
        push(store, range(2500, 30_000))
    expected = pushed.pull(counts, ids, read_only=True)[0]
    np.testing.assert_array_equal(loaded.pull(counts, ids, read_only=True)[0], expected)


def test_room_for_rows_of_a_record_holds_no_row() -> None:
    before = store_on()
    push(before, range(20_000))
    used = UsedRegions([(before, before.regions)])
    del before
    store = store_on(used)
    assert reserve_rows(store, np.arange(BUCKETS), np.full(BUCKETS, 800))
    slots = store.rows_memory.indexed.hash_index
    for start, lines in slots.runs[:, [START, LINES]].tolist():
        assert lines and not slots.lines[start : start + lines].any()
