"""Figures of the benchmarks of scaling on real runs, from given measurements; no job is run."""

from __future__ import annotations

import itertools
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from benchmarks.scaling import live_scaling, throughput_model_real
from benchmarks.scaling.live_scaling import Story, best_count, figures_of
from benchmarks.scaling.throughput_model_real import MODELS, SERVERS, Run, left_out_errors, shapes
from elastrec.platform.data.generating.generator import GenerateReport, GenerateSpec, generate
from elastrec.platform.history.scaling_figures import Decision
from elastrec.platform.scaling.amounts import Change
from elastrec.platform.scaling.policy import View
from elastrec.platform.scaling.types import JobProfile, Limits
from elastrec.platform.specs.job import TrainingJob
from elastrec.platform.specs.metrics import Phase, PodMetrics, Role, TrainingMetrics
from elastrec.platform.transport.messages.profile import Measured
from tests.platform.scaling.jobs import PLENTY, PRICES, SHAPE, allocation, coefficients, measure, spread, step_seconds
from tests.shapes import shape as job_shape


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> GenerateReport:
    folder = tmp_path_factory.mktemp("data") / "clicks"
    return generate(GenerateSpec(path=str(folder), rows_per_day=1_000, days=2, dense=2, sparse=3, lists=0))


def runs() -> list[Run]:
    """Jobs that behave exactly as the model says."""
    found = []
    for model in throughput_model_real.MODELS:
        for servers in SERVERS:
            measured = []
            for shape in dict.fromkeys(shapes()):
                sizes = allocation(shape.workers, servers, shape.worker_cores, shape.server_cores)
                seconds = step_seconds(coefficients(), sizes)
                compute = coefficients().gradient * SHAPE.batch_size / shape.worker_cores
                measured.append(
                    Measured(
                        configuration=job_shape(**msgspec.structs.asdict(sizes)), steps_ever=100, steps=100,
                        samples=51_200, worker_seconds=100 * seconds, pull_seconds=100 * (seconds - compute),
                    )
                )  # fmt: skip
            found += [
                Run(model=model, servers=servers, overlap=overlap, shape=SHAPE, measured=measured)
                for overlap in (False, True)
            ]
    return found


