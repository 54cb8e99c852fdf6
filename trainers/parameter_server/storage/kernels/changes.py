"""Kernels that note what changes: shadows of frozen cells, logs, tombstones. The lock of the stripe is held."""

from __future__ import annotations

import numpy as np

from elastrec.trainers.parameter_server.hashing import splitmix64
from elastrec.trainers.parameter_server.prefetch import AHEAD
from elastrec.trainers.parameter_server.storage.kernels.arrays import (
    CELL_VERSION,
    COPIED,
    COUNT,
    FOLLOWING,
    FROZEN,
    ID,
    LOG_FROM,
    LOGGING,
    PREVIOUS,
    TABLE,
    TABLE_BITS,
    VERSION,
)
from elastrec.trainers.parameter_server.storage.kernels.compiling import kernel
from elastrec.trainers.parameter_server.storage.kernels.index import leave, move
from elastrec.trainers.parameter_server.storage.kernels.locks import BEFORE_LOOKING, is_due, is_wanted
from elastrec.trainers.parameter_server.storage.kernels.pools import (
    append,
    cut_last,
    has_room,
    last_place,
    number_of,
    offset_of,
    owner_of,
    prefetch_cell,
    slab_at,
)

_S32 = np.uint64(32)
LEAST_LOGGED = 64
"""Changes that a log holds in any case."""
_WORDS_PER_QUARTER, _MOST_QUARTERS = 20, 3
"""A log holds the changes of a quarter of its bucket's cells for every twenty words of a cell, of three quarters at
most: it takes at most a fortieth of the cells' bytes, and a listing is shorter than everything."""


@kernel
def may_change(shelf, marks, bucket, stripe, cells):  # type: ignore[no-untyped-def]
    """Whether so many cells of a bucket may be changed with the slabs that the stripe has."""
    if marks[bucket, FROZEN] >= 0 and not has_room(shelf.shadows, bucket, stripe, cells):
        return False
    return marks[bucket, LOGGING] == 0 or has_room(shelf.log, bucket, stripe, cells)


