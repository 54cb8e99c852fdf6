"""Saved cells and lines are copied into slabs and index, in the same layout as pushed rows."""

from __future__ import annotations

import dataclasses
import itertools
from concurrent.futures import ThreadPoolExecutor

import numba
import numpy as np
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from elastrec.platform.specs.errors import CheckpointError
from elastrec.platform.specs.job import TableSpec
from elastrec.trainers.parameter_server.storage import RowStore, slabs
from elastrec.trainers.parameter_server.storage.copying import Copied
from elastrec.trainers.parameter_server.storage.kernels import checksums
from elastrec.trainers.parameter_server.storage.kernels.arrays import ID, TABLE
from elastrec.trainers.parameter_server.storage.kernels.index import PLACES
from elastrec.trainers.parameter_server.storage.lines import LineMaker, Lines
from elastrec.trainers.parameter_server.storage.loading import ForeignCellError, reserve_rows
from elastrec.trainers.parameter_server.storage.slabs import SlabLoader
from tests.trainers.parameter_server.storage.copies import copied
from tests.trainers.parameter_server.storage.test_loading import (
    BUCKETS,
    IDS,
    TABLES,
    assert_as_pushed,
    contents,
    push,
    rows_of,
    store_of,
)


def in_pieces(chunks: list[Copied], cells: int) -> list[Copied]:
    """The same cells, so many at a time."""
    pieces = []
    for chunk in chunks:
        buckets = np.repeat(chunk.buckets, chunk.counts)
        for first in range(0, len(buckets), cells):
            some, counts = np.unique(buckets[first : first + cells], return_counts=True)
            order = np.argsort(buckets[first : first + cells], kind="stable")
            assert (np.diff(order) == 1).all(), "buckets come in the order of their numbers"
            pieces.append(Copied(chunk.kind, some, counts, chunk.cells[first : first + cells]))
    return pieces


def lines_of(store: RowStore, chunks: list[Copied], most_share: float = np.inf) -> list[Lines]:
    maker = LineMaker(store, most_share)
    return [*(each for chunk in chunks for each in maker.add(chunk)), *maker.finish()]


def loader_of(store: RowStore, chunks: list[Copied]) -> SlabLoader:
    counts = np.bincount(
        np.concatenate([chunk.buckets for chunk in chunks]), np.concatenate([chunk.counts for chunk in chunks]), BUCKETS
    )
    buckets = np.flatnonzero(counts)
    assert reserve_rows(store, buckets, counts[buckets].astype(np.int64))
    mine = buckets[store.owned[buckets]]
    return SlabLoader(store, mine, counts[mine].astype(np.int64))


def load_all(store: RowStore, chunks: list[Copied], lines: list[Lines], seed: int = 0) -> None:
    """Everything, in any order."""
    loader, held, works = loader_of(store, chunks), np.zeros(BUCKETS, np.int64), []
    for chunk in chunks:
        works.append((loader.load_cells, (chunk.buckets, chunk.counts, held[chunk.buckets], chunk.cells)))
        held[chunk.buckets] += chunk.counts
    works += [(loader.load_lines, (each.buckets, each.counts, each.lines)) for each in lines]
    for number in np.random.default_rng(seed).permutation(len(works)):
        work, arguments = works[number]
        if (found := work(*arguments)) != -1:  # type: ignore[operator]
            checksum, count = found
            assert checksum == xxhash.xxh3_64_intdigest(arguments[-1].data)
            count()
    loader.finish()


@pytest.mark.parametrize("table", [None, TableSpec(evict_after=60.0)], ids=["kept", "evicted"])
@pytest.mark.parametrize("most_share", [np.inf, 0.0], ids=["with_lines", "without_lines"])
def test_copied_rows_are_found_counted_and_trained_as_those_that_were_pushed(
    table: TableSpec | None, most_share: float
) -> None:
    pushed, loaded = store_of(table=table), store_of(table=table)
    push(pushed)
    chunks = rows_of(pushed)
    lines = lines_of(pushed, chunks, most_share)
    assert sorted(np.concatenate([each.buckets for each in lines] or [[]])) == (
        list(range(BUCKETS)) if most_share else []
    )
    load_all(loaded, chunks, lines)
    assert_as_pushed(loaded, pushed)


