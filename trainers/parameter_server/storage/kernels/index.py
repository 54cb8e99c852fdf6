"""Kernels of the index: open addressing with lines of 12 slots. The lock of the bucket's stripe is held.

A place is inserted into the first line with a free slot, beginning at the line that its hash selects. Each full line on
the way counts it as passed. So a search ends at the first line with a count of zero, and a deleted slot needs no
tombstone. This is the method of F14: Bronson and Shi, "Open-sourcing F14 for faster, more memory-efficient hash
tables", Meta, 2019.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from elastrec.trainers.parameter_server.hashing import splitmix64
from elastrec.trainers.parameter_server.prefetch import AHEAD, prefetch
from elastrec.trainers.parameter_server.storage.kernels.arrays import (
    COUNT,
    FIRST,
    FOLLOWING,
    ID,
    LINES,
    START,
    TABLE,
    TABLE_BITS,
)
from elastrec.trainers.parameter_server.storage.kernels.bits import matches, trailing_zeros, zero_bytes
from elastrec.trainers.parameter_server.storage.kernels.compiling import inlined, kernel
from elastrec.trainers.parameter_server.storage.kernels.pools import offset_of, prefetch_cell

ABSENT = -1
LOOKUP_BATCH = 4 * AHEAD
"""Ids that are looked up together, so few that their cells are still in the processor's cache when they are copied."""
PASSED, PLACES = 3, 4  # words of a line
_BYTE, _ONE, _EIGHT, _S24, _S32 = np.uint64(255), np.uint64(1), np.uint64(8), np.uint64(24), np.uint64(32)
_ONES, _S56, _LOW_HALF = np.uint64(0x0101010101010101), np.uint64(56), np.uint64(0xFFFFFFFF)
_LAST_FOUR, _THREE, _SEVEN, _ZERO = np.uint64(15), np.uint64(3), np.uint64(7), np.uint64(0)


@inlined
def home_of(row_hash, lines):  # type: ignore[no-untyped-def]
    """The first line to try in a run of `lines`: the upper half of the hash, scaled to the run's length."""
    return np.int64(((row_hash >> _S32) * np.uint64(lines)) >> _S32)


@inlined
def _tag_of(row_hash):  # type: ignore[no-untyped-def]
    tag = (row_hash >> _S24) & _BYTE
    return tag if tag else _ONE


@inlined
def _slots(longs, line, tag):  # type: ignore[no-untyped-def]
    """12 bits, one for each slot of a line with the tag."""
    return matches(longs[line, _ZERO], tag) | ((matches(longs[line, _ONE], tag) & _LAST_FOUR) << _EIGHT)


@inlined
def entries_of(longs, line):  # type: ignore[no-untyped-def]
    """Number of places in a line."""
    # Bytes with 1 for each tag that is 0; the multiplication sums them up in the highest byte.
    first, second = longs[line, _ZERO], longs[line, _ONE] & _LOW_HALF
    return 12 - np.int64(((zero_bytes(first) + (zero_bytes(second) & _LOW_HALF)) * _ONES) >> _S56)


@inlined
def _is_cell_of(words, shape, place, key, table):  # type: ignore[no-untyped-def]
    """Whether the cell at a place has this id and table."""
    at = np.uint64(offset_of(shape, place))
    same = (words[at + np.uint64(ID)] == np.uint32(key)) & (words[at + np.uint64(ID + 1)] == np.uint32(key >> 32))
    return same & ((words[at + np.uint64(TABLE)] & TABLE_BITS) == table)


@kernel
def _search(words, shape, lines, longs, start, count, row_hash, key, table):  # type: ignore[no-untyped-def]
    """As `search`, in the run of `count` >= 1 lines that begins at line `start`."""
    tag, number = _tag_of(row_hash), home_of(row_hash, count)
    while True:
        line = start + number
        slots = _slots(longs, line, tag)
        while slots:
            place = np.int64(lines[line, PLACES + np.int64(trailing_zeros(slots))])
            if _is_cell_of(words, shape, place, key, table):
                return place
            slots &= slots - _ONE
        if lines[line, PASSED] == 0:
            return ABSENT
        number = number + 1 if number + 1 < count else 0


@kernel
def search(pool, index, bucket, row_hash, key, table):  # type: ignore[no-untyped-def]
    """The place of an id's cell, or ABSENT."""
    count = index.runs[bucket, LINES]
    if count == 0:
        return ABSENT
    start = index.runs[bucket, START]
    return _search(pool.words, pool.shape, index.lines, index.longs, start, count, row_hash, key, table)


