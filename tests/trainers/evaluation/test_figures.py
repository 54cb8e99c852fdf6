"""Figures, comparisons and learning curves."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastrec.platform.data.metrics.binary import COARSE_BINS, BinaryMetricsSketch
from elastrec.platform.specs.errors import DataError
from elastrec.trainers.evaluation.curves import TrainingWindow, learning_curve
from elastrec.trainers.evaluation.figures import compare, evaluation_result


def sketch_of(predictions: list[float], labels: list[int]) -> BinaryMetricsSketch:
    sketch = BinaryMetricsSketch(COARSE_BINS)
    sketch.update(predictions, labels)
    return sketch


def test_figures_that_are_not_defined_are_none() -> None:
    result = evaluation_result(sketch_of([0.2, 0.3], [0, 0]))
    assert (result.samples, result.auc, result.normalized_entropy, result.only_label) == (2, None, None, 0.0)
    assert result.log_loss == pytest.approx(-np.log([0.8, 0.7]).mean(), abs=1e-6)


def test_a_better_challenger_has_more_auc_and_less_loss() -> None:
    labels = [0, 1, 0, 1]
    good = evaluation_result(sketch_of([0.1, 0.9, 0.2, 0.8], labels))
    poor = evaluation_result(sketch_of([0.4, 0.3, 0.6, 0.7], labels))
    difference = compare(good, poor)
    assert difference.auc is not None and difference.auc > 0
    assert difference.log_loss is not None and difference.log_loss < 0


def test_models_scored_on_different_rows_are_not_compared() -> None:
    with pytest.raises(DataError, match="2 and 1 rows"):
        compare(evaluation_result(sketch_of([0.1, 0.2], [0, 1])), evaluation_result(sketch_of([0.1], [1])))


@given(sizes=st.lists(st.integers(0, 50), max_size=60), points=st.integers(1, 20))
def test_a_learning_curve_includes_every_sample_in_a_limited_number_of_points(sizes: list[int], points: int) -> None:
    windows = [TrainingWindow(size, 0.5 * size, None) for size in sizes]
    curve = learning_curve(windows, points)
    assert len(curve) <= points
    assert (curve[-1].samples_trained if curve else 0) == sum(sizes)
    assert all(point.loss == pytest.approx(0.5) for point in curve)


def test_a_curve_points_auc_is_that_of_its_windows_together() -> None:
    first, second = sketch_of([0.1, 0.9], [0, 1]), sketch_of([0.95, 0.05], [0, 1])
    (point,) = learning_curve([TrainingWindow(2, 1.0, first), TrainingWindow(2, 1.0, second)], points=1)
    together = sketch_of([0.1, 0.9, 0.95, 0.05], [0, 1, 0, 1])
    assert point.auc == together.auc()
