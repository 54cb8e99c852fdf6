"""Loading of many rows at once, for restores and migrations.

Rows of a full record replace no rows, so they are copied from its columns directly into slabs and index
(`load_columns`). All other rows are loaded as cells, each of which is looked up and replaced (`load`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from elastrec.trainers.parameter_server.hashing import splitmix64
from elastrec.trainers.parameter_server.prefetch import AHEAD, prefetch
from elastrec.trainers.parameter_server.storage.columns import Columns
from elastrec.trainers.parameter_server.storage.handle import guarded_of, rows_of, settings_of
from elastrec.trainers.parameter_server.storage.kernels import access
from elastrec.trainers.parameter_server.storage.kernels.arrays import (
    CELL_VERSION,
    COUNT,
    FROZEN,
    ID,
    LAST,
    LINES,
    LOGGING,
    START,
    TABLE,
    TABLE_BITS,
    VERSION,
    Request,
    read_only_view,
)
from elastrec.trainers.parameter_server.storage.kernels.compiling import kernel
from elastrec.trainers.parameter_server.storage.kernels.index import home_of, insert_new
from elastrec.trainers.parameter_server.storage.kernels.locks import lock, unlock
from elastrec.trainers.parameter_server.storage.kernels.pools import append_slab, offset_of
from elastrec.trainers.parameter_server.words import copy_row

if TYPE_CHECKING:
    from elastrec.trainers.parameter_server.storage.store import Lookup, RowStore

Array = np.ndarray[Any, Any]

_S32 = np.uint64(32)
_NEXT, _USED = 0, 1  # columns of `progress`


@kernel
def order_cells(cells, salts, owned, stripe_of, expected, request, at):  # type: ignore[no-untyped-def]
    """Fills a request for the ids of cells [n, W]; cells in buckets that are not `owned` [V] are left out.

    Returns the number of the first cell whose table does not exist or whose bucket is not the expected one, else -1.

    Args:
        expected: [n] int32, the bucket of each cell; negative: any.
        request: to be filled; its `starts` are zero.
        at: [S] int64, scratch.
    """
    virtual_buckets = np.uint64(owned.shape[0])
    stripes = request.starts.shape[0] - 1
    for j in range(cells.shape[0]):
        key = np.uint64(cells[j, ID]) | (np.uint64(cells[j, ID + 1]) << _S32)
        table = cells[j, TABLE] & TABLE_BITS
        if table >= salts.shape[0]:
            return j
        row_hash = splitmix64(key ^ salts[table])
        bucket = np.int64(row_hash % virtual_buckets)
        if expected[j] >= 0 and expected[j] != bucket:
            return j
        request.ids[j] = np.int64(key)
        request.hashes[j] = row_hash
        request.buckets[j] = bucket
        request.tables[j] = table
        if owned[bucket]:
            request.starts[stripe_of[bucket] + 1] += 1
    for s in range(stripes):
        at[s] = request.starts[s]
        request.starts[s + 1] += at[s]
    for j in range(cells.shape[0]):
        bucket = np.int64(request.buckets[j])
        if owned[bucket]:
            stripe = stripe_of[bucket]
            request.order[at[stripe]] = j
            at[stripe] += 1
    return -1


class ForeignCellError(Exception):
    """A cell does not belong to its stated bucket, or its table does not exist.

    Attributes:
        number: the cell's position in the array that was passed.
    """

    def __init__(self, number: int) -> None:
        super().__init__(f"cell {number} belongs to another bucket or table")
        self.number = number


def look_up_cells(store: RowStore, cells: Array, buckets: Array | None) -> Lookup:
    """A lookup of the ids of cells [n, W], of those in owned buckets.

    Args:
        buckets: [n] int32, the bucket to which each cell must belong; None: any.

    Raises:
        ForeignCellError: a cell belongs to another bucket, or its table does not exist.
    """
    size, stripes = len(cells), len(store.moves)
    expected = np.full(size, -1, np.int32) if buckets is None else np.array(buckets, np.int32)
    request = Request(
        np.empty(size, np.int64), np.empty(size, np.uint64), np.empty(size, np.int32), np.empty(size, np.int32),
        np.empty(size, np.int32), np.zeros(stripes + 1, np.int64),
    )  # fmt: skip
    lookup = store.lookup_of(request)
    foreign = order_cells(
        read_only_view(cells), store.salts, store.owned, store.stripe_of, expected, request, np.empty(stripes, np.int64)
    )
    if foreign >= 0:
        raise ForeignCellError(int(foreign))
    return lookup


def load(store: RowStore, kind: int, cells: Array, buckets: Array | None, *, keep_versions: bool) -> Array:
    """Inserts cells [n, W] uint32 of rows (kind 0) or candidates (1), only those in owned buckets.

    Returns how many cells of each bucket there were [V] int64.

    Args:
        buckets: see `look_up_cells`.
        keep_versions: False: cells get the version of their bucket, because versions of other buckets are meaningless.

    Raises:
        ForeignCellError: see `look_up_cells`; nothing was inserted.
        ServerMemoryError: no room for more rows.
    """
    lookup = look_up_cells(store, cells, buckets)
    if not keep_versions:
        cells[:, CELL_VERSION] = store.marks[lookup.request.buckets, VERSION]
    store.insert(lookup, cells, kind=kind)
    request = lookup.request
    return np.bincount(request.buckets[request.order[: request.starts[-1]]], minlength=len(store.owned))


def unload(store: RowStore, cells: Array, buckets: Array | None) -> None:
    """Removes rows and candidates with the ids and tables of cells [n, 4], only those in owned buckets.

    Raises:
        ForeignCellError: see `look_up_cells`; nothing was removed.
    """
    store.remove(look_up_cells(store, cells, buckets))


def reserve_rows(store: RowStore, buckets: Array, counts: Array, *, clear: bool = True) -> bool:
    """Reserves room in the index for `counts` [b] more rows in each owned bucket [b], at once instead of by growth.

    Returns whether `load_columns` may insert them: the buckets are empty, not frozen, and log no changes.

    Args:
        clear: False: `clear_lines` must be called before `load_columns`. Clearing an index that is copied next would
            take as long as copying it.

    Raises:
        ServerMemoryError: no memory for the index, or more rows than the store's capacity.
    """
    exists = (buckets >= 0) & (buckets < len(store.owned)) & (counts > 0)
    buckets, counts = buckets[exists], counts[exists]
    owned = store.owned[buckets]
    buckets, counts = buckets[owned], counts[owned]
    held = [memory.indexed.pool.buckets[buckets, COUNT] for memory in (store.rows_memory, store.candidates_memory)]
    watched = (store.marks[buckets, LOGGING] > 0) | (store.marks[buckets, FROZEN] >= 0)
    if watched.any() or np.any(held):
        for bucket, rows in zip(buckets.tolist(), counts.tolist(), strict=True):
            with store.locked(bucket):
                store.rows_memory.grow_for(bucket, rows, store.salts)
        return False
    if int(store.rows_memory.indexed.pool.buckets[:, COUNT].sum() + counts.sum()) > store.capacity_rows:
        store.provide(0, np.array([access.FULL, 0, 0, 0]))
    store.rows_memory.reserve_lines(buckets, counts, clear=clear)
    return True


@kernel
def _enter_columns(  # type: ignore[no-untyped-def]
    handle, buckets, counts, numbers, salts, ids, tables, versions, seen, states, values, slabs, hashes, entered,
    progress,
):  # fmt: skip
    """See `load_columns`. Returns False if the row at progress[_NEXT] belongs to another bucket.

    Args:
        numbers, salts: [R] int64, uint64, the table of the group for each number in `tables`, and its salt.
        seen: last sightings; [0] if cells do not keep them.
        slabs: [n] int64, empty slabs, enough for all rows.
        hashes: [AHEAD] uint64, scratch; entered: [T] int64, zeros, scratch.
        progress: [2] int64: the next row of the columns, number of slabs used.
    """
    rows, settings, guarded = rows_of(handle), settings_of(handle), guarded_of(handle)
    pool, lines, longs = rows.pool, rows.hash_index.lines, rows.hash_index.longs
    words, numbered, shape = pool.words, pool.cells, pool.shape
    virtual_buckets = np.uint64(guarded.owned.shape[0])
    mask = virtual_buckets - np.uint64(1)
    is_power = virtual_buckets & mask == 0
    state_word, value_word, seen_word = settings.state_word, settings.value_word, settings.seen_word
    row, used = progress[_NEXT], progress[_USED]
    for run in range(buckets.shape[0]):
        bucket, end = buckets[run], row + counts[run]
        if not guarded.owned[bucket]:
            row = end
            continue
        stripe = guarded.stripe_of[bucket]
        start, length = rows.hash_index.runs[bucket, START], rows.hash_index.runs[bucket, LINES]
        lock(guarded.locks, stripe)
        guarded.moves[stripe] += 1
        slab, count = pool.buckets[bucket, LAST], pool.buckets[bucket, COUNT]
        number, is_foreign = count % shape.per_slab, False
        while row < end and not is_foreign:
            some = min(end - row, AHEAD)
            # Unsigned, here and below: for a signed index numba tests whether it counts from the end.
            for k in range(some):
                j = np.uint64(row + k)
                hashes[np.uint64(k)] = splitmix64(np.uint64(ids[j]) ^ salts[np.uint64(tables[j])])
            for k in range(some):
                row_hash = hashes[np.uint64(k)]
                prefetch(lines, start + home_of(row_hash, length))
                if np.int64(row_hash & mask if is_power else row_hash % virtual_buckets) != bucket:
                    some, is_foreign = k, True
                    break
            for k in range(some):
                j = np.uint64(row + k)
                key, table, row_hash = ids[j], numbers[np.uint64(tables[j])], hashes[np.uint64(k)]
                if number == 0:
                    slab = slabs[used]
                place = (slab << shape.shift) | number
                # A duplicate id is inserted once; the loader detects it by the number of rows.
                if not insert_new(words, shape, lines, longs, start, length, row_hash, key, np.uint32(table), place):
                    continue
                if number == 0:
                    append_slab(pool, bucket, slab)
                    used += 1
                number = number + 1 if number + 1 < shape.per_slab else 0
                count += 1
                entered[np.uint64(table)] += 1
                at = np.uint64(offset_of(shape, place))
                words[at + np.uint64(ID)] = np.uint32(key)
                words[at + np.uint64(ID + 1)] = np.uint32(key >> 32)
                words[at + np.uint64(CELL_VERSION)] = versions[j]
                words[at + np.uint64(TABLE)] = np.uint32(table)
                if seen_word:
                    words[at + np.uint64(seen_word)] = seen[j]
                copy_row(numbered, at + np.uint64(state_word), states, j)
                copy_row(numbered, at + np.uint64(value_word), values, j)
            row += some
        pool.buckets[bucket, COUNT] = count
        for table in range(entered.shape[0]):
            guarded.entries[bucket, table, 0] += entered[table]
            entered[table] = 0
        unlock(guarded.locks, stripe)
        progress[_NEXT], progress[_USED] = row, used
        if is_foreign:
            return False
    return True


def _column(column: Array, dtype: Any) -> Array:
    return read_only_view(np.ascontiguousarray(column, dtype))


def _slabs_for(store: RowStore, buckets: Array, counts: Array) -> int:
    """Most slabs that `counts` [b] rows can need in the owned ones of buckets [b], whatever these already contain."""
    has_rows = counts > 0
    buckets, counts = buckets[has_rows], counts[has_rows]
    return int((-(-counts // store.rows_memory.indexed.pool.shape.per_slab))[store.owned[buckets]].sum())


def load_columns(store: RowStore, buckets: Array, counts: Array, numbers: Array, columns: Columns) -> None:
    """Inserts rows of owned buckets for which `reserve_rows` returned True. They keep the versions of the columns.

    Several threads may insert at the same time; the order of the rows of one bucket is then undefined.

    Args:
        buckets, counts: [b] buckets, and the number of rows of each; the columns hold them bucket by bucket.
        numbers: [R] the table of the group for each number in `tables`.
        columns: [n, ...] as `row_columns` returns them, with the state of this store's rules.

    Raises:
        ForeignCellError: a row belongs to another bucket; the rows before it were inserted.
        ServerMemoryError: no room for more rows.
    """
    buckets = np.ascontiguousarray(buckets, np.int64)
    if len(unknown := np.flatnonzero(((buckets < 0) | (buckets >= len(store.owned))) & (counts > 0))):
        raise ForeignCellError(int(counts[: unknown[0]].sum()))
    progress, hashes = np.zeros(2, np.int64), np.empty(AHEAD, np.uint64)
    memory = store.rows_memory.rows
    slabs = memory.allocate(_slabs_for(store, buckets, counts))
    arguments = (
        _column(counts, np.int64), _column(numbers, np.int64), _column(store.salts[numbers], np.uint64),
        _column(columns["ids"], np.int64),
        _column(columns["tables"], np.uint16), _column(columns["versions"], np.uint32),
        _column(columns["last_seen"] if store.evicts else np.empty(0), np.uint32),
        _column(columns["state"], np.float32), _column(columns["values"], np.float32),
    )  # fmt: skip
    entered = np.zeros(store.entries.shape[1], np.int64)
    has_entered = _enter_columns(store.handle, buckets, *arguments, slabs, hashes, entered, progress)
    memory.return_unused(slabs[progress[_USED] :])
    if not has_entered:
        raise ForeignCellError(int(progress[_NEXT]))
