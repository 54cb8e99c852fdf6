"""Sketches of a model with one head, `label`, as workers send them."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from elastrec.platform.data.metrics.binary import COARSE_BINS, EVALUATION_BINS
from elastrec.platform.data.metrics.heads import HeadSketches, Predicted


def predicted(predictions: ArrayLike, labels: ArrayLike) -> tuple[Predicted, ...]:
    """Probabilities [B] and labels [B] of the head `label`."""
    return (Predicted("label", "binary", np.asarray(predictions, np.float32), np.asarray(labels, np.float32)),)


def encoded(predictions: ArrayLike, labels: ArrayLike, *, coarse: bool = False) -> bytes:
    """Sketches of these rows."""
    sketches = HeadSketches(COARSE_BINS if coarse else EVALUATION_BINS)
    sketches.update(predicted(predictions, labels))
    return sketches.encode()
