"""Metrics as JSON, and the choice of measurements after the nodes of a job have become slower or faster."""

from __future__ import annotations

import pytest

from elastrec.platform.specs.metrics import (
    PERIOD_SECONDS,
    PERIOD_STEPS,
    SHIFT,
    HeadMetrics,
    Phase,
    Steps,
    StepsByConfiguration,
    TrainingMetrics,
)

CALM, SLOW = 0.0625, 0.25
"""Seconds per step."""


class Job:
    """Steps of one worker, in windows of at least a second."""

    def __init__(self) -> None:
        self.steps = StepsByConfiguration[str]()
        self.time = 0.0

    def train(self, configuration: str, step_seconds: float, periods: float = 3.0) -> None:
        steps = max(1, round(1.0 / step_seconds))
        seconds = steps * step_seconds
        for _ in range(round(periods * PERIOD_SECONDS / seconds)):
            window = Steps(steps, float(steps), seconds, (256.0 * steps,))
            self.steps.add(configuration, window, 1.0, self.time, self.time + seconds)
            self.time += seconds

    @property
    def means(self) -> dict[str, float]:
        return {configuration: sums.mean for configuration, sums in self.steps.sums.items()}


def test_all_measurements_of_a_slower_time_are_set_aside_once_the_job_is_faster() -> None:
    job = Job()
    for configuration in ("one", "two"):
        job.train(configuration, SLOW)
    job.train("two", CALM, periods=2.0)
    assert job.means == pytest.approx({"two": CALM})
    job.train("one", CALM)
    assert job.means == pytest.approx({"two": CALM, "one": CALM})


def test_measurements_count_again_when_the_speed_returns() -> None:
    job = Job()
    for configuration in ("one", "two"):
        job.train(configuration, CALM)
    calm = dict(job.steps.sums)
    job.train("two", SLOW)
    assert job.means == pytest.approx({"two": SLOW})
    job.train("two", CALM, periods=2.0)
    assert job.steps.sums == calm
    job.train("two", SLOW, periods=2.0)
    assert job.means == pytest.approx({"two": SLOW})


def test_measurements_of_another_speed_stay_aside_if_nothing_can_be_compared() -> None:
    job = Job()
    job.train("one", CALM)
    job.train("one", SLOW)
    job.train("two", SLOW)
    job.train("two", CALM)
    # «one» was measured at the present speed too, but that is not known.
    assert job.means == pytest.approx({"two": CALM})


@pytest.mark.parametrize("slow", [SLOW, 0.9 * SHIFT * CALM])
def test_a_short_or_a_small_disturbance_sets_nothing_aside(slow: float) -> None:
    job = Job()
    job.train("one", CALM)
    job.train("two", CALM)
    job.train("two", slow, periods=1.0 if slow == SLOW else 4.0)
    job.train("two", CALM)
    assert job.means["one"] == pytest.approx(CALM)
    assert job.means["two"] > 1.1 * CALM, "but it counts as long as it has not faded"


def test_a_shift_takes_enough_steps_to_be_sure() -> None:
    job = Job()
    job.train("one", 1.0, periods=2.0 * PERIOD_STEPS / PERIOD_SECONDS)
    job.train("one", 2.0, periods=2.0)
    assert job.means["one"] < 2.0
    job.train("one", 2.0, periods=2.0 * 2.0 * PERIOD_STEPS / PERIOD_SECONDS)
    assert job.means == pytest.approx({"one": 2.0})


def test_a_configuration_that_was_slower_at_its_last_time_is_compared_with_that_time() -> None:
    job = Job()
    job.train("one", SLOW)
    # Nodes become faster while pods start, so that no configuration has both speeds yet.
    job.train("two", CALM)
    assert job.means == pytest.approx({"one": SLOW, "two": CALM})
    job.train("one", CALM, periods=2.0)
    assert job.means == pytest.approx({"one": CALM})


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_losses_and_figures_that_are_not_finite_are_read_back_from_json(value: float) -> None:
    head = HeadMetrics(name="price", mean_squared_error=value)
    metrics = TrainingMetrics(job="j", phase=Phase.TRAINING, loss=value, losses={"rank": value}, heads=(head,))
    again = TrainingMetrics.model_validate_json(metrics.model_dump_json())
    read = (again.loss, again.losses["rank"], again.heads[0].mean_squared_error)
    # NaN is not equal to itself.
    assert repr(read) == repr((value, value, value))
