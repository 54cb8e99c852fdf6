"""Steps on the values of one feature: the same code for columns of training rows, for distinct rows of a deduplicated
batch (RecD's O4, §4.3), and for rows that an exported model scores.

The result of a step for a row depends only on that row, so that preprocessing distinct rows and expanding them is the
same as preprocessing all rows. Rows that become equal by a step stay two distinct rows, which is correct, but slightly
less efficient. `elastrec.platform.specs.features` describes each step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from elastrec.platform.data.deduplicating.deduplication import (
    Codes,
    Longs,
    Values,
    offsets_of,
    row_codes,
    slices,
    take_rows,
)

MISSING_ID = int.from_bytes(b"missing")
"""The id of an empty scalar category: 30,796,717,039,906,407. A table with `hash_size` takes it modulo that, too."""


@dataclass(frozen=True)
class Column:
    """One feature's values; do not write to the arrays.

    Attributes:
        values: float64 numbers or int64 ids [L], arbitrary where they are missing.
        offsets: int64 [rows + 1], beginning at 0: the beginning of each row's list; None: one value per row, L rows.
        missing: bool [L], of single values; None: nothing is missing. Lists have no missing values, but may be empty.
    """

    values: Values
    offsets: Longs | None = None
    missing: NDArray[np.bool_] | None = None

    @property
    def rows(self) -> int:
        return len(self.values) if self.offsets is None else len(self.offsets) - 1

    def take(self, rows: Longs) -> Column:
        """The rows with these numbers, in that order."""
        if self.offsets is not None:
            return Column(*take_rows(self.values, self.offsets, rows))
        return Column(self.values[rows], None, None if self.missing is None else self.missing[rows])

    @property
    def bounds(self) -> Longs:
        """`offsets`, or those of lists of one value."""
        return np.arange(self.rows + 1, dtype=np.int64) if self.offsets is None else self.offsets

    def codes(self) -> list[Codes]:
        """Codes of the rows, missing ones included."""
        codes = [row_codes(self.values, self.bounds)]
        return codes if self.missing is None else [*codes, (self.missing.astype(np.int32), 2)]


class Step(Protocol):
    """One operation on the values of one feature."""

    @property
    def fits_float32(self) -> bool:
        """Whether every resulting number fits into float32."""
        ...

    def __call__(self, column: Column) -> Column:
        """Returns the same number of rows; does not change the argument's arrays."""
        ...


class _AnyNumber:
    """The result may be too large for float32."""

    fits_float32 = False


@dataclass(frozen=True)
class FillNull(_AnyNumber):
    """Replaces missing values and empty lists with `value`, a number or an id."""

    value: float | int

    def __call__(self, column: Column) -> Column:
        if column.offsets is None:
            if column.missing is None:
                return column
            return Column(np.where(column.missing, column.values.dtype.type(self.value), column.values))
        lengths = np.diff(column.offsets)
        if lengths.all():
            return column
        offsets = offsets_of(np.maximum(lengths, 1))
        values = np.full(offsets[-1], self.value, column.values.dtype)
        values[np.arange(len(column.values)) + np.repeat(offsets[:-1] - column.offsets[:-1], lengths)] = column.values
        return Column(values, offsets)


@dataclass(frozen=True)
class MissingIndicator:
    """1 if the value is missing or the list empty, otherwise 0; a number or, with `as_ids`, an id."""

    as_ids: bool
    fits_float32 = True

    def __call__(self, column: Column) -> Column:
        kind = np.int64 if self.as_ids else np.float64
        if column.offsets is not None:
            return Column((np.diff(column.offsets) == 0).astype(kind), np.arange(column.rows + 1, dtype=np.int64))
        return Column(np.zeros(column.rows, kind) if column.missing is None else column.missing.astype(kind))


@dataclass(frozen=True)
class Clip(_AnyNumber):
    """Numbers below `low` become `low`, those above `high` `high`."""

    low: float | None
    high: float | None

    def __call__(self, column: Column) -> Column:
        return replace(column, values=np.clip(column.values, self.low, self.high))


@dataclass(frozen=True)
class Log1p:
    """sign(x) · log(1 + |x|): at most 710."""

    fits_float32 = True

    def __call__(self, column: Column) -> Column:
        values = column.values
        if values.min(initial=0.0) >= 0:
            return Column(np.log1p(values), column.offsets, column.missing)
        return Column(np.copysign(np.log1p(np.abs(values)), values), column.offsets, column.missing)


@dataclass(frozen=True)
class Standardize(_AnyNumber):
    """(x - mean) / scale; infinite if that is beyond float64."""

    mean: float
    scale: float

    def __call__(self, column: Column) -> Column:
        with np.errstate(over="ignore"):
            return replace(column, values=(column.values - self.mean) / self.scale)


