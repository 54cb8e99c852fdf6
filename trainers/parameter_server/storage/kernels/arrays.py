"""Named tuples of the arrays that kernels take.

Legend: V buckets, S stripes, L lines of an index, U ids of a request, T tables of a group, D dimension, G segments.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

Array = np.ndarray[Any, Any]

# Columns of Pool.slabs, Pool.buckets, Index.runs and the marks [V, 4] int64 of a store: a bucket's version, the version
# at which it is frozen (-1: not frozen), whether changes are logged, the version from which they are logged.
PREVIOUS, FOLLOWING, OWNER, ORDINAL = 0, 1, 2, 3
COUNT, FIRST, LAST, COPIED = 0, 1, 2, 3
START, LINES = 0, 1
VERSION, FROZEN, LOGGING, LOG_FROM = 0, 1, 2, 3

# Words of a cell; see RowLayout.
ID, CELL_VERSION, TABLE, REST = 0, 2, 3, 4
TABLE_BITS = np.uint32(0xFFFF)
"""Mask of the number of the table in its group, in the word TABLE."""


def read_only_view(array: Array) -> Array:
    """A read-only view. numba compiles a kernel separately for writable and for read-only arrays."""
    view = array.view()
    view.flags.writeable = False
    return view


class Shape(NamedTuple):
    """Sizes of a pool, apart from its arrays, so that functions which only need sizes are passed no arrays.

    Attributes:
        width, per_slab, slab_words: words per cell, cells per slab, words per slab.
        shift: the place of a cell is `slab << shift | number in the slab`.
    """

    width: int
    per_slab: int
    shift: int
    slab_words: int


class Pool(NamedTuple):
    """Cells of one width. A bucket has a chain of slabs, which its cells fill without gaps from the front.

    Attributes:
        words, cells: the same memory as uint32 and float32, one slab after the other.
        slabs: [slabs, 4] int32, the previous and next slab in the chain, the bucket, the position in the chain.
        buckets: [V, 4] int64, number of cells, first and last slab (-1: none), number of cells that a copy has passed.
        spares, released: [S, 1 + n] int64, slabs that a stripe can use, and that it has freed; [0] is their number.
    """

    words: Array
    cells: Array
    slabs: Array
    buckets: Array
    spares: Array
    released: Array
    shape: Shape


class Index(NamedTuple):
    """A hash table of the places of cells: 64-byte lines, of which each bucket has a run.

    A line has tags in bytes 0 to 11 (0: free), in word 3 the number of cells that passed this line because it was full,
    and places in words 4 to 15.

    Attributes:
        lines, longs: [L, 16] uint32 and [L, 8] uint64, the same memory.
        runs: [V, 2] int64, first line and number of lines (0: no run yet).
    """

    lines: Array
    longs: Array
    runs: Array


class IndexedPool(NamedTuple):
    """A pool of rows or candidates, its index, and the pools for frozen buckets and changes.

    Attributes:
        shadows: copies of changed cells, as they were when their bucket was frozen.
        log: places and versions of changed cells, oldest first.
    """

    pool: Pool
    hash_index: Index
    shadows: Pool
    log: Pool


class Request(NamedTuple):
    """Distinct ids [U] int64, table by table.

    Attributes:
        hashes, buckets, tables: [U] uint64, int32, int32.
        order: [U] int32, positions of ids, stripe by stripe.
        starts: [S + 1] int64, where a stripe begins in `order`.
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
        salts: [T] uint64; ranges: [T, D] float64, the initial values of a row are uniform between -range and range.
        segments, numbers, initial_state: see RowRules.
        seen_word, state_word, value_word: see RowLayout.
        states, dimension: number of words of a row's state and values.
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
