"""What kernels take: arrays by name. Legend: V buckets, S stripes, U ids of a request, T tables of a group."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

Array = np.ndarray[Any, Any]

# Columns of Pool.slabs, Pool.buckets, Index.runs and of the marks [V, 4] int64 of a store.
PREVIOUS, FOLLOWING, OWNER, ORDINAL = 0, 1, 2, 3
COUNT, FIRST, LAST, COPIED = 0, 1, 2, 3
START, LINES = 0, 1
VERSION, FROZEN, LOGGING, LOG_FROM = 0, 1, 2, 3

# Words of a cell; see RowLayout.
ID, CELL_VERSION, TABLE, REST = 0, 2, 3, 4
TABLE_BITS = np.uint32(0xFFFF)
"""Of the word TABLE: the number of the table in its group."""


def read_only_view(array: Array) -> Array:
    """A view: numba compiles a kernel anew for what may be written."""
    view = array.view()
    view.flags.writeable = False
    return view


class Shape(NamedTuple):
    """Sizes of a pool. Kernels pass it around alone: of arrays in a tuple numba counts references at every use.

    Attributes:
        width, per_slab, slab_words: words of a cell, cells of a slab, words of a slab.
        shift: a place is `slab << shift | number in the slab`.
    """

    width: int
    per_slab: int
    shift: int
    slab_words: int


class Pool(NamedTuple):
    """Cells, chained in slabs per bucket and dense: a bucket's cells fill its slabs from the front.

    Attributes:
        words, cells: the same memory as uint32 and float32, one slab after the other.
        slabs: [slabs, 4] int32, the slabs before and after it in its chain, its bucket, its place in the chain.
        buckets: [V, 4] int64, cells, first and last slab (-1: none), cells that a copy has passed.
        spares, released: [S, 1 + n] int64, slabs that a stripe may use, has no more use for; [0] is how many.
    """

    words: Array
    cells: Array
    slabs: Array
    buckets: Array
    spares: Array
    released: Array
    shape: Shape


class Index(NamedTuple):
    """Where the cells of ids are: 64-byte lines, in one run per bucket.

    A line: bytes 0 to 11 tags (0: free), word 3 how many cells were put behind the line because it was full, words 4
    to 15 places.

    Attributes:
        lines, longs: [L, 16] uint32 and [L, 8] uint64, the same memory.
        runs: [V, 2] int64, first line and number of lines; 0 lines: none yet.
    """

    lines: Array
    longs: Array
    runs: Array


class Shelf(NamedTuple):
    """Cells with an index, and what freezing and listing changes keep beside them.

    Attributes:
        shadows: cells as they were when their bucket was frozen.
        log: place and version of changed cells, oldest first.
    """

    pool: Pool
    slots: Index
    shadows: Pool
    log: Pool


class Request(NamedTuple):
    """Distinct ids [U] int64, table by table.

    Attributes:
        hashes, buckets, tables: [U] uint64, int32, int32.
        order: [U] int32, positions by stripe; starts: [S + 1] int64, where a stripe's begin.
    """

    ids: Array
    hashes: Array
    buckets: Array
    tables: Array
    order: Array
    starts: Array


class Settings(NamedTuple):
    """Constants of a table group.

    Attributes:
        salts: [T] uint64; ranges: [T, D] float64, a new row's numbers are uniform in ± this.
        segments, numbers, initial_state: the rules, see RowRules.
        seen_word: word of a row's last sighting, 0: none is kept; state_word, value_word: first words of both.
        states, dimension: how many words they have.
    """

    salts: Array
    ranges: Array
    segments: Array
    numbers: Array
    initial_state: Array
    seed_hash: np.uint64
    admit_after: int
    seen_word: int
    state_word: int
    value_word: int
    states: int
    dimension: int
