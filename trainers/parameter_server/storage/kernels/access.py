"""Kernels of requests: laying out ids by stripe, reading rows, making those that are due.

Kernels that may need slabs or a longer run of index lines stop before anything of that id is changed, say so in
`report` [4] int64 (code, bucket, position in the stripe's order, rows that are not
absent any more), and go on when called again.
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
from elastrec.trainers.parameter_server.storage.kernels.changes import bury, log_change, may_change, note_change, remove
from elastrec.trainers.parameter_server.storage.kernels.compiling import inlined, kernel
from elastrec.trainers.parameter_server.storage.kernels.index import ABSENT, AT_ONCE, enter, find, has_slot, search
from elastrec.trainers.parameter_server.storage.kernels.locks import BEFORE_LOOKING, is_due, is_wanted
from elastrec.trainers.parameter_server.storage.kernels.pools import append, has_room, offset_of, slab_at
from elastrec.trainers.parameter_server.storage.rules import write_first_state

DONE, NEED_SLABS, NEED_LINES, NEED_RELEASE, FULL, PAUSED = 0, 1, 2, 3, 4, 5
_WRITTEN_AHEAD = 16  # rows of an answer asked for before they are written
MOST_SIGHTINGS = (1 << 16) - 1
_S16 = np.uint32(16)


@kernel
def lay_out_request(counts, ids, salts, owned, stripe_of, load, request, at):  # type: ignore[no-untyped-def]
    """Fills a request for ids [U], counts [T] of them per table; returns how many lie in buckets not `owned` [V].

    Those are in no stripe's order.

    Args:
        load: [V] int64, ids are counted in it, without a lock: of two requests at once a count may be lost.
        request: its `starts` are zero.
        at: [S] int64, scratch.
    """
    virtual_buckets = np.uint64(owned.shape[0])
    mask = virtual_buckets - np.uint64(1)
    is_power = virtual_buckets & mask == 0  # a division costs more than all the rest
    stripes = request.starts.shape[0] - 1
    hashes, buckets, tables, order = request.hashes, request.buckets, request.tables, request.order
    j, foreign = 0, 0
    for t in range(counts.shape[0]):
        salt = salts[t]
        for _ in range(counts[t]):
            row_hash = splitmix64(np.uint64(ids[j]) ^ salt)
            bucket = np.int64(row_hash & mask if is_power else row_hash % virtual_buckets)
            hashes[j] = row_hash
            buckets[j] = bucket
            tables[j] = t
            order[j] = j
            load[bucket] += 1
            if owned[bucket]:
                request.starts[stripe_of[bucket] + 1] += 1
            else:
                foreign += 1
            j += 1
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
    """Places of a stripe's ids, or ABSENT, into `places` [U]; returns how many are absent."""
    words, lines, longs, runs, order = pool.words, index.lines, index.longs, index.runs, request.order
    hashes, buckets, ids, tables = request.hashes, request.buckets, request.ids, request.tables
    absent, begin, end = 0, request.starts[stripe], request.starts[stripe + 1]
    for first in range(begin, end, AT_ONCE):
        last = min(first + AT_ONCE, end)
        find(words, pool.shape, lines, longs, runs, order, hashes, buckets, ids, tables, first, last, places, scratch)
        for k in range(first, last):
            absent += places[order[k]] == ABSENT
    return absent