@dataclass(frozen=True)
class Bucketize(_AnyNumber):
    """Replaces numbers with the id of their bucket: the number of boundaries at or below them."""

    boundaries: tuple[float, ...]

    @cached_property
    def _boundaries(self) -> NDArray[np.float64]:
        return np.array(self.boundaries, np.float64)

    def __call__(self, column: Column) -> Column:
        ids = np.searchsorted(self._boundaries, column.values, side="right").astype(np.int64)
        return replace(column, values=ids)


@dataclass(frozen=True)
class Hash(_AnyNumber):
    """Maps ids to 0 .. size − 1 by xxh3-64 of their 8 bytes."""

    size: int
    seed: int = 0

    def __call__(self, column: Column) -> Column:
        hashed = xxh3_of_ids(column.values, np.uint64(self.seed)) % np.uint64(self.size)
        return replace(column, values=hashed.view(np.int64))


@dataclass(frozen=True)
class Vocabulary(_AnyNumber):
    """Maps ids to their indexes in `ids`; all others to `other`."""

    ids: tuple[int, ...]
    other: int

    @cached_property
    def _sorted(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The ids in rising order, and the index of each."""
        ids = np.array(self.ids, np.int64)
        place = np.argsort(ids)
        return ids[place], place

    def __call__(self, column: Column) -> Column:
        ids, place = self._sorted
        at = np.minimum(np.searchsorted(ids, column.values), len(ids) - 1)
        return replace(column, values=np.where(ids[at] == column.values, place[at], np.int64(self.other)))


@dataclass(frozen=True)
class Keep(_AnyNumber):
    """Lists keep their last (or first) `count` values."""

    count: int
    is_first: bool = False

    def __call__(self, column: Column) -> Column:
        offsets = column.offsets
        assert offsets is not None  # the spec allows it for lists only
        lengths = np.diff(offsets)
        kept = np.minimum(lengths, self.count)
        if np.array_equal(kept, lengths):
            return column
        return Column(*slices(column.values, offsets[:-1] if self.is_first else offsets[1:] - kept, kept))


@dataclass(frozen=True)
class Unfitted:
    """Replaces a step whose statistics are not known before the preparation of the job: values stay as they are.

    Their size is not checked, because they are not used for training.
    """

    feature: str
    fits_float32 = True

    def __call__(self, column: Column) -> Column:
        return column


def run_steps(column: Column, steps: Sequence[Step]) -> Column:
    """The column after all steps, in order."""
    for step in steps:
        column = step(column)
    return column


def crossed(columns: Sequence[Column]) -> Column:
    """One id for each combination of the columns' ids: each id is hashed with the hash of the previous ones as the
    seed.

    A missing value is MISSING_ID.

    Args:
        columns: single values, two columns or more of as many rows.
    """
    hashed = np.zeros(columns[0].rows, np.uint64)
    for column in columns:
        hashed = xxh3_of_ids(FillNull(MISSING_ID)(column).values, hashed)
    return Column(hashed.view(np.int64))


def xxh3_of_ids(ids: NDArray[np.int64], seed: np.uint64 | NDArray[np.uint64]) -> NDArray[np.uint64]:
    """xxh3-64 of each id's 8 bytes, little-endian, uint64 [L]: XXH3_len_4to8_64b of xxhash 0.8, for whole columns.

    Args:
        seed: one for all, or uint64 [L].
    """
    low, word = np.uint64(0xFFFFFFFF), np.uint64(32)
    with np.errstate(over="ignore"):
        swapped = (seed & low).astype(np.uint32).byteswap().astype(np.uint64)
        flip = _SECRET - (seed ^ (swapped << word))
        # The bytes are read as two halves, the first one above the second.
        x = ids.view(np.uint64)
        x = ((x << word) | (x >> word)) ^ flip
        x = x ^ _rotated(x, 49) ^ _rotated(x, 24)
        x = x * _PRIME
        x = (x ^ ((x >> np.uint64(35)) + np.uint64(8))) * _PRIME
        return np.asarray(x ^ (x >> np.uint64(28)))


_SECRET = np.uint64(0x1CAD21F72C81017C ^ 0xDB979083E96DD4DE)
"""Bytes 8 to 23 of XXH3's default secret, its two words combined."""
_PRIME = np.uint64(0x9FB21C651E98DF25)


def _rotated(x: NDArray[np.uint64], bits: int) -> NDArray[np.uint64]:
    return (x << np.uint64(bits)) | (x >> np.uint64(64 - bits))
