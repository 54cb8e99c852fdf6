"""Kernels of pools: cells of a bucket, one after the other. The lock of the bucket's stripe is held."""

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
    """First word of a place's cell."""
    return (place >> shape.shift) * shape.slab_words + (place & ((1 << shape.shift) - 1)) * shape.width


@inlined
def number_of(pool, place):  # type: ignore[no-untyped-def]
    """Which of its bucket's cells it is."""
    return pool.slabs[place >> pool.shape.shift, ORDINAL] * pool.shape.per_slab + (
        place & ((1 << pool.shape.shift) - 1)
    )


@inlined
def owner_of(pool, place):  # type: ignore[no-untyped-def]
    """The bucket of a place."""
    return np.int64(pool.slabs[place >> pool.shape.shift, OWNER])


@inlined
def prefetch_cell(words, shape, place):  # type: ignore[no-untyped-def]
    """Asks for every cache line of a place's cell; any place may be given."""
    start = offset_of(shape, place)
    last = start + shape.width - 1
    for word in range(start, last, 16):
        prefetch(words, word)
    prefetch(words, last)


@kernel
def has_room(pool, bucket, stripe, cells):  # type: ignore[no-untyped-def]
    """Whether so many cells can be appended to the bucket with the slabs that it and its stripe have."""
    filled = pool.buckets[bucket, COUNT] % pool.shape.per_slab
    room = (pool.shape.per_slab - filled if filled else 0) + pool.spares[stripe, 0] * pool.shape.per_slab
    return room >= cells


@kernel
def chain(pool, bucket, slab):  # type: ignore[no-untyped-def]
    """Puts an empty slab behind the bucket's last one, which is full."""
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
    """Place of a new cell, whose words are arbitrary. There is room."""
    count = pool.buckets[bucket, COUNT]
    number = count % pool.shape.per_slab
    if number == 0:
        spares = pool.spares[stripe, 0]
        pool.spares[stripe, 0] = spares - 1
        chain(pool, bucket, pool.spares[stripe, spares])
    slab = pool.buckets[bucket, LAST]
    pool.buckets[bucket, COUNT] = count + 1
    return (slab << pool.shape.shift) | number


@kernel
def last_place(pool, bucket):  # type: ignore[no-untyped-def]
    """Place of the bucket's last cell; it has one."""
    return (pool.buckets[bucket, LAST] << pool.shape.shift) | ((pool.buckets[bucket, COUNT] - 1) % pool.shape.per_slab)


@kernel
def cut_last(pool, bucket, stripe):  # type: ignore[no-untyped-def]
    """Forgets the bucket's last cell, and releases its slab if that is empty. `released` has room."""
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
    """The slab with the bucket's cell of this number; -1: it has fewer."""
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
    """Fills `out` with a chain's slabs from `first` on."""
    slab = first
    for k in range(out.shape[0]):
        out[k] = slab
        slab = pool.slabs[slab, FOLLOWING]


@kernel
def cut_first(pool, buckets, version_word, versions, out):  # type: ignore[no-untyped-def]
    """Takes full slabs off the front of chains while their last cell's version is no later; returns how many.

    Only for pools whose cells are never looked up by number: logs and tombstones.

    Args:
        buckets, versions: [b] int64, of one stripe.
        out: [n] int32, for the slabs: at least as many as the chains have.
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