@kernel
def pull(pool, index, settings, request, stripe, zero_if_absent, places, out, scratch):  # type: ignore[no-untyped-def]
    """Copies a stripe's rows into `out` [U, D]; one that is not there gets its first value, or zero.

    Places, or ABSENT, go into `places` [U]. Returns how many are absent.
    """
    words, lines, longs, runs, order = pool.words, index.lines, index.longs, index.runs, request.order
    hashes, buckets, ids, tables = request.hashes, request.buckets, request.ids, request.tables
    cells, ranges, dimension = pool.cells, settings.ranges, out.shape[1]
    absent, begin, end = 0, request.starts[stripe], request.starts[stripe + 1]
    for first in range(begin, end, AT_ONCE):
        last = min(first + AT_ONCE, end)
        find(words, pool.shape, lines, longs, runs, order, hashes, buckets, ids, tables, first, last, places, scratch)
        for k in range(first, last):
            # With several stripes, rows that follow each other in the order lie apart in the request.
            prefetch(out, np.int64(order[min(k + _WRITTEN_AHEAD, last - 1)]))
            j = order[k]
            place = places[j]
            if place >= 0:
                # Unsigned: a signed number may count from the end, which numba would test for every word.
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
def _begin(pool, place, key, version, table):  # type: ignore[no-untyped-def]
    at = offset_of(pool.shape, place)
    pool.words[at + ID] = np.uint32(key)
    pool.words[at + ID + 1] = np.uint32(key >> 32)
    pool.words[at + CELL_VERSION] = np.uint32(version)
    pool.words[at + TABLE] = np.uint32(table)
    return at


@kernel
def may_make(shelf, marks, bucket, stripe):  # type: ignore[no-untyped-def]
    """DONE when the bucket has room for another cell, else what it needs."""
    if not has_room(shelf.pool, bucket, stripe, 1) or not may_change(shelf, marks, bucket, stripe, 1):
        return NEED_SLABS
    return DONE if has_slot(shelf.pool, shelf.slots, bucket) else NEED_LINES


@kernel
def may_remove(shelf, tombs, marks, bucket, stripe):  # type: ignore[no-untyped-def]
    """DONE when a cell of the bucket may be removed, else what it needs."""
    if shelf.pool.released[stripe, 0] + 2 > shelf.pool.released.shape[1]:
        return NEED_RELEASE
    if not may_change(shelf, marks, bucket, stripe, 2):
        return NEED_SLABS
    if marks[bucket, LOGGING] and not has_room(tombs, bucket, stripe, 1):
        return NEED_SLABS
    return DONE


@kernel
def make_row(shelf, settings, marks, bucket, stripe, row_hash, key, table):  # type: ignore[no-untyped-def]
    """Place of a new row with its first value. `may_make` said DONE."""
    pool = shelf.pool
    place = append(pool, bucket, stripe)
    at = _begin(pool, place, key, marks[bucket, VERSION], table)
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
    enter(shelf.slots, bucket, row_hash, place)
    log_change(shelf, marks, bucket, stripe, place)
    return place


@kernel
def make(  # type: ignore[no-untyped-def]
    shelf, waiting, tombs, settings, marks, request, stripe, sightings, now_seconds, room, usage, places, report
):  # fmt: skip
    """Makes the stripe's rows that are absent and due, and counts the sightings of the others.

    Args:
        shelf, waiting: rows, and candidates for rows.
        sightings: [U] of each id in this push; only used with admission.
        room: rows that may be made.
        usage: [V, T, 2] int64, rows and candidates per table.
        places: [U] in and out.
    """
    made, found = 0, 0
    for k in range(request.starts[stripe] + report[2], request.starts[stripe + 1]):
        j = request.order[k]
        if places[j] >= 0:
            continue
        bucket, table = np.int64(request.buckets[j]), np.int64(request.tables[j])
        key, row_hash = request.ids[j], request.hashes[j]
        # Another request may have made it since it was looked for.
        places[j] = search(shelf.pool, shelf.slots, bucket, row_hash, key, np.uint32(table))
        if places[j] >= 0:
            found += 1
            continue
        code = may_make(shelf, marks, bucket, stripe)
        candidate, seen = ABSENT, np.int64(settings.admit_after)
        if settings.admit_after > 1:
            seen = np.int64(sightings[j])
            candidate = search(waiting.pool, waiting.slots, bucket, row_hash, key, np.uint32(table))
            if candidate >= 0:
                at = offset_of(waiting.pool.shape, candidate)
                seen += np.int64(waiting.pool.words[at + TABLE] >> _S16)
            if seen < settings.admit_after:
                # It stays a candidate, or becomes one.
                if candidate >= 0:
                    code = DONE if may_change(waiting, marks, bucket, stripe, 1) else NEED_SLABS
                else:
                    code = may_make(waiting, marks, bucket, stripe)
            elif candidate >= 0 and code == DONE:
                code = may_remove(waiting, tombs, marks, bucket, stripe)
        if code == DONE and seen >= settings.admit_after and made >= room:
            code = FULL
        if code != DONE:
            report[0], report[1], report[2] = code, bucket, k - request.starts[stripe]
            report[3] += made + found
            return
        if seen >= settings.admit_after:
            if candidate >= 0:
                remove(waiting, marks, bucket, stripe, candidate, settings.salts)
                usage[bucket, table, 1] -= 1
            places[j] = make_row(shelf, settings, marks, bucket, stripe, row_hash, key, table)
            usage[bucket, table, 0] += 1
            made += 1
        else:
            count_sightings(waiting, marks, bucket, stripe, candidate, row_hash, key, table, seen, now_seconds)
            usage[bucket, table, 1] += candidate < 0
    report[0], report[2] = DONE, request.starts[stripe + 1] - request.starts[stripe]
    report[3] += made + found