@kernel
def find(  # type: ignore[no-untyped-def]
    words, shape, lines, longs, runs, order, hashes, buckets, ids, tables, first, last, places, scratch
):
    """Fills `places` [U] for the ids at order[first:last]; absent ids get ABSENT.

    Args:
        words, shape: see Pool; lines, longs, runs: see Index; order, hashes, buckets, ids, tables: see Request.
        first, last: at most LOOKUP_BATCH ids.
        scratch: [2, LOOKUP_BATCH] int64.
    """
    # All lines are prefetched first, then the most likely cells, so that the processor waits for many of them at once.
    # Unsigned: for a signed index numba would test for every word whether it counts from the end.
    homes, guesses = scratch[0], scratch[1]
    begin, size = np.uint64(first), np.uint64(last - first)
    for n in range(size):
        j = np.uint64(order[begin + n])
        bucket = np.uint64(buckets[j])
        count = runs[bucket, LINES]
        homes[n] = runs[bucket, START] + home_of(hashes[j], count) if count else ABSENT
        prefetch(lines, homes[n])
    for n in range(size):
        guesses[n] = ABSENT
        if homes[n] >= 0:
            line = np.uint64(homes[n])
            slots = _slots(longs, line, _tag_of(hashes[np.uint64(order[begin + n])]))
            if slots:
                guesses[n] = np.int64(lines[line, np.uint64(PLACES) + trailing_zeros(slots)])
                prefetch_cell(words, shape, guesses[n])
    for n in range(size):
        j = np.uint64(order[begin + n])
        table, guess = np.uint32(tables[j]), guesses[n]
        places[j] = guess
        if guess >= 0 and _is_cell_of(words, shape, guess, ids[j], table):
            continue
        places[j] = ABSENT
        if homes[n] >= 0 and (guess >= 0 or lines[np.uint64(homes[n]), np.uint64(PASSED)]):
            bucket = np.uint64(buckets[j])
            start, count = runs[bucket, START], runs[bucket, LINES]
            places[j] = _search(words, shape, lines, longs, start, count, hashes[j], ids[j], table)


@kernel
def has_slot(pool, index, bucket):  # type: ignore[no-untyped-def]
    """Whether the bucket's run has a slot for another cell: at most 80 % of its slots are used."""
    return 10 * (pool.buckets[bucket, COUNT] + 1) <= 96 * index.runs[bucket, LINES]


