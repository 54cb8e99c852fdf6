"""Runs with known parameters are predicted within the goals; a model with less information misses them."""

from __future__ import annotations

import itertools
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest

from benchmarks.common.figures import Figure
from benchmarks.common.recorded_runs import BATCH, CASES, Case, MeasuredStep, RecordedRun
from benchmarks.simulator import simulator_calibration
from benchmarks.simulator.simulator_calibration import (
    LogNormal,
    allocation,
    configurations,
    figures,
    kind,
    observations,
    predicted,
    replayed_seconds,
)
from elastrec.platform.scaling.amounts import GIBIBYTE, Allocation
from elastrec.platform.scaling.model import columns, step_form, throughput
from elastrec.platform.scaling.model.least_squares import fit_relative
from elastrec.platform.scaling.model.step_form import SERVERS
from elastrec.platform.scaling.search.space import forget
from elastrec.platform.scaling.types import ModelShape
from elastrec.platform.simulator.mixes import coefficients_of
from elastrec.platform.simulator.running import Running
from elastrec.platform.simulator.speed import Step, service_of, steps_of

SHAPE = ModelShape(batch_size=BATCH, dense_bytes=1_000_000, embedding_dimension=16)
ONE = Allocation(
    workers=2, parameter_servers=1, worker_cores=0.4, parameter_server_cores=0.3, worker_memory_bytes=GIBIBYTE,
    parameter_server_memory_bytes=GIBIBYTE,
)  # fmt: skip


def queueing_step(case: Case, workers: int, servers: int) -> Step:
    """A step where servers are queues: a truth that the throughput model has no form for."""
    coefficients = coefficients_of(SHAPE, ONE, 0.05, (0.6, 0.1, 0.0, 0.15, 0.15))
    service = service_of(steps_of(SHAPE, coefficients)(ONE), ONE.workers)
    now = msgspec.structs.replace(
        ONE, workers=workers, parameter_servers=servers, worker_cores=case.worker_cores,
        parameter_server_cores=case.server_cores,
    )  # fmt: skip
    return steps_of(SHAPE, coefficients, service)(now)


def recorded(case: Case, random: np.random.Generator) -> RecordedRun:
    """What a job of this truth would have recorded, with starts, delays and pauses that differ from run to run."""
    samples = case.epochs * 40_000
    start, delay, pause = (seconds * float(random.lognormal(0.0, 0.15)) for seconds in (6.0, 8.0, 1.0))
    pause *= bool(case.servers_to)
    pods = itertools.product(range(1, max(case.workers, case.workers_to) + 1), {case.servers, case.servers_to} - {0})
    steps = {up: queueing_step(case, *up) for up in pods}
    speed = {up: up[0] * BATCH / step.seconds for up, step in steps.items()}
    first = case.workers, case.servers
    alone = samples / speed[first]
    timeline: list[tuple[float, int, int]] = [(0.0, *first)]
    if case.lose_at is not None:
        timeline += [(case.lose_at * alone, first[0] - 1, first[1]), (case.lose_at * alone + delay, *first)]
    if case.change_at is not None:
        wanted = case.workers_to or case.workers, case.servers_to or case.servers
        timeline += [(case.change_at * alone + delay, *wanted)]
    left, spent, measured = float(samples), pause, dict[tuple[int, int], float]()
    for (at, *pods_up), until in zip(timeline, [at for at, *_ in timeline[1:]] + [float("inf")], strict=True):
        up = (pods_up[0], pods_up[1])
        seconds = min(until - at, left / speed[up])
        left, spent = left - seconds * speed[up], spent + seconds
        measured[up] = measured.get(up, 0.0) + up[0] * seconds
    return RecordedRun(
        name=case.name, workers=case.workers, servers=case.servers, worker_cores=case.worker_cores,
        server_cores=case.server_cores, samples=samples, repeated_samples=0, started_seconds=start,
        ended_seconds=start + spent, dense_bytes=SHAPE.dense_bytes,
        steps=tuple(
            MeasuredStep(
                workers=up[0], servers=up[1], step_seconds=steps[up].seconds, worker_seconds=seconds,
                compute_seconds=steps[up].compute,
            )
            for up, seconds in measured.items()
        ),
        pods_up=tuple(timeline), lose_at=case.lose_at, change_at=case.change_at, workers_to=case.workers_to,
        servers_to=case.servers_to, delay_seconds=None if len(timeline) == 1 else delay,
        pause_seconds=pause if case.servers_to else None,
    )  # fmt: skip


@pytest.fixture(autouse=True)
def nothing_kept() -> Iterator[None]:
    """What another test computed with other features is not used here, nor the other way round."""
    forget()
    yield
    forget()


@pytest.fixture(scope="module")
def runs() -> list[RecordedRun]:
    random = np.random.default_rng(1)
    return [recorded(case, random) for case in CASES]


def goals(found: list[Figure]) -> dict[str, bool | None]:
    return {each.figure.rsplit(".", 1)[-1]: each.met for each in found if each.goal}


def test_runs_of_another_truth_are_predicted_within_the_goals(runs: list[RecordedRun]) -> None:
    assert goals(figures(runs, draws=10)) == {"median_error": True, "p90_error": True}