@kernel
def count_sightings(  # type: ignore[no-untyped-def]
    waiting, marks, bucket, stripe, candidate, row_hash, key, table, seen, now_seconds
):
    """Notes that an id was seen `seen` times by now; `candidate` is its place, or ABSENT. There is room."""
    if candidate < 0:
        candidate = append(waiting.pool, bucket, stripe)
        _begin(waiting.pool, candidate, key, marks[bucket, VERSION], table)
        enter(waiting.slots, bucket, row_hash, candidate)
        log_change(waiting, marks, bucket, stripe, candidate)
    at = offset_of(waiting.pool.shape, candidate)
    if np.int64(waiting.pool.words[at + CELL_VERSION]) != marks[bucket, VERSION]:
        note_change(waiting, marks, bucket, stripe, candidate)
    waiting.pool.words[at + TABLE] = np.uint32(table) | (np.uint32(min(seen, MOST_SIGHTINGS)) << _S16)
    waiting.pool.words[at + REST] = np.uint32(now_seconds)


@kernel
def evict(  # type: ignore[no-untyped-def]
    shelf, tombs, marks, bucket, stripe, seen_word, now_seconds, keep_seconds, steps, salts, kind, usage, locks, report
):
    """Removes cells that were not seen for more than `keep_seconds`, looking at most at `steps` of them.

    It looks at no more than some hundred when somebody waits for the stripe's lock.

    From the last cell to the first: the one that moves into a removed one's place was looked at before.

    Args:
        kind: 0 rows, 1 candidates, of `usage` [V, T, 2].
        report: code, -, number of the last cell that was not looked at plus one, removed. A negative number begins.
    """
    pool = shelf.pool
    count = pool.buckets[bucket, COUNT]
    number = count if report[2] < 0 else min(report[2], count)
    end = max(number - steps, 0)
    report[0] = DONE
    slab = slab_at(pool, bucket, number - 1) if number else -1
    while number > end:
        place = (slab << pool.shape.shift) | ((number - 1) % pool.shape.per_slab)
        at = offset_of(pool.shape, place)
        if now_seconds - np.int64(pool.words[at + seen_word]) > keep_seconds:
            report[0] = may_remove(shelf, tombs, marks, bucket, stripe)
            if report[0] != DONE:
                break
            low, high, table = pool.words[at + ID], pool.words[at + ID + 1], pool.words[at + TABLE] & TABLE_BITS
            # Its slab may be released; until the lock is, its neighbours in the chain can still be read from it.
            remove(shelf, marks, bucket, stripe, place, salts)
            bury(tombs, marks, bucket, stripe, low, high, table)
            usage[bucket, table, kind] -= 1
            report[3] += 1
        number -= 1
        if number % BEFORE_LOOKING == 0 and is_wanted(locks, stripe):
            break
        if number % pool.shape.per_slab == 0:
            slab = np.int64(pool.slabs[slab, PREVIOUS])
    report[2] = number


