"""Index lines that are saved with the rows, so that a restore copies the index instead of rebuilding it.

The places in a record's lines assume that the cells of a bucket lie in their saved order in slabs 0, 1, 2, ...
A restore puts a bucket into adjacent slabs and adds the number of the first one to each place.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from elastrec.checkpoints import Attribute
from elastrec.platform.specs.errors import CheckpointError
from elastrec.trainers.parameter_server.hashing import splitmix64
from elastrec.trainers.parameter_server.prefetch import AHEAD, prefetch
from elastrec.trainers.parameter_server.storage.indexed_pools import pages_for
from elastrec.trainers.parameter_server.storage.kernels.arrays import ID, TABLE, TABLE_BITS, read_only_view
from elastrec.trainers.parameter_server.storage.kernels.compiling import kernel
from elastrec.trainers.parameter_server.storage.kernels.index import home_of, insert_once
from elastrec.trainers.parameter_server.storage.memory import LINE_BYTES, LINES_PER_PAGE

if TYPE_CHECKING:
    from elastrec.trainers.parameter_server.storage.copying import Copied
    from elastrec.trainers.parameter_server.storage.store import RowStore

Array = np.ndarray[Any, Any]

LINES = "lines"
"""Name of the array of lines in a record's section: [n, 16] uint32."""
_MOST_SHARE = 0.25
"""Largest size of a bucket's lines, as a share of its cells. A page of lines for few rows is built faster than read."""

_S32 = np.uint64(32)


def place_words(store: RowStore) -> dict[str, Attribute]:
    """Attributes of a section with lines: the composition of places, see `arrays.Shape`."""
    shape = store.rows_memory.indexed.pool.shape
    return {"per_slab": shape.per_slab, "shift": shape.shift}


@dataclass(frozen=True)
class Lines:
    """The index lines of whole buckets.

    Attributes:
        buckets, counts: [b] int64, buckets and the number of lines of each.
        lines: [n, 16] uint32, bucket by bucket.
    """

    buckets: Array
    counts: Array
    lines: Array


@kernel
def _hash_cells(cells, salts, hashes, tables):  # type: ignore[no-untyped-def]
    """Fills `hashes` [n] uint64 and `tables` [n] uint16 of cells [n, W]."""
    for j in range(cells.shape[0]):
        table = cells[j, TABLE] & TABLE_BITS
        key = np.uint64(cells[j, ID]) | (np.uint64(cells[j, ID + 1]) << _S32)
        hashes[j] = splitmix64(key ^ salts[table])
        tables[j] = table


@kernel
def _build_lines(hashes, tables, shape, first, cells, starts, counts, lines, longs):  # type: ignore[no-untyped-def]
    """Fills the lines of buckets [b]; returns the number of a cell whose id is a duplicate, or -1.

    Args:
        hashes, tables: [n] of all cells.
        first, cells: [b] number of a bucket's first cell, and how many it has.
        starts, counts: [b] a bucket's first line, and how many it has.
        lines, longs: [L, 16] uint32, zeros, and the same memory as [L, 8] uint64.
    """
    mask = (1 << shape.shift) - 1
    for k in range(first.shape[0]):
        start, count, place = starts[k], counts[k], 0
        for begin in range(0, cells[k], AHEAD):
            end = min(begin + AHEAD, cells[k])
            for number in range(begin, end):
                prefetch(lines, start + home_of(hashes[first[k] + number], count))
            for number in range(begin, end):
                if not insert_once(hashes, tables, shape, lines, longs, start, count, first[k], number, place):
                    return first[k] + number
                place += 1
                if place & mask == shape.per_slab:
                    place = (place | mask) + 1
    return -1


class LineMaker:
    """Makes the lines of buckets while their cells are copied, bucket by bucket.

    Args:
        store: the store of the buckets.
        most_share: a bucket gets lines if their size is at most this share of the size of its cells.
    """

    def __init__(self, store: RowStore, most_share: float = _MOST_SHARE) -> None:
        self._most_share = most_share
        self._salts, self._shape = store.salts, store.rows_memory.indexed.pool.shape
        # The last bucket, of which more cells may follow, and its number of cells so far.
        self._bucket, self._cells = -1, 0
        self._hashes: list[Array] = []
        self._tables: list[Array] = []

    def add(self, copied: Copied) -> Iterator[Lines]:
        """Adds copied cells; yields the lines of the buckets that are now complete.

        Raises:
            CheckpointError: a bucket has a duplicate id.
        """
        hashes, tables = np.empty(len(copied.cells), np.uint64), np.empty(len(copied.cells), np.uint16)
        _hash_cells(read_only_view(copied.cells), self._salts, hashes, tables)
        buckets, counts = copied.buckets, copied.counts.copy()
        if self._cells:
            if buckets[0] == self._bucket:
                counts[0] += self._cells
            else:
                buckets, counts = np.r_[self._bucket, buckets], np.r_[self._cells, counts]
        self._hashes.append(hashes)
        self._tables.append(tables)
        if len(buckets) > 1:
            yield from self._made(buckets[:-1], counts[:-1])
        self._bucket, self._cells = int(buckets[-1]), int(counts[-1])

    def finish(self) -> Iterator[Lines]:
        """Yields the lines of the last bucket."""
        if self._cells:
            yield from self._made(np.array([self._bucket]), np.array([self._cells]))

    def _made(self, buckets: Array, cells: Array) -> Iterator[Lines]:
        """Yields the lines of the first buckets, and discards their hashes."""
        hashes, tables = np.concatenate(self._hashes), np.concatenate(self._tables)
        end = int(cells.sum())
        self._hashes, self._tables = [hashes[end:].copy()], [tables[end:].copy()]
        counts, first = pages_for(cells) * LINES_PER_PAGE, np.cumsum(cells) - cells
        kept = counts * LINE_BYTES <= self._most_share * 4 * self._shape.width * cells
        if not kept.any():
            return
        buckets, cells, first, counts = buckets[kept], cells[kept], first[kept], counts[kept]
        lines = np.zeros((int(counts.sum()), LINE_BYTES // 4), np.uint32)
        starts = np.cumsum(counts) - counts
        duplicate = _build_lines(
            hashes, tables, self._shape, first, cells, starts, counts, lines, lines.view(np.uint64)
        )  # fmt: skip
        if duplicate >= 0:
            bucket = int(buckets[np.searchsorted(first, duplicate, "right") - 1])
            raise CheckpointError(f"bucket {bucket} has a duplicate row; the part is not saved")
        yield Lines(buckets, counts, lines)
