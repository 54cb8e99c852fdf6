"""The plumbing of the simulated benchmarks, on few and small jobs."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

import msgspec
import pytest

from benchmarks.common.figures import Figure
from benchmarks.common.recorded_runs import RecordedRun
from benchmarks.simulator import data_executors, job_completion_time, simulator_calibration, warm_start
from elastrec.platform.simulator.mixes import recurring

RUNS = [
    RecordedRun(
        name=f"{workers} workers", workers=workers, servers=1, worker_cores=0.4, server_cores=0.3,
        samples=100 * 512 * workers, repeated_samples=0, started_seconds=5.0, ended_seconds=5.0 + 100 * 0.02,
        step_seconds={workers: (0.02, 2.0 * workers)}, workers_up=((0.0, workers),),
    )
    for workers in (1, 2)
]  # fmt: skip


def check(figures: list[Figure], name: str) -> None:
    assert figures
    assert all(figure.figure.startswith(f"{name}.") for figure in figures)
    assert len({figure.figure for figure in figures}) == len(figures)
    assert all(figure.simulated for figure in figures)
    assert any(figure.goal for figure in figures)


def test_single_jobs_are_compared_with_every_baseline() -> None:
    figures = job_completion_time.alone(seeds=1)
    check(figures, "job_completion_time")
    assert {figure.figure.rsplit(".", 1)[-1] for figure in figures} >= {"against_optimus", "against_elastic_scheduler"}


def test_a_mixed_workload_yields_every_figure_and_a_picture(tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text("job_id,submit_time\n" + "".join(f"{n},{2 * n}\n" for n in range(12)))
    picture = tmp_path / "mixed.png"
    arguments = Namespace(
        jobs=12, seed=0, nodes=40, every=120.0, seeds=1, arrivals=str(trace), part=["mixed"], picture=str(picture)
    )
    check(job_completion_time.measure(arguments), "job_completion_time")
    assert picture.exists()


def test_every_case_of_the_sensitivity_says_what_it_costs() -> None:
    figures = job_completion_time.sensitivity(lambda habits: recurring(4, 0, habits), nodes=40)
    assert len({figure.figure for figure in figures}) == len(figures) >= 16
    assert all("core_hours_%" in figure.settings for figure in figures)


def test_a_warm_month_is_compared_with_a_cold_one() -> None:
    check(warm_start.measure(Namespace(jobs=8, nodes=40, headroom=1.0)), "warm_start")


def test_both_strategies_of_data_executors_are_measured() -> None:
    check(data_executors.measure(Namespace(seeds=1, executors=5)), "data_executors")


def test_recorded_runs_are_replayed_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "runs.json"
    file.write_bytes(msgspec.json.encode(RUNS))
    figures = simulator_calibration.measure(Namespace(replay=str(file), record=None))
    check(figures, "simulator_calibration")
    assert figures[0].value == pytest.approx(0.0, abs=0.1)


def test_a_run_that_lost_a_worker_takes_longer_in_the_replay() -> None:
    run = RUNS[1]
    lost = msgspec.structs.replace(run, workers_up=((0.0, 2), (0.5, 1), (1.5, 2)))
    coefficients = simulator_calibration.own_coefficients(run)
    whole, short = (simulator_calibration.replayed_seconds(each, coefficients) for each in (run, lost))
    assert short - whole == pytest.approx(0.5, abs=0.05)
