"""Memory of a store: slabs and index lines in reserved address space.

The system creates a page at its first write. Freed slabs and lines return their pages.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import threading
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec
import numpy as np

from elastrec.platform.memory import HUGE_PAGE_BYTES
from elastrec.platform.specs.errors import ElastrecError
from elastrec.trainers.parameter_server.storage.kernels.arrays import OWNER, Index, Pool, Shape

Array = np.ndarray[Any, Any]

_MAP_NORESERVE = 0x4000  # Linux; the mmap module does not name it
PAGE_BYTES = mmap.PAGESIZE
LINE_BYTES = 64
LINES_PER_PAGE = PAGE_BYTES // LINE_BYTES
SPARES, RELEASED = 32, 1024
"""Most slabs that a stripe takes from its store, or returns to it, at a time."""


class ServerMemoryError(ElastrecError):
    """The server has no memory for more rows."""


def physical_memory_bytes() -> int:
    """Physical memory of the machine, bytes."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def reserve(size_bytes: int, *, huge: bool) -> mmap.mmap:
    """Zeroed address space whose untouched pages cost nothing.

    Args:
        huge: request huge pages, with which random rows are read several times as fast.

    Raises:
        ServerMemoryError: the system refuses the address space.
    """
    size_bytes = max(PAGE_BYTES, size_bytes)
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE
    try:
        region = mmap.mmap(-1, size_bytes, flags=flags)
    except (OSError, ValueError, OverflowError) as error:
        raise ServerMemoryError(
            f"{size_bytes} bytes of address space were refused ({error}); raise the limit (ulimit -v) or set "
            "vm.overcommit_memory to 0 or 1"
        ) from error
    # Only a hint: kernels without huge pages refuse it.
    with contextlib.suppress(OSError):
        region.madvise(mmap.MADV_HUGEPAGE if huge and size_bytes >= HUGE_PAGE_BYTES else mmap.MADV_NOHUGEPAGE)
    return region


