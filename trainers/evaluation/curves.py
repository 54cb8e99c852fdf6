"""Data of learning curves: training windows of any size become at most as many points as a picture has room for."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from elastrec.platform.data.metrics.binary import BinaryMetricsSketch


@dataclass(frozen=True)
class TrainingWindow:
    """Sums over consecutive samples, predictions taken before the update."""

    samples: int
    loss_sum: float
    sketch: BinaryMetricsSketch | None


@dataclass(frozen=True)
class CurvePoint:
    """Mean over the samples that end at `samples_trained`; loss in nats."""

    samples_trained: int
    loss: float
    auc: float | None
    normalized_entropy: float | None


def learning_curve(windows: Iterable[TrainingWindow], points: int = 100) -> list[CurvePoint]:
    """Merges neighbouring windows so that each point stands for about the same number of samples.

    Args:
        windows: in the order of training; sketches of equal bins.
        points: at most so many; at least 1.
    """
    kept = [window for window in windows if window.samples > 0]
    total = sum(window.samples for window in kept)
    curve: list[CurvePoint] = []
    trained = samples = 0
    loss_sum, sketch = 0.0, None
    for position, window in enumerate(kept):
        trained += window.samples
        samples += window.samples
        loss_sum += window.loss_sum
        if window.sketch is not None:
            sketch = sketch or BinaryMetricsSketch(window.sketch.bins)
            sketch.merge(window.sketch)
        due = trained * points >= total * (len(curve) + 1)
        if due or position == len(kept) - 1:
            auc, entropy = (sketch.auc(), sketch.normalized_entropy()) if sketch else (None, None)
            curve.append(CurvePoint(trained, loss_sum / samples, auc, entropy))
            samples, loss_sum, sketch = 0, 0.0, None
    return curve
