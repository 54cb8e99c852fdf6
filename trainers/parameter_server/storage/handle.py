"""One array with the addresses and shapes of all arrays of a store, so that a call passes one argument.

numba needs 0.3 µs to unpack an array argument, and a request needs fifty arrays. They keep their addresses while the
store exists. A kernel builds the tuples of `arrays` from a handle at no cost; its caller keeps the store alive.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic
from numba.np.arrayobj import populate_array

from elastrec.trainers.parameter_server.storage.kernels.arrays import Index, IndexedPool, Pool, Settings, Shape
from elastrec.trainers.parameter_server.storage.kernels.compiling import inlined

Array = np.ndarray[Any, Any]

# Sizes of the parts of a handle, and where they begin, in words of 8 bytes.
_POOL, _INDEX, _SETTINGS = 16, 6, 20
_INDEXED_POOL = 3 * _POOL + _INDEX
_ROWS, _CANDIDATES, _TOMBSTONES = 0, _INDEXED_POOL, 2 * _INDEXED_POOL
_CONSTANTS = _TOMBSTONES + _POOL
_STORE = _CONSTANTS + _SETTINGS
_WORDS = _STORE + 16


class Guarded(NamedTuple):
    """The arrays of a store other than its cells; see `RowStore`. Legend as in `arrays`.

    Attributes:
        marks: [V, 4] int64; owned: [V] bool; stripe_of: [V] int64.
        locks: `Locks.words`; moves: [S] int64.
        entries: [V, T, 2] int64; load: [V] int64.
        counters: [2] int64: number of buckets dropped so far, most rows allowed.
    """

    marks: Array
    owned: Array
    stripe_of: Array
    locks: Array
    moves: Array
    entries: Array
    counters: Array
    load: Array


def _pool_words(pool: Pool) -> list[int]:
    words = [pool.words.ctypes.data, len(pool.words)]
    for array in (pool.slabs, pool.buckets):
        words += [array.ctypes.data, len(array)]
    for array in (pool.spares, pool.released):
        words += [array.ctypes.data, *array.shape]
    return [*words, *pool.shape]


def _indexed_pool_words(indexed: IndexedPool) -> list[int]:
    index = indexed.hash_index
    words = _pool_words(indexed.pool)
    words += [index.lines.ctypes.data, len(index.lines), index.runs.ctypes.data, len(index.runs), 0, 0]
    return words + _pool_words(indexed.shadows) + _pool_words(indexed.log)


def make_handle(
    rows: IndexedPool, candidates: IndexedPool, tombstones: Pool, settings: Settings, guarded: Guarded
) -> Array:
    """The handle [_WORDS] int64 of these arrays, which must be contiguous and outlive it."""
    tables, dimension = settings.ranges.shape
    constants = [
        settings.salts.ctypes.data, tables, settings.ranges.ctypes.data, dimension, settings.segments.ctypes.data,
        len(settings.segments), settings.numbers.ctypes.data, settings.numbers.shape[1],
        settings.initial_state.ctypes.data, len(settings.initial_state),
        int(np.uint64(settings.seed_hash).view(np.int64)),
        settings.admit_after, settings.seen_word, settings.state_word, settings.value_word, settings.states,
        settings.dimension, 0, 0, 0,
    ]  # fmt: skip
    guarded_words = [
        guarded.marks.ctypes.data, len(guarded.marks), guarded.owned.ctypes.data, guarded.stripe_of.ctypes.data,
        guarded.locks.ctypes.data, len(guarded.locks), guarded.moves.ctypes.data, len(guarded.moves),
        guarded.entries.ctypes.data, guarded.counters.ctypes.data, guarded.load.ctypes.data,
    ]  # fmt: skip
    words = [
        *_indexed_pool_words(rows),
        *_indexed_pool_words(candidates),
        *_pool_words(tombstones),
        *constants,
        *guarded_words,
    ]
    handle = np.zeros(_WORDS, np.int64)
    handle[: len(words)] = words
    return handle


@intrinsic
def _array(typing_context: Any, address: Any, shape: Any, dtype: Any) -> Any:
    """The contiguous array with this shape and type at an address.

    numba's own `carray` is a function that returns an array, which kernels without reference counts cannot call.
    """
    kind = types.Array(dtype.dtype, len(shape), "C")

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array = context.make_array(kind)(context, builder)
        sizes = cgutils.unpack_tuple(builder, arguments[1])
        width = context.get_constant(types.intp, context.get_abi_sizeof(context.get_data_type(kind.dtype)))
        strides = [width]
        for size in reversed(sizes[1:]):
            strides.insert(0, builder.mul(strides[0], size))
        populate_array(
            array, data=builder.inttoptr(arguments[0], array.data.type), shape=sizes, strides=strides, itemsize=width,
            meminfo=None,
        )  # fmt: skip
        return array._getvalue()

    return kind(address, shape, dtype), generate


@inlined
def pool_at(handle, at):  # type: ignore[no-untyped-def]
    """The pool whose words begin at `at`."""
    return Pool(
        _array(handle[at], (handle[at + 1],), np.uint32),
        _array(handle[at], (handle[at + 1],), np.float32),
        _array(handle[at + 2], (handle[at + 3], 4), np.int32),
        _array(handle[at + 4], (handle[at + 5], 4), np.int64),
        _array(handle[at + 6], (handle[at + 7], handle[at + 8]), np.int64),
        _array(handle[at + 9], (handle[at + 10], handle[at + 11]), np.int64),
        Shape(handle[at + 12], handle[at + 13], handle[at + 14], handle[at + 15]),
    )


@inlined
def index_at(handle, at):  # type: ignore[no-untyped-def]
    """The index whose words begin at `at`."""
    return Index(
        _array(handle[at], (handle[at + 1], 16), np.uint32),
        _array(handle[at], (handle[at + 1], 8), np.uint64),
        _array(handle[at + 2], (handle[at + 3], 2), np.int64),
    )


@inlined
def indexed_pool_at(handle, at):  # type: ignore[no-untyped-def]
    """The pool with an index whose words begin at `at`."""
    return IndexedPool(
        pool_at(handle, at),
        index_at(handle, at + _POOL),
        pool_at(handle, at + _POOL + _INDEX),
        pool_at(handle, at + 2 * _POOL + _INDEX),
    )


@inlined
def rows_of(handle):  # type: ignore[no-untyped-def]
    """The pool of rows."""
    return indexed_pool_at(handle, _ROWS)


@inlined
def candidates_of(handle):  # type: ignore[no-untyped-def]
    """The pool of candidates."""
    return indexed_pool_at(handle, _CANDIDATES)


@inlined
def tombstones_of(handle):  # type: ignore[no-untyped-def]
    """The pool of tombstones."""
    return pool_at(handle, _TOMBSTONES)


@inlined
def settings_of(handle):  # type: ignore[no-untyped-def]
    """The constants of the table group."""
    at = _CONSTANTS
    tables, dimension, segments, numbers = handle[at + 1], handle[at + 3], handle[at + 5], handle[at + 7]
    return Settings(
        _array(handle[at], (tables,), np.uint64),
        _array(handle[at + 2], (tables, dimension), np.float64),
        _array(handle[at + 4], (segments, 4), np.int64),
        _array(handle[at + 6], (segments, numbers), np.float32),
        _array(handle[at + 8], (handle[at + 9],), np.float32),
        np.uint64(handle[at + 10]),
        handle[at + 11],
        handle[at + 12],
        handle[at + 13],
        handle[at + 14],
        handle[at + 15],
        handle[at + 16],
    )


@inlined
def guarded_of(handle):  # type: ignore[no-untyped-def]
    """The store's arrays other than its cells."""
    at = _STORE
    buckets, stripes, tables = handle[at + 1], handle[at + 7], handle[_CONSTANTS + 1]
    return Guarded(
        _array(handle[at], (buckets, 4), np.int64),
        _array(handle[at + 2], (buckets,), np.bool_),
        _array(handle[at + 3], (buckets,), np.int64),
        _array(handle[at + 4], (handle[at + 5],), np.int64),
        _array(handle[at + 6], (stripes,), np.int64),
        _array(handle[at + 8], (buckets, tables, 2), np.int64),
        _array(handle[at + 9], (2,), np.int64),
        _array(handle[at + 10], (buckets,), np.int64),
    )
