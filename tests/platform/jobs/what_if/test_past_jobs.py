from __future__ import annotations

from typing import Any

import msgspec
import pytest

from elastrec.platform.history import metric_names as names
from elastrec.platform.history.decisions import coefficient_figures
from elastrec.platform.history.points import window_points
from elastrec.platform.history.records import JobRecord, Sizes
from elastrec.platform.jobs.what_if.past_jobs import jobs_of
from elastrec.platform.specs.metrics import Phase, TrainingMetrics
from tests.platform.simulator.cluster import asked, job, run

TRUE = job()


def record(job_id: str = "clicks-1", workers: int = 4, **changed: Any) -> JobRecord:
    """A finished run of a job that behaves like `job()`."""
    allocation = asked(workers)
    seconds = TRUE.samples / TRUE.samples_per_second(allocation)
    made = JobRecord(
        run_id="run", job_id=job_id, job_name="clicks", team="ads", architecture="dlrm", phase=Phase.SUCCEEDED,
        reason="", interval=("2026-01-01", "2026-01-02"), asked=Sizes(**msgspec.structs.asdict(allocation)),
        granted=Sizes(**msgspec.structs.asdict(allocation)), last=Sizes(**msgspec.structs.asdict(allocation)),
        features={"batch_size": 512.0, "embedding_dimension": 16.0}, labels={},
        metrics={
            names.SAMPLES_TRAINED: TRUE.samples, names.SECONDS: seconds + 100.0,
            "time/training_seconds": 0.9 * seconds, "time/waiting_for_data_seconds": 0.1 * seconds,
            "time/pending_seconds": 100.0,
        },
        started_unix_seconds=1_700_000_000.0, ended_unix_seconds=1_700_000_000.0 + seconds,
    )  # fmt: skip
    return msgspec.structs.replace(made, **changed)


def test_a_simulated_past_job_takes_its_recorded_time() -> None:
    (found,) = jobs_of([record()]).jobs
    (ended,) = run("static", [found]).jobs
    assert ended.completion_seconds == pytest.approx(60.0 + 3600.0)
    assert found.features.categories["architecture"] == "dlrm"
    assert found.arrival_seconds == 0.0


def test_a_job_whose_whole_time_is_unknown_is_left_out() -> None:
    """It was resumed: its samples are of all masters, and the measured time is that of the last one."""
    known = record()
    unknown = {name: value for name, value in known.metrics.items() if name != names.SECONDS}
    past = jobs_of([record("clicks-2", metrics=unknown)])
    assert not past.jobs and past.left_out == (("clicks-2", "its run has no training time"),)


def test_the_speed_of_a_job_that_began_at_the_positions_of_another_one_is_that_of_its_own_samples() -> None:
    whole = int(3 * TRUE.samples)
    reported = TrainingMetrics(
        job="clicks-1", phase=Phase.SUCCEEDED, samples_trained=whole, samples_of_start=whole - int(TRUE.samples)
    )
    own = {point.name: point.value for point in window_points(reported, 0.0)}
    (found,), (alone,) = jobs_of([record(metrics={**record().metrics, **own})]).jobs, jobs_of([record()]).jobs
    assert found.samples == alone.samples == TRUE.samples
    assert found.samples_per_second(asked(4)) == pytest.approx(alone.samples_per_second(asked(4)))


def test_runs_of_several_configurations_are_fitted_together() -> None:
    records = [record(f"clicks-{workers}", workers) for workers in (1, 2, 4, 8)]
    jobs = jobs_of(records).jobs
    assert len(jobs) == 4
    for each in jobs:
        for workers in (2, 6, 12):
            true = TRUE.samples_per_second(asked(workers))
            assert each.samples_per_second(asked(workers)) == pytest.approx(true, rel=0.1)


def test_with_one_configuration_a_note_names_the_assumed_shares() -> None:
    past = jobs_of([record()])
    assert "parts of a step can be distinguished" in past.notes[0]


def test_workers_measurements_decide_the_computing_share_of_a_step() -> None:
    phases = {names.named(names.STEP_PART_SECONDS, part=part): value for part, value in
              {"compute": 0.08, "pull": 0.01, "push": 0.01, "wait": 0.5}.items()}  # fmt: skip
    computing = record(metrics={**record().metrics, **phases})
    by_phases, assumed = jobs_of([computing]).jobs[0], jobs_of([record()]).jobs[0]
    larger = msgspec.structs.replace(asked(), worker_cores=4.0)
    assert by_phases.samples_per_second(larger) > assumed.samples_per_second(larger)


@pytest.mark.parametrize(
    "changed, reason",
    [
        ({"phase": Phase.FAILED}, "it ended as Failed"),
        ({"features": {"batch_size": 0.0, "embedding_dimension": 16.0}}, "its run has no batch size"),
        ({"metrics": {}}, "its run has no samples trained"),
        ({"metrics": {names.SAMPLES_TRAINED: 1e6}}, "its run has no training time"),
    ],
)
def test_half_written_and_failed_runs_are_left_out_with_the_reason(changed: dict[str, Any], reason: str) -> None:
    past = jobs_of([record("bad", **changed), record("good")])
    assert [each.job_id for each in past.jobs] == ["good"]
    assert past.left_out == (("bad", reason),)


@pytest.mark.parametrize("dense_bytes", [0, 100_000, 10_000_000, 400_000_000])
def test_a_job_whose_sizes_changed_has_the_model_that_its_master_fitted(dense_bytes: int) -> None:
    # Its mean speed is that of neither its first nor its last sizes.
    slow = {**record().metrics, "time/training_seconds": 9.0 * TRUE.samples / TRUE.samples_per_second(asked(4))}
    own = {**coefficient_figures(TRUE.coefficients), names.SCALING_DENSE_BYTES: float(dense_bytes)}
    changed = msgspec.structs.replace(TRUE, shape=msgspec.structs.replace(TRUE.shape, dense_bytes=dense_bytes))
    past = jobs_of([record("changed", metrics={**slow, **own}, shape_changes=2), record("stable")])
    found = {each.job_id: each for each in past.jobs}
    for workers in (1, 4, 12):
        true = changed.samples_per_second(asked(workers))
        assert found["changed"].samples_per_second(asked(workers)) == pytest.approx(true)
    assert found["stable"].samples_per_second(asked(4)) == pytest.approx(TRUE.samples_per_second(asked(4)))


def test_a_job_whose_sizes_changed_is_left_out_without_a_model_of_its_own() -> None:
    past = jobs_of([record("changed", shape_changes=1)])
    reason = "its sizes changed 1 time while it ran, and its master has left no model of its speed"
    assert past.jobs == () and past.left_out == (("changed", reason),)


def test_only_one_of_two_attempts_at_a_job_is_used() -> None:
    past = jobs_of([record(), record(started_unix_seconds=1_700_009_000.0)])
    assert len(past.jobs) == 1
    assert past.left_out[0][1] == "another attempt at the same job is taken"


def test_an_empty_history_is_an_empty_workload() -> None:
    assert jobs_of([]).jobs == ()
