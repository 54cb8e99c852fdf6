"""BinaryMetricsSketch: AUC, normalised entropy, log loss and calibration that merge exactly across workers.

The bins of predictions are equal on the *logit* scale, so that click rates of 0.1 % and 50 % have the same resolution.
Counts are integers and sums are fixed-point integers: merging is exact, associative and commutative, so that the result
does not depend on which worker evaluated which shard.
"""

from __future__ import annotations

import math
import zlib
from dataclasses import dataclass
from typing import Literal

import msgspec
import numpy as np
from numpy.typing import ArrayLike, NDArray

from elastrec.platform.data.metrics.values import FIXED_POINT, fixed_sum
from elastrec.platform.specs.errors import DataError
from elastrec.platform.specs.text.decoders import msgpack_decoder

EVALUATION_BINS = 65_536
COARSE_BINS = 2_048
"""For windows of training metrics."""

# exp(-16) ~ 1e-7: beyond this a float32 probability has no digits left.
_LOGIT_LIMIT = 16.0
_PROBABILITY_FLOOR = 1e-7
Width = Literal[1, 2, 4, 8]
_WIDTHS: tuple[Width, ...] = (1, 2, 4, 8)


class _Encoded(msgspec.Struct, frozen=True, array_like=True):
    """Wire form. `counts` holds indexes uint32, positives and negatives of the non-empty bins.

    Positives and negatives are unsigned integers of `width` bytes each. Sketches with more than COARSE_BINS are
    compressed (zlib). Coarse ones are not, because the master reads hundreds of them per second, and decompression
    would be most of that work.
    """

    version: Literal[2]
    bins: int
    filled: int
    width: Width
    loss_fixed: str  # decimal text: the sum may exceed 64 bits
    prediction_fixed: str
    counts: bytes


_decoder = msgpack_decoder(_Encoded)


@dataclass(frozen=True)
class Calibration:
    """Predicted against observed click rate, in bins of (nearly) equal row counts.

    Attributes:
        predicted: float64 [C], mean prediction of each bin.
        observed: float64 [C], share of positives of each bin.
        rows: int64 [C].
    """

    predicted: NDArray[np.float64]
    observed: NDArray[np.float64]
    rows: NDArray[np.int64]


