"""Metrics of several outputs equal a plain calculation, for any distribution of rows over workers."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastrec.platform.data.metrics.binary import COARSE_BINS, BinaryMetricsSketch
from elastrec.platform.data.metrics.heads import HeadSketches, Predicted, figures_of
from elastrec.platform.data.metrics.values import ValueMetricsSketch
from elastrec.platform.specs.errors import DataError


def rows(seed: int, count: int) -> list[Predicted]:
    random = np.random.default_rng(seed)
    clicks = random.integers(0, 2, count).astype(np.float32)
    prices = random.normal(3, 2, count).astype(np.float32)
    return [
        Predicted("click", "binary", random.random(count, np.float32), clicks),
        Predicted("price", "value", prices + random.normal(0, 0.5, count).astype(np.float32), prices),
    ]


def test_figures_are_those_of_the_definitions() -> None:
    sketches = HeadSketches()
    found = rows(1, 5_000)
    sketches.update(found)
    assert list(sketches.heads) == ["click", "price"] and sketches.first() is sketches.heads["click"]
    _, _, prediction, label = found[1]
    error = np.mean((prediction.astype(float) - label) ** 2)
    figures = figures_of(sketches.heads["price"])
    assert figures.rows == 5_000 and figures.auc is None
    assert figures.mean_squared_error == pytest.approx(error, rel=1e-6)
    assert figures.normalized_error == pytest.approx(error / np.var(label.astype(float)), rel=1e-6)
    assert figures.calibration == pytest.approx(prediction.astype(float).mean() / label.astype(float).mean(), rel=1e-6)
    click = figures_of(sketches.heads["click"])
    assert click.mean_squared_error is None and click.auc == pytest.approx(0.5, abs=0.02)
    assert click.calibration == pytest.approx(found[0].prediction_B.mean() / found[0].label_B.mean(), rel=1e-4)


@given(st.lists(st.integers(1, 50), min_size=1, max_size=6), st.randoms(use_true_random=False))
def test_merging_in_any_order_gives_the_same_bytes(sizes: list[int], random: object) -> None:
    parts = []
    for seed, size in enumerate(sizes):
        part = HeadSketches(COARSE_BINS)
        part.update(rows(seed, size))
        parts.append(part)
    forward, backward = HeadSketches(COARSE_BINS), HeadSketches(COARSE_BINS)
    for part in parts:
        forward.merge_encoded(part.encode())
    for part in reversed(parts):
        backward.merge_encoded(part.encode())
    assert forward == backward and forward.encode() == backward.encode()
    assert HeadSketches.decode(forward.encode()) == forward


def test_a_label_that_never_changes_has_no_normalised_error() -> None:
    sketch = ValueMetricsSketch()
    assert sketch.normalized_error() is None and sketch.mean_squared_error() is None
    sketch.update([1.0, 2.0], [5.0, 5.0])
    assert sketch.normalized_error() is None and sketch.mean_squared_error() == pytest.approx(12.5)


def test_a_small_variance_of_large_labels_keeps_its_digits() -> None:
    label = np.array([1e6, 1e6 + 1], np.float32)
    sketch = ValueMetricsSketch()
    sketch.update(label + np.float32(0.5), label)
    assert sketch.normalized_error() == pytest.approx(1.0)


@pytest.mark.parametrize("encoded", [b"", b"rubbish", BinaryMetricsSketch().encode(), HeadSketches().encode()[:-1]])
def test_bytes_of_something_else_are_refused(encoded: bytes) -> None:
    with pytest.raises(DataError, match="no sketch"):
        HeadSketches.decode(encoded)


def test_a_head_keeps_its_kind() -> None:
    sketches = HeadSketches()
    sketches.update(rows(1, 3))
    with pytest.raises(DataError, match=r"head 'click': value is not allowed; allowed: binary"):
        sketches.update([rows(1, 3)[0]._replace(kind="value")])


@pytest.mark.parametrize(("prediction", "label"), [(np.nan, 1.0), (1.0, np.inf)])
def test_numbers_that_are_not_finite_are_refused(prediction: float, label: float) -> None:
    with pytest.raises(DataError, match="finite numbers"):
        ValueMetricsSketch().update([prediction], [label])
