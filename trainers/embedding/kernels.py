"""Kernels of the worker: unique ids by server in one pass, pooling of rows and its gradient.

Legend: F features, B batch, N ids of a batch, U distinct ids, T tables, G groups, S servers, D numbers per row.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from elastrec.platform.specs.numba_cache import kernels_of
from elastrec.trainers.embedding.numbers import add_numbers
from elastrec.trainers.parameter_server.hashing import splitmix64
from elastrec.trainers.parameter_server.kernel import SOURCES
from elastrec.trainers.parameter_server.prefetch import prefetch
from elastrec.trainers.parameter_server.words import copy_words

_HERE = Path(__file__)
_kernel = kernels_of(_HERE, _HERE.with_name("numbers.py"), SOURCES)()

# Prefetches long before a read or write: rows are anywhere in memory, and those of the batch are too far apart for the
# processor's prediction. Of the latter the first line and the last: most runs are as long as one, and few begin with
# it.
_IDS_AHEAD, _BAGS_AHEAD = 16, 32
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)  # 2^64 over the golden ratio: the high bits of a product spread any ids


@_kernel
def route_ids(  # type: ignore[no-untyped-def]
    values, starts, ends, tables, moduli, salts, group_of_table, owners, servers,
    inverse, ids_out, sightings_out, counts,
):  # fmt: skip
    """Distinct ids of a batch, laid out by (group, server, table, first sight); returns how many there are.

    Args:
        values: [N] int64, all features' ids.
        starts, ends, tables: [F] int64, each feature's run of `values` and its table; ordered by table.
        moduli: [T] int64, hash size or 0.
        owners: [V] int32, server of each virtual bucket.
        inverse: [N] int32 out, place of each id among the distinct ids of its group.
        ids_out, sightings_out: [N] int64, int32 out, the first U are filled (what follows is arbitrary).
        counts: [S, T] int32 out, zeroed by the caller.
    """
    virtual_buckets = np.uint64(owners.shape[0])
    # A division for each id costs more than its hash; most numbers of buckets are powers of two.
    low_bits = virtual_buckets - np.uint64(1)
    is_power = virtual_buckets & low_bits == np.uint64(0)
    features = starts.shape[0]
    total = values.shape[0]
    largest, f = 0, 0
    while f < features:
        size, first = 0, f
        while f < features and tables[f] == tables[first]:
            size += ends[f] - starts[f]
            f += 1
        largest = max(largest, size)
    slots, shift = 16, np.uint64(60)
    while slots < 2 * largest:
        slots *= 2
        shift -= np.uint64(1)
    mask = np.int64(slots - 1)
    index = np.full(slots, -1, np.int32)
    groups = group_of_table[group_of_table.shape[0] - 1] + 1
    # Tables are visited in plan order, so that with one server and one group, the ids are already in order.
    in_place = servers == 1 and groups == 1
    room = 0 if in_place else total
    keys = ids_out if in_place else np.empty(room, np.int64)
    seen = sightings_out if in_place else np.empty(room, np.int32)
    table_of = np.empty(room, np.int32)
    server_of = np.empty(room, np.int32)
    unique = 0
    for f in range(features):
        table = tables[f]
        if f and tables[f - 1] != table:
            index[:] = -1
        salt, modulus = salts[table], moduli[table]
        for j in range(starts[f], ends[f]):
            key = values[j]
            if modulus:
                key = key % modulus
            slot = np.int64((np.uint64(key) * _GOLDEN) >> shift)
            while True:
                number = index[slot]
                if number < 0 or keys[number] == key:
                    break
                slot = (slot + 1) & mask
            if number < 0:
                number = unique
                unique += 1
                index[slot] = number
                keys[number] = key
                seen[number] = 0
                server = 0
                if not in_place:
                    mixed = splitmix64(np.uint64(key) ^ salt)
                    server = owners[np.int64(mixed & low_bits if is_power else mixed % virtual_buckets)]
                    table_of[number] = table
                    server_of[number] = server
                counts[server, table] += 1
            seen[number] += 1
            inverse[j] = number
    if in_place:
        return unique
    cursor = np.empty(counts.shape, np.int64)
    group_start = np.zeros(groups, np.int64)
    at = 0
    for g in range(groups):
        group_start[g] = at
        for s in range(servers):
            for t in range(counts.shape[1]):
                if group_of_table[t] == g:
                    cursor[s, t] = at
                    at += counts[s, t]
    place = np.empty(unique, np.int32)
    for u in range(unique):
        t = table_of[u]
        to = cursor[server_of[u], t]
        cursor[server_of[u], t] = to + 1
        ids_out[to] = keys[u]
        sightings_out[to] = seen[u]
        place[u] = to - group_start[group_of_table[t]]
    for f in range(features):
        for j in range(starts[f], ends[f]):
            inverse[j] = place[inverse[j]]
    return unique


@_kernel
def pool_rows(  # type: ignore[no-untyped-def]
    rows, inverse, offsets, features, columns, first_columns, is_mean, batch, apart, firsts, out
):
    """Sums or averages rows [U, D] into bags; an empty bag is zero.

    Args:
        offsets: [F * B + 1] int64, bag f * B + b holds inverse[offsets[f * B + b] : offsets[f * B + b + 1]].
        features, columns, first_columns, is_mean: [K] int64, and bool: of each output block its feature, its first
            column in `out`, that in `firsts`, and its pooling.
        apart: number of each pooled row's values that are written to `firsts`.
        firsts, out: [B, ...] float32, the first numbers of the pooled rows, and all others.
    """
    dimension, width, apart_width = rows.shape[1], out.shape[1], firsts.shape[1]
    numbers, flat, flat_firsts = rows.reshape(-1), out.reshape(-1), firsts.reshape(-1)
    others, last = dimension - apart, max(inverse.shape[0] - 1, 0)
    places = inverse if inverse.shape[0] else np.zeros(1, np.int32)
    # Feature by feature: the rows of one table stay in the cache, and offsets and places are read in their order.
    for k in range(features.shape[0]):
        for b in range(batch):
            bag = features[k] * batch + b
            start, end = offsets[bag], offsets[bag + 1]
            ahead = (b + _BAGS_AHEAD) * width + columns[k]
            prefetch(numbers, places[min(start + _IDS_AHEAD, last)] * dimension)
            prefetch(flat, ahead)
            prefetch(flat, ahead + others - 1)
            first, target = b * apart_width + first_columns[k], b * width + columns[k]
            if start == end:
                for d in range(apart):
                    flat_firsts[first + d] = np.float32(0.0)
                for d in range(others):
                    flat[target + d] = np.float32(0.0)
                continue
            row = inverse[start] * dimension
            for d in range(apart):
                flat_firsts[first + d] = numbers[row + d]
            copy_words(flat, target, numbers, row + apart, others)
            if end - start > 1:
                for j in range(start + 1, end):
                    row = inverse[j] * dimension
                    for d in range(apart):
                        flat_firsts[first + d] += numbers[row + d]
                    add_numbers(flat, target, numbers, row + apart, np.float32(1.0), others)
                if is_mean[k]:
                    scale = np.float32(1.0) / np.float32(end - start)
                    for d in range(apart):
                        flat_firsts[first + d] *= scale
                    for d in range(others):
                        flat[target + d] *= scale


@_kernel
def spread_gradient(  # type: ignore[no-untyped-def]
    firsts, gradient, inverse, offsets, features, columns, first_columns, is_mean, batch, apart, out
):
    """The reverse of `pool_rows`: adds gradients of its two outputs to that of rows, out [U, D], zeroed before."""
    dimension, width, apart_width = out.shape[1], gradient.shape[1], firsts.shape[1]
    numbers, flat, flat_firsts = out.reshape(-1), gradient.reshape(-1), firsts.reshape(-1)
    others, last = dimension - apart, max(inverse.shape[0] - 1, 0)
    places = inverse if inverse.shape[0] else np.zeros(1, np.int32)
    for k in range(features.shape[0]):
        for b in range(batch):
            bag = features[k] * batch + b
            start, end = offsets[bag], offsets[bag + 1]
            ahead = (b + _BAGS_AHEAD) * width + columns[k]
            prefetch(numbers, places[min(start + _IDS_AHEAD, last)] * dimension)
            prefetch(flat, ahead)
            prefetch(flat, ahead + others - 1)
            first, source = b * apart_width + first_columns[k], b * width + columns[k]
            scale = np.float32(1.0)
            if is_mean[k] and end - start > 1:
                scale = np.float32(1.0) / np.float32(end - start)
            for j in range(start, end):
                row = inverse[j] * dimension
                for d in range(apart):
                    numbers[row + d] += scale * flat_firsts[first + d]
                add_numbers(numbers, row + apart, flat, source, scale, others)
