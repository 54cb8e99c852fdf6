"""Merges encoded sketches of heads; the state machine keeps them encoded, so that a state is a plain value."""

from __future__ import annotations

from elastrec.platform.data.metrics.heads import HeadSketches, figures_of
from elastrec.platform.specs.metrics import HeadMetrics


def merge_sketches(first: bytes, second: bytes) -> bytes:
    """The encoded merge of two encoded HeadSketches; empty bytes stand for no sketch."""
    if not first or not second:
        return first or second
    merged = HeadSketches.decode(first)
    merged.merge_encoded(second)
    return merged.encode()


def head_metrics(sketches: HeadSketches) -> tuple[HeadMetrics, ...]:
    """The figures of all heads, in their order."""
    metrics = []
    for name, sketch in sketches.heads.items():
        figures = figures_of(sketch)
        metrics.append(
            HeadMetrics(
                name=name,
                auc=figures.auc,
                normalized_entropy=figures.normalized_entropy,
                mean_squared_error=figures.mean_squared_error,
                normalized_error=figures.normalized_error,
                calibration=figures.calibration,
            )
        )
    return tuple(metrics)