@given(
    first=st.integers(0, 2**40),
    rows=st.integers(1, 6000),
    piece=st.integers(50, 3000),
    most_share=st.sampled_from([0.0, 0.25, 1.0, np.inf]),
    seed=st.integers(0, 100),
)
@settings(deadline=None, max_examples=30)
def test_pieces_of_any_size_are_copied_in_any_order(
    first: int, rows: int, piece: int, most_share: float, seed: int
) -> None:
    pushed, loaded = store_of(stripes=1), store_of(stripes=1)
    ids = np.arange(first, first + rows)
    counts, gradients = np.array([rows, 0], np.int32), np.ones((rows, pushed.group.dimension), np.float32)
    pushed.push(counts, ids, np.empty(0, np.int32), gradients, 1.0)
    chunks = in_pieces(rows_of(pushed), piece)
    load_all(loaded, chunks, lines_of(pushed, chunks, most_share), seed)
    assert contents(loaded) == contents(pushed)
    others = np.arange(first - 100, first + rows + 100)
    asked = np.array([len(others), 0], np.int32)
    for store in (pushed, loaded):
        store.evict(0.0)
    np.testing.assert_array_equal(
        loaded.pull(asked, others, read_only=True)[0], pushed.pull(asked, others, read_only=True)[0]
    )


def test_buckets_that_the_store_does_not_own_are_left_out() -> None:
    pushed, loaded = store_of(), store_of()
    push(pushed)
    loaded.owned[::3] = False
    chunks = rows_of(pushed)
    load_all(loaded, chunks, lines_of(pushed, chunks))
    held = contents(pushed)
    assert contents(loaded) == {bucket: cells for bucket, cells in held.items() if bucket % 3}
    assert not loaded.entries[::3].any()


@pytest.mark.parametrize("odd", ["id", "table"])
def test_a_cell_of_another_bucket_or_an_unknown_table_is_named(odd: str) -> None:
    pushed, store = store_of(), store_of()
    push(pushed)
    chunk = rows_of(pushed)[0]
    if odd == "id":
        chunk.cells[150, ID] += 1
    else:
        chunk.cells[150, TABLE] = len(TABLES)
    loader = loader_of(store, [chunk])
    checksum, count = loader.load_cells(chunk.buckets, chunk.counts, np.zeros(len(chunk.counts), np.int64), chunk.cells)
    # The cell may be damaged, so that the caller compares checksums first.
    assert checksum == xxhash.xxh3_64_intdigest(chunk.cells.data) and not store.entries.any()
    with pytest.raises(ForeignCellError) as refused:
        count()
    assert refused.value.number == 150 and store.locks.words[::8].sum() == 0


def test_cells_beyond_the_rows_of_their_bucket_are_refused() -> None:
    pushed, store = store_of(), store_of()
    push(pushed)
    chunk = rows_of(pushed)[0]
    firsts = np.zeros(len(chunk.counts), np.int64)
    firsts[1] = 1
    with pytest.raises(ForeignCellError) as refused:
        loader_of(store, [chunk]).load_cells(chunk.buckets, chunk.counts, firsts, chunk.cells)
    assert refused.value.number == chunk.counts[0]


