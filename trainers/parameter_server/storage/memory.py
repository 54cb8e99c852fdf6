"""Memory of a store: slabs and lines in reservations, whose pages are created at the first write and returned when
freed."""

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

from elastrec.platform.specs.errors import ElastrecError
from elastrec.trainers.parameter_server.storage.kernels.arrays import OWNER, Index, Pool, Shape

Array = np.ndarray[Any, Any]

_MAP_NORESERVE = 0x4000  # Linux; the mmap module does not name it
_HUGE_PAGE_BYTES = 2 * 2**20
PAGE_BYTES = mmap.PAGESIZE
LINE_BYTES = 64
LINES_PER_PAGE = PAGE_BYTES // LINE_BYTES
SPARES, RELEASED = 32, 1024
"""Slabs that a stripe takes from, and gives back to, its store at a time."""


class ServerMemoryError(ElastrecError):
    """The server has no memory for more rows."""


def physical_memory_bytes() -> int:
    """Memory of the machine."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def reserve(size_bytes: int, *, huge: bool) -> mmap.mmap:
    """Zeroed address space whose untouched pages cost nothing.

    Args:
        huge: ask for huge pages: random rows are read several times as fast.

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
        region.madvise(mmap.MADV_HUGEPAGE if huge and size_bytes >= _HUGE_PAGE_BYTES else mmap.MADV_NOHUGEPAGE)
    return region


