"""Frozen buckets copied out, many at a time: what a save writes.

A bucket costs little besides its cells, so that thousands of small ones cost what one large one does.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from elastrec.trainers.parameter_server.storage.arrays import CELL_VERSION, COPIED, COUNT, FOLLOWING, FROZEN
from elastrec.trainers.parameter_server.storage.bucket import COPY_STEP_CELLS, ThawedError
from elastrec.trainers.parameter_server.storage.kernel import kernel
from elastrec.trainers.parameter_server.storage.pools import offset_of, slab_at

if TYPE_CHECKING:
    from elastrec.trainers.parameter_server.storage.shelves import ShelfMemory
    from elastrec.trainers.parameter_server.storage.store import RowStore

Array = np.ndarray[Any, Any]

ROWS, CANDIDATES = 0, 1
_COPIED, _PAUSED, _THAWED = 0, 1, 2
_BUCKET, _SHADOW, _FILLED = 0, 1, 2  # of `progress`
_PER_BUCKET = 4
"""Looking at a bucket costs as much as copying so many cells."""


@dataclass(frozen=True)
class Copied:
    """Cells of frozen buckets as they were; a bucket may go on in the next one.

    Attributes:
        kind: ROWS or CANDIDATES.
        buckets, counts: [b] int64, those with cells here, and how many; their cells follow each other.
        cells: [n, W] uint32.
    """

    kind: int
    buckets: Array
    counts: Array
    cells: Array


@kernel
def copy_many(shelf, marks, buckets, most, progress, out, counts):  # type: ignore[no-untyped-def]
    """Copies the next cells of frozen buckets [b] of one stripe into `out` [n, W], adding to `counts` [b].

    Each bucket's cells in their order, then its shadows: once all cells were passed, nothing is put there any more.

    Args:
        most: cells that are looked at before the kernel pauses.
        progress: [3] int64: number of the bucket in `buckets`, of its next shadow, of the next row of `out`.
    """
    pool, shadows = shelf.pool, shelf.shadows
    passed, filled, end = 0, progress[_FILLED], out.shape[0]
    for k in range(progress[_BUCKET], buckets.shape[0]):
        bucket = buckets[k]
        progress[_BUCKET] = k
        frozen = marks[bucket, FROZEN]
        if frozen < 0:
            return _THAWED
        for is_shadow in (False, True):
            source = shadows if is_shadow else pool
            first = progress[_SHADOW] if is_shadow else pool.buckets[bucket, COPIED]
            number, count = first, source.buckets[bucket, COUNT]
            slab = slab_at(source, bucket, number) if number < count else np.int64(-1)
            begun = filled
            while number < count and passed < most and filled < end:
                at = offset_of(source.shape, (slab << source.shape.shift) | (number % source.shape.per_slab))
                if np.int64(source.words[at + CELL_VERSION]) <= frozen:
                    for word in range(source.shape.width):
                        out[filled, word] = source.words[at + word]
                    filled += 1
                number += 1
                passed += 1
                if number % source.shape.per_slab == 0:
                    slab = np.int64(source.slabs[slab, FOLLOWING])
            counts[k] += filled - begun
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


def copy_frozen(store: RowStore, buckets: Array, chunk_bytes: int) -> Iterator[Copied]:
    """Frozen buckets [b] as they were, chunk by chunk; thaws those that were copied.

    Requests go on meanwhile: a stripe's lock is taken for some thousand cells at a time.

    Args:
        chunk_bytes: of cells, at most.

    Raises:
        ThawedError: a bucket was thawed by somebody else.
    """
    for stripe in range(len(store.moves)):
        mine = np.ascontiguousarray(buckets[store.stripe_of[buckets] == stripe], np.int64)
        if not len(mine):
            continue
        yield from _copy(store, store.rows_memory, mine, ROWS, chunk_bytes)
        if store.group.admit_after > 1:
            yield from _copy(store, store.waiting_memory, mine, CANDIDATES, chunk_bytes)
        store.thaw(mine)


def _copy(store: RowStore, memory: ShelfMemory, buckets: Array, kind: int, chunk_bytes: int) -> Iterator[Copied]:
    """One shelf's share; `buckets` are of one stripe."""
    shelf, shadows = memory.shelf, memory.shelf.shadows
    width = shelf.pool.shape.width
    counts, progress = np.zeros(len(buckets), np.int64), np.zeros(3, np.int64)
    first, code = 0, _PAUSED
    while code != _COPIED:
        held = int(shelf.pool.buckets[buckets[first:], COUNT].sum() + shadows.buckets[buckets[first:], COUNT].sum())
        out = np.empty((max(1, min(chunk_bytes // (4 * width), held)), width), np.uint32)
        while code != _COPIED and progress[_FILLED] < len(out):
            before = int(progress[_BUCKET])
            with store.locked(int(buckets[0])):
                code = copy_many(shelf, store.marks, buckets, COPY_STEP_CELLS, progress, out, counts)
                done = buckets[before : progress[_BUCKET]]
                # What was copied leaves no shadow behind: they may be as large as what was changed meanwhile.
                for bucket in done[shadows.buckets[done, COUNT] > 0].tolist():
                    memory.drop_shadows(bucket)
            if code == _THAWED:
                raise ThawedError(
                    f"bucket {buckets[progress[_BUCKET]]} was thawed while it was copied; freeze it and copy it again"
                )
        filled, last = int(progress[_FILLED]), int(progress[_BUCKET]) + 1
        if filled:
            chosen = slice(first, last)
            kept = counts[chosen] > 0
            yield Copied(kind, buckets[chosen][kept], counts[chosen][kept], out[:filled])
        counts[first:last] = 0
        first, progress[_FILLED] = min(last - 1, len(buckets) - 1), 0
