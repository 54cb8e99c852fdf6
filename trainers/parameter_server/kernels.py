"""Kernels of the row store: an open-addressing index per virtual bucket, all in one flat array of slots.

A slot is (id, entry); entry 0 is empty, else `(table + 1) << 40 | payload`. The payload is the number of a row, or for
an id that was seen but not admitted `CANDIDATE | minutes << 16 | sightings`. A bucket's region doubles when three
quarters of it are full; only that bucket is rehashed, so no request waits long. Regions left behind are reused.

`allocator` int64: [0] slots in use from the start of the flat array; [1 + c] head of the list of free regions of
2^c slots, as start + 1. `row_allocator` int64: [0] rows ever used, [1] length of `free_rows`.
Legend: T tables, U ids of a request, D numbers per row, S optimiser numbers per row, V virtual buckets.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from elastrec.trainers.parameter_server.hashing import splitmix64, write_initial_row
from elastrec.trainers.parameter_server.prefetch import AHEAD, prefetch

TABLE_SHIFT = 40
PAYLOAD = (1 << 40) - 1
CANDIDATE = 1 << 39
SIGHTINGS = (1 << 16) - 1
MINUTES = (1 << 23) - 1
FIRST_REGION_CLASS = 5

ABSENT, NOT_ADMITTED = -1, -2
OK, ROWS_FULL, SLOTS_FULL, NOT_OWNED = 0, 1, 2, 3

_S32 = np.uint64(32)


@njit(cache=True, nogil=True, inline="always")
def _first(row_hash, mask):  # type: ignore[no-untyped-def]
    """The slot of a region that is tried first."""
    return np.int64(row_hash >> _S32) & mask


@njit(cache=True, nogil=True, inline="always")
def _probe(slots, start, mask, key, tag, i):  # type: ignore[no-untyped-def]
    """Slot of the key, or of the empty slot where it would go, tried from slot i of the region on."""
    while True:
        entry = slots[start + i, 1]
        if entry == 0 or (slots[start + i, 0] == key and (entry >> TABLE_SHIFT) == tag):
            return start + i
        i = (i + 1) & mask


@njit(cache=True, nogil=True)
def _take_region(slots, allocator, size_class):  # type: ignore[no-untyped-def]
    """Start of an empty region of 2^size_class slots, -1 when the flat array is full."""
    size = 1 << size_class
    head = allocator[1 + size_class]
    if head:
        start = head - 1
        allocator[1 + size_class] = slots[start, 0]
        slots[start : start + size, :] = 0
        return start
    start = allocator[0]
    if start + size > slots.shape[0]:
        return -1
    allocator[0] = start + size
    return start


@njit(cache=True, nogil=True)
def _give_region(slots, allocator, start, size_class):  # type: ignore[no-untyped-def]
    slots[start, 0] = allocator[1 + size_class]
    allocator[1 + size_class] = start + 1


@njit(cache=True, nogil=True)
def _grow(bucket, slots, regions, allocator, salts):  # type: ignore[no-untyped-def]
    """Gives the bucket a first or a doubled region; False when there is no room."""
    old_start, old_class = regions[bucket, 0], regions[bucket, 1]
    new_class = FIRST_REGION_CLASS if old_class == 0 else old_class + 1
    start = _take_region(slots, allocator, new_class)
    if start < 0:
        return False
    mask = (np.int64(1) << new_class) - 1
    if old_class:
        for s in range(old_start, old_start + (np.int64(1) << old_class)):
            entry = slots[s, 1]
            if entry:
                key, tag = slots[s, 0], entry >> TABLE_SHIFT
                to = _probe(slots, start, mask, key, tag, _first(splitmix64(np.uint64(key) ^ salts[tag - 1]), mask))
                slots[to, 0] = key
                slots[to, 1] = entry
        _give_region(slots, allocator, old_start, old_class)
    regions[bucket, 0] = start
    regions[bucket, 1] = new_class
    return True


@njit(cache=True, nogil=True)
def find_rows(counts, ids, first_table, salts, slots, regions, rows):  # type: ignore[no-untyped-def]
    """Numbers of the rows of ids [U], ABSENT or NOT_ADMITTED, into `rows` [U] int64."""
    virtual_buckets = np.uint64(regions.shape[0])
    # Where each id of a stretch is looked for: start of its bucket's region, mask of the region, first slot to try.
    bases, masks, firsts = np.empty(AHEAD, np.int64), np.empty(AHEAD, np.int64), np.empty(AHEAD, np.int64)
    end = 0
    for t in range(counts.shape[0]):
        tag, salt = first_table + t + 1, salts[first_table + t]
        start, end = end, end + counts[t]
        for first in range(start, end, AHEAD):
            last = min(first + AHEAD, end)
            for j in range(first, last):
                row_hash = splitmix64(np.uint64(ids[j]) ^ salt)
                bucket = np.int64(row_hash % virtual_buckets)
                k = j - first
                bases[k] = regions[bucket, 0]
                masks[k] = (np.int64(1) << regions[bucket, 1]) - 1
                firsts[k] = _first(row_hash, masks[k])
                prefetch(slots, bases[k] + firsts[k])
            for j in range(first, last):
                k = j - first
                row = ABSENT
                if masks[k]:
                    entry = slots[_probe(slots, bases[k], masks[k], ids[j], tag, firsts[k]), 1]
                    if entry:
                        row = NOT_ADMITTED if entry & CANDIDATE else entry & PAYLOAD
                rows[j] = row


@njit(cache=True, nogil=True)
def pull_rows(  # type: ignore[no-untyped-def]
    counts, ids, first_table, salts, ranges, zero_columns, seed_hash, zero_unless_trained, admit_after, slots, regions,
    values, rows, out,
):  # fmt: skip
    """Copies rows [U, D] into `out`; a row that does not exist gets its first value, or zero (see messages).

    `rows` [U] int64 gets the numbers of the rows, ABSENT or NOT_ADMITTED.
    """
    find_rows(counts, ids, first_table, salts, slots, regions, rows)
    j = 0
    for t in range(counts.shape[0]):
        table = first_table + t
        for _ in range(counts[t]):
            row = rows[j]
            if j + AHEAD < rows.shape[0]:
                prefetch(values, rows[j + AHEAD])
            if row >= 0:
                for d in range(out.shape[1]):
                    out[j, d] = values[row, d]
            elif row == NOT_ADMITTED or zero_unless_trained or admit_after > 1:
                for d in range(out.shape[1]):
                    out[j, d] = np.float32(0.0)
            else:
                row_hash = splitmix64(np.uint64(ids[j]) ^ salts[table])
                write_initial_row(out[j], row_hash, seed_hash, ranges[table], zero_columns[table])
            j += 1


@njit(cache=True, nogil=True)
def check_owned(counts, ids, known, first_table, salts, owned):  # type: ignore[no-untyped-def]
    """Whether every id lies in a bucket with `owned` [V] set; `known` as in `make_rows`."""
    virtual_buckets = np.uint64(owned.shape[0])
    j = 0
    for t in range(counts.shape[0]):
        salt = salts[first_table + t]
        for _ in range(counts[t]):
            if known[j] < 0 and not owned[np.int64(splitmix64(np.uint64(ids[j]) ^ salt) % virtual_buckets)]:
                return False
            j += 1
    return True


@njit(cache=True, nogil=True)
def make_rows(  # type: ignore[no-untyped-def]
    counts, ids, known, sightings, first_table, salts, ranges, zero_columns, seed_hash, admit_after, minutes,
    initial_state, slots, regions, used, allocator, free_rows, row_allocator, table_rows, table_candidates,
    values, state, rows_out,
):  # fmt: skip
    """Finds the rows of ids [U], making those that are due; `rows_out` [U] gets row numbers or NOT_ADMITTED.

    Args:
        known: [U] int64, numbers of rows that were found before (negative: none was).
        ranges, zero_columns: [T'] of all tables of the plan, as in TableEntry.
        sightings: [U] occurrences of each id in this push, or empty for one each.
        initial_state: [S] float32, what a new row's optimiser state starts from.
        used: [V] full slots per bucket.
    """
    virtual_buckets = np.uint64(regions.shape[0])
    j = 0
    for t in range(counts.shape[0]):
        table = first_table + t
        tag, salt = table + 1, salts[table]
        for _ in range(counts[t]):
            if known[j] >= 0:
                rows_out[j] = known[j]
                j += 1
                continue
            key = ids[j]
            row_hash = splitmix64(np.uint64(key) ^ salt)
            bucket = np.int64(row_hash % virtual_buckets)
            size_class = regions[bucket, 1]
            if size_class == 0 or 4 * (used[bucket] + 1) > 3 * (np.int64(1) << size_class):
                if not _grow(bucket, slots, regions, allocator, salts):
                    return SLOTS_FULL
                size_class = regions[bucket, 1]
            mask = (np.int64(1) << size_class) - 1
            slot = _probe(slots, regions[bucket, 0], mask, key, tag, _first(row_hash, mask))
            entry = slots[slot, 1]
            row = ABSENT
            if entry and not entry & CANDIDATE:
                row = entry & PAYLOAD
            else:
                seen = np.int64(sightings[j]) if sightings.shape[0] else 1
                if entry:
                    seen += entry & SIGHTINGS
                if seen >= admit_after:
                    if row_allocator[1]:
                        row_allocator[1] -= 1
                        row = free_rows[row_allocator[1]]
                    else:
                        row = row_allocator[0]
                        if row >= values.shape[0]:
                            return ROWS_FULL
                        row_allocator[0] += 1
                    write_initial_row(values[row], row_hash, seed_hash, ranges[table], zero_columns[table])
                    for s in range(state.shape[1]):
                        state[row, s] = initial_state[s]
                    table_rows[t] += 1
                    payload = row
                else:
                    row = NOT_ADMITTED
                    payload = CANDIDATE | (minutes << 16) | seen
                if not entry:
                    used[bucket] += 1
                    slots[slot, 0] = key
                    if row == NOT_ADMITTED:
                        table_candidates[t] += 1
                elif row != NOT_ADMITTED:
                    table_candidates[t] -= 1
                slots[slot, 1] = (np.int64(tag) << TABLE_SHIFT) | payload
            rows_out[j] = row
            j += 1
    return OK


@njit(cache=True, nogil=True)
def put_entries(  # type: ignore[no-untyped-def]
    table, ids, payloads, first_table, salts, slots, regions, used, allocator, table_rows, table_candidates
):
    """Enters ids [N] of one table with ready payloads (restoring); an id that is there already is replaced."""
    virtual_buckets = np.uint64(regions.shape[0])
    tag, salt = table + 1, salts[table]
    for j in range(ids.shape[0]):
        row_hash = splitmix64(np.uint64(ids[j]) ^ salt)
        bucket = np.int64(row_hash % virtual_buckets)
        size_class = regions[bucket, 1]
        full = size_class == 0 or 4 * (used[bucket] + 1) > 3 * (np.int64(1) << size_class)
        if full and not _grow(bucket, slots, regions, allocator, salts):
            return SLOTS_FULL
        mask = (np.int64(1) << regions[bucket, 1]) - 1
        slot = _probe(slots, regions[bucket, 0], mask, ids[j], tag, _first(row_hash, mask))
        if slots[slot, 1] == 0:
            used[bucket] += 1
            if payloads[j] & CANDIDATE:
                table_candidates[table - first_table] += 1
            else:
                table_rows[table - first_table] += 1
        slots[slot, 0] = ids[j]
        slots[slot, 1] = (np.int64(tag) << TABLE_SHIFT) | payloads[j]
    return OK


@njit(cache=True, nogil=True)
def list_entries(bucket, slots, regions, keys, entries):  # type: ignore[no-untyped-def]
    """Copies the bucket's full slots into keys [used], entries [used]; returns how many."""
    found = 0
    if regions[bucket, 1]:
        start = regions[bucket, 0]
        for s in range(start, start + (np.int64(1) << regions[bucket, 1])):
            if slots[s, 1]:
                keys[found] = slots[s, 0]
                entries[found] = slots[s, 1]
                found += 1
    return found


@njit(cache=True, nogil=True)
def evict_bucket(  # type: ignore[no-untyped-def]
    bucket, now_seconds, keep_seconds, first_table, salts, slots, regions, used,
    free_rows, row_allocator, table_rows, table_candidates, last_seen,
):  # fmt: skip
    """Drops what was not seen for more than `keep_seconds` (candidates: in whole minutes); returns how many."""
    size_class = regions[bucket, 1]
    if size_class == 0:
        return 0
    start, size = regions[bucket, 0], np.int64(1) << size_class
    now_minute = now_seconds // 60
    kept = np.empty((used[bucket], 2), np.int64)
    count, dropped = 0, 0
    for s in range(start, start + size):
        entry = slots[s, 1]
        if entry == 0:
            continue
        table = (entry >> TABLE_SHIFT) - 1 - first_table
        if entry & CANDIDATE:
            # A candidate keeps only the low bits of its minute: the difference counts, not the number. It may have
            # been seen at the end of that minute.
            late = (((now_minute - (entry >> 16)) & MINUTES) - 1) * 60 > keep_seconds
            if late:
                table_candidates[table] -= 1
        else:
            row = entry & PAYLOAD
            late = now_seconds - np.int64(last_seen[row]) > keep_seconds
            if late:
                table_rows[table] -= 1
                free_rows[row_allocator[1]] = row
                row_allocator[1] += 1
        if late:
            dropped += 1
        else:
            kept[count, 0] = slots[s, 0]
            kept[count, 1] = entry
            count += 1
    if dropped:
        # Linear probing cannot simply lose a slot: the bucket is laid out anew.
        slots[start : start + size, :] = 0
        for k in range(count):
            tag = kept[k, 1] >> TABLE_SHIFT
            row_hash = splitmix64(np.uint64(kept[k, 0]) ^ salts[tag - 1])
            to = _probe(slots, start, size - 1, kept[k, 0], tag, _first(row_hash, size - 1))
            slots[to, 0] = kept[k, 0]
            slots[to, 1] = kept[k, 1]
        used[bucket] = count
    return dropped
