from __future__ import annotations

import math

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mlflow.utils.validation import _validate_metric

from elastrec.platform.clusters.pods import PodPhase, PodSize, PodStatus
from elastrec.platform.data.metrics.binary import BinaryMetricsSketch
from elastrec.platform.history import metric_names as names
from elastrec.platform.history.points import (
    CostMeter,
    Costs,
    Point,
    calibration_points,
    final_points,
    last_step,
    window_points,
)
from elastrec.platform.specs.elasticity import PaidPrices
from elastrec.platform.specs.metrics import HeadMetrics, Phase, PodMetrics, Role, TrainingMetrics


def values(points: list[Point]) -> dict[str, float]:
    return {point.name: point.value for point in points}


def metrics_of(**changes: object) -> TrainingMetrics:
    worker = PodMetrics(
        name="w-0", role=Role.WORKER, state="Running", batch_seconds=0.02, phase_seconds={"pull": 0.01}, memory_bytes=7,
        restarts=2,
    )  # fmt: skip
    slower = PodMetrics(
        name="w-1", role=Role.WORKER, state="Running", batch_seconds=0.06, phase_seconds={"pull": 0.05},
    )  # fmt: skip
    server = PodMetrics(name="ps-0", role=Role.PARAMETER_SERVER, state="Running")
    fields = {
        "job": "clicks", "phase": Phase.TRAINING, "elapsed_seconds": 10.0, "samples_total": 900, "samples_trained": 500,
        "samples_per_second": 50.0, "loss": 0.5, "auc": 0.7, "normalized_entropy": 0.9, "generation": 1,
        "pods": (worker, slower, server),
    }  # fmt: skip
    return TrainingMetrics.model_validate(fields | changes)


def test_a_window_becomes_points_over_samples_whose_names_do_not_grow_with_the_workers() -> None:
    points = window_points(metrics_of(), 1000.0)
    assert {(point.step, point.unix_seconds) for point in points} == {(500, 1000.0)}
    found = values(points)
    assert found[names.LOSS] == 0.5 and found[names.AUC] == 0.7 and found[names.SAMPLES_PER_SECOND] == 50
    assert found["step/seconds"] == pytest.approx(0.04) and found["step/slowest_worker_seconds"] == 0.06
    assert found["step/pull_seconds"] == pytest.approx(0.03)
    assert (found[names.WORKERS_RUNNING], found[names.SERVERS_RUNNING]) == (2, 1)
    assert not any("w-" in name for name in found)


def test_samples_of_another_job_at_whose_positions_a_job_began_count_in_the_step_and_not_as_its_own() -> None:
    points = window_points(metrics_of(samples_of_start=200), 1000.0)
    found = values(points)
    assert (found[names.SAMPLES_TRAINED], found[names.SAMPLES_OF_START]) == (300, 200)
    assert {point.step for point in points} == {500} and last_step(found) == 500
    assert names.SAMPLES_OF_START not in values(window_points(metrics_of(), 1000.0))


def test_an_absent_value_makes_no_point_and_nan_makes_one() -> None:
    assert names.LOSS not in values(window_points(metrics_of(loss=None), 0.0))
    assert math.isnan(values(window_points(metrics_of(loss=math.nan), 0.0))[names.LOSS])


def test_evaluation_figures_do_not_mix_with_those_of_training_windows() -> None:
    evaluated = metrics_of(evaluated=True, evaluation_samples=90)
    assert names.AUC not in values(window_points(evaluated, 0.0))
    trained = (HeadMetrics(name="click", auc=0.6), HeadMetrics(name="buy", auc=0.5))
    found = values(window_points(evaluated, 0.0, trained))
    assert found[names.AUC] == 0.6 and found["curves/heads/buy/auc"] == 0.5
    found = values(final_points(evaluated, 0.0))
    assert found[names.EVALUATION_AUC] == 0.7
    assert names.EVALUATION_AUC not in values(final_points(metrics_of(), 0.0))


def test_totals_include_all_work_of_a_job() -> None:
    found = values(final_points(metrics_of(), 0.0))
    assert found[names.RESTARTS] == 2 and found[names.ROLLBACKS] == 1


def test_names_contain_only_characters_that_mlflow_allows() -> None:
    assert names.named(names.NAMED_LOSS, name="a/b#c d") == "curves/losses/a_b_c d"


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "../auc", "点击", "größe", "x" * 300, "a\nb", ".hidden", "a:b"])
@pytest.mark.parametrize("template", [names.NAMED_LOSS, names.HEAD, names.CALIBRATION_HEAD, names.DATA_FACTOR])
def test_whatever_a_user_names_mlflow_accepts_the_metric(template: str, name: str) -> None:
    parts = {"name": name, "head": name, "feature": name, "figure": "normalized_entropy", "part": "predicted"}
    # Raises if the server would refuse the name, and all points of the same call with it.
    _validate_metric(names.named(template, **parts), 0.5, 1, 0)


def test_names_of_any_script_and_length_stay_different() -> None:
    of_users = ["点击", "收藏", "x" * 300 + "1", "x" * 300 + "2", ".", ".."]
    assert len({names.named(names.NAMED_LOSS, name=name) for name in of_users}) == len(of_users)
    assert names.named(names.NAMED_LOSS, name="点击") == "curves/losses/点击"


def test_the_first_section_of_charts_is_auc_cost_loss_entropy_and_speed() -> None:
    """MLflow: a section is what stands before the last slash; sections and their charts are sorted by name."""
    of_jobs = [name for name in names.DESCRIPTIONS if not name.startswith(("data/", "system/"))]
    sections = sorted({name.rpartition("/")[0] for name in of_jobs})
    assert "" not in sections, "charts without a section come last"
    assert sections[0] == "curves"
    assert sorted(name for name in of_jobs if name.rpartition("/")[0] == "curves") == [
        "curves/auc", "curves/core_hours", "curves/cost", "curves/loss", "curves/normalized_entropy",
        "curves/samples_per_second",
    ]  # fmt: skip


