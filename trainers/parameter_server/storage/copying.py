"""Copies of frozen buckets for saves.

One call of a kernel copies many buckets, so thousands of small buckets cost about as much as one large bucket.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from elastrec.trainers.parameter_server.prefetch import AHEAD
from elastrec.trainers.parameter_server.storage.bucket import COPY_STEP_CELLS, ThawedError
from elastrec.trainers.parameter_server.storage.indexed_pools import detach
from elastrec.trainers.parameter_server.storage.kernels.arrays import (
    CELL_VERSION,
    COPIED,
    COUNT,
    FOLLOWING,
    FROZEN,
    PREVIOUS,
)
from elastrec.trainers.parameter_server.storage.kernels.bits import trailing_zeros
from elastrec.trainers.parameter_server.storage.kernels.changes import copy_cells
from elastrec.trainers.parameter_server.storage.kernels.compiling import inlined, kernel
from elastrec.trainers.parameter_server.storage.kernels.locks import CELLS_PER_CHECK, has_waiter
from elastrec.trainers.parameter_server.storage.kernels.pools import (
    number_of,
    offset_of,
    owner_of,
    prefetch_cell,
    slab_at,
)
from elastrec.trainers.parameter_server.words import copy_words

if TYPE_CHECKING:
    from elastrec.trainers.parameter_server.storage.indexed_pools import IndexedPoolMemory
    from elastrec.trainers.parameter_server.storage.store import RowStore

Array = np.ndarray[Any, Any]

ROWS, CANDIDATES, DELETED = 0, 1, 2
_COPIED, _PAUSED, _THAWED = 0, 1, 2
_BUCKET, _SHADOW, _FILLED = 0, 1, 2  # columns of `progress` of `copy_frozen_cells`
_ENTRY = 1  # column of `progress` of `mark_logged`
_PER_BUCKET = 4
"""The cost of a bucket, in copied cells."""


@dataclass(frozen=True)
class Copied:
    """A chunk of cells of frozen buckets. A bucket may continue in the next chunk.

    Attributes:
        kind: ROWS, CANDIDATES or DELETED; the DELETED of a bucket come first.
        buckets, counts: [b] int64, buckets with cells in this chunk, and the number of cells of each.
        cells: [n, W] uint32, bucket by bucket.
    """

    kind: int
    buckets: Array
    counts: Array
    cells: Array


@kernel
def mark_logged(  # type: ignore[no-untyped-def]
    indexed, marks, buckets, since, locks, stripe, most, progress, starts, bits
):
    """Sets a bit for each cell that the logs of frozen buckets [b] of one stripe name.

    These include all cells that changed after `since` and not after the freeze.

    Args:
        since: see `copy_frozen_cells`; the logs reach back to these versions.
        most: log entries to read before the kernel pauses. It pauses sooner if a thread waits for the lock.
        progress: [2] int64: position of the bucket in `buckets`, log entries of it that are left (-1: all).
        starts: [b + 1] int64, the first word in `bits` of each bucket; buckets without words are skipped.
        bits: [n] uint64, a bit per cell.

    Returns _COPIED when all logs were read, _PAUSED to be called again, or _THAWED.
    """
    log, pool, passed, look = indexed.log, indexed.pool, 0, CELLS_PER_CHECK
    for k in range(progress[_BUCKET], buckets.shape[0]):
        bucket = buckets[k]
        progress[_BUCKET] = k
        if marks[bucket, FROZEN] < 0:
            return _THAWED
        words = starts[k + 1] - starts[k]
        left = log.buckets[bucket, COUNT] if progress[_ENTRY] < 0 else progress[_ENTRY]
        if left > log.buckets[bucket, COUNT]:
            return _THAWED  # the log was discarded, which must not happen while its bucket is frozen
        slab = slab_at(log, bucket, left - 1) if left and words else np.int64(-1)
        while slab >= 0 and passed < most:
            if passed >= look:
                look = passed + CELLS_PER_CHECK
                if has_waiter(locks, stripe):
                    most = passed
                    break
            left -= 1
            at = offset_of(log.shape, (slab << log.shape.shift) | (left % log.shape.per_slab))
            if np.int64(log.words[at + 1]) <= since[k]:
                left = 0
                break
            place = np.int64(log.words[at])
            # A freed place may belong to another bucket by now.
            if owner_of(pool, place) == bucket:
                number = number_of(pool, place)
                if number >> 6 < words:
                    bits[starts[k] + (number >> 6)] |= np.uint64(1) << np.uint64(number & 63)
            passed += 1
            if left == 0:
                break
            if left % log.shape.per_slab == 0:
                slab = np.int64(log.slabs[slab, PREVIOUS])
        if slab >= 0 and left:
            progress[_ENTRY] = left
            return _PAUSED
        progress[_ENTRY] = -1
        passed += _PER_BUCKET
        if passed >= most:
            progress[_BUCKET] = k + 1
            return _PAUSED
    progress[_BUCKET] = buckets.shape[0]
    return _COPIED


@inlined
def _cells_until_marked(bits, start, words, number):  # type: ignore[no-untyped-def]
    """Number of unmarked cells from this number on, up to the end of the word of `bits`."""
    word = number >> 6
    if word >= words:
        return np.int64(64)
    return np.int64(min(trailing_zeros(bits[start + word] >> np.uint64(number & 63)), np.uint64(64 - (number & 63))))


@kernel
def copy_frozen_cells(  # type: ignore[no-untyped-def]
    indexed, marks, buckets, since, locks, stripe, starts, bits, most, progress, places, out, counts
):
    """Copies the next cells of frozen buckets [b] of one stripe into `out` [n, W], adding to `counts` [b].

    Copies each bucket's cells in their order and then its shadows, because no shadow is added once the copy has passed
    all cells.

    Args:
        since: [b] versions; cells with these or earlier versions are left out.
        starts, bits: filled by `mark_logged`; only marked cells are read. All cells of a bucket without words are read.
        most: cells to read before the kernel pauses. It pauses sooner if a thread waits for the lock.
        progress: [3] int64: position of the bucket in `buckets`, number of its next shadow, next row of `out`.
        places: [AHEAD] int64, scratch.

    Returns _COPIED when all buckets were copied, _PAUSED to be called again, or _THAWED.
    """
    pool, shadows = indexed.pool, indexed.shadows
    passed, look, filled, end = 0, CELLS_PER_CHECK, progress[_FILLED], out.shape[0]
    for k in range(progress[_BUCKET], buckets.shape[0]):
        bucket = buckets[k]
        progress[_BUCKET] = k
        frozen, words = marks[bucket, FROZEN], starts[k + 1] - starts[k]
        if frozen < 0:
            return _THAWED
        for is_shadow in (False, True):
            source = shadows if is_shadow else pool
            first = progress[_SHADOW] if is_shadow else pool.buckets[bucket, COPIED]
            number, count = first, source.buckets[bucket, COUNT]
            slab = slab_at(source, bucket, number) if number < count else np.int64(-1)
            before_bucket = filled
            while number < count and passed < most and filled < end:
                if passed >= look:
                    look = passed + CELLS_PER_CHECK
                    if has_waiter(locks, stripe):
                        most = passed
                        break
                if words and not is_shadow:
                    # Marked cells lie kilobytes apart, too far for the processor's own prefetching: some of them are
                    # prefetched before the first of them is read.
                    listed, most_listed, until = (
                        0,
                        min(places.shape[0], end - filled),
                        min(passed + CELLS_PER_CHECK, most),
                    )
                    while listed < most_listed and number < count and passed < until:
                        step = min(_cells_until_marked(bits, starts[k], words, number), count - number)
                        if step == 0:
                            places[listed] = (slab << source.shape.shift) | (number % source.shape.per_slab)
                            prefetch_cell(source.words, source.shape, places[listed])
                            listed, step = listed + 1, np.int64(1)
                        for _ in range((number + step) // source.shape.per_slab - number // source.shape.per_slab):
                            slab = np.int64(source.slabs[slab, FOLLOWING])
                        number += step
                        passed += 1
                    for n in range(listed):
                        at = offset_of(source.shape, places[n])
                        if since[k] < np.int64(source.words[at + CELL_VERSION]) <= frozen:
                            for word in range(source.shape.width):
                                out[filled, word] = source.words[at + word]
                            filled += 1
                    continue
                # Consecutive cells that are wanted are copied together.
                in_slab, width = number % source.shape.per_slab, np.uint64(source.shape.width)
                some = min(count - number, source.shape.per_slab - in_slab, most - passed, look - passed, end - filled)
                at = np.uint64(offset_of(source.shape, (slab << source.shape.shift) | in_slab))
                first = at
                for _ in range(some):
                    if not since[k] < np.int64(source.words[at + np.uint64(CELL_VERSION)]) <= frozen:
                        copy_words(out, np.uint64(filled) * width, source.words, first, at - first)
                        filled += np.int64((at - first) // width)
                        first = at + width
                    at += width
                copy_words(out, np.uint64(filled) * width, source.words, first, at - first)
                filled += np.int64((at - first) // width)
                number += some
                passed += some
                if number % source.shape.per_slab == 0:
                    slab = np.int64(source.slabs[slab, FOLLOWING])
            counts[k] += filled - before_bucket
            progress[_FILLED] = filled
            if is_shadow:
                progress[_SHADOW] = number
            else:
                pool.buckets[bucket, COPIED] = number
            if number < count:
                return _PAUSED
        progress[_SHADOW] = 0
        passed += _PER_BUCKET
        if passed >= most:
            progress[_BUCKET] = k + 1
            return _PAUSED
    progress[_BUCKET] = buckets.shape[0]
    return _COPIED


def copy_frozen(store: RowStore, buckets: Array, chunk_bytes: int, since: Array | None = None) -> Iterator[Copied]:
    """Copies frozen buckets [b] chunk by chunk, and thaws them.

    Requests are served during the copy. A stripe's lock is held for some thousand cells at a time, for fewer if a
    request waits for it.

    Args:
        chunk_bytes: largest size of a chunk's cells. All tombstones of a bucket are in one chunk, whatever their size.
        since: [b] versions to which the logs reach back. Only later changes and deletions are copied, at a cost
            proportional to their number. Negative: the whole bucket.

    Raises:
        ThawedError: another thread has thawed a bucket.
    """
    for stripe in range(len(store.moves)):
        chosen = store.stripe_of[buckets] == stripe
        mine = np.ascontiguousarray(buckets[chosen], np.int64)
        if not len(mine):
            continue
        begins = np.full(len(mine), -1, np.int64) if since is None else np.ascontiguousarray(since[chosen], np.int64)
        yield from _deleted(store, mine, begins, chunk_bytes)
        yield from _copy(store, store.rows_memory, mine, begins, ROWS, chunk_bytes)
        if store.group.admit_after > 1:
            yield from _copy(store, store.candidates_memory, mine, begins, CANDIDATES, chunk_bytes)
        store.cuts.thaw(mine)


def _deleted(store: RowStore, buckets: Array, since: Array, chunk_bytes: int) -> Iterator[Copied]:
    """Copies the tombstones of buckets of one stripe with versions after `since` and up to the freeze."""
    tombstones = store.tombstones_memory.pool
    kept_by_bucket: list[tuple[int, Array]] = []
    left = chunk_bytes
    for bucket, version in zip(buckets.tolist(), since.tolist(), strict=True):
        if version < 0 or not tombstones.buckets[bucket, COUNT]:
            continue
        with store.locked(bucket):
            frozen = int(store.marks[bucket, FROZEN])
            cells = np.empty((int(tombstones.buckets[bucket, COUNT]), tombstones.shape.width), np.uint32)
            copied, _ = copy_cells(tombstones, bucket, version, 0, cells)
        if frozen < 0:
            raise _thawed(bucket)
        kept = cells[:copied][cells[:copied, CELL_VERSION] <= frozen]
        if len(kept):
            kept_by_bucket.append((bucket, kept))
            left -= kept.nbytes
        if left <= 0:
            yield _joined(kept_by_bucket)
            kept_by_bucket, left = [], chunk_bytes
    if kept_by_bucket:
        yield _joined(kept_by_bucket)


def _joined(kept_by_bucket: list[tuple[int, Array]]) -> Copied:
    counts = np.array([len(cells) for _, cells in kept_by_bucket], np.int64)
    return Copied(
        DELETED,
        np.array([bucket for bucket, _ in kept_by_bucket], np.int64),
        counts,
        np.concatenate([c for _, c in kept_by_bucket]),
    )


def _thawed(bucket: int) -> ThawedError:
    return ThawedError(f"bucket {bucket} was thawed while it was copied; freeze it and copy it again")


def _mark_changed(store: RowStore, memory: IndexedPoolMemory, buckets: Array, since: Array) -> tuple[Array, Array]:
    """`starts` and `bits` of the cells that may have changed; see `mark_logged`."""
    indexed = memory.indexed
    words = np.where(since < 0, 0, indexed.pool.buckets[buckets, COUNT] // 64 + 1)
    starts = np.concatenate([np.zeros(1, np.int64), np.cumsum(words)])
    bits, progress, code = np.zeros(int(starts[-1]), np.uint64), np.array([0, -1], np.int64), _PAUSED
    while len(bits) and code != _COPIED:
        with store.locked(int(buckets[0])) as stripe:
            code = mark_logged(
                indexed, store.marks, buckets, since, store.locks.words, stripe, COPY_STEP_CELLS, progress, starts, bits
            )
        if code == _THAWED:
            raise _thawed(int(buckets[progress[_BUCKET]]))
    return starts, bits


def _copy(
    store: RowStore, memory: IndexedPoolMemory, buckets: Array, since: Array, kind: int, chunk_bytes: int
) -> Iterator[Copied]:
    """Copies the rows or the candidates of buckets of one stripe."""
    indexed, shadows = memory.indexed, memory.indexed.shadows
    width = indexed.pool.shape.width
    starts, bits = _mark_changed(store, memory, buckets, since)
    counts, progress, places = np.zeros(len(buckets), np.int64), np.zeros(3, np.int64), np.empty(AHEAD, np.int64)
    first, code = 0, _PAUSED
    while code != _COPIED:
        held = int(indexed.pool.buckets[buckets[first:], COUNT].sum() + shadows.buckets[buckets[first:], COUNT].sum())
        out = np.empty((max(1, min(chunk_bytes // (4 * width), held)), width), np.uint32)
        while code != _COPIED and progress[_FILLED] < len(out):
            before = int(progress[_BUCKET])
            with store.locked(int(buckets[0])) as stripe:
                code = copy_frozen_cells(
                    indexed, store.marks, buckets, since, store.locks.words, stripe, starts, bits, COPY_STEP_CELLS,
                    progress, places, out, counts,
                )  # fmt: skip
                done = buckets[before : progress[_BUCKET]]
                # Shadows of copied buckets are freed now, because they may be as large as all later changes.
                shadowed = done[shadows.buckets[done, COUNT] > 0].tolist()
                emptied = [detach(shadows, bucket)[0] for bucket in shadowed]
            if emptied:
                memory.shadows.free(np.concatenate(emptied).tolist())
            if code == _THAWED:
                raise _thawed(int(buckets[progress[_BUCKET]]))
        filled, last = int(progress[_FILLED]), int(progress[_BUCKET]) + 1
        if filled:
            chosen = slice(first, last)
            kept = counts[chosen] > 0
            yield Copied(kind, buckets[chosen][kept], counts[chosen][kept], out[:filled])
        counts[first:last] = 0
        first, progress[_FILLED] = min(last - 1, len(buckets) - 1), 0
