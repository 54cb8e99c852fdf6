"""Preprocessing of jagged features, written once: a plain batch or the distinct rows of a group (RecD's O4, §4.3).

A step sees values and offsets and gives values and offsets of as many rows. It looks at one row at a time, so that
preprocessing distinct rows and expanding them gives what preprocessing all rows does. Rows that become equal by it stay
two distinct rows: nothing is lost, only a little is not gained.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from elastrec.platform.data.deduplicating.deduplication import InverseJagged, Longs, Values
from elastrec.platform.data.reading.batches import JaggedIds
from elastrec.platform.specs.errors import DataError

Features = TypeVar("Features", JaggedIds, InverseJagged)


class Step(Protocol):
    """One operation on the lists of one feature."""

    def __call__(self, values: Values, offsets: Longs) -> tuple[Values, Longs]:
        """Values [L] and offsets int64 [rows + 1] in, the same out; the arguments are not changed."""
        ...


@dataclass(frozen=True)
class HashIds:
    """Ids to 0 .. buckets − 1 by splitmix64 of id XOR salt.

    Raises:
        DataError: `buckets` below 1.
    """

    buckets: int
    salt: int = 0

    def __post_init__(self) -> None:
        if self.buckets < 1:
            raise DataError(f"buckets: {self.buckets} is not allowed; allowed: 1 and above")

    def __call__(self, values: Values, offsets: Longs) -> tuple[Values, Longs]:
        _must_be_ids("hash", values)
        x = values.view(np.uint64) ^ np.uint64(self.salt % 2**64)
        with np.errstate(over="ignore"):
            x = x + np.uint64(0x9E3779B97F4A7C15)
            x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
            x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return ((x ^ (x >> np.uint64(31))) % np.uint64(self.buckets)).view(np.int64), offsets


@dataclass(frozen=True)
class Clip:
    """Numbers below `low` become `low`, above `high` `high`; NaN stays NaN.

    Raises:
        DataError: `low` above `high`.
    """

    low: float
    high: float

    def __post_init__(self) -> None:
        if not self.low <= self.high:
            raise DataError(f"low: {self.low} is not allowed; allowed: {self.high} (high) and below")

    def __call__(self, values: Values, offsets: Longs) -> tuple[Values, Longs]:
        return np.clip(values, values.dtype.type(self.low), values.dtype.type(self.high)), offsets


@dataclass(frozen=True)
class Truncate:
    """Lists keep their last (or first) `longest` elements.

    Raises:
        DataError: `longest` below 0.
    """

    longest: int
    keep: Literal["last", "first"] = "last"

    def __post_init__(self) -> None:
        if self.longest < 0:
            raise DataError(f"longest: {self.longest} is not allowed; allowed: 0 and above")

    def __call__(self, values: Values, offsets: Longs) -> tuple[Values, Longs]:
        lengths = np.diff(offsets)
        kept = np.minimum(lengths, self.longest)
        if np.array_equal(kept, lengths):
            return values, offsets
        begins = offsets[1:] - kept if self.keep == "last" else offsets[:-1]
        cut = np.concatenate((np.zeros(1, np.int64), np.cumsum(kept)))
        return values[np.arange(cut[-1]) + np.repeat(begins - cut[:-1], kept)], cut


@dataclass(frozen=True)
class Bucketize:
    """Numbers to the index of their bucket: how many borders are at or below them. NaN goes to the last bucket.

    Raises:
        DataError: no border, or borders that do not rise.
    """

    borders: tuple[float, ...]

    def __post_init__(self) -> None:
        if not self.borders or not all(a < b for a, b in zip(self.borders, self.borders[1:], strict=False)):
            raise DataError(f"borders: {self.borders} is not allowed; allowed: one or more numbers that rise")

    def __call__(self, values: Values, offsets: Longs) -> tuple[Values, Longs]:
        return np.searchsorted(np.asarray(self.borders), values, side="right").astype(np.int64), offsets


@dataclass(frozen=True)
class LogNormalize:
    """sign(x) · log(1 + |x|) as float32, as the dense transform `log1p`."""

    def __call__(self, values: Values, offsets: Longs) -> tuple[Values, Longs]:
        numbers = values.astype(np.float64)
        return np.copysign(np.log1p(np.abs(numbers)), numbers).astype(np.float32), offsets


def preprocess(features: Features, steps: Mapping[str, Sequence[Step]]) -> Features:
    """Run each feature's steps in order; features without steps stay as they are.

    Raises:
        DataError: a feature that is not there, a step that does not fit its numbers, or results of one batch or group
            that are of different types.
    """
    unknown = sorted(set(steps) - set(features.keys))
    if unknown:
        raise DataError(f"steps: {unknown} is not allowed; allowed: {', '.join(features.keys)}")
    if isinstance(features, InverseJagged):
        parts = [_run(*features.feature(key), steps.get(key, ())) for key in features.keys]
        values, offsets = _joined(features.keys, parts)
        return InverseJagged(features.keys, values, offsets, features.inverse_lookup)
    rows = features.lengths.shape[1]
    bounds = np.concatenate((np.zeros(1, np.int64), np.cumsum(features.lengths.reshape(-1), dtype=np.int64)))
    parts = []
    for k, key in enumerate(features.keys):
        mine = bounds[k * rows : (k + 1) * rows + 1]
        parts.append(_run(features.values[mine[0] : mine[-1]], mine - mine[0], steps.get(key, ())))
    values, offsets = _joined(features.keys, parts)
    lengths = np.diff(offsets).reshape(features.lengths.shape).astype(np.int32)
    return JaggedIds(features.keys, values, lengths, bool((lengths == 1).all()))


def _run(values: Values, offsets: Longs, steps: Sequence[Step]) -> tuple[Values, Longs]:
    for step in steps:
        values, offsets = step(values, offsets)
    return values, offsets


def _joined(keys: Sequence[str], parts: Sequence[tuple[Values, Longs]]) -> tuple[Values, Longs]:
    kinds: dict[np.dtype[np.generic], str] = {}
    for key, (values, _) in zip(keys, parts, strict=True):
        kinds.setdefault(values.dtype, key)
    if len(kinds) > 1:
        shown = ", ".join(f"{key!r} {kind}" for kind, key in kinds.items())
        raise DataError(f"steps: {shown} are not allowed together; allowed: one type of numbers")
    begins: NDArray[np.int64] = np.cumsum([0, *(len(values) for values, _ in parts)])
    offsets = [bounds[1:] + begin for (_, bounds), begin in zip(parts, begins, strict=False)]
    return np.concatenate([values for values, _ in parts]), np.concatenate([np.zeros(1, np.int64), *offsets])


def _must_be_ids(what: str, values: Values) -> None:
    if values.dtype != np.int64:
        raise DataError(f"{what}: {values.dtype} is not allowed; allowed: int64 ids")
