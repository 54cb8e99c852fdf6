"""Kernels of requests: ordering ids by stripe, reading rows, creating and removing rows. The stripe's lock is held.

A kernel that needs slabs or a longer run of index lines stops before it changes anything of that id. It fills `report`
[4] int64 (code, bucket, position in the stripe's order, number of rows that were found or created) and continues when
it is called again.
"""

from __future__ import annotations

import numpy as np

from elastrec.trainers.parameter_server.hashing import splitmix64, write_initial_row
from elastrec.trainers.parameter_server.prefetch import prefetch
from elastrec.trainers.parameter_server.storage.kernels.arrays import (
    CELL_VERSION,
    COUNT,
    ID,
    LOGGING,
    PREVIOUS,
    REST,
    TABLE,
    TABLE_BITS,
    VERSION,
)
from elastrec.trainers.parameter_server.storage.kernels.changes import (
    add_tombstone,
    can_change,
    log_change,
    note_change,
    remove,
)
from elastrec.trainers.parameter_server.storage.kernels.compiling import inlined, kernel
from elastrec.trainers.parameter_server.storage.kernels.index import (
    ABSENT,
    LOOKUP_BATCH,
    find,
    has_slot,
    insert,
    search,
)
from elastrec.trainers.parameter_server.storage.kernels.locks import CELLS_PER_CHECK, has_waiter, should_pause
from elastrec.trainers.parameter_server.storage.kernels.pools import append, has_room, offset_of, slab_at
from elastrec.trainers.parameter_server.storage.rules import write_first_state

DONE, NEED_SLABS, NEED_LINES, NEED_RELEASE, FULL, PAUSED = 0, 1, 2, 3, 4, 5
_WRITTEN_AHEAD = 16  # rows of `out` that are prefetched before they are written
MOST_SIGHTINGS = (1 << 16) - 1
_S16 = np.uint32(16)


@kernel
def order_request(counts, ids, salts, owned, stripe_of, load, request, named, at):  # type: ignore[no-untyped-def]
    """Fills a request for ids [U], `counts` [T] of them per table, and orders them by stripe. Needs no lock.

    Returns the number of ids in buckets that are not `owned` [V]; these ids are in no stripe's order.

    Args:
        load: [V] int64, increased by the ids in each bucket; not atomic, so concurrent requests may lose counts.
        request: to be filled; its `starts` are zero.
        named: [V] int64, zeros, scratch: the ids in each bucket. Cores that incremented `load` for each id would wait
            for its cache lines at each of them.
        at: [S] int64, scratch.
    """
    virtual_buckets = np.uint64(owned.shape[0])
    mask = virtual_buckets - np.uint64(1)
    is_power = virtual_buckets & mask == 0  # a division would cost more than all the rest
    stripes = request.starts.shape[0] - 1
    hashes, buckets, tables, order = request.hashes, request.buckets, request.tables, request.order
    j, foreign = 0, 0
    for t in range(counts.shape[0]):
        salt = salts[t]
        for _ in range(counts[t]):
            row_hash = splitmix64(np.uint64(ids[j]) ^ salt)
            bucket = np.int64(row_hash & mask if is_power else row_hash % virtual_buckets)
            request.ids[j] = ids[j]
            hashes[j] = row_hash
            buckets[j] = bucket
            tables[j] = t
            order[j] = j
            named[bucket] += 1
            if owned[bucket]:
                request.starts[stripe_of[bucket] + 1] += 1
            else:
                foreign += 1
            j += 1
    for v in range(named.shape[0]):
        if named[v]:
            load[v] += named[v]
    if stripes == 1 and foreign == 0:
        return 0
    for s in range(stripes):
        at[s] = request.starts[s]
        request.starts[s + 1] += at[s]
    for j in range(ids.shape[0]):
        bucket = buckets[j]
        if owned[bucket]:
            stripe = stripe_of[bucket]
            order[at[stripe]] = j
            at[stripe] += 1
    return foreign


@kernel
def find_all(pool, index, request, stripe, places, scratch):  # type: ignore[no-untyped-def]
    """Fills `places` [U] for a stripe's ids, with ABSENT for those without a row; returns the number of absent ones."""
    words, lines, longs, runs, order = pool.words, index.lines, index.longs, index.runs, request.order
    hashes, buckets, ids, tables = request.hashes, request.buckets, request.ids, request.tables
    absent, begin, end = 0, request.starts[stripe], request.starts[stripe + 1]
    for first in range(begin, end, LOOKUP_BATCH):
        last = min(first + LOOKUP_BATCH, end)
        find(words, pool.shape, lines, longs, runs, order, hashes, buckets, ids, tables, first, last, places, scratch)
        for k in range(first, last):
            absent += places[order[k]] == ABSENT
    return absent


