"""Durations of starts and pauses from the history, with unusable records."""

from __future__ import annotations

import msgspec
import pytest

from elastrec.platform.history.records import JobRecord, Sizes
from elastrec.platform.jobs.scaling.overheads import overheads_of
from elastrec.platform.scaling.types import Overheads
from elastrec.platform.specs.metrics import Phase

SIZES = Sizes(
    workers=1, worker_cores=1.0, worker_memory_bytes=1, parameter_servers=1, parameter_server_cores=1.0,
    parameter_server_memory_bytes=1,
)  # fmt: skip
RECORD = JobRecord(
    run_id="r", job_id="j", job_name="j", team="t", architecture="dlrm", phase=Phase.SUCCEEDED, reason="",
    interval=("", ""), asked=SIZES, granted=SIZES, last=SIZES, features={}, labels={}, metrics={},
    started_unix_seconds=0.0, ended_unix_seconds=None,
)  # fmt: skip


def record(**metrics: float) -> JobRecord:
    return msgspec.structs.replace(RECORD, metrics={name.replace("__", "/"): value for name, value in metrics.items()})


def test_medians_over_the_jobs_count_and_a_pause_is_that_of_a_migration() -> None:
    found = overheads_of(
        [
            record(pods__worker_start_seconds=4.0, pods__parameter_server_start_seconds=2.0),
            record(pods__worker_start_seconds=6.0, pods__migration_pause_seconds=0.2, pods__migration_copy_seconds=3.0),
            record(pods__worker_start_seconds=50.0, job__rollbacks=0.0, time__recovering_seconds=0.0),
        ]
    )
    assert (found.worker_start_seconds, found.server_start_seconds) == (6.0, 2.0)
    assert (found.migration_pause_seconds, found.migration_copy_seconds) == (0.2, 3.0)
    assert found.measured == 6


def test_the_cpu_time_of_starts_is_measured_beside_their_duration() -> None:
    found = overheads_of(
        [
            record(pods__worker_start_core_seconds=4.5, pods__worker_start_seconds=9.0),
            record(pods__parameter_server_start_core_seconds=1.5),
        ]
    )
    assert (found.worker_start_core_seconds, found.server_start_core_seconds, found.measured) == (4.5, 1.5, 1)


@pytest.mark.parametrize("wrong", [float("nan"), float("inf"), -1.0])
def test_a_number_that_means_nothing_is_left_out(wrong: float) -> None:
    found = overheads_of([record(pods__worker_start_seconds=wrong), record(pods__worker_start_seconds=3.0)])
    assert (found.worker_start_seconds, found.measured) == (3.0, 1)


def test_an_overhead_that_no_job_measured_keeps_its_default() -> None:
    assert overheads_of([record()]) == Overheads()
