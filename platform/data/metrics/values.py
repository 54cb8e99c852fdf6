"""ValueMetricsSketch: error and calibration of predicted numbers, merged exactly across workers.

The counterpart of `BinaryMetricsSketch` for labels other than 0 and 1. Sums are fixed-point integers of any size, so
that merging is exact, associative and commutative.
"""

from __future__ import annotations

from typing import Literal

import msgspec
import numpy as np
from numpy.typing import ArrayLike, NDArray

from elastrec.platform.specs.errors import DataError
from elastrec.platform.specs.text.decoders import msgpack_decoder

FIXED_POINT = 2**32
_LARGEST_SUM = 2.0**62


class _Encoded(msgspec.Struct, frozen=True, array_like=True):
    """Wire form; sums are decimal text, because they may exceed 64 bits."""

    version: Literal[1]
    rows: int
    error_squares: str
    labels: str
    label_squares: str
    predictions: str


_decoder = msgpack_decoder(_Encoded)


class ValueMetricsSketch:
    """A mergeable summary of (prediction, label) pairs of finite numbers.

    Example:
        >>> sketch = ValueMetricsSketch()
        >>> sketch.update([1.0, 3.0], [2.0, 4.0])
        >>> sketch.mean_squared_error(), sketch.normalized_error()
        (1.0, 1.0)
    """

    def __init__(self) -> None:
        self.rows = 0
        self._sums = [0, 0, 0, 0]

    def update(self, predictions_B: ArrayLike, labels_B: ArrayLike) -> None:
        """Adds rows.

        Args:
            predictions_B, labels_B: float [B], finite and within float32.

        Raises:
            DataError: lengths differ, or a number is not finite.
        """
        p_B = np.asarray(predictions_B, np.float64).reshape(-1)
        y_B = np.asarray(labels_B, np.float64).reshape(-1)
        if len(p_B) != len(y_B):
            raise DataError(f"predictions and labels differ in length: {len(p_B)} and {len(y_B)}")
        for what, value_B in (("prediction", p_B), ("label", y_B)):
            if not np.isfinite(value_B).all():
                raise DataError(f"{what}: {value_B[~np.isfinite(value_B)][0]} is not allowed; allowed: finite numbers")
        self.rows += len(p_B)
        added = (fixed_sum((p_B - y_B) ** 2), fixed_sum(y_B), fixed_sum(y_B**2), fixed_sum(p_B))
        self._sums = [total + part for total, part in zip(self._sums, added, strict=True)]

    def _mean(self, index: int) -> float | None:
        return self._sums[index] / FIXED_POINT / self.rows if self.rows else None

    def mean_squared_error(self) -> float | None:
        """Mean of (prediction − label)²; None without rows."""
        return self._mean(0)

    @property
    def mean_label(self) -> float | None:
        """None without rows."""
        return self._mean(1)

    @property
    def mean_prediction(self) -> float | None:
        """None without rows."""
        return self._mean(3)

    def normalized_error(self) -> float | None:
        """Mean squared error divided by that of always predicting the mean label (1 − R²); None for equal labels.

        Below 1 is better than predicting the mean.
        """
        if not self.rows:
            return None
        # As integers, because a difference of two large floats would lose digits.
        variance = self._sums[2] * self.rows * FIXED_POINT - self._sums[1] ** 2
        return self._sums[0] * self.rows * FIXED_POINT / variance if variance > 0 else None

    def encode(self) -> bytes:
        """Compact bytes."""
        return msgspec.msgpack.encode(_Encoded(1, self.rows, *(str(total) for total in self._sums)))

    @classmethod
    def decode(cls, encoded: bytes) -> ValueMetricsSketch:
        """Decodes a result of `encode`.

        Raises:
            DataError: the bytes are not a sketch of this version.
        """
        sketch = cls()
        sketch.merge_encoded(encoded)
        return sketch

    def merge_encoded(self, encoded: bytes) -> None:
        """Adds the rows of another sketch; raises like `decode`, and then nothing was added."""
        try:
            wire = _decoder.decode(encoded)
            parts = [int(text) for text in (wire.error_squares, wire.labels, wire.label_squares, wire.predictions)]
        except (msgspec.MsgspecError, ValueError) as error:
            raise DataError(f"these {len(encoded)} bytes are no sketch of values: {error}") from error
        self.rows += wire.rows
        self._sums = [total + part for total, part in zip(self._sums, parts, strict=True)]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ValueMetricsSketch):
            return NotImplemented
        return (self.rows, self._sums) == (other.rows, other._sums)


def fixed_sum(value_B: NDArray[np.float64]) -> int:
    """The sum of the values, each rounded to a fixed-point integer, so that it does not depend on the batches."""
    scaled_B = np.rint(value_B * FIXED_POINT)
    if float(np.abs(scaled_B).max(initial=0.0)) * len(scaled_B) < _LARGEST_SUM:
        return int(scaled_B.astype(np.int64).sum())
    return sum(map(int, scaled_B.tolist()))
