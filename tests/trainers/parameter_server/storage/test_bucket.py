"""Buckets of sizes at which slabs, index runs and memory matter; test_model tests their contents."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from elastrec.checkpoints.rows import cell_ids
from elastrec.platform.specs.errors import ElastrecError, IncompatibleError
from elastrec.platform.specs.job import TableSpec
from elastrec.platform.specs.optimizers import OptimizerSpec
from elastrec.trainers.parameter_server.hashing import buckets_of
from elastrec.trainers.parameter_server.plan import make_plan
from elastrec.trainers.parameter_server.storage import RowStore, ThawedError
from elastrec.trainers.parameter_server.storage import bucket as bucket_module
from elastrec.trainers.parameter_server.storage.copying import copy_frozen
from elastrec.trainers.parameter_server.storage.kernels.arrays import CELL_VERSION, TABLE
from tests.trainers.parameter_server.storage.copies import columns_of

BUCKETS, DIMENSION = 4, 16


def store_of(*, stripes: int = 1, table: TableSpec | None = None, dimension: int = DIMENSION) -> RowStore:
    plan = make_plan({"t": dimension}, settings={"t": table} if table else {}, virtual_buckets=BUCKETS)
    return RowStore(plan, plan.groups[0], np.ones(BUCKETS, np.bool_), 1_000_000, stripes)


def push(store: RowStore, ids: np.ndarray, gradient: float = 1.0, now: float = 0.0) -> None:
    gradients = np.full((len(ids), store.group.dimension), gradient, np.float32)
    store.push(np.array([len(ids)], np.int32), ids, np.ones(len(ids), np.int32), gradients, now)


def pull(store: RowStore, ids: np.ndarray) -> np.ndarray:
    return store.pull(np.array([len(ids)], np.int32), ids, read_only=True)[0]


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def test_rows_are_found_while_index_and_slabs_grow_and_shrink_again() -> None:
    store = store_of(table=TableSpec(evict_after=100.0))
    ids = np.random.default_rng(0).permutation(60_000) * 7919
    for first in range(0, len(ids), 5000):
        push(store, ids[first : first + 5000], now=float(first))
        assert pull(store, ids[: first + 5000]).any(axis=1).all()
    assert store.rows == len(ids)
    assert store.evict(50_000 + 101) == 55_000
    assert pull(store, ids[55_000:]).any(axis=1).all() and not pull(store, ids[:55_000]).any()
    push(store, ids[:20_000], now=60_000.0)
    assert pull(store, ids[:20_000]).any(axis=1).all() and store.rows == 25_000


def test_a_row_costs_less_than_100_bytes_and_accounted_memory_is_the_processs() -> None:
    store, random = store_of(), np.random.default_rng(0)
    push(store, random.integers(0, 2**40, 1000))
    before, rows, bytes_per_row = resident_bytes(), store.rows, []
    for _ in range(30):
        push(store, np.unique(random.integers(0, 2**40, 10_000)))
        bytes_per_row.append(sum(usage.bytes for usage in store.usage()) / store.rows)
    grown = (resident_bytes() - before) / (store.rows - rows)
    assert max(bytes_per_row) < 100
    steps = np.diff(np.array(bytes_per_row)) / bytes_per_row[:-1]
    assert np.abs(steps).max() <= 0.1
    # A huge page of rows and one of index may be begun.
    assert abs(grown - bytes_per_row[-1]) <= 0.05 * grown + 2 * 2**21 / (store.rows - rows)


def test_dropping_half_of_the_buckets_returns_their_memory_and_refuses_their_ids() -> None:
    store = store_of()
    warm, ids = store_of(), np.arange(400_000)
    push(warm, ids[:100])
    warm.bucket(0).drop()  # compiling takes memory, too
    push(store, ids)
    buckets = buckets_of(ids, "t", BUCKETS)
    lost = float((buckets < 2).mean())
    full, accounted = resident_bytes(), store.memory_bytes
    for bucket in (0, 1):
        store.bucket(bucket).drop()
    assert full - resident_bytes() >= 0.9 * lost * accounted
    assert store.memory_bytes == pytest.approx((1 - lost) * accounted, rel=0.02)
    kept = ids[buckets >= 2]
    assert pull(store, kept).any(axis=1).all() and store.rows == len(kept)
    with pytest.raises(IncompatibleError, match="another server"):
        pull(store, ids[buckets == 0][:1])
    with pytest.raises(IncompatibleError, match="another server"):
        push(store, ids[buckets == 1][:1])


def test_a_push_that_was_laid_out_before_its_bucket_was_dropped_is_refused() -> None:
    store, ids = store_of(), np.arange(100)
    push(store, ids)
    counts = np.array([100], np.int32)
    lookup = store.pull(counts, ids, read_only=False)[1]
    store.bucket(2).drop()
    with pytest.raises(IncompatibleError, match="another server"):
        store.push(counts, ids, np.empty(0, np.int32), np.ones((100, DIMENSION), np.float32), 0.0, lookup)


def test_a_listing_of_few_changes_reads_only_those() -> None:
    store = store_of()
    push(store, np.arange(50_000))
    versions = [store.bucket(bucket).mark() for bucket in range(BUCKETS)]
    changed = np.arange(0, 50_000, 50)
    push(store, changed)
    rows = 0
    for bucket, version in enumerate(versions):
        log = store.rows_memory.indexed.log.buckets[bucket, 0]
        changes = store.bucket(bucket).changes(version)
        assert not changes.is_whole and len(changes.rows) == log
        rows += len(changes.rows)
    assert rows == len(changed)


def test_a_log_that_is_too_long_ends_and_the_listing_is_whole() -> None:
    store = store_of()
    push(store, np.arange(50_000))
    version = store.bucket(0).mark()
    push(store, np.arange(50_000))
    changes = store.bucket(0).changes(version)
    assert changes.is_whole and len(changes.rows) == store.bucket(0).rows
    again = store.bucket(0).changes(changes.version)
    assert not again.is_whole and not len(again.rows)


@pytest.mark.parametrize(
    ("dimension", "changed", "is_whole"), [(8, 0.2, False), (8, 0.3, True), (64, 0.7, False), (64, 0.8, True)]
)
def test_a_log_holds_more_changes_of_wider_rows(dimension: int, changed: float, is_whole: bool) -> None:
    store, ids = store_of(dimension=dimension), np.arange(20_000)
    push(store, ids)
    version = store.bucket(0).mark()
    of_bucket = ids[buckets_of(ids, "t", BUCKETS) == 0]
    push(store, of_bucket[: int(changed * len(of_bucket))])
    assert store.bucket(0).changes(version).is_whole is is_whole


def test_a_frozen_bucket_cannot_be_frozen_again_and_a_cancelled_copy_raises() -> None:
    store = store_of()
    push(store, np.arange(1000))
    store.cuts.freeze([0, 1])
    with pytest.raises(ElastrecError, match="frozen already"):
        store.cuts.freeze([1, 2])
    assert not store.bucket(2).is_frozen
    rest = copy_frozen(store, np.array([0, 1]), 1)
    next(rest)
    store.cuts.thaw([0, 1])
    with pytest.raises(ThawedError, match="freeze it and copy it again"):
        list(rest)


@pytest.mark.parametrize("is_marked", [True, False], ids=["marked", "not marked"])
def test_a_bucket_is_copied_in_parts_while_its_rows_change_move_and_are_removed(is_marked: bool) -> None:
    here, there, random = (
        store_of(table=TableSpec(evict_after=1000.0)),
        store_of(table=TableSpec(evict_after=1000.0)),
        np.random.default_rng(0),
    )
    push(here, np.arange(40_000), now=5000.0)
    source, target = here.bucket(0), there.bucket(0)
    part_bytes, parts, largest = 100_000, 0, 0
    changes = source.changes(-1, part_bytes=part_bytes)
    while True:
        parts, largest = parts + 1, max(largest, changes.size_bytes)
        target.take_in(changes)
        assert target.version > changes.rows[:, CELL_VERSION].max()
        if changes.left == (0, 0):
            break
        if is_marked:
            source.mark()
        # Some rows change, some are new, and those of the last turn go: others move into their places.
        push(here, random.integers(0, 40_000, 50), now=5000.0)
        push(here, 100_000 + 50 * parts + np.arange(50), now=3000.0 + parts)
        here.evict(4000.0 + parts)
        changes = source.changes(changes.version, changes.left, part_bytes)
        assert not changes.is_whole
    assert parts > 5 and largest <= part_bytes
    rest = source.changes(changes.version)
    assert not rest.is_whole and 0 < len(rest.rows) < source.rows / 4
    target.take_in(rest)
    assert target.rows == source.rows
    assert_equal_rows(here, there)


def gate_before_locks(store: RowStore, monkeypatch: pytest.MonkeyPatch, work: Callable[[], None]) -> list[int]:
    """Does some work before each lock of a bucket, but for those of the work itself; which buckets were locked."""
    locked, locks = store.locked, list[int]()

    @contextmanager
    def gated(bucket: int) -> Iterator[int]:
        locks.append(bucket)
        monkeypatch.setattr(store, "locked", locked)
        work()
        monkeypatch.setattr(store, "locked", gated)
        with locked(bucket) as stripe:
            yield stripe

    monkeypatch.setattr(store, "locked", gated)
    return locks


def moving_stores() -> tuple[RowStore, RowStore, int]:
    """Two stores of which the second has bucket 0 of the first as of a version."""
    here, there = (store_of(table=TableSpec(evict_after=1000.0)) for _ in range(2))
    push(here, np.arange(40_000), now=5000.0)
    whole = here.bucket(0).changes(-1)
    there.bucket(0).take_in(whole)
    return here, there, whole.version


def assert_equal_rows(here: RowStore, there: RowStore) -> None:
    mine, theirs = (store.bucket(0).changes(-1).rows for store in (here, there))
    for each in mine, theirs:
        each[:] = each[np.argsort(cell_ids(each))]
    np.testing.assert_array_equal(mine, theirs)


def test_rows_change_move_and_are_deleted_between_the_steps_of_a_listing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bucket_module, "COPY_STEP_CELLS", 64)
    here, there, version = moving_stores()
    random, turn = np.random.default_rng(0), [0]
    push(here, np.arange(0, 5000), now=5000.0)
    push(here, 100_000 + np.arange(1000), now=3000.0)
    here.evict(4500.0)  # tombstones of rows that `there` does not have
    push(here, 200_000 + np.arange(400), now=3000.0)

    def change() -> None:
        turn[0] += 1
        push(here, random.integers(0, 6000, 5), now=5000.0)
        push(here, 300_000 + 5 * turn[0] + np.arange(5), now=5000.0)
        if turn[0] % 8 == 0:
            here.evict(4500.0)

    locks = gate_before_locks(here, monkeypatch, change)
    changes = here.bucket(0).changes(version)
    monkeypatch.undo()
    assert not changes.is_whole and len(changes.rows) > 500 and len(changes.deleted) > 100
    # Both its entries in the log and its cells are copied step by step.
    assert len(locks) >= 2 * len(changes.rows) // 64
    there.bucket(0).take_in(changes)
    rest = here.bucket(0).changes(changes.version)
    assert not rest.is_whole and len(rest.rows) and len(rest.deleted)
    there.bucket(0).take_in(rest)
    assert_equal_rows(here, there)


@pytest.mark.parametrize("ends_at", [2, 4, 9], ids=["tombstones", "log", "cells"])
def test_a_listing_is_complete_although_its_log_ended_during_it(ends_at: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bucket_module, "COPY_STEP_CELLS", 64)
    here, there, version = moving_stores()
    push(here, np.arange(1000), now=5000.0)
    turn = [0]

    def change() -> None:
        turn[0] += 1
        if turn[0] == ends_at:
            push(here, np.arange(40_000), now=5000.0)

    gate_before_locks(here, monkeypatch, change)
    changes = here.bucket(0).changes(version)
    monkeypatch.undo()
    assert changes.is_whole
    there.bucket(0).take_in(changes)
    assert_equal_rows(here, there)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda rows: with_table(rows, 9), "rows, cell 3: id .* of table 9 is not allowed; .* in the tables 0 to 0"),
        (lambda rows: with_foreign_id(rows), "rows, cell 3: id .* is not allowed; allowed: ids of this bucket"),
        (lambda rows: rows[:, :-1].copy(), "rows came as uint32 .*; allowed: uint32"),
        (lambda rows: rows.astype(np.int32), "rows came as int32"),
        (lambda rows: rows.reshape(-1), "rows came as uint32"),
    ],
    ids=["table", "bucket", "width", "dtype", "shape"],
)
def test_cells_that_cannot_be_of_the_bucket_are_refused_and_nothing_is_changed(
    damage: Callable[[np.ndarray], np.ndarray], message: str
) -> None:
    here, there, _ = moving_stores()
    held, whole = there.rows, here.bucket(0).changes(-1)
    with pytest.raises(IncompatibleError, match=message):
        there.bucket(0).take_in(replace(whole, rows=damage(whole.rows.copy())))
    with pytest.raises(IncompatibleError, match="deleted"):
        there.bucket(0).take_in(replace(whole, deleted=with_table(whole.rows[:, :4].copy(), 65_535)))
    assert there.rows == held and there.entries.sum() == held
    assert_equal_rows(here, there)


def with_table(cells: np.ndarray, table: int) -> np.ndarray:
    cells[3, TABLE] = table
    return cells


def with_foreign_id(cells: np.ndarray) -> np.ndarray:
    foreign = next(key for key in range(100) if buckets_of(np.array([key]), "t", BUCKETS)[0] != 0)
    cells[3, :2] = np.array([foreign], np.int64).view(np.uint32)
    return cells


def test_usage_counts_the_rows_of_the_chosen_buckets_alone() -> None:
    store, ids = store_of(stripes=2), np.arange(1000)
    push(store, ids)
    of_bucket = np.bincount(buckets_of(ids, "t", BUCKETS), minlength=BUCKETS)
    assert [row.rows for row in store.usage(np.array([True, False, True, False]))] == [of_bucket[0] + of_bucket[2]]
    store.bucket(2).drop()
    assert store.usage(np.array([False, False, True, False]))[0].rows == 0
    assert store.usage()[0].rows == len(ids) - of_bucket[2] == store.rows


def test_a_bucket_that_was_dropped_after_a_save_has_changed_completely() -> None:
    store, buckets = store_of(), np.arange(BUCKETS)
    store.cuts.logs = True

    def save(cut: str) -> None:
        store.cuts.freeze(buckets)
        store.cuts.remember(cut, buckets)
        store.cuts.thaw(buckets)

    push(store, np.arange(1000))
    for cut in ("one", "two", "three"):
        push(store, np.arange(40))
        save(cut)
    store.bucket(0).drop()
    store.bucket(0).own()
    push(store, np.arange(40))
    # A save that became no record: changes are logged again from here.
    store.cuts.freeze(buckets)
    store.cuts.thaw(buckets)
    store.cuts.freeze(buckets)
    assert store.cuts.since("three", buckets).tolist() == [-1, 2, 2, 2]


def test_requests_evictions_and_copies_side_by_side_lose_nothing() -> None:
    """Threads push to the same rows, others copy, list and evict: each gradient is in the sums once."""
    store = store_of(stripes=4, table=TableSpec(evict_after=1000.0))
    ids, pushes, threads = np.arange(20_000), 30, 3
    push(store, ids, 0.0, now=5000.0)
    done, errors = threading.Event(), []

    def guarded(work: object) -> None:
        try:
            work()  # type: ignore[operator]
        except Exception as error:
            errors.append(error)

    def train() -> None:
        for number in range(pushes):
            chosen = ids[number % 2 :: 2]
            lookup = store.pull(np.array([len(chosen)], np.int32), chosen, read_only=False)[1]
            gradients = np.ones((len(chosen), DIMENSION), np.float32)
            store.push(np.array([len(chosen)], np.int32), chosen, np.empty(0, np.int32), gradients, 5000.0, lookup)
            push(store, chosen + 1_000_000 * (1 + number), 0.0, now=3000.0 + number)

    def copy() -> None:
        while not done.is_set():
            for bucket in range(BUCKETS):
                assert len(columns_of(store, buckets=[bucket])["ids"]) >= 20_000 / BUCKETS * 0.9
                store.bucket(bucket).changes(store.bucket(bucket).version - 1)

    def evict() -> None:
        while not done.is_set():
            store.evict(5000.0)

    trainers = [threading.Thread(target=guarded, args=(train,)) for _ in range(threads)]
    others = [threading.Thread(target=guarded, args=(work,)) for work in (copy, evict)]
    for thread in [*trainers, *others]:
        thread.start()
    for thread in trainers:
        thread.join(120)
    done.set()
    for thread in others:
        thread.join(60)
    assert not errors
    store.evict(5000.0)
    assert store.rows == len(ids)
    columns = columns_of(store)
    held = {key: float(total) for key, total in zip(columns["ids"].tolist(), columns["state"][:, 0], strict=True)}
    initial = OptimizerSpec().initial_accumulator
    assert set(held.values()) == {np.float32(initial + threads * pushes / 2)} and len(held) == len(ids)
