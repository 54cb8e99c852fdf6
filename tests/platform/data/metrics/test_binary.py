"""The sketch compared with scikit-learn, and its algebraic laws."""

from __future__ import annotations

import math

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import log_loss, roc_auc_score

from elastrec.platform.data.metrics.binary import BinaryMetricsSketch
from elastrec.platform.specs.errors import DataError


def _planted(rows: int, rate_logit: float, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    logit = rng.normal(rate_logit, 1.2, rows)
    p = 1 / (1 + np.exp(-logit))
    return p, (rng.random(rows) < p).astype(np.float32)


def _sketch(p: np.ndarray, y: np.ndarray, bins: int = 65_536) -> BinaryMetricsSketch:
    sketch = BinaryMetricsSketch(bins)
    sketch.update(p, y)
    return sketch


@pytest.mark.parametrize("rate_logit", [-7.0, -1.0, 2.0])
def test_auc_is_that_of_scikit_learn(rate_logit: float) -> None:
    p, y = _planted(200_000, rate_logit)
    assert _sketch(p, y).auc() == pytest.approx(roc_auc_score(y, p), abs=1e-4)


def test_the_coarse_sketch_is_good_enough_for_a_window() -> None:
    p, y = _planted(50_000, -1.0)
    assert _sketch(p, y, 2048).auc() == pytest.approx(roc_auc_score(y, p), abs=1e-3)


def test_ties_count_half() -> None:
    p = np.repeat([0.2, 0.7], 500)
    y = np.tile([0, 1], 500)
    assert _sketch(p, y).auc() == pytest.approx(roc_auc_score(y, p), abs=1e-12)
    assert _sketch(np.full(10, 0.3), np.arange(10) % 2).auc() == 0.5


def test_log_loss_and_normalised_entropy_follow_their_definitions() -> None:
    p, y = _planted(100_000, -2.0)
    sketch = _sketch(p, y)
    rate = y.mean()
    assert sketch.log_loss() == pytest.approx(log_loss(y, p), abs=1e-8)
    entropy = -(rate * math.log(rate) + (1 - rate) * math.log(1 - rate))
    assert sketch.normalized_entropy() == pytest.approx(log_loss(y, p) / entropy, abs=1e-6)
    assert _sketch(np.full(len(y), rate), y).normalized_entropy() == pytest.approx(1.0, abs=1e-6)


def test_predictions_of_exactly_0_and_1_have_a_finite_loss() -> None:
    sketch = _sketch(np.array([0.0, 1.0]), np.array([1, 0]))
    assert sketch.log_loss() == pytest.approx(-math.log(1e-7))


def test_metrics_are_none_without_rows_or_with_one_class() -> None:
    empty = BinaryMetricsSketch()
    assert (empty.auc(), empty.log_loss(), empty.normalized_entropy(), empty.base_rate) == (None,) * 4
    one = _sketch(np.array([0.5]), np.array([1]))
    assert one.auc() is None and one.normalized_entropy() is None and one.log_loss() is not None


def test_calibration_of_true_probabilities_is_on_the_diagonal() -> None:
    p, y = _planted(400_000, -1.0)
    found = _sketch(p, y).calibration(10)
    assert found.rows.sum() == 400_000 and len(found.rows) == 10
    assert np.abs(found.predicted - found.observed).max() < 0.01
    assert np.all(np.diff(found.predicted) > 0)


_ROWS = st.lists(st.tuples(st.floats(0, 1), st.integers(0, 1)), max_size=30)


def of(rows: list[tuple[float, int]], bins: int = 512) -> BinaryMetricsSketch:
    return _sketch(np.array([p for p, _ in rows]), np.array([y for _, y in rows]), bins)


@settings(max_examples=60, deadline=None)
@given(_ROWS, _ROWS)
def test_merging_encoded_sketches_equals_merging_sketches(
    a: list[tuple[float, int]], b: list[tuple[float, int]]
) -> None:
    merged, at_once = of(a), of(a)
    merged.merge(of(b))
    at_once.merge_encoded(of(b).encode())
    assert at_once == merged


def test_a_sketch_that_cannot_be_merged_adds_nothing() -> None:
    sketch, before = of([(0.5, 1)]), of([(0.5, 1)])
    wide = msgspec.msgpack.decode(of([(0.25, 0)]).encode())
    wide[6] = b"\xff" * 6  # one bin, whose index is beyond the last one
    for encoded in (b"rubbish", of([], 32).encode(), msgspec.msgpack.encode(wide)):
        with pytest.raises(DataError):
            sketch.merge_encoded(encoded)
        assert sketch == before


@settings(max_examples=60, deadline=None)
@given(_ROWS, _ROWS, _ROWS)
def test_merging_is_exactly_one_pass_in_any_order_and_grouping(
    a: list[tuple[float, int]], b: list[tuple[float, int]], c: list[tuple[float, int]]
) -> None:
    once = of(a + b + c)
    left, right, inner = of(a), of(c), of(b)
    left.merge(of(b))
    left.merge(of(c))
    inner.merge(of(a))
    right.merge(inner)
    assert left == once == right
    assert BinaryMetricsSketch.decode(once.encode()) == once


def test_a_windows_sketch_is_small_on_the_wire() -> None:
    p, y = _planted(5_000, -1.0)
    assert len(_sketch(p, y, 2048).encode()) < 4_000


@pytest.mark.parametrize(
    ("p", "y", "says"),
    [([0.5], [2], "label: 2"), ([1.5], [1], "1.5"), ([float("nan")], [1], "nan"), ([0.5], [0, 1], "length")],
)
def test_unusable_rows_are_refused(p: list[float], y: list[int], says: str) -> None:
    with pytest.raises(DataError, match=says):
        BinaryMetricsSketch().update(p, y)


def test_bytes_that_are_not_a_sketch_are_refused() -> None:
    good = _sketch(np.array([0.5]), np.array([1])).encode()
    version, width = (msgspec.msgpack.decode(good) for _ in range(2))
    version[0], width[3] = 1, 3
    for wrong in (b"", b"nonsense", good[:-3], *map(msgspec.msgpack.encode, (version, width))):
        with pytest.raises(DataError, match="no metrics sketch"):
            BinaryMetricsSketch.decode(wrong)
    with pytest.raises(DataError, match="cannot be merged"):
        BinaryMetricsSketch(16).merge(BinaryMetricsSketch(32))
