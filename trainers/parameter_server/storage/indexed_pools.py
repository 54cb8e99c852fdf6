"""Pools with an index, and their memory. Kernels allocate nothing: they stop, get memory here, and are called again."""

from __future__ import annotations

from typing import Any

import numpy as np

from elastrec.trainers.parameter_server.prefetch import AHEAD
from elastrec.trainers.parameter_server.storage.kernels import index as index_kernels
from elastrec.trainers.parameter_server.storage.kernels.arrays import (
    COUNT,
    FIRST,
    LAST,
    LINES,
    START,
    IndexedPool,
    Pool,
)
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

_ENTRY_WORDS = 2  # of a log entry: place and version


def detach(pool: Pool, bucket: int) -> tuple[Array, int]:
    """Empties a bucket; returns its slabs [n] int32 in order, and their number of cells. The stripe's lock is held."""
    state = pool.buckets[bucket]
    count, first = int(state[COUNT]), int(state[FIRST])
    slabs = np.empty(-(-count // pool.shape.per_slab), np.int32)
    list_slabs(pool, first, slabs)
    state[:] = 0
    state[FIRST] = state[LAST] = -1
    return slabs, count


def pages_for(cells: Array) -> Array:
    """Pages [b] of the smallest index runs with slots for `cells` [b] int64."""
    return -(-index_kernels.lines_for(cells) // LINES_PER_PAGE)


class IndexedPoolMemory:
    """The memory of one pool with an index: its cells, index, shadows and log.

    Args:
        width: words of 4 bytes per cell.
        capacity: most cells.
        slab_bytes: see `PoolMemory`, for the cells.
        used: regions of earlier users, from which cells and index take theirs; shadows and log are small.

    Attributes:
        indexed: the arrays for kernels.
    """

    def __init__(
        self, width: int, buckets: int, stripes: int, capacity: int, slab_bytes: int, used: UsedRegions | None = None
    ) -> None:
        size = 4 * width * capacity
        self.rows = PoolMemory(width, buckets, stripes, size, slab_bytes, huge=True, used=used)
        self.shadows = PoolMemory(width, buckets, stripes, size, PAGE_BYTES, huge=False)
        self.log = PoolMemory(_ENTRY_WORDS, buckets, stripes, 4 * _ENTRY_WORDS * capacity, PAGE_BYTES // 4, huge=False)
        self.index = IndexMemory(buckets, capacity, used)
        self.indexed = IndexedPool(self.rows.pool, self.index.index, self.shadows.pool, self.log.pool)
        self._pools = (self.rows, self.shadows, self.log)

    @property
    def bytes(self) -> int:
        return self.index.bytes + sum(pool.bytes for pool in self._pools)

    @property
    def regions(self) -> list[Region]:
        """The regions that a later store can use again."""
        return [self.rows.region, self.index.region]

    @property
    def region_sizes(self) -> list[RegionSize]:
        """The sizes of `regions`, and the bytes that a pool with as many cells will use of them."""
        return [
            RegionSize(memory.region.size_bytes, memory.region.huge, memory.bytes) for memory in (self.rows, self.index)
        ]

    def trim(self) -> None:
        """Returns pages of the earlier user of the regions that are not used yet."""
        self.rows.trim()
        self.index.trim()

    def refill(self, stripe: int) -> None:
        """Gives the stripe spare slabs of each pool in which it has none. Raises ServerMemoryError."""
        for memory in self._pools:
            if not memory.pool.spares[stripe, 0]:
                memory.refill(stripe)

    def take_released(self, stripe: int) -> list[list[int]]:
        """Slabs that kernels have released in a stripe; the caller passes them to `give_back`. The lock is held."""
        return [memory.take_released(stripe) for memory in self._pools]

    def give_back(self, slabs: list[list[int]]) -> None:
        """Makes the slabs of `take_released` available again. Needs no lock."""
        for memory, released in zip(self._pools, slabs, strict=True):
            if released:
                memory.give_back(released)

    def grow_if_full(self, bucket: int, salts: Array) -> None:
        """Makes the bucket's index run a quarter longer if it has no free slot. The lock is held.

        Raises:
            ServerMemoryError: no memory for a longer run.
        """
        pool, index = self.indexed.pool, self.indexed.hash_index
        if index_kernels.has_slot(pool, index, bucket):
            return
        pages = int(index.runs[bucket, LINES]) // LINES_PER_PAGE
        self._rebuild_index(bucket, pages + max(1, pages // 4), salts)

    def grow_for(self, bucket: int, cells: int, salts: Array) -> None:
        """Makes the bucket's index run long enough for so many more cells. The lock is held.

        Raises:
            ServerMemoryError: no memory for a longer run.
        """
        pool, index = self.indexed.pool, self.indexed.hash_index
        lines = index_kernels.lines_for(int(pool.buckets[bucket, COUNT]) + cells)
        if lines > int(index.runs[bucket, LINES]):
            self._rebuild_index(bucket, -(-lines // LINES_PER_PAGE), salts)

    def reserve_lines(self, buckets: Array, cells: Array, *, clear: bool = True) -> None:
        """Gives empty buckets [b] index runs for `cells` [b]. No other thread may use these buckets.

        Args:
            clear: False: `clear_lines` must be called for each of the buckets whose lines are not copied.

        Raises:
            ServerMemoryError: no memory for the runs.
        """
        runs = self.indexed.hash_index.runs
        for line, lines in runs[buckets[runs[buckets, LINES] > 0]].tolist():
            self.index.free(line, lines)
        pages = pages_for(cells)
        runs[buckets, LINES] = 0
        runs[buckets, START] = self.index.allocate_each(pages, clear=clear)
        runs[buckets, LINES] = pages * LINES_PER_PAGE

    def clear_lines(self, buckets: Array) -> None:
        """Empties the runs of buckets [b] that were reserved without it. No other thread may use these buckets."""
        if len(buckets):
            runs = self.indexed.hash_index.runs[buckets]
            self.index.clear(runs[:, START], runs[:, LINES])

    def _rebuild_index(self, bucket: int, pages: int, salts: Array) -> None:
        pool, index = self.indexed.pool, self.indexed.hash_index
        start, lines = int(index.runs[bucket, START]), int(index.runs[bucket, LINES])
        index_kernels.rebuild(
            pool, index, bucket, self.index.allocate(pages), pages * LINES_PER_PAGE, salts,
            np.empty(AHEAD, np.uint64), np.empty(AHEAD, np.int64),
        )  # fmt: skip
        if lines:
            self.index.free(start, lines)

    def drop_shadows(self, bucket: int) -> None:
        """Frees the shadows of a bucket. The lock is held."""
        slabs, _ = detach(self.shadows.pool, bucket)
        self.shadows.free(slabs.tolist())

    def drop_log(self, bucket: int) -> None:
        """Frees the log of a bucket. The lock is held."""
        slabs, _ = detach(self.log.pool, bucket)
        self.log.free(slabs.tolist())

    def detach(self, bucket: int) -> tuple[Array, int]:
        """Empties a bucket, its index, shadows and log; returns as `detach`. The lock is held."""
        runs = self.indexed.hash_index.runs[bucket]
        if runs[LINES]:
            self.index.free(int(runs[START]), int(runs[LINES]))
            runs[:] = 0
        self.drop_shadows(bucket)
        self.drop_log(bucket)
        return detach(self.rows.pool, bucket)
