"""Figures of the benchmark of int8 deltas, from given results; no model is trained."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.models.int8_deltas import figures_of


def answer(auc: float, restored: float, delta_bytes: int) -> dict[str, Any]:
    return {
        "auc": auc,
        "restored_auc": restored,
        "normalized_entropy": 0.9,
        "restored_normalized_entropy": 0.9,
        "delta_bytes": delta_bytes,
    }


def test_a_restored_model_is_compared_with_the_one_in_training() -> None:
    exact = [answer(0.75, 0.75, 1000), answer(0.76, 0.76, 1000)]
    rounded = [answer(0.75, 0.747, 400), answer(0.76, 0.759, 500)]
    figures = {each.figure: each for each in figures_of("dlrm", {"float32": exact, "int8": rounded})}
    lost = figures["int8_deltas.dlrm.int8.auc"]
    assert lost.value == pytest.approx(-0.002) and not lost.met
    assert figures["int8_deltas.dlrm.float32.auc"].met and figures["int8_deltas.dlrm.int8.normalized_entropy"].met
    assert figures["int8_deltas.dlrm.bytes"].value == pytest.approx(0.45)


def test_a_model_that_differs_after_a_float32_restore_misses_the_goal() -> None:
    exact = [answer(0.75, 0.75, 1000), answer(0.76, 0.7600001, 1000)]
    figures = {each.figure: each for each in figures_of("dlrm", {"float32": exact, "int8": exact})}
    assert not figures["int8_deltas.dlrm.float32.auc"].met and figures["int8_deltas.dlrm.int8.auc"].met