def test_a_job_that_follows_the_model_is_predicted_from_other_configurations(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(throughput_model_real, "MODELS", {"dlrm": MODELS["dlrm"]})
    found = {
        figure.figure: figure
        for figure in throughput_model_real.figures_of(runs(), overlapped=False, pictures=tmp_path)
    }
    assert found["throughput_model_real.median"].value < 2.0 and found["throughput_model_real.p90"].met
    assert found["throughput_model_real.dlrm.median"].settings["configurations"] == 16
    assert len(list(tmp_path.glob("*.png"))) == 1


def test_jobs_that_overlap_their_pulls_have_figures_of_their_own_without_goals(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(throughput_model_real, "MODELS", {"dlrm": MODELS["dlrm"]})
    found = {figure.figure: figure for figure in throughput_model_real.figures_of(runs(), overlapped=True)}
    assert found["throughput_model_real.overlapped.p90"].value < 5.0
    assert all(figure.goal is None for figure in found.values())


def test_no_configuration_asks_for_more_than_two_cores(log: GenerateReport) -> None:
    job = TrainingJob.model_validate(throughput_model_real.job_content(log, "dlrm", 1, False))
    for shape in shapes():
        pods = shape.workers * shape.worker_cores + max(SERVERS) * shape.server_cores
        assert job.spec.resources.master.cores + pods <= 2.0


def test_the_configuration_that_is_predicted_is_not_among_those_that_are_fitted() -> None:
    observations = [*measure(coefficients(), spread(12))]
    observations[3] = msgspec.structs.replace(observations[3], iteration_seconds=99.0)
    pairs = left_out_errors(SHAPE, observations)
    assert pairs[3][1] == 99.0 and pairs[3][0] < 1.0


def test_every_job_of_the_benchmarks_is_valid(log: GenerateReport) -> None:
    contents: list[dict[str, Any]] = [live_scaling.job_content(log, 3)]
    contents += [
        throughput_model_real.job_content(log, model, servers, overlap)
        for model in MODELS
        for servers in SERVERS
        for overlap in (False, True)
    ]
    jobs = [TrainingJob.model_validate(content) for content in contents]
    assert {(job.spec.model.architecture, job.spec.resources.parameter_server.count) for job in jobs[1:]} == {
        *itertools.product(MODELS, SERVERS)
    }


def at(second: float, samples: int, workers: int, phase: Phase = Phase.TRAINING) -> tuple[float, TrainingMetrics]:
    pods = tuple(
        PodMetrics(name=f"w{index}", role=Role.WORKER, state="Running", samples=10) for index in range(workers)
    )
    return second, TrainingMetrics(
        job="j", phase=phase, samples_trained=samples, samples_total=100, shards_done=samples // 10, shards_total=10,
        samples_per_second=10.0, pods=pods,
    )  # fmt: skip


def story(seen: list[tuple[float, TrainingMetrics]], workers: list[int]) -> Story:
    watch = SimpleNamespace(seen=seen)
    watch.training = live_scaling.Watch.training.fget(watch)  # type: ignore[attr-defined]
    watch.longest_standstill_seconds = lambda: live_scaling.Watch.longest_standstill_seconds(watch)  # type: ignore[arg-type]
    grew = Decision(
        unix_seconds=1.0, samples_trained=1, policy="p", before=allocation(1), after=allocation(2), changed=True,
        reason="r",
    )  # fmt: skip
    return Story(watch, [grew], workers)  # type: ignore[arg-type]


def test_rounds_pauses_and_repeated_rows_are_shown(tmp_path: Path) -> None:
    smooth = story([at(0.0, 10, 1), at(1.0, 40, 2), at(2.0, 70, 2), at(3.0, 100, 2)], [1, 2, 2])
    found = {figure.figure: figure for figure in figures_of(smooth, 2, {1: 10.0, 2: 18.0})}
    assert found["live_scaling.rounds_to_best"].value == 2
    assert found["live_scaling.seconds_not_training"].met and found["live_scaling.repeated_rows"].met
    live_scaling.draw(tmp_path / "story.png", smooth)
    assert (tmp_path / "story.png").stat().st_size > 10_000


def test_a_pause_and_a_size_that_was_never_reached_are_shown() -> None:
    paused = story([at(0.0, 10, 1), at(4.0, 10, 1, Phase.RECOVERING), at(5.0, 90, 1), at(6.0, 107, 1)], [1, 1, 1])
    found = {figure.figure: figure for figure in figures_of(paused, 2, {1: 10.0, 2: 18.0})}
    assert found["live_scaling.seconds_not_training"].value == 4.0
    assert found["live_scaling.repeated_rows"].value == 7 and not found["live_scaling.repeated_rows"].met
    assert found["live_scaling.longest_standstill"].value == 5.0
    assert found["live_scaling.rounds_to_best"].value == 4 and not found["live_scaling.rounds_to_best"].met


@pytest.mark.parametrize(("workers", "reached"), [([2, 2, 2], 1), ([1, 2, 1, 2, 2], 4), ([2, 2, 3], 4), ([2, 1, 1], 4)])
def test_a_best_size_that_the_job_leaves_again_is_not_reached(workers: list[int], reached: int) -> None:
    smooth = story([at(0.0, 10, 1), at(3.0, 100, 2)], workers)
    found = {figure.figure: figure for figure in figures_of(smooth, 2, {1: 10.0, 2: 18.0})}
    assert found["live_scaling.rounds_to_best"].value == reached


@pytest.mark.parametrize("workers", [[], [1, 1]])
def test_a_job_that_ends_before_it_could_miss_the_goal_has_no_figures(workers: list[int]) -> None:
    with pytest.raises(RuntimeError, match=f"after {len(workers)} of 3 rounds"):
        figures_of(story([at(0.0, 10, 1), at(3.0, 100, 1)], workers), 1, {1: 10.0})


def test_a_policy_that_never_leaves_one_worker_misses_a_goal() -> None:
    idle = story([at(0.0, 10, 1), at(3.0, 100, 1)], [1, 1, 1])
    found = {figure.figure: figure for figure in figures_of(idle, 1, {1: 10.0, 4: 36.0})}
    assert found["live_scaling.rounds_to_best"].met and not found["live_scaling.speed_up"].met


def test_the_best_number_is_where_the_policy_settles() -> None:
    counts = measure(coefficients((0.95, 0.01, 0.01, 0.02, 0.01)), [allocation(workers) for workers in (1, 2, 3, 4)])
    job = JobProfile(
        job_id="j", shape=SHAPE, allocation=allocation(1), remaining_samples=1e9, limits=Limits(workers=(1, 4)),
        movable=frozenset({Change.WORKERS}),
    )  # fmt: skip
    assert best_count(counts, job, View(PLENTY, PRICES), "three-stage") == 4