def test_a_model_of_which_all_features_are_1_misses_them(
    runs: list[RecordedRun], monkeypatch: pytest.MonkeyPatch
) -> None:
    def ones(shape: ModelShape, table: object, *, by_request: bool) -> object:
        return np.ones((len(table), 7))  # type: ignore[arg-type]

    kernels = columns.equation_kernels()

    def summed(*arguments: Any) -> tuple[object, ...]:
        rows_RK, seconds_R, weights_R, _ = kernels.summed(*arguments)
        rows_RK = np.ones_like(rows_RK)
        return rows_RK, seconds_R, weights_R, fit_relative(rows_RK, seconds_R, weights_R)

    def plain_fit(*arguments: Any) -> tuple[object, ...]:
        found, weights_C, (rows_RK, seconds_R, weights_R, _), _ = kernels.plain_fit(*arguments)
        rows_RK = np.ones_like(rows_RK)
        summed_K = fit_relative(rows_RK, seconds_R, weights_R)
        known = kernels.known(
            rows_RK, seconds_R, weights_R, summed_K, arguments[3], SERVERS.start, SERVERS.stop, 1.0, found[1],
            throughput.LEAST_ERROR, throughput.PRIOR_ERROR,
        )  # fmt: skip
        return found, weights_C, (rows_RK, seconds_R, weights_R, summed_K), known

    broken = SimpleNamespace(plain_fit=plain_fit, summed=summed, known=kernels.known)
    monkeypatch.setattr(throughput, "equation_kernels", lambda: broken)
    monkeypatch.setattr(step_form, "rows_of", ones)
    assert False in goals(figures(runs, draws=3)).values()


def test_starts_a_hundred_times_as_long_miss_them(runs: list[RecordedRun], monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = LogNormal.draw
    monkeypatch.setattr(LogNormal, "draw", lambda self, random: 100.0 * drawn(self, random))
    assert goals(figures(runs, draws=3)) == {"median_error": False, "p90_error": False}


def test_pauses_a_hundred_times_as_long_miss_the_runs_whose_servers_change(
    runs: list[RecordedRun], monkeypatch: pytest.MonkeyPatch
) -> None:
    paused = Running.pause
    monkeypatch.setattr(Running, "pause", lambda self, seconds, now: paused(self, 100.0 * seconds, now))
    found = {each.figure: each.value for each in figures(runs, draws=3)}
    names = [each.name.replace(" ", "_") for each in runs if each.servers_to]
    assert len(names) >= 3
    assert all(found[f"simulator_calibration.error.{name}"] > 30.0 for name in names)


def test_a_fit_gets_the_part_of_a_step_that_workers_compute(runs: list[RecordedRun]) -> None:
    seen = [each for run in runs for each in observations(run)]
    assert all(each.compute_seconds is not None and each.compute_seconds < each.iteration_seconds for each in seen)


@pytest.mark.parametrize("doing", ["loses a worker", "workers come", "servers change"])
def test_a_run_that_is_one_of_its_kind_cannot_be_predicted_from_itself(runs: list[RecordedRun], doing: str) -> None:
    alike = [each for each in runs if kind(each) == doing]
    with pytest.raises(ValueError, match=f"no other run.*{doing}"):
        predicted(alike[0], [each for each in runs if each not in alike[1:]])


def test_nothing_that_a_job_measured_in_its_own_configurations_is_used(runs: list[RecordedRun]) -> None:
    run = next(each for each in runs if each.name == "two workers")
    wrong = [
        msgspec.structs.replace(
            each,
            steps=tuple(
                msgspec.structs.replace(step, step_seconds=1e3)
                if allocation(each, step.workers, step.servers) in configurations(run)
                else step
                for step in each.steps
            ),
        )
        for each in runs
        if each is not run
    ]
    assert predicted(run, [run, *wrong], draws=1) == predicted(run, runs, draws=1)


def test_its_own_start_delay_and_pause_are_not_used_either(runs: list[RecordedRun]) -> None:
    for run in runs:
        other = msgspec.structs.replace(
            run, started_seconds=1e4, ended_seconds=1e6, pods_up=(), delay_seconds=1e4, pause_seconds=1e4
        )
        changed = [other if each is run else each for each in runs]
        assert predicted(other, changed, draws=2) == predicted(run, runs, draws=2)


def test_a_log_normal_is_fitted_to_its_draws() -> None:
    random = np.random.default_rng(0)
    found = LogNormal.of([LogNormal(20.0, 0.3).draw(random) for _ in range(4000)])
    assert found.median == pytest.approx(20.0, rel=0.02)
    assert found.spread == pytest.approx(0.3, rel=0.05)
    assert LogNormal.of([7.0]) == LogNormal(pytest.approx(7.0), 0.0)  # type: ignore[arg-type]


def test_recorded_runs_are_taken_from_a_file(tmp_path: Path, runs: list[RecordedRun]) -> None:
    file = tmp_path / "runs.json"
    file.write_bytes(msgspec.json.encode(runs))
    found = simulator_calibration.measure(Namespace(replay=str(file), record=None, draws=2))
    assert all(each.figure.startswith("simulator_calibration.") and each.simulated for each in found)
    assert len({each.figure for each in found}) == len(found) == len(runs) + 3


def test_a_replay_of_a_recorded_run_takes_its_real_time(runs: list[RecordedRun]) -> None:
    for run in runs:
        assert replayed_seconds(run) == pytest.approx(run.ended_seconds, rel=0.05)


def test_a_run_that_lost_a_worker_takes_longer_in_the_replay(runs: list[RecordedRun]) -> None:
    whole = next(each for each in runs if each.name == "two workers")
    lost = msgspec.structs.replace(whole, pods_up=((0.0, 2, 1), (0.5, 1, 1), (1.5, 2, 1)))
    # One of two workers is away for a second.
    assert replayed_seconds(lost) - replayed_seconds(whole) == pytest.approx(0.5, abs=0.05)