@kernel
def take_in(  # type: ignore[no-untyped-def]
    shelf, other, tombs, settings, marks, request, stripe, cells, kind, usage, locks, most, report
):
    """Enters cells [U, W] uint32 of a request's ids, replacing those that are there.

    PAUSED after `most` of them, and after some hundred when somebody waits for the stripe's lock.

    Args:
        kind: 0: rows, and `other` are the candidates, of which each id is removed; 1: candidates, and `other` are the
            rows, whose ids are left out.
        usage: [V, T, 2].
    """
    pool, first = shelf.pool, request.starts[stripe] + report[2]
    for k in range(first, request.starts[stripe + 1]):
        if is_due(k - first, most, locks, stripe):
            report[0], report[2] = PAUSED, k - request.starts[stripe]
            return
        j = request.order[k]
        bucket, table = np.int64(request.buckets[j]), np.int64(request.tables[j])
        key, row_hash = request.ids[j], request.hashes[j]
        place = search(pool, shelf.slots, bucket, row_hash, key, np.uint32(table))
        there = search(other.pool, other.slots, bucket, row_hash, key, np.uint32(table))
        if kind == 1 and there >= 0:
            continue
        if place < 0:
            code = may_make(shelf, marks, bucket, stripe)
        else:
            code = DONE if may_change(shelf, marks, bucket, stripe, 1) else NEED_SLABS
        if code == DONE and there >= 0:
            code = may_remove(other, tombs, marks, bucket, stripe)
        if code != DONE:
            report[0], report[1], report[2] = code, bucket, k - request.starts[stripe]
            return
        if there >= 0:
            remove(other, marks, bucket, stripe, there, settings.salts)
            usage[bucket, table, 1] -= 1
        if place < 0:
            place = append(pool, bucket, stripe)
            _begin(pool, place, key, marks[bucket, VERSION], table)
            enter(shelf.slots, bucket, row_hash, place)
            log_change(shelf, marks, bucket, stripe, place)
            usage[bucket, table, kind] += 1
        elif np.int64(pool.words[offset_of(pool.shape, place) + CELL_VERSION]) != marks[bucket, VERSION]:
            note_change(shelf, marks, bucket, stripe, place)
        at = offset_of(pool.shape, place)
        for word in range(pool.shape.width):
            pool.words[at + word] = cells[j, word]
        if marks[bucket, LOGGING]:
            # Its entry in the log has this version.
            pool.words[at + CELL_VERSION] = np.uint32(marks[bucket, VERSION])
    report[0], report[2] = DONE, request.starts[stripe + 1] - request.starts[stripe]


@kernel
def take_out(  # type: ignore[no-untyped-def]
    shelf, other, tombs, settings, marks, request, stripe, cells, kind, usage, locks, most, report
):
    """Removes a request's ids from `shelf`; arguments and pauses as `take_in`, without use for cells."""
    first = request.starts[stripe] + report[2]
    for k in range(first, request.starts[stripe + 1]):
        if is_due(k - first, most, locks, stripe):
            report[0], report[2] = PAUSED, k - request.starts[stripe]
            return
        j = request.order[k]
        bucket, table = np.int64(request.buckets[j]), np.int64(request.tables[j])
        place = search(shelf.pool, shelf.slots, bucket, request.hashes[j], request.ids[j], np.uint32(table))
        if place < 0:
            continue
        code = may_remove(shelf, tombs, marks, bucket, stripe)
        if code != DONE:
            report[0], report[1], report[2] = code, bucket, k - request.starts[stripe]
            return
        at = offset_of(shelf.pool.shape, place)
        low, high = shelf.pool.words[at + ID], shelf.pool.words[at + ID + 1]
        remove(shelf, marks, bucket, stripe, place, settings.salts)
        bury(tombs, marks, bucket, stripe, low, high, np.uint32(table))
        usage[bucket, table, kind] -= 1
    report[0], report[2] = DONE, request.starts[stripe + 1] - request.starts[stripe]
