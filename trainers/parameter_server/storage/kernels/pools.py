"""Kernels of pools: appending, removing and finding cells of a bucket. The lock of the bucket's stripe is held."""

from __future__ import annotations

import numpy as np

from elastrec.trainers.parameter_server.prefetch import prefetch
from elastrec.trainers.parameter_server.storage.kernels.arrays import (
    COUNT,
    FIRST,
    FOLLOWING,
    LAST,
    ORDINAL,
    OWNER,
    PREVIOUS,
)
from elastrec.trainers.parameter_server.storage.kernels.compiling import inlined, kernel


@inlined
def offset_of(shape, place):  # type: ignore[no-untyped-def]
    """The first word of the cell at a place."""
    return (place >> shape.shift) * shape.slab_words + (place & ((1 << shape.shift) - 1)) * shape.width


@inlined
def number_of(pool, place):  # type: ignore[no-untyped-def]
    """The number of the cell at a place in its bucket."""
    return pool.slabs[place >> pool.shape.shift, ORDINAL] * pool.shape.per_slab + (
        place & ((1 << pool.shape.shift) - 1)
    )


@inlined
def owner_of(pool, place):  # type: ignore[no-untyped-def]
    """The bucket of a place."""
    return np.int64(pool.slabs[place >> pool.shape.shift, OWNER])


@inlined
def prefetch_cell(words, shape, place):  # type: ignore[no-untyped-def]
    """Prefetches all cache lines of the cell at a place. The place need not exist."""
    start = offset_of(shape, place)
    last = start + shape.width - 1
    for word in range(start, last, 16):
        prefetch(words, word)
    prefetch(words, last)


@kernel
def has_room(pool, bucket, stripe, cells):  # type: ignore[no-untyped-def]
    """Whether the slabs of the bucket and its stripe have room for so many more cells."""
    filled = pool.buckets[bucket, COUNT] % pool.shape.per_slab
    room = (pool.shape.per_slab - filled if filled else 0) + pool.spares[stripe, 0] * pool.shape.per_slab
    return room >= cells


@kernel
def append_slab(pool, bucket, slab):  # type: ignore[no-untyped-def]
    """Appends an empty slab to the chain of a bucket whose last slab is full."""
    before = pool.buckets[bucket, LAST]
    pool.slabs[slab, PREVIOUS] = before
    pool.slabs[slab, FOLLOWING] = -1
    pool.slabs[slab, OWNER] = bucket
    if before < 0:
        pool.slabs[slab, ORDINAL] = 0
        pool.buckets[bucket, FIRST] = slab
    else:
        pool.slabs[slab, ORDINAL] = pool.slabs[before, ORDINAL] + 1
        pool.slabs[before, FOLLOWING] = slab
    pool.buckets[bucket, LAST] = slab


@kernel
def append(pool, bucket, stripe):  # type: ignore[no-untyped-def]
    """Appends a cell with arbitrary words; returns its place. There is room."""
    count = pool.buckets[bucket, COUNT]
    number = count % pool.shape.per_slab
    if number == 0:
        spares = pool.spares[stripe, 0]
        pool.spares[stripe, 0] = spares - 1
        append_slab(pool, bucket, pool.spares[stripe, spares])
    slab = pool.buckets[bucket, LAST]
    pool.buckets[bucket, COUNT] = count + 1
    return (slab << pool.shape.shift) | number


@kernel
def last_place(pool, bucket):  # type: ignore[no-untyped-def]
    """The place of the last cell of a bucket that is not empty."""
    return (pool.buckets[bucket, LAST] << pool.shape.shift) | ((pool.buckets[bucket, COUNT] - 1) % pool.shape.per_slab)


@kernel
def drop_last(pool, bucket, stripe):  # type: ignore[no-untyped-def]
    """Removes the bucket's last cell, and releases its slab if it is then empty. `released` has room."""
    count = pool.buckets[bucket, COUNT] - 1
    pool.buckets[bucket, COUNT] = count
    if count % pool.shape.per_slab == 0:
        slab = pool.buckets[bucket, LAST]
        before = pool.slabs[slab, PREVIOUS]
        pool.buckets[bucket, LAST] = before
        if before < 0:
            pool.buckets[bucket, FIRST] = -1
        else:
            pool.slabs[before, FOLLOWING] = -1
        pool.released[stripe, 0] += 1
        pool.released[stripe, pool.released[stripe, 0]] = slab


@kernel
def slab_at(pool, bucket, number):  # type: ignore[no-untyped-def]
    """The slab of the bucket's cell with this number; -1: the bucket has fewer cells."""
    if number >= pool.buckets[bucket, COUNT]:
        return -1
    ordinal = number // pool.shape.per_slab
    slabs = (pool.buckets[bucket, COUNT] - 1) // pool.shape.per_slab + 1
    if 2 * ordinal > slabs:
        slab = pool.buckets[bucket, LAST]
        for _ in range(slabs - 1 - ordinal):
            slab = np.int64(pool.slabs[slab, PREVIOUS])
    else:
        slab = pool.buckets[bucket, FIRST]
        for _ in range(ordinal):
            slab = np.int64(pool.slabs[slab, FOLLOWING])
    return slab


@kernel
def list_slabs(pool, first, out):  # type: ignore[no-untyped-def]
    """Fills `out` with the slabs of a chain from `first` on."""
    slab = first
    for k in range(out.shape[0]):
        out[k] = slab
        slab = pool.slabs[slab, FOLLOWING]


@kernel
def drop_first_slabs(pool, buckets, version_word, versions, out):  # type: ignore[no-untyped-def]
    """Removes full slabs from the front of chains while their last cell is not newer than the bucket's version.

    Returns the number of removed slabs. Only for pools in which cells are not addressed by number: logs and tombstones.

    Args:
        buckets, versions: [b] int64, of one stripe.
        out: [n] int32, filled with the removed slabs; at least as long as the chains together.
    """
    cut = 0
    for k in range(buckets.shape[0]):
        bucket = buckets[k]
        while pool.buckets[bucket, COUNT] > pool.shape.per_slab:
            slab = pool.buckets[bucket, FIRST]
            end = slab * pool.shape.slab_words + (pool.shape.per_slab - 1) * pool.shape.width
            if np.int64(pool.words[end + version_word]) > versions[k]:
                break
            following = pool.slabs[slab, FOLLOWING]
            pool.slabs[following, PREVIOUS] = -1
            pool.buckets[bucket, FIRST] = following
            pool.buckets[bucket, COUNT] -= pool.shape.per_slab
            out[cut] = slab
            cut += 1
    return cut