def test_every_name_has_a_description() -> None:
    written = {value for key, value in vars(names).items() if key.isupper() and isinstance(value, str)}
    assert written == set(names.DESCRIPTIONS)


def test_a_calibration_curve_has_one_step_per_group() -> None:
    sketch = BinaryMetricsSketch()
    sketch.update(np.linspace(0.1, 0.9, 100), np.arange(100) % 2)
    points = calibration_points(sketch.calibration(5), 1.0)
    assert [point.step for point in points if point.name == names.CALIBRATION_OBSERVED] == [0, 1, 2, 3, 4]
    assert values(points)[names.EVALUATION_CALIBRATION] == pytest.approx(1.0, abs=0.01)
    assert names.EVALUATION_CALIBRATION not in values(calibration_points(sketch.calibration(5), 1.0, head="second"))


def pod(uid: str, *, cores: float = 2.0, memory: int = 2**30, started: float | None = 0.0, **more: object) -> PodStatus:
    return PodStatus(
        name=uid, uid=uid, job="clicks", role=Role.WORKER, phase=PodPhase.RUNNING, size=PodSize(cores, memory),
        started_unix_seconds=started, **more,
    )  # type: ignore[arg-type]  # fmt: skip


def test_a_deleted_pod_costs_from_its_start_to_its_end() -> None:
    meter = CostMeter()
    meter.observe([pod("a"), pod("pending", started=None)], 10.0)
    meter.observe([pod("a", finished_unix_seconds=15.0), pod("b", started=12.0)], 20.0)
    meter.observe([], 100.0)
    assert meter.core_seconds == 2 * 15 + 2 * 8
    assert meter.byte_seconds == 2**30 * 23
    assert values(meter.cost_so_far(460, 0.0)) == {names.CORE_HOURS: 46 / 3600}
    assert values(meter.whole_cost(460, 0.0)) == {
        names.GIBIBYTE_HOURS: pytest.approx(23 / 3600), names.SAMPLES_PER_CORE_SECOND: 10.0
    }  # fmt: skip
    # Of a resumed job whose earlier masters left no costs, their samples do not count either.
    later = CostMeter(msgspec.structs.replace(meter.costs(), samples_before=230))
    assert values(later.whole_cost(460, 0.0))[names.SAMPLES_PER_CORE_SECOND] == 5.0


def test_the_cost_of_cores_and_memory_follows_their_prices() -> None:
    meter, prices = CostMeter(), PaidPrices(core_hour=0.36, gibibyte_hour=0.04, currency="EUR")
    meter.observe([pod("a", cores=2.0, memory=3 * 2**30)], 3600.0)
    found = values(meter.cost_so_far(460, 0.0, prices))
    assert found == {names.CORE_HOURS: 2.0, names.COST: pytest.approx(2 * 0.36 + 3 * 0.04)}


def test_a_resized_pod_costs_its_old_size_until_the_new_one_is_observed() -> None:
    meter = CostMeter()
    meter.observe([pod("a", cores=1.0)], 10.0)
    meter.observe([pod("a", cores=4.0)], 20.0)
    meter.observe([pod("a", cores=4.0)], 30.0)
    assert meter.core_seconds == 10 + 10 + 40


@given(st.lists(st.floats(0.0, 100.0), max_size=20))
def test_looking_more_often_does_not_change_the_cost(looks: list[float]) -> None:
    meter = CostMeter()
    for moment in sorted(looks):
        meter.observe([pod("a")], moment)
    meter.observe([pod("a")], 100.0)
    assert meter.core_seconds == pytest.approx(200.0)


@given(st.lists(st.tuples(st.floats(0.0, 100.0), st.booleans()), max_size=20))
def test_a_meter_continues_from_the_costs_of_another_one(looks: list[tuple[float, bool]]) -> None:
    """At some looks a new meter takes over; one pod ends at 30 s and is listed no longer, one is resized at 50 s."""
    one, handed_over = CostMeter(), CostMeter()
    for moment, is_new in sorted(looks):
        listed = [pod("resized", cores=1.0 if moment < 50 else 3.0), *([pod("ended")] if moment < 30 else [])]
        if is_new:
            handed_over = CostMeter(msgspec.json.decode(msgspec.json.encode(handed_over.costs()), type=Costs))
        one.observe(listed, moment)
        handed_over.observe(listed, moment)
    assert handed_over.costs() == one.costs()


def test_cores_in_use_are_those_since_the_last_look() -> None:
    meter = CostMeter()
    meter.usage_points([pod("a", cpu_seconds=1.0)], 0, 10.0)
    found = values(meter.usage_points([pod("a", cpu_seconds=4.0, memory_bytes=9)], 0, 12.0))
    assert found == {"system/worker_cpu_cores": 1.5, "system/worker_memory_bytes": 9.0}


def test_the_pods_of_a_role_have_the_cores_of_all_and_the_memory_of_the_fullest() -> None:
    meter = CostMeter()
    meter.usage_points([pod(name, cpu_seconds=1.0) for name in "ab"], 0, 10.0)
    used = [pod("a", cpu_seconds=2.0, memory_bytes=5), pod("b", cpu_seconds=2.0, memory_bytes=3)]
    found = meter.usage_points(used, 0, 11.0)
    assert sorted((point.name, point.value) for point in found) == [
        ("system/worker_cpu_cores", 2.0), ("system/worker_memory_bytes", 5.0),
    ]  # fmt: skip
