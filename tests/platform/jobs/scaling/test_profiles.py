"""Profiles from the reports of a master, and reasons for ignoring a job."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from elastrec.platform.jobs.scaling.profiles import profile_of
from elastrec.platform.scaling.amounts import Change
from elastrec.platform.scaling.job_profile import NotNow
from elastrec.platform.scaling.types import JobProfile
from elastrec.platform.specs.metrics import Role
from elastrec.platform.specs.scaling import ScalingSettings, Team
from elastrec.platform.specs.text.loading import job_to_json, load_job
from elastrec.platform.transport.messages.profile import Measured, Profile, ServerUse, TableGrowth
from tests.shapes import shape

SETTINGS = ScalingSettings()
ONE = shape(1, 1, 0.5, 1.0, 2**31, 2**30)
TWO = shape(2, 1, 0.5, 1.0, 2**31, 2**30)


def measured_profile(
    scaling: dict[str, Any] | None = None, *, worker_count: int = 1, server_count: int = 1, **changes: Any
) -> Profile:
    job = load_job(
        {
            "apiVersion": "elastrec.io/v1alpha1",
            "kind": "TrainingJob",
            "metadata": {"name": "clicks", "team": "ads"},
            "spec": {
                "model": {"architecture": "dlrm", "embedding_dimension": 8},
                "data": {"path": "clicks", "sparse": [{"name": "user"}], "dense": [{"name": "age"}]},
                "resources": {"worker": {"count": worker_count}, "parameter_server": {"count": server_count}},
                "scaling": scaling or {},
            },
        }
    )
    values: dict[str, Any] = {
        "job_json": job_to_json(job).encode(),
        "phase": "Training",
        "configuration": ONE,
        "is_settled": True,
        "measured": [
            Measured(configuration=TWO),
            Measured(
                configuration=ONE,
                steps_ever=120,
                steps=100,
                samples=51_200,
                worker_seconds=20.0,
                pull_seconds=2.0,
                push_seconds=1.0,
            ),
        ],
        "remaining_samples": 1_000_000,
        "dense_bytes": 4096,
    }
    return Profile(**(values | changes))


def test_a_profile_has_the_measured_steps_and_the_bounds_of_the_job_file() -> None:
    settings = ScalingSettings(teams={"ads": Team(priority=3)})
    profile = profile_of("clicks-1", measured_profile({"minimum_workers": 1, "maximum_workers": 6}), settings)
    assert isinstance(profile, JobProfile)
    (observation,) = profile.observations
    assert observation.allocation == profile.allocation and profile.allocation.workers == 1
    assert (observation.iteration_seconds, observation.compute_seconds) == (0.2, pytest.approx(0.17))
    assert profile.limits.workers == (1, 6)
    assert (profile.priority, profile.remaining_samples, profile.shape.dense_bytes) == (3.0, 1e6, 4096)


@pytest.mark.parametrize("servers_move", [False, True])
def test_servers_change_where_the_master_moves_their_rows_within_the_bounds_of_the_job_file(servers_move: bool) -> None:
    bounds = {"minimum_parameter_servers": 2, "maximum_parameter_servers": 5}
    profile = profile_of(
        "clicks-1", measured_profile(bounds, server_count=2, servers_move=servers_move), ScalingSettings()
    )
    assert isinstance(profile, JobProfile)
    assert profile.movable == ({Change.WORKERS, Change.SERVERS} if servers_move else {Change.WORKERS}), "of no size"
    assert profile.limits.parameter_servers == (2, 5)


def running_out(**changes: Any) -> Profile:
    """Of a job whose only server is too small for what its table grows to."""
    size = ONE[Role.PARAMETER_SERVER].size.memory_bytes
    rows = [(100_000 * 2**power, round(2.0 * (100_000 * 2**power) ** 0.8)) for power in range(6)]
    growth = TableGrowth(table="user", samples=[s for s, _ in rows], rows=[r for _, r in rows], bytes_per_row=80.0)
    use = ServerUse(pod="ps-0", used_bytes=2**27, limit_bytes=size, table_bytes=80 * rows[-1][1])
    values: dict[str, Any] = {
        "servers_move": True, "tables_growth": [growth], "servers": [use], "trained_samples": rows[-1][0],
        "remaining_samples": 2_000_000_000, "samples_per_second": 12_000.0, "speed_deviation": 500.0,
    }  # fmt: skip
    return measured_profile(**(values | changes))


def test_a_job_that_will_run_out_of_memory_is_split_over_more_servers_of_its_size() -> None:
    profile = profile_of("clicks-1", running_out(), SETTINGS, largest_bytes=2.0**36)
    assert isinstance(profile, JobProfile) and profile.memory_wish is not None
    wanted = profile.memory_wish.allocation
    size = ONE[Role.PARAMETER_SERVER].size.memory_bytes
    assert wanted.parameter_servers > 1 and wanted.parameter_server_memory_bytes == size
    assert wanted.changes(profile.allocation) == {Change.SERVERS}
    assert not profile.lacks_memory(wanted), "after the change it has what its rows need"


@pytest.mark.parametrize(
    "changes",
    [
        {"is_settled": False},
        {"configuration": TWO},
        {"measured": []},
        {"measured": [], "is_settled": False},
        {"measured": [], "samples_per_second": 0.0, "speed_deviation": 0.0},
    ],
    ids=["a save is under way", "too few steps", "no speed of any size", "it saves all the time", "no speed at all"],
)
def test_memory_is_forecast_of_a_job_that_other_plans_leave_alone(changes: dict[str, Any]) -> None:
    found = profile_of("clicks-1", running_out(**changes, are_servers_settled=True), SETTINGS, largest_bytes=2.0**36)
    assert isinstance(found, NotNow) and found.memory is not None
    wish = found.memory.memory_wish
    assert wish is not None and wish.allocation.parameter_servers > 1
    is_unknown = changes.get("samples_per_second") == 0.0
    assert (wish.seconds_to_limit is None) == is_unknown
    assert ("the speed is not known yet" if is_unknown else "at 12,000 samples/s (± 1,000)") in wish.reason


def test_memory_is_not_forecast_while_servers_change() -> None:
    found = profile_of("clicks-1", running_out(is_settled=False), SETTINGS, largest_bytes=2.0**36)
    assert isinstance(found, NotNow) and found.memory is None


def test_there_are_never_more_servers_than_virtual_buckets() -> None:
    found = measured_profile({"maximum_parameter_servers": 5000})
    content = msgspec.json.decode(found.job_json)
    content["spec"]["resources"]["virtual_buckets"] = 128
    profile = profile_of("clicks-1", msgspec.structs.replace(found, job_json=msgspec.json.encode(content)), SETTINGS)
    assert isinstance(profile, JobProfile) and profile.limits.parameter_servers == (1, 128)


@pytest.mark.parametrize(
    ("found", "reason"),
    [
        (measured_profile({"enabled": False}), "scaling.enabled: false"),
        (measured_profile(phase="Evaluating"), "it is evaluating"),
        (measured_profile(is_settled=False), "coming or going"),
        (measured_profile(configuration=TWO), "0 steps in its present configuration; 50 are needed"),
    ],
)
def test_a_job_without_a_possible_decision_is_left_alone_with_the_reason(found: Profile, reason: str) -> None:
    answer = profile_of("clicks-1", found, ScalingSettings())
    assert isinstance(answer, NotNow) and reason in answer.reason