@kernel
def pull(pool, index, settings, request, stripe, zero_if_absent, places, out, scratch):  # type: ignore[no-untyped-def]
    """Copies the values of a stripe's rows into `out` [U, D]; absent rows get their initial values, or zero.

    Fills `places` [U] and returns the number of absent rows, as `find_all`.
    """
    words, lines, longs, runs, order = pool.words, index.lines, index.longs, index.runs, request.order
    hashes, buckets, ids, tables = request.hashes, request.buckets, request.ids, request.tables
    cells, ranges, dimension = pool.cells, settings.ranges, out.shape[1]
    absent, begin, end = 0, request.starts[stripe], request.starts[stripe + 1]
    for first in range(begin, end, LOOKUP_BATCH):
        last = min(first + LOOKUP_BATCH, end)
        find(words, pool.shape, lines, longs, runs, order, hashes, buckets, ids, tables, first, last, places, scratch)
        for k in range(first, last):
            # With several stripes, rows that are adjacent in the order are not adjacent in `out`.
            prefetch(out, np.int64(order[min(k + _WRITTEN_AHEAD, last - 1)]))
            j = order[k]
            place = places[j]
            if place >= 0:
                # Unsigned: for a signed index numba would test for every word whether it counts from the end.
                at = np.uint64(offset_of(pool.shape, place) + settings.value_word)
                for d in range(dimension):
                    out[j, d] = cells[at + np.uint64(d)]
                continue
            absent += 1
            if zero_if_absent:
                for d in range(dimension):
                    out[j, d] = np.float32(0.0)
            else:
                write_initial_row(out[j], hashes[j], settings.seed_hash, ranges[tables[j]])
    return absent


@inlined
def _write_header(pool, place, key, version, table):  # type: ignore[no-untyped-def]
    """Writes id, version and table of a cell; returns the offset of its first word."""
    at = offset_of(pool.shape, place)
    pool.words[at + ID] = np.uint32(key)
    pool.words[at + ID + 1] = np.uint32(key >> 32)
    pool.words[at + CELL_VERSION] = np.uint32(version)
    pool.words[at + TABLE] = np.uint32(table)
    return at


@kernel
def can_create(indexed, marks, bucket, stripe):  # type: ignore[no-untyped-def]
    """DONE if the bucket has room for another cell, else what is missing."""
    if not has_room(indexed.pool, bucket, stripe, 1) or not can_change(indexed, marks, bucket, stripe, 1):
        return NEED_SLABS
    return DONE if has_slot(indexed.pool, indexed.hash_index, bucket) else NEED_LINES


@kernel
def can_remove(indexed, tombstones, marks, bucket, stripe):  # type: ignore[no-untyped-def]
    """DONE if a cell of the bucket can be removed, else what is missing."""
    if indexed.pool.released[stripe, 0] + 2 > indexed.pool.released.shape[1]:
        return NEED_RELEASE
    if not can_change(indexed, marks, bucket, stripe, 2):
        return NEED_SLABS
    if marks[bucket, LOGGING] and not has_room(tombstones, bucket, stripe, 1):
        return NEED_SLABS
    return DONE


@kernel
def create_row(indexed, settings, marks, bucket, stripe, row_hash, key, table):  # type: ignore[no-untyped-def]
    """Creates a row with its initial value; returns its place. `can_create` returned DONE."""
    pool = indexed.pool
    place = append(pool, bucket, stripe)
    at = _write_header(pool, place, key, marks[bucket, VERSION], table)
    states, first = at + settings.state_word, at + settings.value_word
    values = pool.cells[first : first + settings.dimension]
    write_initial_row(values, row_hash, settings.seed_hash, settings.ranges[table])
    write_first_state(
        values,
        settings.segments,
        settings.numbers,
        settings.initial_state,
        pool.cells[states : states + settings.states],
    )
    insert(indexed.hash_index, bucket, row_hash, place)
    log_change(indexed, marks, bucket, stripe, place)
    return place