class BinaryMetricsSketch:
    """A mergeable summary of (prediction, label) pairs.

    Example:
        >>> sketch = BinaryMetricsSketch()
        >>> sketch.update([0.9, 0.2, 0.7, 0.1], [1, 0, 0, 0])
        >>> sketch.auc()
        1.0

    Args:
        bins: resolution; 65,536 keeps AUC within 1e-4 of the exact one.
    """

    def __init__(self, bins: int = EVALUATION_BINS) -> None:
        if not 2 <= bins <= 2**24:
            raise DataError(f"bins: {bins} is not allowed; allowed: 2 to {2**24}")
        self._positives = np.zeros(bins, np.int64)
        self._negatives = np.zeros(bins, np.int64)
        self._loss_fixed = 0
        self._prediction_fixed = 0

    @property
    def bins(self) -> int:
        return len(self._positives)

    @property
    def rows(self) -> int:
        return int(self._positives.sum() + self._negatives.sum())

    @property
    def positives(self) -> int:
        return int(self._positives.sum())

    @property
    def base_rate(self) -> float | None:
        """Share of positives; None without rows."""
        return self.positives / self.rows if self.rows else None

    @property
    def mean_prediction(self) -> float | None:
        """Exact mean of the predictions; None without rows."""
        return self._prediction_fixed / FIXED_POINT / self.rows if self.rows else None

    def update(self, predictions_B: ArrayLike, labels_B: ArrayLike) -> None:
        """Adds rows.

        Args:
            predictions_B: float [B], probabilities in [0, 1].
            labels_B: [B], each 0 or 1.

        Raises:
            DataError: lengths differ, a prediction is NaN or outside [0, 1], a label is neither 0 nor 1.
        """
        p_B = np.asarray(predictions_B, np.float64).reshape(-1)
        y_B = np.asarray(labels_B).reshape(-1)
        if len(p_B) != len(y_B):
            raise DataError(f"predictions and labels differ in length: {len(p_B)} and {len(y_B)}")
        usable_B = (p_B >= 0.0) & (p_B <= 1.0)
        if not usable_B.all():
            raise DataError(f"prediction: {p_B[~usable_B][0]} is not allowed; allowed: probabilities from 0 to 1")
        positive_B = y_B == 1
        if not (positive_B | (y_B == 0)).all():
            wrong = y_B[~(positive_B | (y_B == 0))][0]
            raise DataError(f"label: {wrong} is not allowed; allowed: 0 or 1")
        p_B = np.clip(p_B, _PROBABILITY_FLOOR, 1.0 - _PROBABILITY_FLOOR)
        logit_B = np.log(p_B) - np.log1p(-p_B)
        scale = self.bins / (2 * _LOGIT_LIMIT)
        bin_B = np.clip(((logit_B + _LOGIT_LIMIT) * scale).astype(np.int64), 0, self.bins - 1)
        self._positives += np.bincount(bin_B[positive_B], minlength=self.bins)
        self._negatives += np.bincount(bin_B[~positive_B], minlength=self.bins)
        self._loss_fixed += fixed_sum(-np.where(positive_B, np.log(p_B), np.log1p(-p_B)))
        self._prediction_fixed += fixed_sum(p_B)

    def merge(self, other: BinaryMetricsSketch) -> None:
        """Adds the rows of another sketch, with the same result as an update with all rows.

        Raises:
            DataError: the numbers of bins differ.
        """
        if other.bins != self.bins:
            raise DataError(f"sketches of {self.bins} and {other.bins} bins cannot be merged")
        self._positives += other._positives
        self._negatives += other._negatives
        self._loss_fixed += other._loss_fixed
        self._prediction_fixed += other._prediction_fixed

    def auc(self) -> float | None:
        """Area under the ROC curve, ties counted half; None unless both classes occurred."""
        positives, negatives = float(self._positives.sum()), float(self._negatives.sum())
        if not positives or not negatives:
            return None
        below = np.cumsum(self._negatives) - self._negatives
        wins = np.dot(self._positives.astype(np.float64), below + self._negatives / 2)
        return float(wins / (positives * negatives))

    def log_loss(self) -> float | None:
        """Mean of -log(probability given to the true label), in nats; None without rows."""
        return self._loss_fixed / FIXED_POINT / self.rows if self.rows else None

    def normalized_entropy(self) -> float | None:
        """Log loss divided by that of always predicting the base rate; None unless both classes occurred.

        He et al., "Practical Lessons from Predicting Clicks on Ads at Facebook", eq. 1. Below 1 is better than
        predicting the base rate.
        """
        rate, loss = self.base_rate, self.log_loss()
        if rate is None or loss is None or rate in (0.0, 1.0):
            return None
        return loss / -(rate * math.log(rate) + (1 - rate) * math.log1p(-rate))

    def calibration(self, bins: int = 20) -> Calibration:
        """Predicted and observed rates in at most `bins` groups of nearly equal row counts, by rising prediction."""
        rows = self._positives + self._negatives
        filled = np.flatnonzero(rows)
        if not len(filled):
            return Calibration(np.empty(0), np.empty(0), np.empty(0, np.int64))
        centre = (filled + 0.5) * (2 * _LOGIT_LIMIT / self.bins) - _LOGIT_LIMIT
        prediction = 1 / (1 + np.exp(-centre))
        rows = rows[filled]
        middle = np.cumsum(rows) - rows / 2
        group = np.minimum((middle * bins / rows.sum()).astype(np.int64), bins - 1)
        total = np.bincount(group, rows, minlength=bins)
        used = total > 0
        predicted = np.bincount(group, rows * prediction, minlength=bins)[used] / total[used]
        observed = np.bincount(group, self._positives[filled], minlength=bins)[used] / total[used]
        return Calibration(predicted, observed, total[used].astype(np.int64))

    def encode(self) -> bytes:
        """Compact bytes, with only the non-empty bins."""
        filled = np.flatnonzero(self._positives + self._negatives)
        positives, negatives = self._positives[filled], self._negatives[filled]
        most = int(max(positives.max(initial=0), negatives.max(initial=0)))
        width = next(width for width in _WIDTHS if most < 1 << 8 * width)
        counts = b"".join(
            (
                filled.astype("<u4").tobytes(),
                positives.astype(f"<u{width}").tobytes(),
                negatives.astype(f"<u{width}").tobytes(),
            )
        )
        return msgspec.msgpack.encode(
            _Encoded(
                version=2,
                bins=self.bins,
                filled=len(filled),
                width=width,
                loss_fixed=str(self._loss_fixed),
                prediction_fixed=str(self._prediction_fixed),
                counts=zlib.compress(counts, 1) if self.bins > COARSE_BINS else counts,
            )
        )

    @classmethod
    def decode(cls, encoded: bytes) -> BinaryMetricsSketch:
        """Decodes a result of `encode`.

        Raises:
            DataError: the bytes are not a sketch of this version.
        """
        wire = _read(encoded)
        sketch = cls(wire.bins)
        sketch._add_encoded(wire, len(encoded))
        return sketch

    def merge_encoded(self, encoded: bytes) -> None:
        """The same as `merge(decode(encoded))`, but for a coarse sketch with half of the work.

        Raises:
            DataError: the bytes are not a sketch of this version and number of bins; then nothing was added.
        """
        wire = _read(encoded)
        if wire.bins != self.bins:
            raise DataError(f"sketches of {self.bins} and {wire.bins} bins cannot be merged")
        self._add_encoded(wire, len(encoded))

    def _add_encoded(self, wire: _Encoded, size_bytes: int) -> None:
        kind = f"<u{wire.width}"
        try:
            loss_fixed, prediction_fixed = int(wire.loss_fixed), int(wire.prediction_fixed)
            counts = zlib.decompress(wire.counts) if wire.bins > COARSE_BINS else wire.counts
            announced = wire.filled * (4 + 2 * wire.width)
            if len(counts) != announced:
                raise ValueError(f"{len(counts)} bytes of counts where {announced} were announced")
            filled = np.frombuffer(counts, "<u4", wire.filled)
            positives = np.frombuffer(counts, kind, wire.filled, wire.filled * 4)
            negatives = np.frombuffer(counts, kind, wire.filled, wire.filled * (4 + wire.width))
            # An index beyond the bins raises here, before anything was added.
            self._positives[filled] += positives.astype(np.int64)
            self._negatives[filled] += negatives.astype(np.int64)
        except (zlib.error, ValueError, IndexError) as error:
            raise DataError(f"these {size_bytes} bytes are no metrics sketch: {error}") from error
        self._loss_fixed += loss_fixed
        self._prediction_fixed += prediction_fixed

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, BinaryMetricsSketch):
            return NotImplemented
        return (
            np.array_equal(self._positives, other._positives)
            and np.array_equal(self._negatives, other._negatives)
            and self._loss_fixed == other._loss_fixed
            and self._prediction_fixed == other._prediction_fixed
        )


def _read(encoded: bytes) -> _Encoded:
    try:
        return _decoder.decode(encoded)
    except msgspec.MsgspecError as error:
        raise DataError(f"these {len(encoded)} bytes are no metrics sketch: {error}") from error