class Region:
    """Reserved address space, which a later store can use again with the pages that it has.

    Args:
        size_bytes, huge: see `reserve`.

    Attributes:
        left_bytes: bytes from the start whose pages existed when the present user got the region. They contain zeros,
            or arbitrary data if an earlier user has written to the region.
        held_bytes: bytes that the user has allocated, at any position. The next user gets no more pages than that.
    """

    def __init__(self, size_bytes: int, *, huge: bool) -> None:
        self.size_bytes, self.huge = size_bytes, huge
        self.left_bytes = self.held_bytes = 0
        self._used_bytes = 0
        self._is_written = self._left_is_written = False
        self._map = reserve(size_bytes, huge=huge)
        self.words: Array = np.frombuffer(self._map, np.uint32, size_bytes // 4)

    def use(self, end: int) -> None:
        """Notes that the user writes to the bytes before `end` from now on."""
        self._used_bytes, self.held_bytes, self._is_written = max(self._used_bytes, end), end, True

    def make_pages(self, end: int) -> None:
        """Has the system create the pages before `end`, for the next user. No other thread may use the region."""
        self.words[self._used_bytes // 4 : end // 4 : PAGE_BYTES // 4] = 0
        self._used_bytes = self.held_bytes = max(self._used_bytes, end)

    def pass_on(self) -> None:
        """Gives the region to a new user, who fills it from the front."""
        # The earlier user may have had its pages anywhere. Those after `held_bytes` would stay beside the new ones.
        self._drop_between(self.held_bytes, self._used_bytes)
        self._used_bytes = min(self._used_bytes, self.held_bytes)
        self.left_bytes, self._left_is_written = self._used_bytes, self._is_written
        self.held_bytes = 0

    def clear(self, start: int, size: int) -> None:
        """Sets bytes that an earlier user may have written to zero."""
        if not self._left_is_written:
            return
        self.words[start // 4 : min(start + size, self.left_bytes) // 4] = 0

    def drop(self, start: int, size: int) -> None:
        """Returns whole pages to the system. They read as zeros afterwards."""
        self._map.madvise(mmap.MADV_DONTNEED, start, size)

    def trim(self, needed_bytes: int) -> None:
        """Returns the earlier user's pages after the first `needed_bytes`."""
        self._drop_between(needed_bytes, self.left_bytes)
        self.left_bytes, self._used_bytes = 0, needed_bytes

    def _drop_between(self, first: int, last: int) -> None:
        start, end = (-(-size // PAGE_BYTES) * PAGE_BYTES for size in (first, last))
        if start < end:
            self.drop(start, end - start)


class RegionSize(msgspec.Struct, frozen=True, array_like=True):
    """The size of a region, and how many of its first bytes will be used."""

    size_bytes: int
    huge: bool
    used_bytes: int


class UsedRegions:
    """Regions of earlier users, for new users: an existing page costs a fraction of a new one.

    Args:
        users: earlier users and their regions. A region becomes available when its user was garbage-collected.
        unused: regions without a user, whose pages were created in advance.
    """

    def __init__(self, users: Iterable[tuple[object, Sequence[Region]]] = (), unused: Iterable[Region] = ()) -> None:
        self._regions: list[tuple[Callable[[], object], Region]] = [
            (weakref.ref(user), region) for user, regions in users for region in regions
        ]
        self._regions += [(lambda: None, region) for region in unused]

    def add(self, other: UsedRegions) -> None:
        """Moves the regions of `other` to the end of this list."""
        self._regions += other._regions
        other.clear()

    def take(self, size_bytes: int, *, huge: bool) -> Region:
        """An available region of this size, or a new one."""
        for number, (user, region) in enumerate(self._regions):
            if user() is None and (region.size_bytes, region.huge) == (size_bytes, huge):
                del self._regions[number]
                region.pass_on()
                return region
        return Region(size_bytes, huge=huge)

    def clear(self) -> None:
        """Returns the remaining regions to the system."""
        self._regions.clear()


def reserve_array(shape: tuple[int, ...], dtype: Any) -> Array:
    """A zeroed array in its own reserved memory; see `reserve`."""
    count = int(np.prod(shape))
    return np.frombuffer(reserve(count * np.dtype(dtype).itemsize, huge=False), dtype, count).reshape(shape)


class PoolMemory:
    """Allocates the slabs of one pool. Thread-safe, except for the pool's arrays: the lock of a bucket's stripe guards
    these.

    Args:
        width: words of 4 bytes per cell.
        capacity_bytes: size of all cells, without spare slabs.
        slab_bytes: a power of two; doubled until a slab holds two cells. Slabs smaller than a page are reused, but
            never returned to the system.
        huge: see `reserve`.
        used: regions of earlier users, from which it takes its region.

    Attributes:
        pool: the arrays for kernels.
        region: contains the slabs.
    """

    def __init__(
        self,
        width: int,
        buckets: int,
        stripes: int,
        capacity_bytes: int,
        slab_bytes: int,
        *,
        huge: bool,
        used: UsedRegions | None = None,
    ) -> None:
        while slab_bytes < 8 * width:
            slab_bytes *= 2
        self.slab_bytes = slab_bytes
        per_slab = slab_bytes // (4 * width)
        shift = (per_slab - 1).bit_length()
        # Beside full slabs, every bucket may have one that is not full, and every stripe has spare ones. A place has 32
        # bits.
        slabs = min(-(-capacity_bytes // slab_bytes) + buckets + stripes * SPARES, 2 ** (32 - shift))
        self._slabs = slabs
        self.region = (used or UsedRegions()).take(slabs * slab_bytes, huge=huge)
        words = self.region.words
        per_bucket = np.zeros((buckets, 4), np.int64)
        per_bucket[:, 1:3] = -1
        self.pool = Pool(
            words=words,
            cells=words.view(np.float32),
            slabs=reserve_array((slabs, 4), np.int32),
            buckets=per_bucket,
            spares=np.zeros((stripes, 1 + SPARES), np.int64),
            released=np.zeros((stripes, 1 + RELEASED), np.int64),
            shape=Shape(width, per_slab, shift, slab_bytes // 4),
        )
        self._free: list[int] = []
        self._next = 0
        self._lock = threading.Lock()

    @property
    def bytes(self) -> int:
        """Size of the slabs that buckets and stripes have."""
        return (self._next - len(self._free)) * self.slab_bytes

    def refill(self, stripe: int) -> None:
        """Gives a stripe spare slabs; only few while the pool has few, so that small models need little memory.

        Raises:
            ServerMemoryError: none is left.
        """
        spares = self.pool.spares[stripe]
        with self._lock:
            count = min(SPARES - int(spares[0]), 1 + (self._next - len(self._free)) // (32 * len(self.pool.spares)))
            for _ in range(count):
                if self._free:
                    slab = self._free.pop()
                elif self._next < self._slabs:
                    slab, self._next = self._next, self._next + 1
                    self.region.use(self._next * self.slab_bytes)
                else:
                    break
                spares[0] += 1
                spares[spares[0]] = slab
            self.region.held_bytes = self.bytes
        if not spares[0]:
            raise self._used_up()

    def allocate(self, count: int) -> Array:
        """Slabs [count] int64; freed ones first, then new ones in ascending order.

        Raises:
            ServerMemoryError: fewer are left.
        """
        with self._lock:
            if count > len(self._free) + self._slabs - self._next:
                raise self._used_up()
            freed = min(count, len(self._free))
            slabs = [*(self._free.pop() for _ in range(freed)), *range(self._next, self._next + count - freed)]
            self._next += count - freed
            self.region.use(self._next * self.slab_bytes)
            self.region.held_bytes = self.bytes
        return np.array(slabs, np.int64)

    def allocate_adjacent(self, count: int) -> int:
        """The first of `count` adjacent new slabs; -1: fewer are left."""
        with self._lock:
            if count > self._slabs - self._next:
                return -1
            first, self._next = self._next, self._next + count
            self.region.use(self._next * self.slab_bytes)
            self.region.held_bytes = self.bytes
        return first

    def return_unused(self, slabs: Array) -> None:
        """Returns slabs that `allocate` gave and that were not written to."""
        with self._lock:
            self._free.extend(slabs[::-1].tolist())
            self.region.held_bytes = self.bytes

    def trim(self) -> None:
        """Returns pages of an earlier user of the region that no slab uses yet."""
        with self._lock:
            self.region.trim(self._next * self.slab_bytes)

    def _used_up(self) -> ServerMemoryError:
        return ServerMemoryError(f"no room for more rows: all {self._slabs} slabs of a table group are in use")

    def take_released(self, stripe: int) -> list[int]:
        """Slabs that kernels have released in a stripe; the caller passes them to `give_back`."""
        released = self.pool.released[stripe]
        slabs: list[int] = released[1 : 1 + int(released[0])].tolist()
        released[0] = 0
        self._disown(slabs)
        return slabs

    def _disown(self, slabs: list[int]) -> None:
        # A log entry may still name a place in them.
        self.pool.slabs[slabs, OWNER] = -1

    def free(self, slabs: Sequence[int]) -> None:
        """Returns slabs that were taken from their bucket."""
        self._disown(list(slabs))
        self.give_back(slabs)

    def give_back(self, slabs: Sequence[int]) -> None:
        """Makes slabs without an owner available again, and returns their pages to the system."""
        ordered = sorted(slabs)
        first = 0
        for at in range(1, len(ordered) + 1):
            if at == len(ordered) or ordered[at] != ordered[at - 1] + 1:
                if self.slab_bytes % PAGE_BYTES == 0:
                    start, size = ordered[first] * self.slab_bytes, (at - first) * self.slab_bytes
                    self.region.drop(start, size)
                first = at
        with self._lock:
            # The lowest are used again first, so that the used part of the region stays dense.
            self._free.extend(reversed(ordered))
            self.region.held_bytes = self.bytes


class IndexMemory:
    """Allocates the lines of one index: per bucket a run of whole pages. Thread-safe like PoolMemory.

    Args:
        capacity_entries: most places in all runs.
        used: regions of earlier users, from which it takes its region.

    Attributes:
        index: the arrays for kernels.
        region: contains the lines.
    """

    def __init__(self, buckets: int, capacity_entries: int, used: UsedRegions | None = None) -> None:
        # Growing buckets leave runs of every size behind. With a quarter more each time, these sum up to five times the
        # last ones.
        pages = 8 * (capacity_entries // (8 * LINES_PER_PAGE) + 1) + 16 * buckets
        self._pages = pages
        self.region = (used or UsedRegions()).take(pages * PAGE_BYTES, huge=True)
        words = self.region.words.reshape(-1, 16)
        self.index = Index(lines=words, longs=words.view(np.uint64), runs=np.zeros((buckets, 2), np.int64))
        self._free: dict[int, list[int]] = {}
        self._next = 0
        self._used = 0
        self._lock = threading.Lock()

    @property
    def bytes(self) -> int:
        return self._used * PAGE_BYTES

    def allocate(self, pages: int) -> int:
        """The first line of an empty run of this many pages.

        Raises:
            ServerMemoryError: the address space is used up.
        """
        with self._lock:
            freed = self._free.get(pages)
            if freed:
                first = freed.pop()
            else:
                first = self._next
                if first + pages > self._pages:
                    raise ServerMemoryError("no room for more rows: the address space of an index is used up")
                self._extend(pages, clear=True)
            self._count(pages)
        return first * LINES_PER_PAGE

    def allocate_each(self, pages: Array, *, clear: bool = True) -> Array:
        """The first lines [b] int64 of runs of `pages` [b] each; adjacent if no freed runs exist.

        Args:
            clear: False: their lines may be arbitrary until `clear`.

        Raises:
            ServerMemoryError: the address space is used up.
        """
        with self._lock:
            is_dense = not any(self._free.values())
            if is_dense and self._next + int(pages.sum()) <= self._pages:
                ends = self._next + np.cumsum(pages)
                self._extend(int(pages.sum()), clear=clear)
                self._count(int(pages.sum()))
                return np.asarray((ends - pages) * LINES_PER_PAGE, np.int64)
        return np.array([self.allocate(count) for count in pages.tolist()], np.int64)

    def _count(self, pages: int) -> None:
        self._used += pages
        self.region.held_bytes = self.bytes

    def _extend(self, pages: int, *, clear: bool) -> None:
        start, self._next = self._next * PAGE_BYTES, self._next + pages
        if clear:
            self.region.clear(start, pages * PAGE_BYTES)
        self.region.use(self._next * PAGE_BYTES)

    def clear(self, first: Array, lines: Array) -> None:
        """Empties runs [b], given by their first lines and lengths, that were allocated without it; before `trim`."""
        order = np.argsort(first)
        starts, ends = first[order], (first + lines)[order]
        # Most runs are adjacent, and a job may have many thousand buckets.
        is_apart = starts[1:] != ends[:-1]
        for start, end in zip(starts[np.r_[True, is_apart]], ends[np.r_[is_apart, True]], strict=True):
            self.region.clear(int(start) * LINE_BYTES, int(end - start) * LINE_BYTES)

    def trim(self) -> None:
        """Returns pages of an earlier user of the region that no run uses yet."""
        with self._lock:
            self.region.trim(self._next * PAGE_BYTES)

    def free(self, line: int, lines: int) -> None:
        """Frees a run by its first line and length; its lines are empty afterwards."""
        first, pages = line // LINES_PER_PAGE, lines // LINES_PER_PAGE
        self.region.drop(first * PAGE_BYTES, pages * PAGE_BYTES)
        with self._lock:
            self._count(-pages)
            self._free.setdefault(pages, []).append(first)