@kernel
def create_rows(  # type: ignore[no-untyped-def]
    indexed, candidates, tombstones, settings, marks, request, stripe, sightings, now_seconds, room, entries, places,
    report,
):  # fmt: skip
    """Creates the absent rows of a stripe; with admission, only of ids that were seen `admit_after` times.

    Other ids are or become candidates, with the number of their sightings.

    Args:
        indexed, candidates: the pools of rows and of candidates.
        sightings: [U] int32, how often this push has seen each id; only used with admission.
        room: most rows that may be created.
        entries: [V, T, 2] int64, see RowStore.
        places: [U] int64, in and out.
    """
    created, found = 0, 0
    for k in range(request.starts[stripe] + report[2], request.starts[stripe + 1]):
        j = request.order[k]
        if places[j] >= 0:
            continue
        bucket, table = np.int64(request.buckets[j]), np.int64(request.tables[j])
        key, row_hash = request.ids[j], request.hashes[j]
        # Another request may have created it after the lookup.
        places[j] = search(indexed.pool, indexed.hash_index, bucket, row_hash, key, np.uint32(table))
        if places[j] >= 0:
            found += 1
            continue
        code = can_create(indexed, marks, bucket, stripe)
        candidate, seen = ABSENT, np.int64(settings.admit_after)
        if settings.admit_after > 1:
            seen = np.int64(sightings[j])
            candidate = search(candidates.pool, candidates.hash_index, bucket, row_hash, key, np.uint32(table))
            if candidate >= 0:
                at = offset_of(candidates.pool.shape, candidate)
                seen += np.int64(candidates.pool.words[at + TABLE] >> _S16)
            if seen < settings.admit_after:
                # The id is a candidate or becomes one.
                if candidate >= 0:
                    code = DONE if can_change(candidates, marks, bucket, stripe, 1) else NEED_SLABS
                else:
                    code = can_create(candidates, marks, bucket, stripe)
            elif candidate >= 0 and code == DONE:
                code = can_remove(candidates, tombstones, marks, bucket, stripe)
        if code == DONE and seen >= settings.admit_after and created >= room:
            code = FULL
        if code != DONE:
            report[0], report[1], report[2] = code, bucket, k - request.starts[stripe]
            report[3] += created + found
            return
        if seen >= settings.admit_after:
            if candidate >= 0:
                remove(candidates, marks, bucket, stripe, candidate, settings.salts)
                entries[bucket, table, 1] -= 1
            places[j] = create_row(indexed, settings, marks, bucket, stripe, row_hash, key, table)
            entries[bucket, table, 0] += 1
            created += 1
        else:
            count_sightings(candidates, marks, bucket, stripe, candidate, row_hash, key, table, seen, now_seconds)
            entries[bucket, table, 1] += candidate < 0
    report[0], report[2] = DONE, request.starts[stripe + 1] - request.starts[stripe]
    report[3] += created + found


@kernel
def count_sightings(  # type: ignore[no-untyped-def]
    candidates, marks, bucket, stripe, candidate, row_hash, key, table, seen, now_seconds
):
    """Sets the number of sightings of a candidate at place `candidate`, or creates it if ABSENT. There is room."""
    if candidate < 0:
        candidate = append(candidates.pool, bucket, stripe)
        _write_header(candidates.pool, candidate, key, marks[bucket, VERSION], table)
        insert(candidates.hash_index, bucket, row_hash, candidate)
        log_change(candidates, marks, bucket, stripe, candidate)
    at = offset_of(candidates.pool.shape, candidate)
    if np.int64(candidates.pool.words[at + CELL_VERSION]) != marks[bucket, VERSION]:
        note_change(candidates, marks, bucket, stripe, candidate)
    candidates.pool.words[at + TABLE] = np.uint32(table) | (np.uint32(min(seen, MOST_SIGHTINGS)) << _S16)
    candidates.pool.words[at + REST] = np.uint32(now_seconds)


@kernel
def evict(  # type: ignore[no-untyped-def]
    indexed,
    tombstones,
    marks,
    bucket,
    stripe,
    seen_word,
    now_seconds,
    keep_seconds,
    steps,
    salts,
    kind,
    entries,
    locks,
    report,
):
    """Checks at most `steps` cells of a bucket, and removes those that were not seen for more than `keep_seconds`.

    Pauses earlier, after some of them, if a thread waits for the stripe's lock. Cells are checked from the last to the
    first, so a cell that moves into the place of a removed one was already checked.

    Args:
        kind: 0: rows, 1: candidates, as in `entries` [V, T, 2].
        report: code, unused, number of cells that are still to be checked (negative: all), number of removed cells.
    """
    pool = indexed.pool
    count = pool.buckets[bucket, COUNT]
    number = count if report[2] < 0 else min(report[2], count)
    end = max(number - steps, 0)
    report[0] = DONE
    slab = slab_at(pool, bucket, number - 1) if number else -1
    while number > end:
        place = (slab << pool.shape.shift) | ((number - 1) % pool.shape.per_slab)
        at = offset_of(pool.shape, place)
        if now_seconds - np.int64(pool.words[at + seen_word]) > keep_seconds:
            report[0] = can_remove(indexed, tombstones, marks, bucket, stripe)
            if report[0] != DONE:
                break
            low, high, table = pool.words[at + ID], pool.words[at + ID + 1], pool.words[at + TABLE] & TABLE_BITS
            # This may release the cell's slab, whose links in the chain stay readable until the lock is released.
            remove(indexed, marks, bucket, stripe, place, salts)
            add_tombstone(tombstones, marks, bucket, stripe, low, high, table)
            entries[bucket, table, kind] -= 1
            report[3] += 1
        number -= 1
        if number % CELLS_PER_CHECK == 0 and has_waiter(locks, stripe):
            break
        if number % pool.shape.per_slab == 0:
            slab = np.int64(pool.slabs[slab, PREVIOUS])
    report[2] = number


