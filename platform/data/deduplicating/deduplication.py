"""InverseJagged: a batch's jagged features without repeated rows, RecD's IKJT (§4.2) in numpy and Arrow.

Rows are found by hash and confirmed by comparing bytes (Arrow's dictionary encoder does both), so that two lists are
one row only if all their bits are equal. Guarantees of the builder are not checked again.

Legend of shapes: B batch, K features of a group, U distinct rows of the group, L numbers of all distinct rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from elastrec.platform.specs.errors import DataError
from elastrec.platform.specs.text.some import repeated

Longs = NDArray[np.int64]
Values = NDArray[Any]
"""int64 ids, or float32 / float64 numbers."""

Codes = tuple[NDArray[np.int32], int]
"""The number of each row's content, [B], in the order of first sight, and how many there are."""

_COMPARABLE = {kind.id for kind in (pa.int64(), pa.uint64(), pa.float32(), pa.float64())}
_BITS = {4: pa.int32(), 8: pa.int64()}


@dataclass(frozen=True)
class InverseJagged:
    """One group of jagged features that share an inverse lookup.

    Row b of feature k is `values[offsets[k * U + u] : offsets[k * U + u + 1]]` with `u = inverse_lookup[b]`. Rows of a
    group are equal only if all of its features are.

    Attributes:
        keys: K feature names.
        values: [L]; feature 0 of all distinct rows first.
        offsets: int64 [K * U + 1], beginning at 0.
        inverse_lookup: int32 [B], below U; distinct rows are numbered in the order of their first occurrence.
    """

    keys: tuple[str, ...]
    values: Values
    offsets: Longs
    inverse_lookup: NDArray[np.int32]

    @property
    def rows(self) -> int:
        """B."""
        return len(self.inverse_lookup)

    @cached_property
    def distinct_rows(self) -> int:
        """U."""
        return (len(self.offsets) - 1) // len(self.keys)

    @cached_property
    def lengths(self) -> Longs:
        """int64 [K, U]."""
        return np.diff(self.offsets).reshape(len(self.keys), self.distinct_rows)

    def feature(self, key: str) -> tuple[Values, Longs]:
        """Values [L_k] and offsets int64 [U + 1] of one feature's distinct rows, without a copy of the values."""
        k, rows = self.keys.index(key), self.distinct_rows
        offsets = self.offsets[k * rows : (k + 1) * rows + 1]
        return self.values[offsets[0] : offsets[-1]], offsets - offsets[0]

    def expand(self) -> tuple[Values, Longs]:
        """The plain form: values, feature by feature, and offsets int64 [K * B + 1]."""
        rows = self.distinct_rows
        picked = (np.arange(len(self.keys))[:, None] * rows + self.inverse_lookup).reshape(-1)
        return take_rows(self.values, self.offsets, picked)

    def to_arrow(self) -> pa.DictionaryArray:
        """dictionary<int32, struct<key: list>> [B]: Arrow's form of an inverse lookup; ids are not copied."""
        lists = []
        for key in self.keys:
            values, offsets = self.feature(key)
            if len(values) < 2**31:
                lists.append(pa.ListArray.from_arrays(pa.array(offsets.astype(np.int32)), pa.array(values)))
            else:
                lists.append(pa.LargeListArray.from_arrays(pa.array(offsets), pa.array(values)))
        distinct = pa.StructArray.from_arrays(lists, names=list(self.keys))
        return pa.DictionaryArray.from_arrays(pa.array(self.inverse_lookup), distinct)

    @classmethod
    def from_arrow(cls, column: pa.DictionaryArray) -> InverseJagged:
        """Decodes a result of `to_arrow`, also after IPC or Flight. A slice keeps all distinct rows.

        Raises:
            DataError: the column has another type.
        """
        kind = column.type
        if not (pa.types.is_dictionary(kind) and pa.types.is_struct(kind.value_type)):
            raise DataError(f"column: found {kind}, expected dictionary<int32, struct of lists>")
        distinct = column.dictionary
        keys = tuple(field.name for field in distinct.type)
        parts = [jagged_parts(distinct.field(key), key) for key in keys]
        return cls(keys, *joined(parts), np.asarray(column.indices).astype(np.int32, copy=False))


def check_groups(groups: Sequence[Sequence[str]], features: Sequence[str]) -> None:
    """Checks that groups contain features, each at most once.

    Raises:
        DataError: a group is empty, or names a feature twice or an unknown one.
    """
    named = [name for group in groups for name in group]
    wrong = sorted({*repeated(named), *(set(named) - set(features))})
    if wrong or not all(groups):
        raise DataError(
            f"groups: {wrong or [list(group) for group in groups]} is not allowed; allowed: groups of one or more of "
            f"{', '.join(features)}, each at most once"
        )


def deduplicate(columns: Mapping[str, pa.Array]) -> InverseJagged:
    """One group out of trainer-ready columns [B], all of int64 (or uint64) ids or all of numbers, or of lists of them.

    Unsigned ids from 2**63 on wrap to negative ones: all 64 bits count. Floats are compared by their bits, so that NaN
    equals itself and 0.0 does not equal -0.0.

    Raises:
        DataError: a column has nulls, or is of another type.
    """
    parts = {key: jagged_parts(column, key) for key, column in columns.items()}
    codes, count = group_codes([row_codes(*part) for part in parts.values()])
    first = first_rows(codes, count)
    distinct = [take_rows(values, offsets, first) for values, offsets in parts.values()]
    return InverseJagged(tuple(parts), *joined(distinct), codes)


