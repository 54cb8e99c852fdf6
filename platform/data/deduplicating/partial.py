"""PartialJagged: lists that are shifts of one another share their values, RecD's partial IKJT (§7).

A row is [offset, length] into the values. A history to which one id was added at either end costs one number more.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from elastrec.platform.data.deduplicating.deduplication import (
    Longs,
    Values,
    first_rows,
    jagged_parts,
    row_codes,
    take_rows,
)

_PLACES_TRIED = 16
"""Places of a list's first id in the list before it where an overlap is looked for. Lists of one id repeated a million
times would otherwise cost the square of their length; a missed overlap costs bytes, never a value."""


@dataclass(frozen=True)
class PartialJagged:
    """One feature whose rows are stretches of shared values.

    Attributes:
        key: the feature's name.
        values: [V].
        spans: int64 [B, 2], first place in `values` and length of each row.
    """

    key: str
    values: Values
    spans: Longs

    @property
    def rows(self) -> int:
        """B."""
        return len(self.spans)

    @property
    def factor(self) -> float:
        """Numbers of the plain form per number of this one; 1 where there are none."""
        return int(self.spans[:, 1].sum()) / len(self.values) if len(self.values) else 1.0

    def expand(self) -> tuple[Values, Longs]:
        """The plain form: values and offsets int64 [B + 1]."""
        begins, lengths = self.spans[:, 0], self.spans[:, 1]
        offsets = np.concatenate((np.zeros(1, np.int64), np.cumsum(lengths)))
        return self.values[np.arange(offsets[-1]) + np.repeat(begins - offsets[:-1], lengths)], offsets


def deduplicate_partially(key: str, column: pa.Array) -> PartialJagged:
    """Equal rows once, and of neighbours that overlap only what is new.

    Rows are compared with the distinct row seen before. Whether histories grow at their end or at their beginning is
    found out by trying both.

    Raises:
        DataError: as `deduplicate`.
    """
    values, offsets = jagged_parts(column, key)
    codes, count = row_codes(values, offsets)
    distinct_values, distinct_offsets = take_rows(values, offsets, first_rows(codes, count))
    forward = _packed(distinct_values, distinct_offsets, np.arange(count))
    backward = _packed(distinct_values, distinct_offsets, np.arange(count - 1, -1, -1))
    packed, spans_U = min((forward, backward), key=lambda result: len(result[0]))
    return PartialJagged(key, packed, spans_U[codes])


def _packed(values: Values, offsets: Longs, order: NDArray[np.intp]) -> tuple[Values, Longs]:
    """Values and spans int64 [U, 2] of the rows when they are laid down in `order`."""
    size = values.dtype.itemsize
    raw = np.ascontiguousarray(values).tobytes()
    begins, ends = (offsets[:-1] * size).tolist(), (offsets[1:] * size).tolist()
    buffer = bytearray()
    spans = np.zeros((len(order), 2), np.int64)
    before = 0
    for u in order.tolist():
        row = raw[begins[u] : ends[u]]
        if not row:
            continue
        place = _overlap(bytes(buffer[before:]), row, size)
        begin = before + place
        buffer += row[len(buffer) - begin :]
        spans[u] = begin // size, len(row) // size
        before = begin
    return np.frombuffer(bytes(buffer), values.dtype), spans


def _overlap(tail: bytes, row: bytes, size: int) -> int:
    """The first place of the tail from which on the row is there, or its beginning up to the tail's end."""
    place, tried = -1, 0
    while tried < _PLACES_TRIED:
        place = tail.find(row[:size], place + 1)
        if place < 0:
            break
        if place % size:
            continue
        tried += 1
        common = min(len(tail) - place, len(row))
        if tail[place : place + common] == row[:common]:
            return place
    return len(tail)
