"""Jobs with the platform's reaction, without it, and with a restart at the time of its decision."""

from __future__ import annotations

import pytest

from benchmarks.common.live_jobs import Sides, Trained
from elastrec.platform.specs.metrics import Phase, TrainingMetrics
from elastrec.platform.transport.messages.ledger import Explanation


def trained(seconds: float) -> Trained:
    explanation = Explanation(job="j", phase="Succeeded", wall_seconds=seconds, parts={}, goodput=1.0, timeline=[])
    return Trained(seconds, TrainingMetrics(job="j", phase=Phase.SUCCEEDED), explanation)


def sides_of(helped: list[float], alone: list[float], restarts: list[float]) -> Sides:
    def restarted(after_seconds: float) -> Trained:
        restarts.append(after_seconds)
        return trained(2 * after_seconds)

    return Sides(
        "moved", helped=lambda: trained(helped.pop(0)), alone=lambda: trained(alone.pop(0)),
        restarted=restarted, decided_after=lambda each: each.seconds - 10.0,
    )  # fmt: skip


def test_a_restart_is_ordered_when_the_job_of_the_same_round_was_helped() -> None:
    restarts: list[float] = []
    seconds, decided = sides_of([60.0, 75.0], [120.0, 110.0], restarts).measure(2)
    assert restarts == decided == [50.0, 65.0]
    assert seconds == {"moved": [60.0, 75.0], "alone": [120.0, 110.0], "restarted": [100.0, 130.0]}


def test_a_figure_is_the_time_saved_against_the_same_round() -> None:
    measured = ({"moved": [60.0, 75.0], "alone": [120.0, 120.0], "restarted": [100.0, 150.0]}, [67.0, 69.0])
    sides = sides_of([], [], [])
    to_restart, to_none, after = sides.figures("b", measured, {"restart": -37.0, "none": -48.5}, {"mode": "bsp"})
    assert to_restart.figure == "b.to_restart" and to_restart.value == pytest.approx(-45.0) and to_restart.met
    assert to_none.value == pytest.approx(-43.75) and to_none.met is False
    assert after.value == 68.0 and to_none.settings["mode"] == "bsp"