def codes_of(values: pa.Array) -> Codes:
    """The codes of single values; nulls are one of them."""
    encoded = values.dictionary_encode(null_encoding="encode")
    return np.asarray(encoded.indices), len(encoded.dictionary)


def row_codes(values: Values, offsets: Longs) -> Codes:
    """The codes of the rows of a jagged array. Exact."""
    rows = len(offsets) - 1
    if not rows:
        return np.empty(0, np.int32), 0
    size = values.dtype.itemsize
    if len(values) == rows and bool((np.diff(offsets) == 1).all()):
        return codes_of(pa.array(values.view(f"i{size}"), _BITS[size]))
    begin, end = int(offsets[0]), int(offsets[-1])
    texts = pa.py_buffer((offsets - begin) * size), pa.py_buffer(np.ascontiguousarray(values[begin:end]))
    return codes_of(pa.Array.from_buffers(pa.large_binary(), rows, [None, *texts]))


def group_codes(codes: Sequence[Codes]) -> Codes:
    """The codes of rows over several features, from those of each: equal only where all are."""
    joint, count = codes[0]
    for other, other_count in codes[1:]:
        # Each factor is at most B, so that their product stays within 64 bits.
        joint, count = codes_of(pa.array(joint.astype(np.int64) * max(other_count, 1) + other))
    return joint, count


def first_rows(codes: NDArray[np.int32], count: int) -> Longs:
    """Index of the first occurrence of each number, int64 [count]."""
    first = np.empty(count, np.int64)
    # Of several writes to one element, the last one remains.
    first[codes[::-1]] = np.arange(len(codes) - 1, -1, -1)
    return first


def distinct_in_batches(codes: NDArray[np.int32], batch_rows: int) -> int:
    """The sum over consecutive batches of their numbers of distinct rows."""
    return sum(len(np.unique(codes[begin : begin + batch_rows])) for begin in range(0, len(codes), batch_rows))


def take_rows(values: Values, offsets: Longs, rows: NDArray[Any]) -> tuple[Values, Longs]:
    """The rows of a jagged array that `rows` names, in that order: values and offsets int64 [len(rows) + 1]."""
    begins = offsets[:-1][rows]
    return slices(values, begins, offsets[1:][rows] - begins)


def slices(values: Values, begins: Longs, lengths: Longs) -> tuple[Values, Longs]:
    """Slices of an array as a jagged array: values, and offsets int64 [slices + 1]."""
    taken = offsets_of(lengths)
    if len(lengths) and taken[-1] == len(lengths) and bool((lengths == 1).all()):
        return values[begins], taken
    index = np.arange(taken[-1])
    index += np.repeat(begins - taken[:-1], lengths)
    return values[index], taken


def offsets_of(lengths: NDArray[Any]) -> Longs:
    """Offsets int64 [rows + 1], beginning at 0, of lists of these lengths."""
    return np.concatenate((np.zeros(1, np.int64), np.cumsum(lengths)))


def joined(parts: Sequence[tuple[Values, Longs]]) -> tuple[Values, Longs]:
    """The concatenation of jagged arrays."""
    if len(parts) == 1:
        return parts[0]
    begins = np.cumsum([0, *(len(values) for values, _ in parts)])
    offsets = [offsets[1:] + begin for (_, offsets), begin in zip(parts, begins, strict=False)]
    return np.concatenate([values for values, _ in parts]), np.concatenate([np.zeros(1, np.int64), *offsets])


def list_parts(column: pa.Array) -> tuple[Longs, pa.Array] | None:
    """Offsets int64 [B + 1], beginning at 0, and elements of a list column, nulls as empty lists; None: no lists."""
    kind = column.type
    if not (pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)):
        return None
    lengths = np.asarray(pc.fill_null(pc.list_value_length(column), 0), np.int64)
    # flatten() leaves out the values of null lists.
    return offsets_of(lengths), column.flatten()


def jagged_parts(column: pa.Array, key: str) -> tuple[Values, Longs]:
    """Values and offsets of a column, without a copy of the values where it has none to leave out."""
    kind = column.type
    if column.null_count:
        raise DataError(f"feature {key!r}: {column.null_count} null rows are not allowed; encode the rows first")
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        # Once for each feature and batch: quicker than `list_parts`.
        offsets = np.asarray(column.offsets).astype(np.int64)
        inner = column.values.slice(int(offsets[0]), int(offsets[-1] - offsets[0]))
        offsets -= offsets[0]
    else:
        offsets, inner = list_parts(column) or (np.arange(len(column) + 1, dtype=np.int64), column)
    if inner.type.id not in _COMPARABLE:
        allowed = "int64, uint64, float or double, or a list of them"
        raise DataError(f"feature {key!r}: {kind} is not allowed; allowed: {allowed}; encode the rows first")
    if inner.null_count:
        raise DataError(f"feature {key!r}: nulls inside lists are not allowed; encode the rows first")
    values = np.asarray(inner)
    return values.view(np.int64) if values.dtype == np.uint64 else values, offsets