def lines_for(cells: Any) -> Any:
    """Number of lines in which `cells` (an int or an array) have slots; see `has_slot`."""
    return -(-10 * cells // 96)


@inlined
def _fill(lines, longs, line, free, tag, place):  # type: ignore[no-untyped-def]
    """Writes a place into the first free slot of a line.

    Args:
        free: 12 bits, the line's free slots; at least one.
    """
    # Unsigned: for a signed index numba would test for every word whether it counts from the end.
    slot = trailing_zeros(free)
    longs[line, slot >> _THREE] |= tag << ((slot & _SEVEN) << _THREE)
    lines[line, np.uint64(PLACES) + slot] = np.uint32(place)


@kernel
def _put(lines, longs, start, count, row_hash, place):  # type: ignore[no-untyped-def]
    """Inserts an absent place into the run of `count` lines that begins at line `start` and has a slot."""
    number, tag = home_of(row_hash, count), _tag_of(row_hash)
    while True:
        line = np.uint64(start + number)
        free = _slots(longs, line, np.uint64(0))
        if free:
            _fill(lines, longs, line, free, tag, place)
            return
        lines[line, np.uint64(PASSED)] += np.uint32(1)
        number = number + 1 if number + 1 < count else 0


@kernel
def insert(index, bucket, row_hash, place):  # type: ignore[no-untyped-def]
    """Inserts the place of a cell that is not in the index. The bucket's run has a slot."""
    _put(index.lines, index.longs, index.runs[bucket, START], index.runs[bucket, LINES], row_hash, place)


@inlined
def insert_new(words, shape, lines, longs, start, count, row_hash, key, table, place):  # type: ignore[no-untyped-def]
    """Inserts `place` unless the id is already in the run, which has a slot; returns whether it was inserted.

    Args:
        words, shape: see Pool; lines, longs: see Index.
        start, count: the run's first line, and its number of lines.
    """
    # For most new ids the first line shows that they are absent and has a free slot.
    # Unsigned: for a signed index numba would test for every word whether it counts from the end.
    line, tag = np.uint64(start + home_of(row_hash, count)), _tag_of(row_hash)
    may_be_there = lines[line, np.uint64(PASSED)] != 0 or _slots(longs, line, tag) != 0
    if may_be_there and _search(words, shape, lines, longs, start, count, row_hash, key, table) != ABSENT:
        return False
    free = _slots(longs, line, np.uint64(0))
    if free:
        _fill(lines, longs, line, free, tag, place)
    else:
        _put(lines, longs, start, count, row_hash, place)
    return True


@inlined
def insert_once(hashes, tables, shape, lines, longs, start, count, first, number, place):  # type: ignore[no-untyped-def]
    """As `_put` for the bucket's cell `number`; returns False without inserting if its id is already in the run.

    Args:
        hashes, tables: [n] of cells; those of the bucket begin at `first` and are in slabs 0, 1, ...
    """
    row_hash, table, tag = hashes[first + number], tables[first + number], _tag_of(hashes[first + number])
    mask, at = (1 << shape.shift) - 1, home_of(row_hash, count)
    while True:
        line = np.uint64(start + at)
        slots = _slots(longs, line, tag)
        while slots:
            held = np.int64(lines[line, np.uint64(PLACES) + trailing_zeros(slots)])
            other = first + (held >> shape.shift) * shape.per_slab + (held & mask)
            if hashes[other] == row_hash and tables[other] == table:
                return False
            slots &= slots - _ONE
        free = _slots(longs, line, np.uint64(0))
        if free:
            _fill(lines, longs, line, free, tag, place)
            return True
        lines[line, np.uint64(PASSED)] += np.uint32(1)
        at = at + 1 if at + 1 < count else 0


@kernel
def _slot_of(index, bucket, row_hash, place):  # type: ignore[no-untyped-def]
    """The number of the line in its run, and the slot, of a place in the index."""
    start, lines, tag = index.runs[bucket, START], index.runs[bucket, LINES], _tag_of(row_hash)
    number = home_of(row_hash, lines)
    while True:
        line = start + number
        slots = _slots(index.longs, line, tag)
        while slots:
            slot = np.int64(trailing_zeros(slots))
            if index.lines[line, PLACES + slot] == np.uint32(place):
                return number, slot
            slots &= slots - _ONE
        number = number + 1 if number + 1 < lines else 0


@kernel
def replace_place(index, bucket, row_hash, place, to):  # type: ignore[no-untyped-def]
    """Replaces the place of a cell that has moved to `to`."""
    number, slot = _slot_of(index, bucket, row_hash, place)
    index.lines[index.runs[bucket, START] + number, PLACES + slot] = np.uint32(to)


@kernel
def erase(index, bucket, row_hash, place):  # type: ignore[no-untyped-def]
    """Removes a place."""
    start, lines = index.runs[bucket, START], index.runs[bucket, LINES]
    end, slot = _slot_of(index, bucket, row_hash, place)
    half, bit = slot // 8, np.uint64(8 * (slot % 8))
    index.longs[start + end, half] &= ~(_BYTE << bit)
    number = home_of(row_hash, lines)
    while number != end:
        index.lines[start + number, PASSED] -= np.uint32(1)
        number = number + 1 if number + 1 < lines else 0


@kernel
def rebuild(pool, index, bucket, start, lines, salts, hashes, places):  # type: ignore[no-untyped-def]
    """Replaces the bucket's run by another, empty one and inserts the places of all its cells.

    Args:
        hashes, places: [AHEAD] uint64, int64, scratch.
    """
    index.runs[bucket, START] = start
    index.runs[bucket, LINES] = lines
    words, slabs, shape, line_words, longs = pool.words, pool.slabs, pool.shape, index.lines, index.longs
    slab, left = pool.buckets[bucket, FIRST], pool.buckets[bucket, COUNT]
    while left:
        cells = min(left, shape.per_slab)
        for first in range(0, cells, AHEAD):
            last = min(first + AHEAD, cells)
            for number in range(first, last):
                k = number - first
                places[k] = (slab << shape.shift) | number
                at = offset_of(shape, places[k])
                key = np.uint64(words[at + ID]) | (np.uint64(words[at + ID + 1]) << _S32)
                hashes[k] = splitmix64(key ^ salts[words[at + TABLE] & TABLE_BITS])
                prefetch(line_words, start + home_of(hashes[k], lines))
            for k in range(last - first):
                _put(line_words, longs, start, lines, hashes[k], places[k])
        left -= cells
        slab = np.int64(slabs[slab, FOLLOWING])
