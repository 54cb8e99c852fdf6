"""Loading of a full record's rows without conversion: cells are copied into slabs, and lines into the index.

`SlabLoader` accepts sections in any order and from several threads, because the destination of each cell and line is
known in advance. The rows become visible when all sections are loaded (`finish`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import xxhash

from elastrec.trainers.parameter_server.hashing import splitmix64
from elastrec.trainers.parameter_server.prefetch import AHEAD
from elastrec.trainers.parameter_server.storage.handle import guarded_of, rows_of
from elastrec.trainers.parameter_server.storage.kernels import index as index_kernels
from elastrec.trainers.parameter_server.storage.kernels.arrays import (
    COUNT,
    FIRST,
    FOLLOWING,
    ID,
    LAST,
    LINES,
    ORDINAL,
    OWNER,
    PREVIOUS,
    START,
    TABLE,
    TABLE_BITS,
    read_only_view,
)
from elastrec.trainers.parameter_server.storage.kernels.checksums import (
    KernelChecksum,
    begin_checksum,
    end_checksum,
    update_checksum,
)
from elastrec.trainers.parameter_server.storage.kernels.compiling import kernel
from elastrec.trainers.parameter_server.storage.kernels.locks import lock, unlock
from elastrec.trainers.parameter_server.storage.loading import ForeignCellError
from elastrec.trainers.parameter_server.words import end_streams, stream_words

if TYPE_CHECKING:
    from elastrec.trainers.parameter_server.storage.store import RowStore

Array = np.ndarray[Any, Any]

_S32, _ZERO, _ONE = np.uint64(32), np.uint64(0), np.uint64(1)
_TAG_WORDS = index_kernels.PLACES
_LINE_WORDS = 16


@kernel
def _copy_cells(handle, salts, cells, buckets, counts, firsts, slab_of, entered, checksum):  # type: ignore[no-untyped-def]
    """See `_stream_cells`; all threads see the copied cells afterwards."""
    begin_checksum(checksum)
    foreign = _stream_cells(handle, salts, cells, buckets, counts, firsts, slab_of, entered, checksum)
    end_checksum(checksum)
    end_streams()
    return foreign


@kernel
def _stream_cells(  # type: ignore[no-untyped-def]
    handle, salts, cells, buckets, counts, firsts, slab_of, entered, checksum
):
    """Copies cells [n * W] into the slabs of their buckets.

    Returns the position of the first cell with another bucket or an unknown table, else -1.

    Args:
        buckets, counts, firsts: [b] int64, buckets, the number of cells of each, and the number in the bucket of its
            first cell.
        slab_of: [V] int64, the first slab of each bucket; -1: its cells are skipped.
        entered: [b, T] int64, to which the cells of each bucket and table are added.
        checksum: of the cells before the returned position, see `KernelChecksum`.
    """
    rows, guarded = rows_of(handle), guarded_of(handle)
    words, shape = rows.pool.words, rows.pool.shape
    width, tables = np.uint64(shape.width), np.uint32(salts.shape[0])
    virtual_buckets = np.uint64(guarded.owned.shape[0])
    mask = virtual_buckets - _ONE
    is_power = virtual_buckets & mask == _ZERO
    cell = 0
    for run in range(buckets.shape[0]):
        bucket, end, number = np.uint64(buckets[run]), cell + counts[run], firsts[run]
        slab = slab_of[bucket]
        if slab < 0:
            update_checksum(checksum, cells, np.uint64(cell) * width, np.uint64(end - cell) * width)
            cell = end
            continue
        # One slab at a time, so that the cells are still in the processor's cache when they are copied.
        while cell < end:
            in_slab = number % shape.per_slab
            some = min(end - cell, shape.per_slab - in_slab)
            at = np.uint64(cell) * width
            update_checksum(checksum, cells, at, np.uint64(some) * width)
            for k in range(some):
                table = cells[at + np.uint64(TABLE)] & TABLE_BITS
                if table >= tables:
                    return cell + k
                key = np.uint64(cells[at + np.uint64(ID)]) | (np.uint64(cells[at + np.uint64(ID + 1)]) << _S32)
                row_hash = splitmix64(key ^ salts[np.uint64(table)])
                if (row_hash & mask if is_power else row_hash % virtual_buckets) != bucket:
                    return cell + k
                entered[np.uint64(run), np.uint64(table)] += 1
                at += width
            to = (slab + number // shape.per_slab) * shape.slab_words + in_slab * shape.width
            stream_words(words, np.uint64(to), cells, np.uint64(cell) * width, np.uint64(some) * width)
            cell += some
            number += some
    return -1


@kernel
def _find_beyond(buckets, counts, firsts, slab_of, rows):  # type: ignore[no-untyped-def]
    """The position of the first cell of a bucket with cells beyond its `rows` [V], else -1; arguments as in
    `_stream_cells`."""
    cell = 0
    for run in range(buckets.shape[0]):
        if slab_of[buckets[run]] >= 0 and firsts[run] + counts[run] > rows[buckets[run]]:
            return cell
        cell += counts[run]
    return -1


@kernel
def _count_cells(handle, buckets, slab_of, entered):  # type: ignore[no-untyped-def]
    """Adds the cells of a section to the rows of their buckets and tables; arguments as in `_stream_cells`."""
    guarded = guarded_of(handle)
    for run in range(buckets.shape[0]):
        if slab_of[buckets[run]] >= 0:
            stripe = guarded.stripe_of[buckets[run]]
            lock(guarded.locks, stripe)
            for table in range(entered.shape[1]):
                guarded.entries[buckets[run], table, 0] += entered[run, table]
            unlock(guarded.locks, stripe)


@kernel
def _copy_lines(index, shape, lines, longs, buckets, counts, slab_of, rows, has_lines):  # type: ignore[no-untyped-def]
    """Copies lines [n, 16] into the runs of their buckets [b].

    Returns the first bucket whose lines do not fit its run, before any is copied, or its rows; else -1.

    Args:
        counts: [b] lines of each bucket.
        slab_of: [V] the first slab of each bucket; -1: its lines are skipped.
        rows: [V] of each bucket.
        has_lines: [V] set for buckets whose lines were copied.
    """
    for run in range(buckets.shape[0]):
        bucket = buckets[run]
        if slab_of[bucket] >= 0 and index.runs[bucket, LINES] != counts[run]:
            return bucket
    first, odd = 0, -1
    for run in range(buckets.shape[0]):
        bucket = buckets[run]
        slab = slab_of[bucket]
        if slab < 0:
            first += counts[run]
            continue
        begin, base = np.uint64(index.runs[bucket, START]), np.uint32(slab << shape.shift)
        held, top = 0, np.uint32(0)
        for line in range(counts[run]):
            to, source = begin + np.uint64(line), np.uint64(first + line)
            held += index_kernels.entries_of(longs, source)
            for word in range(_TAG_WORDS):
                index.lines[to, np.uint64(word)] = lines[source, np.uint64(word)]
            for word in range(_TAG_WORDS, _LINE_WORDS):
                place = lines[source, np.uint64(word)]
                top = max(top, place)
                index.lines[to, np.uint64(word)] = place + base
        if odd < 0 and (held != rows[bucket] or np.int64(top >> shape.shift) * shape.per_slab >= rows[bucket]):
            odd = bucket
        has_lines[bucket] = True
        first += counts[run]
    return odd


def _numbers(numbers: Array) -> Array:
    """As [b] int64, read-only as a record has them: kernels are compiled for these once, before a restore."""
    return read_only_view(np.ascontiguousarray(numbers, np.int64))


class SlabLoader:
    """Loads the rows of buckets for which `reserve_rows` returned True, also without `clear`.

    Args:
        buckets, counts: [b] int64, buckets and the number of rows of each.

    Attributes:
        has_room: whether the store has enough adjacent slabs; if not, no other method may be called.
    """

    def __init__(self, store: RowStore, buckets: Array, counts: Array) -> None:
        self._store, self.buckets, self.counts = store, buckets, counts
        self._slabs = -(-counts // store.rows_memory.indexed.pool.shape.per_slab)
        self._first_slab = first_slab = store.rows_memory.rows.allocate_adjacent(int(self._slabs.sum()))
        self.has_room = first_slab >= 0
        # [V] the first slab of each bucket; -1: a bucket that is not loaded.
        self._slab_of = np.full(len(store.owned), -1, np.int64)
        self._slab_of[buckets] = first_slab + np.cumsum(self._slabs) - self._slabs
        self._rows = np.zeros(len(store.owned), np.int64)
        self._rows[buckets] = counts
        self._has_lines = np.zeros(len(store.owned), np.bool_)
        self._checksum = KernelChecksum()

    def load_cells(self, buckets: Array, counts: Array, firsts: Array, cells: Array) -> tuple[int, Callable[[], None]]:
        """Copies cells [n, W] uint32 of buckets [b], `counts` [b] each, which may be damaged.

        Returns the xxh3-64 of their bytes, and a function that counts them, to be called if they are intact. It raises
        ForeignCellError if a cell belongs to another bucket, or its table does not exist. Without that call, the same
        cells may be loaded again.

        Args:
            firsts: [b] the number in the bucket of its first cell.

        Raises:
            ForeignCellError: a cell's number is not below the bucket's number of rows; nothing was copied.
        """
        buckets, counts, firsts = (_numbers(each) for each in (buckets, counts, firsts))
        if (beyond := _find_beyond(buckets, counts, firsts, self._slab_of, self._rows)) >= 0:
            raise ForeignCellError(beyond)
        store, entered = self._store, np.zeros((len(buckets), len(self._store.salts)), np.int64)
        foreign = _copy_cells(
            store.handle, store.salts, read_only_view(cells.reshape(-1)), buckets, counts, firsts, self._slab_of,
            entered, self._checksum.words,
        )  # fmt: skip

        def count() -> None:
            if foreign >= 0:
                raise ForeignCellError(foreign)
            _count_cells(store.handle, buckets, self._slab_of, entered)

        # The kernel ends at a foreign cell.
        checksum = self._checksum.intdigest() if foreign < 0 else None
        return xxhash.xxh3_64_intdigest(cells.data) if checksum is None else checksum, count

    def load_lines(self, buckets: Array, counts: Array, lines: Array) -> int:
        """Copies lines [n, 16] uint32 of buckets [b], `counts` [b] each.

        Returns the first bucket whose lines do not fit its rows, else -1.
        """
        buckets, counts = _numbers(buckets), _numbers(counts)
        slots, shape = self._store.rows_memory.indexed.hash_index, self._store.rows_memory.indexed.pool.shape
        lines = read_only_view(lines)
        longs, rows = lines.view(np.uint64), self._rows
        return int(_copy_lines(slots, shape, lines, longs, buckets, counts, self._slab_of, rows, self._has_lines))

    def finish(self) -> None:
        """Assigns the loaded slabs to their buckets, and builds the lines of buckets for which none were loaded."""
        store, memory = self._store, self._store.rows_memory
        pool, last = memory.indexed.pool, np.cumsum(self._slabs) + self._first_slab - 1
        first = last + 1 - self._slabs
        slabs = np.arange(self._first_slab, self._first_slab + int(self._slabs.sum()))
        chain = pool.slabs[slabs[0] : slabs[-1] + 1] if len(slabs) else pool.slabs[:0]
        chain[:, PREVIOUS], chain[:, FOLLOWING] = slabs - 1, slabs + 1
        chain[:, OWNER] = np.repeat(self.buckets, self._slabs)
        chain[:, ORDINAL] = slabs - np.repeat(first, self._slabs)
        chain[first - self._first_slab, PREVIOUS] = chain[last - self._first_slab, FOLLOWING] = -1
        memory.clear_lines(self.buckets[~self._has_lines[self.buckets]])
        for stripe in np.unique(store.stripe_of[self.buckets]).tolist():
            chosen = store.stripe_of[self.buckets] == stripe
            mine = self.buckets[chosen]
            with store.locks.held(stripe):
                store.moves[stripe] += 1
                pool.buckets[mine, COUNT] = self.counts[chosen]
                pool.buckets[mine, FIRST], pool.buckets[mine, LAST] = first[chosen], last[chosen]
                for bucket in mine[~self._has_lines[mine]].tolist():
                    index_kernels.rebuild(
                        pool, memory.indexed.hash_index, bucket, *memory.indexed.hash_index.runs[bucket].tolist(),
                        store.salts, np.empty(AHEAD, np.uint64), np.empty(AHEAD, np.int64),
                    )  # fmt: skip

    def abandon(self) -> None:
        """Frees the slabs instead of `finish`."""
        end = self._first_slab + int(self._slabs.sum())
        self._store.rows_memory.rows.free(range(self._first_slab, end))
