"""Hashes that decide a row's place and first value; the same numbers on every server, worker and machine.

bucket  = splitmix64(id ^ salt(table)) mod virtual_buckets
value_d = range_d * (2 u_d - 1), u_d = top 24 bits of splitmix64(stream + d * golden) / 2^24,
stream  = splitmix64(splitmix64(id ^ salt(table)) ^ splitmix64(seed))
range_d = the table's initial range, or 0: first-order weights start at zero.

Only (seed, table, id) are used, so that the model does not depend on the number of servers.
splitmix64: Steele, Lea, Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import xxhash

from elastrec.trainers.parameter_server.kernel import inlined, kernel

Array = np.ndarray[Any, Any]

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
_S30, _S27, _S31, _S40 = np.uint64(30), np.uint64(27), np.uint64(31), np.uint64(40)


def table_salt(table: str) -> int:
    """64 bits of a table's name, so that equal ids of two tables are in unrelated buckets."""
    return xxhash.xxh3_64_intdigest(table.encode())


@inlined
def splitmix64(value):  # type: ignore[no-untyped-def]
    """One step of splitmix64: uint64 → uint64, a bijection."""
    z = value + _GOLDEN
    z = (z ^ (z >> _S30)) * _MIX_1
    z = (z ^ (z >> _S27)) * _MIX_2
    return z ^ (z >> _S31)


@inlined
def write_initial_row(row, row_hash, seed_hash, ranges):  # type: ignore[no-untyped-def]
    """Fills `row` [D] float32 with the first value, in ±ranges [D] float64, of the id whose hash is `row_hash`."""
    stream = splitmix64(row_hash ^ seed_hash)
    for d in range(row.shape[0]):
        stream += _GOLDEN
        scale = np.float32(2.0 * ranges[d] / 16777216.0)
        row[d] = np.float32(-ranges[d]) + scale * np.float32(np.int64(splitmix64(stream) >> _S40))


@kernel
def _buckets(ids, salt, virtual_buckets, out):  # type: ignore[no-untyped-def]
    for j in range(ids.shape[0]):
        out[j] = np.int64(splitmix64(np.uint64(ids[j]) ^ salt) % np.uint64(virtual_buckets))


@kernel
def _initial_rows(ids, salt, seed_hash, ranges, out):  # type: ignore[no-untyped-def]
    for j in range(ids.shape[0]):
        write_initial_row(out[j], splitmix64(np.uint64(ids[j]) ^ salt), seed_hash, ranges)


def buckets_of(ids: Array, table: str, virtual_buckets: int) -> Array:
    """Virtual buckets [N] int64 of ids [N] int64."""
    out = np.empty(len(ids), np.int64)
    _buckets(np.ascontiguousarray(ids, np.int64), np.uint64(table_salt(table)), virtual_buckets, out)
    return out


def seed_hash(seed: int) -> int:
    """The contribution of a job's seed to its rows' first values."""
    z = (seed + 0x9E3779B97F4A7C15) % 2**64
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB % 2**64
    return z ^ (z >> 31)


def initial_rows(ids: Array, table: str, *, seed: int, initial_range: float | Sequence[float], dimension: int) -> Array:
    """First values [N, dimension] float32 of the rows of ids [N] int64, as a server makes them.

    Args:
        initial_range: of all numbers of a row, or of each.
    """
    out = np.empty((len(ids), dimension), np.float32)
    ranges = np.broadcast_to(np.asarray(initial_range, np.float64), dimension).copy()
    salt, seeded = np.uint64(table_salt(table)), np.uint64(seed_hash(seed))
    _initial_rows(np.ascontiguousarray(ids, np.int64), salt, seeded, ranges, out)
    return out
