"""The goal of a gain in AUC over several seeds."""

from __future__ import annotations

import pytest

from benchmarks.common.results import load
from benchmarks.models.initial_range import gain_figure


def answers(*aucs: float) -> list[dict[str, list[float]]]:
    return [{"auc": [auc], "normalized_entropy": [0.9]} for auc in aucs]


@pytest.mark.parametrize(("aucs", "met"), [((0.702, 0.698), True), ((0.72, 0.66), False), ((0.697, 0.697), False)])
def test_a_loss_misses_the_goal_however_wide_its_interval_is(aucs: tuple[float, float], met: bool) -> None:
    figure = gain_figure(
        "initial_range.clicks.dlrm.default", "AUC", answers(*aucs), answers(0.7, 0.7), 0, base_name="wide",
        has_goal=True,
    )  # fmt: skip
    assert figure.met is met and figure.goal == "≥ -0.001"


@pytest.mark.parametrize("benchmark", ["initial_range", "first_order"])
def test_stored_gains_have_the_same_goal_for_every_model(benchmark: str) -> None:
    goals = {(result.goal, result.met == (result.value >= -0.001)) for result in load()[benchmark] if result.goal}
    assert goals == {("≥ -0.001", True)}