@kernel
def is_log_full(shelf, bucket):  # type: ignore[no-untyped-def]
    """Whether the bucket's log holds as many changes as it may."""
    quarters = max(1, min(_MOST_QUARTERS, shelf.pool.shape.width // _WORDS_PER_QUARTER))
    return 4 * shelf.log.buckets[bucket, COUNT] > quarters * shelf.pool.buckets[bucket, COUNT] + 4 * LEAST_LOGGED


@kernel
def log_change(shelf, marks, bucket, stripe, place):  # type: ignore[no-untyped-def]
    """Appends a place to the bucket's log, or ends the log when it has become longer than it is worth."""
    if marks[bucket, LOGGING] == 0:
        return
    if is_log_full(shelf, bucket):
        # Its slabs stay until the next mark: releasing them here might need more room than there is.
        marks[bucket, LOG_FROM] = marks[bucket, VERSION]
        marks[bucket, LOGGING] = 0
        return
    at = offset_of(shelf.log.shape, append(shelf.log, bucket, stripe))
    shelf.log.words[at] = np.uint32(place)
    shelf.log.words[at + 1] = np.uint32(marks[bucket, VERSION])


@kernel
def note_change(shelf, marks, bucket, stripe, place):  # type: ignore[no-untyped-def]
    """A cell that is older than its bucket's version is about to change. `may_change` holds."""
    pool, at = shelf.pool, offset_of(shelf.pool.shape, place)
    if (
        np.int64(pool.words[at + CELL_VERSION]) <= marks[bucket, FROZEN]
        and number_of(pool, place) >= pool.buckets[bucket, COPIED]
    ):
        to = offset_of(shelf.shadows.shape, append(shelf.shadows, bucket, stripe))
        for word in range(pool.shape.width):
            shelf.shadows.words[to + word] = pool.words[at + word]
    log_change(shelf, marks, bucket, stripe, place)
    pool.words[at + CELL_VERSION] = np.uint32(marks[bucket, VERSION])


@kernel
def remove(shelf, marks, bucket, stripe, place, salts):  # type: ignore[no-untyped-def]
    """Takes a cell out of bucket and index; the last one moves into its place. `may_change` holds for two cells."""
    pool = shelf.pool
    at, last = offset_of(pool.shape, place), last_place(pool, bucket)
    version = marks[bucket, VERSION]
    if np.int64(pool.words[at + CELL_VERSION]) != version:
        note_change(shelf, marks, bucket, stripe, place)
    key = np.uint64(pool.words[at + ID]) | (np.uint64(pool.words[at + ID + 1]) << _S32)
    leave(shelf.slots, bucket, splitmix64(key ^ salts[pool.words[at + TABLE] & TABLE_BITS]), place)
    if last != place:
        end = offset_of(pool.shape, last)
        is_watched = marks[bucket, FROZEN] >= 0 or marks[bucket, LOGGING] != 0
        if is_watched and np.int64(pool.words[end + CELL_VERSION]) != version:
            note_change(shelf, marks, bucket, stripe, last)
        key = np.uint64(pool.words[end + ID]) | (np.uint64(pool.words[end + ID + 1]) << _S32)
        move(shelf.slots, bucket, splitmix64(key ^ salts[pool.words[end + TABLE] & TABLE_BITS]), last, place)
        for word in range(pool.shape.width):
            pool.words[at + word] = pool.words[end + word]
    cut_last(pool, bucket, stripe)


@kernel
def bury(tombs, marks, bucket, stripe, low, high, table):  # type: ignore[no-untyped-def]
    """Leaves a tombstone while changes are logged. There is room."""
    if marks[bucket, LOGGING]:
        at = offset_of(tombs.shape, append(tombs, bucket, stripe))
        tombs.words[at + ID] = low
        tombs.words[at + ID + 1] = high
        tombs.words[at + CELL_VERSION] = np.uint32(marks[bucket, VERSION])
        tombs.words[at + TABLE] = table


@kernel
def copy_before(pool, bucket, end, locks, stripe, out):  # type: ignore[no-untyped-def]
    """Copies a bucket's cells with numbers below `end`, from the last one down, into `out` [n, W] uint32.

    Returns the number of the last cell that was copied, and how many were: fewer than there is room for at 0, or when
    somebody waits for the lock.
    """
    number, copied = min(end, pool.buckets[bucket, COUNT]), 0
    slab = slab_at(pool, bucket, number - 1) if number else np.int64(-1)
    while number > 0 and copied < out.shape[0]:
        number -= 1
        at = offset_of(pool.shape, (slab << pool.shape.shift) | (number % pool.shape.per_slab))
        for word in range(pool.shape.width):
            out[copied, word] = pool.words[at + word]
        copied += 1
        if copied % BEFORE_LOOKING == 0 and is_wanted(locks, stripe):
            break
        if number % pool.shape.per_slab == 0 and number:
            slab = np.int64(pool.slabs[slab, PREVIOUS])
    return number, copied


@kernel
def copy_cells(pool, bucket, since, first, out):  # type: ignore[no-untyped-def]
    """Copies a bucket's cells from number `first` on whose version is above `since` into `out`.

    Returns how many were copied, and the number of the first cell that was not looked at.
    """
    count, number, copied = pool.buckets[bucket, COUNT], first, 0
    slab = slab_at(pool, bucket, number)
    while number < count and copied < out.shape[0]:
        at = offset_of(pool.shape, (slab << pool.shape.shift) | (number % pool.shape.per_slab))
        if np.int64(pool.words[at + CELL_VERSION]) > since:
            for word in range(pool.shape.width):
                out[copied, word] = pool.words[at + word]
            copied += 1
        number += 1
        if number % pool.shape.per_slab == 0:
            slab = pool.slabs[slab, FOLLOWING]
    return copied, number


@kernel
def copy_back(pool, version_word, since, locks, stripe, most, cursor, out):  # type: ignore[no-untyped-def]
    """Copies cells of a log or of tombstones into `out` [n, W], from a cursor back to a version, which is left out.

    Returns whether that was all: it stops after `most` cells, and sooner when somebody waits for the lock.

    Args:
        cursor: [3] int64: a slab (-1: there is none), how many of its cells are left, filled rows of `out`.
        out: with room for all cells before the cursor.
    """
    slab, left, filled = cursor[0], cursor[1], cursor[2]
    passed, is_over = 0, False
    while not is_due(passed, most, locks, stripe):
        # Not before it is needed: a slab whose cells are all older may be cut off the chain between two calls.
        if left == 0 and slab >= 0:
            slab, left = np.int64(pool.slabs[slab, PREVIOUS]), pool.shape.per_slab
        at = offset_of(pool.shape, (slab << pool.shape.shift) | (left - 1))
        if slab < 0 or filled >= out.shape[0] or np.int64(pool.words[at + version_word]) <= since:
            is_over = True
            break
        for word in range(pool.shape.width):
            out[filled, word] = pool.words[at + word]
        filled += 1
        left -= 1
        passed += 1
    cursor[0], cursor[1], cursor[2] = slab, left, filled
    return is_over


@kernel
def copy_logged(pool, bucket, entries, locks, stripe, most, seen, progress, out):  # type: ignore[no-untyped-def]
    """Copies a bucket's cells that entries [n, 2] of its log name, as old as these say, into `out` [m, W], each once.

    Returns whether that was all: it stops after `most` entries, when `out` is full, and sooner when somebody waits for
    the lock.

    Args:
        seen: [cells // 64 + 1] uint64, zeros at first; cells that were appended since then are in no entry.
        progress: [2] int64: entries that were passed, filled rows of `out`.
    """
    first, filled = progress[0], progress[1]
    k = first
    while k < entries.shape[0] and not is_due(k - first, most, locks, stripe):
        if k + AHEAD < entries.shape[0]:
            prefetch_cell(pool.words, pool.shape, np.int64(entries[k + AHEAD, 0]))
        place, version = np.int64(entries[k, 0]), entries[k, 1]
        number = number_of(pool, place)
        # A place that was given up may be another bucket's by now, and one may be in the log twice.
        if (
            owner_of(pool, place) == bucket
            and number < pool.buckets[bucket, COUNT]
            and number >> 6 < seen.shape[0]
            and not seen[number >> 6] & (np.uint64(1) << np.uint64(number & 63))
        ):
            at = offset_of(pool.shape, place)
            if pool.words[at + CELL_VERSION] == version:
                if filled == out.shape[0]:
                    break
                seen[number >> 6] |= np.uint64(1) << np.uint64(number & 63)
                for word in range(pool.shape.width):
                    out[filled, word] = pool.words[at + word]
                filled += 1
        k += 1
    progress[0], progress[1] = k, filled
    return k == entries.shape[0]