@pytest.mark.parametrize("library", ["found", "hidden"])
def test_the_checksum_of_copied_cells_is_that_of_their_bytes(library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if library == "hidden":
        monkeypatch.setattr(checksums, "LIBRARY", None)
    else:
        assert checksums.LIBRARY is not None, "the locked xxhash shows its library"
    pushed, store = store_of(), store_of()
    push(pushed)
    store.owned[::3] = False
    chunks = rows_of(pushed)
    load_all(store, chunks, lines_of(pushed, chunks))
    held = contents(pushed)
    assert contents(store) == {bucket: cells for bucket, cells in held.items() if bucket % 3}


def test_threads_do_not_share_a_checksum() -> None:
    checksum = checksums.KernelChecksum()

    def here() -> int:
        return int(checksum.words[checksums._STATE])

    with ThreadPoolExecutor(1) as pool:
        states = [here(), pool.submit(here).result()]
    assert all(states) and len(set(states)) == 2


def test_cells_that_were_damaged_are_loaded_again_and_count_once() -> None:
    pushed, store = store_of(), store_of()
    push(pushed)
    chunks, held = rows_of(pushed), np.zeros(BUCKETS, np.int64)
    loader = loader_of(store, chunks)
    for chunk in chunks:
        torn = chunk.cells.copy()
        torn[3:50] = 2**32 - 1
        for cells in (torn, chunk.cells):
            checksum, count = loader.load_cells(chunk.buckets, chunk.counts, held[chunk.buckets], cells)
            assert (checksum == xxhash.xxh3_64_intdigest(chunk.cells.data)) is (cells is not torn)
        count()
        held[chunk.buckets] += chunk.counts
    loader.finish()
    assert_as_pushed(store, pushed)


@pytest.mark.parametrize("odd", ["count", "place", "tag"])
def test_lines_that_do_not_fit_the_rows_are_named(odd: str) -> None:
    pushed, store = store_of(), store_of()
    push(pushed)
    chunk = rows_of(pushed)[0]
    (made, last) = lines_of(pushed, [chunk])
    loader = loader_of(store, [chunk])
    assert loader.load_lines(last.buckets, last.counts, last.lines) == -1
    if odd == "count":
        made = dataclasses.replace(made, counts=made.counts - 1, lines=made.lines[: -len(made.counts)])
        assert loader.load_lines(made.buckets, made.counts, made.lines) == made.buckets[0]
        return
    begin = int(made.counts[0])
    words = made.lines[begin : begin + int(made.counts[1])]
    line = int(np.flatnonzero(words[:, :PLACES].any(axis=1))[0])
    if odd == "place":
        words[line, PLACES] = 2**20
    else:
        words[line, 0] &= 0xFFFFFF00
    assert loader.load_lines(made.buckets, made.counts, made.lines) == made.buckets[1]


def test_a_row_that_is_copied_twice_is_found_before_the_part_is_complete() -> None:
    pushed = store_of()
    push(pushed)
    (chunk, *_) = rows_of(pushed)
    bucket, count = int(chunk.buckets[2]), int(chunk.counts[2])
    first = int(chunk.counts[:2].sum())
    chunk.cells[first + count - 1] = chunk.cells[first + 5]
    with pytest.raises(CheckpointError, match=f"bucket {bucket} has a duplicate row"):
        lines_of(pushed, [chunk])


def test_lines_of_few_rows_are_not_made() -> None:
    pushed = store_of()
    push(pushed)
    (chunk, *_) = rows_of(pushed)
    made = lines_of(pushed, [chunk], 0.5)
    enough = chunk.counts * pushed.row_bytes >= 2 * 4096
    assert enough.any() and np.concatenate([each.buckets for each in made]).tolist() == chunk.buckets[enough].tolist()
    assert lines_of(pushed, [chunk], 0.01) == []


def test_slabs_are_freed_when_a_part_is_damaged() -> None:
    pushed, store = store_of(), store_of()
    push(pushed)
    chunks = rows_of(pushed)
    memory = store.rows_memory.rows
    loader = loader_of(store, chunks)
    assert loader.has_room and memory.bytes > 0
    loader.abandon()
    assert memory.bytes == 0
    load_all(store, chunks, lines_of(pushed, chunks))
    assert contents(store) == contents(pushed)


def test_no_slabs_are_allocated_that_are_not_adjacent() -> None:
    pushed, small = store_of(), store_of(capacity_rows=len(IDS))
    push(pushed)
    memory = small.rows_memory.rows
    taken = memory.allocate(len(memory.pool.slabs) - 5)
    memory.return_unused(taken)
    assert not loader_of(small, rows_of(pushed)).has_room and memory.bytes == 0


def test_every_chunk_of_a_bucket_counts_for_its_lines() -> None:
    pushed = store_of(stripes=1)
    push(pushed)
    chunks = rows_of(pushed)
    whole = lines_of(pushed, chunks)
    pieces = lines_of(pushed, in_pieces(copied_again(pushed), 97))
    for name in ("buckets", "counts", "lines"):
        joined = [np.concatenate([getattr(each, name) for each in made]) for made in (whole, pieces)]
        np.testing.assert_array_equal(*joined)
    assert len(pieces) > len(whole) == 2
    assert [len(each.lines) for each in itertools.islice(pieces, 1)] == [pieces[0].counts.sum()]


def copied_again(store: RowStore) -> list[Copied]:
    return [chunk for chunk in copied(store) if chunk.kind == 0]


def test_a_thread_waits_once_for_the_cells_that_it_has_copied_past_the_caches() -> None:
    pushed, loaded = store_of(), store_of()
    push(pushed)
    chunks = rows_of(pushed)
    load_all(loaded, chunks, lines_of(pushed, chunks))
    # Compiled here, because numba shows no code from its cache.
    kernel = numba.njit(_nrt=False)(slabs._copy_cells.py_func)
    kernel.compile(slabs._copy_cells.signatures[0])
    (code,) = kernel.inspect_llvm().values()
    functions = code.split("\ndefine ")
    (copies,) = (each for each in functions if "!nontemporal" in each)
    assert code.count(" fence ") == 1 and " fence " not in copies, "a wait per slab takes as long as its copy"
