"""Shelves with their memory: a kernel that needs more memory gets it here, and is called again."""

from __future__ import annotations

from typing import Any

import numpy as np

from elastrec.trainers.parameter_server.prefetch import AHEAD
from elastrec.trainers.parameter_server.storage.kernels import index as index_kernels
from elastrec.trainers.parameter_server.storage.kernels.arrays import COUNT, FIRST, LAST, LINES, START, Pool, Shelf
from elastrec.trainers.parameter_server.storage.kernels.pools import list_slabs
from elastrec.trainers.parameter_server.storage.memory import (
    LINES_PER_PAGE,
    PAGE_BYTES,
    IndexMemory,
    PoolMemory,
    Region,
    RegionSize,
    UsedRegions,
)

Array = np.ndarray[Any, Any]

_ENTRY_WORDS = 2  # of a log: place and version


def detach(pool: Pool, bucket: int) -> tuple[Array, int]:
    """Empties a bucket: its slabs [n] int32, in order, and how many cells they have. The stripe's lock is held."""
    state = pool.buckets[bucket]
    count, first = int(state[COUNT]), int(state[FIRST])
    slabs = np.empty(-(-count // pool.shape.per_slab), np.int32)
    list_slabs(pool, first, slabs)
    state[:] = 0
    state[FIRST] = state[LAST] = -1
    return slabs, count


def pages_for(cells: Array) -> Array:
    """Pages [b] of the smallest runs in which so many cells [b] int64 have a slot."""
    return -(-index_kernels.lines_for(cells) // LINES_PER_PAGE)


class ShelfMemory:
    """One shelf and its memory.

    Args:
        used: from where cells and index take their regions; the others are small.

    Attributes:
        shelf: what kernels take.
    """

    def __init__(
        self, width: int, buckets: int, stripes: int, capacity: int, slab_bytes: int, used: UsedRegions | None = None
    ) -> None:
        size = 4 * width * capacity
        self.rows = PoolMemory(width, buckets, stripes, size, slab_bytes, huge=True, used=used)
        self.shadows = PoolMemory(width, buckets, stripes, size, PAGE_BYTES, huge=False)
        self.log = PoolMemory(_ENTRY_WORDS, buckets, stripes, 4 * _ENTRY_WORDS * capacity, PAGE_BYTES // 4, huge=False)
        self.index = IndexMemory(buckets, capacity, used)
        self.shelf = Shelf(self.rows.pool, self.index.index, self.shadows.pool, self.log.pool)
        self._pools = (self.rows, self.shadows, self.log)

    @property
    def bytes(self) -> int:
        return self.index.bytes + sum(pool.bytes for pool in self._pools)

    @property
    def regions(self) -> list[Region]:
        """That another shelf may use after this one."""
        return [self.rows.region, self.index.region]

    @property
    def region_sizes(self) -> list[RegionSize]:
        """Of `regions`: what a shelf that holds as much as this one takes of them."""
        return [
            RegionSize(memory.region.size_bytes, memory.region.huge, memory.bytes) for memory in (self.rows, self.index)
        ]

    def trim(self) -> None:
        """Returns what the user of its regions before has left and nobody has taken."""
        self.rows.trim()
        self.index.trim()

    def refill(self, stripe: int) -> None:
        """Gives the stripe slabs of every kind that it lacks. Raises ServerMemoryError."""
        for memory in self._pools:
            if not memory.pool.spares[stripe, 0]:
                memory.refill(stripe)

    def take_released(self, stripe: int) -> list[list[int]]:
        """Slabs that kernels have released in a stripe, for `give_back`. The stripe's lock is held."""
        return [memory.take_released(stripe) for memory in self._pools]

    def give_back(self, slabs: list[list[int]]) -> None:
        """Returns the memory of slabs that `take_released` gave; needs no lock."""
        for memory, released in zip(self._pools, slabs, strict=True):
            if released:
                memory.give_back(released)

    def grow_if_full(self, bucket: int, salts: Array) -> None:
        """Gives the bucket's index a run that is a quarter longer, if it has no slot left. The lock is held.

        Raises:
            ServerMemoryError: there is none.
        """
        pool, index = self.shelf.pool, self.shelf.slots
        if index_kernels.has_slot(pool, index, bucket):
            return
        pages = int(index.runs[bucket, LINES]) // LINES_PER_PAGE
        self._lay_out(bucket, pages + max(1, pages // 4), salts)

    def grow_for(self, bucket: int, cells: int, salts: Array) -> None:
        """Gives the bucket's index a run that has room for so many cells more. The lock is held.

        Raises:
            ServerMemoryError: there is none.
        """
        pool, index = self.shelf.pool, self.shelf.slots
        lines = index_kernels.lines_for(int(pool.buckets[bucket, COUNT]) + cells)
        if lines > int(index.runs[bucket, LINES]):
            self._lay_out(bucket, -(-lines // LINES_PER_PAGE), salts)

    def lay_out_empty(self, buckets: Array, cells: Array) -> None:
        """Gives buckets [b] that hold nothing runs that have room for so many cells [b]. Nobody else works on them.

        Raises:
            ServerMemoryError: there is none.
        """
        runs = self.shelf.slots.runs
        for line, lines in runs[buckets[runs[buckets, LINES] > 0]].tolist():
            self.index.give(line, lines)
        pages = pages_for(cells)
        runs[buckets, LINES] = 0
        runs[buckets, START] = self.index.take_each(pages)
        runs[buckets, LINES] = pages * LINES_PER_PAGE

    def _lay_out(self, bucket: int, pages: int, salts: Array) -> None:
        pool, index = self.shelf.pool, self.shelf.slots
        start, lines = int(index.runs[bucket, START]), int(index.runs[bucket, LINES])
        index_kernels.lay_out(
            pool, index, bucket, self.index.take(pages), pages * LINES_PER_PAGE, salts,
            np.empty(AHEAD, np.uint64), np.empty(AHEAD, np.int64),
        )  # fmt: skip
        if lines:
            self.index.give(start, lines)

    def drop_shadows(self, bucket: int) -> None:
        slabs, _ = detach(self.shadows.pool, bucket)
        self.shadows.free(slabs.tolist())

    def drop_log(self, bucket: int) -> None:
        slabs, _ = detach(self.log.pool, bucket)
        self.log.free(slabs.tolist())

    def detach(self, bucket: int) -> tuple[Array, int]:
        """Empties a bucket, its index and what is kept beside; slabs and cells as `detach`. The lock is held."""
        runs = self.shelf.slots.runs[bucket]
        if runs[LINES]:
            self.index.give(int(runs[START]), int(runs[LINES]))
            runs[:] = 0
        self.drop_shadows(bucket)
        self.drop_log(bucket)
        return detach(self.rows.pool, bucket)