class Region:
    """Address space, whose first `left_bytes` may contain data of an earlier user.

    Args:
        size_bytes, huge: see `reserve`.

    Attributes:
        left_bytes: whose pages are there; zeros if nobody has written them, else of any content.
        held_bytes: that its user needs of it now, wherever they lie; the next user gets no more pages.
    """

    def __init__(self, size_bytes: int, *, huge: bool) -> None:
        self.size_bytes, self.huge = size_bytes, huge
        self.left_bytes = self.held_bytes = 0
        self._used_bytes = 0
        self._is_written = self._left_is_written = False
        self._map = reserve(size_bytes, huge=huge)
        self.words: Array = np.frombuffer(self._map, np.uint32, size_bytes // 4)

    def use(self, end: int) -> None:
        """Its first bytes, up to `end`, are written from now on."""
        self._used_bytes, self.held_bytes, self._is_written = max(self._used_bytes, end), end, True

    def make_pages(self, end: int) -> None:
        """Has the system make the pages up to `end`, for the next user. Nobody else uses the region; holds no GIL."""
        self.words[self._used_bytes // 4 : end // 4 : PAGE_BYTES // 4] = 0
        self._used_bytes = self.held_bytes = max(self._used_bytes, end)

    def pass_on(self) -> None:
        """Another user has it from now on, and fills it from the front."""
        # The user before may have had as many pages anywhere: those behind would be there beside the new ones.
        self._drop_between(self.held_bytes, self._used_bytes)
        self._used_bytes = min(self._used_bytes, self.held_bytes)
        self.left_bytes, self._left_is_written = self._used_bytes, self._is_written
        self.held_bytes = 0

    def clear(self, start: int, size: int) -> None:
        """Makes zero what was left there."""
        if not self._left_is_written:
            return
        self.words[start // 4 : min(start + size, self.left_bytes) // 4] = 0

    def drop(self, start: int, size: int) -> None:
        """Returns whole pages to the system; they are zero again."""
        self._map.madvise(mmap.MADV_DONTNEED, start, size)

    def trim(self, needed_bytes: int) -> None:
        """Returns what was left behind the first `needed_bytes`."""
        self._drop_between(needed_bytes, self.left_bytes)
        self.left_bytes, self._used_bytes = 0, needed_bytes

    def _drop_between(self, first: int, last: int) -> None:
        start, end = (-(-size // PAGE_BYTES) * PAGE_BYTES for size in (first, last))
        if start < end:
            self.drop(start, end - start)


class RegionSize(msgspec.Struct, frozen=True, array_like=True):
    """A region as `reserve` makes it, and how many of its first bytes are used."""

    size_bytes: int
    huge: bool
    used_bytes: int


class UsedRegions:
    """Regions of earlier users for new users, because an existing page costs a fraction of a new one.

    Args:
        users: each with its regions; while one of them exists, no other user gets its regions.
        unused: regions of no user, whose pages were made for the next one.
    """

    def __init__(self, users: Iterable[tuple[object, Sequence[Region]]] = (), unused: Iterable[Region] = ()) -> None:
        self._regions: list[tuple[Callable[[], object], Region]] = [
            (weakref.ref(user), region) for user, regions in users for region in regions
        ]
        self._regions += [(lambda: None, region) for region in unused]

    def add(self, other: UsedRegions) -> None:
        """Takes the regions of another one over, behind its own."""
        self._regions += other._regions
        other.clear()

    def take(self, size_bytes: int, *, huge: bool) -> Region:
        """A region of this size whose user is gone, else a new one."""
        for number, (user, region) in enumerate(self._regions):
            if user() is None and (region.size_bytes, region.huge) == (size_bytes, huge):
                del self._regions[number]
                region.pass_on()
                return region
        return Region(size_bytes, huge=huge)

    def clear(self) -> None:
        """Returns what nobody took to the system."""
        self._regions.clear()


def reserve_array(shape: tuple[int, ...], dtype: Any) -> Array:
    """A zeroed array in memory of its own; see `reserve`."""
    count = int(np.prod(shape))
    return np.frombuffer(reserve(count * np.dtype(dtype).itemsize, huge=False), dtype, count).reshape(shape)


class PoolMemory:
    """The slabs of one pool. Thread-safe, apart from the pool's arrays: the lock of a bucket's stripe guards those.

    Args:
        width: words of 4 bytes per cell.
        capacity_bytes: of address space.
        slab_bytes: at least; a power of two. Slabs of less than a page are only used again, never returned.
        huge: see `reserve`.
        used: from where it takes its region.

    Attributes:
        pool: what kernels take.
        region: in which the slabs lie.
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
        # Whatever the rows, every bucket may hold a slab that is not full, and every stripe spare ones. A place has
        # 32 bits.
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
        """Of the slabs that buckets and stripes have."""
        return (self._next - len(self._free)) * self.slab_bytes

    def refill(self, stripe: int) -> None:
        """Gives a stripe more slabs: a few while there are few rows, that small models stay small.

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

    def take(self, count: int) -> Array:
        """Slabs [count] int64 of no bucket, ascending where none was freed; `put_back` takes those that stay unused.

        Raises:
            ServerMemoryError: there are not so many left.
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

    def take_run(self, count: int) -> int:
        """The first of so many slabs of no bucket that follow each other; -1: there are none."""
        with self._lock:
            if count > self._slabs - self._next:
                return -1
            first, self._next = self._next, self._next + count
            self.region.use(self._next * self.slab_bytes)
            self.region.held_bytes = self.bytes
        return first

    def put_back(self, slabs: Array) -> None:
        """Takes slabs that `take` gave and nobody wrote into."""
        with self._lock:
            self._free.extend(slabs[::-1].tolist())
            self.region.held_bytes = self.bytes

    def trim(self) -> None:
        """Returns what a user of the region before has left and no slab has taken."""
        with self._lock:
            self.region.trim(self._next * self.slab_bytes)

    def _used_up(self) -> ServerMemoryError:
        return ServerMemoryError(f"no room for more rows: all {self._slabs} slabs of a table group are in use")

    def take_released(self, stripe: int) -> list[int]:
        """Slabs that a kernel has released in a stripe, of no bucket from now on, for `give_back`."""
        released = self.pool.released[stripe]
        slabs: list[int] = released[1 : 1 + int(released[0])].tolist()
        released[0] = 0
        self._disown(slabs)
        return slabs

    def _disown(self, slabs: list[int]) -> None:
        # A log may still name places in them.
        self.pool.slabs[slabs, OWNER] = -1

    def free(self, slabs: Sequence[int]) -> None:
        """Returns slabs of no bucket."""
        self._disown(list(slabs))
        self.give_back(slabs)

    def give_back(self, slabs: Sequence[int]) -> None:
        """Returns slabs that no bucket has, neighbours together, to the system and to the other buckets."""
        ordered = sorted(slabs)
        first = 0
        for at in range(1, len(ordered) + 1):
            if at == len(ordered) or ordered[at] != ordered[at - 1] + 1:
                if self.slab_bytes % PAGE_BYTES == 0:
                    start, size = ordered[first] * self.slab_bytes, (at - first) * self.slab_bytes
                    self.region.drop(start, size)
                first = at
        with self._lock:
            # The lowest are taken again first, so that the reservation stays dense.
            self._free.extend(reversed(ordered))
            self.region.held_bytes = self.bytes


class IndexMemory:
    """The lines of one index: a run of whole pages per bucket. Thread-safe like PoolMemory.

    Args:
        used: from where it takes its region.
    """

    def __init__(self, buckets: int, capacity_entries: int, used: UsedRegions | None = None) -> None:
        # Runs of each size are left behind as buckets grow: at a quarter more each time, five times the last ones.
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

    def take(self, pages: int) -> int:
        """First line of an empty run.

        Raises:
            ServerMemoryError: none is left.
        """
        with self._lock:
            free = self._free.get(pages)
            if free:
                first = free.pop()
            else:
                first = self._next
                if first + pages > self._pages:
                    raise ServerMemoryError("no room for more rows: the address space of an index is used up")
                self._extend(pages)
            self._count(pages)
        return first * LINES_PER_PAGE

    def take_each(self, pages: Array) -> Array:
        """First lines [b] int64 of empty runs of so many pages [b] each, one behind the other where none is free.

        Raises:
            ServerMemoryError: there are not enough left.
        """
        with self._lock:
            is_dense = not any(self._free.values())
            if is_dense and self._next + int(pages.sum()) <= self._pages:
                ends = self._next + np.cumsum(pages)
                self._extend(int(pages.sum()))
                self._count(int(pages.sum()))
                return np.asarray((ends - pages) * LINES_PER_PAGE, np.int64)
        return np.array([self.take(count) for count in pages.tolist()], np.int64)

    def _count(self, pages: int) -> None:
        self._used += pages
        self.region.held_bytes = self.bytes

    def _extend(self, pages: int) -> None:
        start, self._next = self._next * PAGE_BYTES, self._next + pages
        self.region.clear(start, pages * PAGE_BYTES)
        self.region.use(self._next * PAGE_BYTES)

    def trim(self) -> None:
        """Returns what a user of the region before has left and no run has taken."""
        with self._lock:
            self.region.trim(self._next * PAGE_BYTES)

    def give(self, line: int, lines: int) -> None:
        """Returns a run, empty from now on."""
        first, pages = line // LINES_PER_PAGE, lines // LINES_PER_PAGE
        self.region.drop(first * PAGE_BYTES, pages * PAGE_BYTES)
        with self._lock:
            self._count(-pages)
            self._free.setdefault(pages, []).append(first)
