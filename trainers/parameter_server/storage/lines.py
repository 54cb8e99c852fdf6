"""Index lines of saved rows, so that a restore copies the index instead of rebuilding it.

A record's lines are those of a store in which the bucket's cells lie in their saved order, in slabs that follow each
other from slab 0 on. A restore adds the number of the first slab that the bucket has got to every place.
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
from elastrec.trainers.parameter_server.storage.kernels.arrays import ID, TABLE, TABLE_BITS, read_only_view
from elastrec.trainers.parameter_server.storage.kernels.compiling import kernel
from elastrec.trainers.parameter_server.storage.kernels.index import home_of, put_once
from elastrec.trainers.parameter_server.storage.memory import LINE_BYTES, LINES_PER_PAGE
from elastrec.trainers.parameter_server.storage.shelves import pages_for

if TYPE_CHECKING:
    from elastrec.trainers.parameter_server.storage.copying import Copied
    from elastrec.trainers.parameter_server.storage.store import RowStore

Array = np.ndarray[Any, Any]

LINES = "lines"
"""The array of a section with lines: [n, 16] uint32."""
_MOST_SHARE = 0.25
"""Of the bytes of their cells: whole pages of lines for few rows are made faster than they are read."""

_S32 = np.uint64(32)


def place_words(store: RowStore) -> dict[str, Attribute]:
    """Attributes of a section with lines: what places are made of, see `arrays.Shape`."""
    shape = store.rows_memory.shelf.pool.shape
    return {"per_slab": shape.per_slab, "shift": shape.shift}


@dataclass(frozen=True)
class Lines:
    """Of whole buckets.

    Attributes:
        buckets, counts: [b] int64, and how many lines each has, one bucket after the other.
        lines: [n, 16] uint32.
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
def _lay_lines(hashes, tables, shape, first, cells, starts, counts, lines, longs):  # type: ignore[no-untyped-def]
    """Fills the lines of buckets [b], zeros before; returns the number of a cell whose id comes twice, -1: none does.

    Args:
        hashes, tables: [n] of all cells; first, cells: [b] where a bucket's begin, and how many there are.
        starts, counts: [b] first line and number of lines.
    """
    mask = (1 << shape.shift) - 1
    for k in range(first.shape[0]):
        start, count, place = starts[k], counts[k], 0
        for begin in range(0, cells[k], AHEAD):
            end = min(begin + AHEAD, cells[k])
            for number in range(begin, end):
                prefetch(lines, start + home_of(hashes[first[k] + number], count))
            for number in range(begin, end):
                if not put_once(hashes, tables, shape, lines, longs, start, count, first[k], number, place):
                    return first[k] + number
                place += 1
                if place & mask == shape.per_slab:
                    place = (place | mask) + 1
    return -1


class LineMaker:
    """Makes the lines of buckets as their cells are copied, each bucket's one after the other.

    Args:
        store: that the buckets are of.
        most_share: lines of a bucket are made where they are no more than this share of its cells' bytes.
    """

    def __init__(self, store: RowStore, most_share: float = _MOST_SHARE) -> None:
        self._most_share = most_share
        self._salts, self._shape = store.salts, store.rows_memory.shelf.pool.shape
        # Of the bucket whose cells may go on.
        self._bucket, self._cells = -1, 0
        self._hashes: list[Array] = []
        self._tables: list[Array] = []

    def add(self, copied: Copied) -> Iterator[Lines]:
        """Takes cells; the lines of buckets that are complete by now.

        Raises:
            CheckpointError: a bucket has an id twice.
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
        """The lines of the last bucket."""
        if self._cells:
            yield from self._made(np.array([self._bucket]), np.array([self._cells]))

    def _made(self, buckets: Array, cells: Array) -> Iterator[Lines]:
        """Lines of the first buckets of those whose hashes are held, which are given up."""
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
        twice = _lay_lines(
            hashes, tables, self._shape, first, cells, starts, counts, lines, lines.view(np.uint64)
        )  # fmt: skip
        if twice >= 0:
            bucket = int(buckets[np.searchsorted(first, twice, "right") - 1])
            raise CheckpointError(f"bucket {bucket} has a row twice; the part is given up")
        yield Lines(buckets, counts, lines)