@kernel
def insert_cells(  # type: ignore[no-untyped-def]
    indexed, other, tombstones, settings, marks, request, stripe, cells, kind, entries, locks, most, report
):
    """Inserts cells [U, W] uint32 of a request's ids, or replaces the present ones.

    Reports PAUSED after `most` cells, or earlier, after some of them, if a thread waits for the stripe's lock.

    Args:
        kind: 0: cells are rows; `other` is the pool of candidates, from which each id is removed. 1: cells are
            candidates; `other` is the pool of rows, and ids with a row are skipped.
        entries: [V, T, 2] int64, see RowStore.
    """
    pool, first = indexed.pool, request.starts[stripe] + report[2]
    for k in range(first, request.starts[stripe + 1]):
        if should_pause(k - first, most, locks, stripe):
            report[0], report[2] = PAUSED, k - request.starts[stripe]
            return
        j = request.order[k]
        bucket, table = np.int64(request.buckets[j]), np.int64(request.tables[j])
        key, row_hash = request.ids[j], request.hashes[j]
        place = search(pool, indexed.hash_index, bucket, row_hash, key, np.uint32(table))
        other_place = search(other.pool, other.hash_index, bucket, row_hash, key, np.uint32(table))
        if kind == 1 and other_place >= 0:
            continue
        if place < 0:
            code = can_create(indexed, marks, bucket, stripe)
        else:
            code = DONE if can_change(indexed, marks, bucket, stripe, 1) else NEED_SLABS
        if code == DONE and other_place >= 0:
            code = can_remove(other, tombstones, marks, bucket, stripe)
        if code != DONE:
            report[0], report[1], report[2] = code, bucket, k - request.starts[stripe]
            return
        if other_place >= 0:
            remove(other, marks, bucket, stripe, other_place, settings.salts)
            entries[bucket, table, 1] -= 1
        if place < 0:
            place = append(pool, bucket, stripe)
            _write_header(pool, place, key, marks[bucket, VERSION], table)
            insert(indexed.hash_index, bucket, row_hash, place)
            log_change(indexed, marks, bucket, stripe, place)
            entries[bucket, table, kind] += 1
        elif np.int64(pool.words[offset_of(pool.shape, place) + CELL_VERSION]) != marks[bucket, VERSION]:
            note_change(indexed, marks, bucket, stripe, place)
        at = offset_of(pool.shape, place)
        for word in range(pool.shape.width):
            pool.words[at + word] = cells[j, word]
        if marks[bucket, LOGGING]:
            # The entry in the log has this version.
            pool.words[at + CELL_VERSION] = np.uint32(marks[bucket, VERSION])
    report[0], report[2] = DONE, request.starts[stripe + 1] - request.starts[stripe]


@kernel
def remove_cells(  # type: ignore[no-untyped-def]
    indexed, other, tombstones, settings, marks, request, stripe, cells, kind, entries, locks, most, report
):
    """Removes a request's ids from `indexed`. Arguments as `insert_cells`; `cells` and `other` are unused."""
    first = request.starts[stripe] + report[2]
    for k in range(first, request.starts[stripe + 1]):
        if should_pause(k - first, most, locks, stripe):
            report[0], report[2] = PAUSED, k - request.starts[stripe]
            return
        j = request.order[k]
        bucket, table = np.int64(request.buckets[j]), np.int64(request.tables[j])
        place = search(indexed.pool, indexed.hash_index, bucket, request.hashes[j], request.ids[j], np.uint32(table))
        if place < 0:
            continue
        code = can_remove(indexed, tombstones, marks, bucket, stripe)
        if code != DONE:
            report[0], report[1], report[2] = code, bucket, k - request.starts[stripe]
            return
        at = offset_of(indexed.pool.shape, place)
        low, high = indexed.pool.words[at + ID], indexed.pool.words[at + ID + 1]
        remove(indexed, marks, bucket, stripe, place, settings.salts)
        add_tombstone(tombstones, marks, bucket, stripe, low, high, np.uint32(table))
        entries[bucket, table, kind] -= 1
    report[0], report[2] = DONE, request.starts[stripe + 1] - request.starts[stripe]
