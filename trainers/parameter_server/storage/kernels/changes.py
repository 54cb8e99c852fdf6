"""Kernels that keep changes: shadows of frozen cells, logs, tombstones. The stripe's lock is held."""

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
from elastrec.trainers.parameter_server.storage.kernels.index import erase, replace_place
from elastrec.trainers.parameter_server.storage.kernels.locks import CELLS_PER_CHECK, has_waiter, should_pause
from elastrec.trainers.parameter_server.storage.kernels.pools import (
    append,
    drop_last,
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
"""Entries that each log may have."""
_WORDS_PER_QUARTER, _MOST_QUARTERS = 20, 3
"""A log may have entries for a quarter of its bucket's cells for every twenty words of a cell, for three quarters at
most. So it has at most a fortieth of the cells' bytes, and a listing is shorter than the whole bucket."""


@kernel
def can_change(indexed, marks, bucket, stripe, cells):  # type: ignore[no-untyped-def]
    """Whether the stripe has enough slabs to change so many cells of a bucket."""
    if marks[bucket, FROZEN] >= 0 and not has_room(indexed.shadows, bucket, stripe, cells):
        return False
    return marks[bucket, LOGGING] == 0 or has_room(indexed.log, bucket, stripe, cells)


@kernel
def is_log_full(indexed, bucket):  # type: ignore[no-untyped-def]
    """Whether the bucket's log has as many entries as it may have."""
    quarters = max(1, min(_MOST_QUARTERS, indexed.pool.shape.width // _WORDS_PER_QUARTER))
    return 4 * indexed.log.buckets[bucket, COUNT] > quarters * indexed.pool.buckets[bucket, COUNT] + 4 * LEAST_LOGGED


@kernel
def log_change(indexed, marks, bucket, stripe, place):  # type: ignore[no-untyped-def]
    """Appends a place to the bucket's log, or ends the log if it is full."""
    if marks[bucket, LOGGING] == 0:
        return
    if is_log_full(indexed, bucket):
        # Its slabs are freed at the next mark, because `released` may have too little room here.
        marks[bucket, LOG_FROM] = marks[bucket, VERSION]
        marks[bucket, LOGGING] = 0
        return
    at = offset_of(indexed.log.shape, append(indexed.log, bucket, stripe))
    indexed.log.words[at] = np.uint32(place)
    indexed.log.words[at + 1] = np.uint32(marks[bucket, VERSION])


@kernel
def note_change(indexed, marks, bucket, stripe, place):  # type: ignore[no-untyped-def]
    """Saves and logs a cell that is older than its bucket's version and about to change. `can_change` is True."""
    pool, at = indexed.pool, offset_of(indexed.pool.shape, place)
    if (
        np.int64(pool.words[at + CELL_VERSION]) <= marks[bucket, FROZEN]
        and number_of(pool, place) >= pool.buckets[bucket, COPIED]
    ):
        to = offset_of(indexed.shadows.shape, append(indexed.shadows, bucket, stripe))
        for word in range(pool.shape.width):
            indexed.shadows.words[to + word] = pool.words[at + word]
    log_change(indexed, marks, bucket, stripe, place)
    pool.words[at + CELL_VERSION] = np.uint32(marks[bucket, VERSION])


@kernel
def remove(indexed, marks, bucket, stripe, place, salts):  # type: ignore[no-untyped-def]
    """Removes a cell from bucket and index; the last cell moves into its place. `can_change` is True for two cells."""
    pool = indexed.pool
    at, last = offset_of(pool.shape, place), last_place(pool, bucket)
    version = marks[bucket, VERSION]
    if np.int64(pool.words[at + CELL_VERSION]) != version:
        note_change(indexed, marks, bucket, stripe, place)
    key = np.uint64(pool.words[at + ID]) | (np.uint64(pool.words[at + ID + 1]) << _S32)
    erase(indexed.hash_index, bucket, splitmix64(key ^ salts[pool.words[at + TABLE] & TABLE_BITS]), place)
    if last != place:
        end = offset_of(pool.shape, last)
        is_watched = marks[bucket, FROZEN] >= 0 or marks[bucket, LOGGING] != 0
        if is_watched and np.int64(pool.words[end + CELL_VERSION]) != version:
            note_change(indexed, marks, bucket, stripe, last)
        key = np.uint64(pool.words[end + ID]) | (np.uint64(pool.words[end + ID + 1]) << _S32)
        replace_place(
            indexed.hash_index, bucket, splitmix64(key ^ salts[pool.words[end + TABLE] & TABLE_BITS]), last, place
        )
        for word in range(pool.shape.width):
            pool.words[at + word] = pool.words[end + word]
    drop_last(pool, bucket, stripe)


@kernel
def add_tombstone(tombstones, marks, bucket, stripe, low, high, table):  # type: ignore[no-untyped-def]
    """Adds a tombstone if changes are logged. There is room."""
    if marks[bucket, LOGGING]:
        at = offset_of(tombstones.shape, append(tombstones, bucket, stripe))
        tombstones.words[at + ID] = low
        tombstones.words[at + ID + 1] = high
        tombstones.words[at + CELL_VERSION] = np.uint32(marks[bucket, VERSION])
        tombstones.words[at + TABLE] = table


@kernel
def copy_before(pool, bucket, end, locks, stripe, out):  # type: ignore[no-untyped-def]
    """Copies a bucket's cells with numbers below `end`, in descending order, into `out` [n, W] uint32.

    Stops when `out` is full, or earlier if a thread waits for the lock. Returns the lowest number that was copied, and
    the number of copied cells.
    """
    number, copied = min(end, pool.buckets[bucket, COUNT]), 0
    slab = slab_at(pool, bucket, number - 1) if number else np.int64(-1)
    while number > 0 and copied < out.shape[0]:
        number -= 1
        at = offset_of(pool.shape, (slab << pool.shape.shift) | (number % pool.shape.per_slab))
        for word in range(pool.shape.width):
            out[copied, word] = pool.words[at + word]
        copied += 1
        if copied % CELLS_PER_CHECK == 0 and has_waiter(locks, stripe):
            break
        if number % pool.shape.per_slab == 0 and number:
            slab = np.int64(pool.slabs[slab, PREVIOUS])
    return number, copied


@kernel
def copy_cells(pool, bucket, since, first, out):  # type: ignore[no-untyped-def]
    """Copies a bucket's cells from number `first` on that are newer than `since` into `out` [n, W] uint32.

    Returns the number of copied cells, and the number of the first cell that was not checked.
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
    """Copies log entries or tombstones that are newer than `since` into `out` [n, W], from a cursor backwards.

    Stops after `most` cells, or earlier if a thread waits for the lock. Returns whether all were copied.

    Args:
        cursor: [3] int64, in and out: a slab (-1: none), number of its cells that are left, filled rows of `out`.
        out: has room for all cells before the cursor.
    """
    slab, left, filled = cursor[0], cursor[1], cursor[2]
    passed, is_over = 0, False
    while not should_pause(passed, most, locks, stripe):
        # As late as possible, because a slab with only older cells may be removed from the chain between two calls.
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
    """Copies cells that log `entries` [n, 2] name, if they have the entry's version, into `out` [m, W], each once.

    Stops after `most` entries or when `out` is full, or earlier if a thread waits for the lock. Returns whether all
    entries were read.

    Args:
        seen: [cells // 64 + 1] uint64, zeros first, a bit per cell. Cells that were appended later are in no entry.
        progress: [2] int64, in and out: number of entries that were read, filled rows of `out`.
    """
    first, filled = progress[0], progress[1]
    k = first
    while k < entries.shape[0] and not should_pause(k - first, most, locks, stripe):
        if k + AHEAD < entries.shape[0]:
            prefetch_cell(pool.words, pool.shape, np.int64(entries[k + AHEAD, 0]))
        place, version = np.int64(entries[k, 0]), entries[k, 1]
        number = number_of(pool, place)
        # A freed place may belong to another bucket by now, and a place may be in the log twice.
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
