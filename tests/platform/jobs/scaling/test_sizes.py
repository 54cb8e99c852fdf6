"""Sizes of running pods in plans, larger and smaller: from the limits of a job file to the request to its master."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from elastrec.platform.jobs.scaling import rounds
from elastrec.platform.jobs.scaling.profiles import profile_of
from elastrec.platform.master.scaling.memory_seen import memory_seen
from elastrec.platform.scaling.amounts import Allocation, Change
from elastrec.platform.scaling.memory import Action
from elastrec.platform.scaling.memory_outlook import look_ahead
from elastrec.platform.scaling.types import JobProfile, Plan
from elastrec.platform.specs.metrics import Role
from elastrec.platform.specs.scaling import ScalingSettings
from elastrec.platform.specs.text.loading import job_from_json
from elastrec.platform.transport.messages.profile import Measured, Profile
from tests.platform.jobs.scaling.masters import Masters, masters
from tests.platform.jobs.scaling.test_memory_outlook import grown
from tests.platform.jobs.scaling.test_profiles import ONE, measured_profile
from tests.platform.scaling.jobs import coefficients, step_seconds
from tests.shapes import shape

GIB = 2**30
SETTINGS = ScalingSettings()


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Masters]:
    with masters(tmp_path) as found:
        yield found


def known(answer: Profile, largest_bytes: float = 2.0**36) -> JobProfile:
    found = profile_of("clicks-1", answer, SETTINGS, largest_bytes=largest_bytes)
    assert isinstance(found, JobProfile)
    return found


def limited(answer: Profile, **limits: Any) -> Profile:
    return msgspec.structs.replace(answer, job_json=measured_profile(limits).job_json)


def test_a_size_without_limits_is_not_changed() -> None:
    found = known(measured_profile(servers_move=True))
    assert found.movable == {Change.WORKERS, Change.SERVERS}
    for field in ("worker_cores", "worker_memory_bytes", "parameter_server_cores", "parameter_server_memory_bytes"):
        now = getattr(found.allocation, field)
        assert getattr(found.limits, field) == (now, now)


@pytest.mark.parametrize(
    ("limit", "bounds"),
    [
        ({"maximum_worker_memory": 8 * GIB}, (2 * GIB, 8 * GIB)),
        ({"minimum_worker_memory": GIB}, (GIB, 2 * GIB)),
        ({"minimum_worker_memory": GIB, "maximum_worker_memory": 3 * GIB}, (GIB, 3 * GIB)),
    ],
)
def test_with_one_limit_the_size_of_the_file_is_the_other_one(limit: dict[str, Any], bounds: tuple[int, int]) -> None:
    found = known(measured_profile(limit))
    assert found.limits.worker_memory_bytes == bounds and found.movable == {Change.WORKERS, Change.WORKER_SIZE}
    now = found.allocation.worker_cores
    assert found.limits.worker_cores == (now, now), "a limit of memory is none of cores"


def test_a_job_whose_tables_grow_gets_memory_within_its_limit_before_it_gets_more_servers() -> None:
    growing = grown(remaining=2_000_000_000, servers_move=True)
    roomy = known(limited(growing, maximum_parameter_server_memory=64 * GIB)).memory_wish
    assert roomy is not None and Action.MORE_MEMORY.value in roomy.reason
    assert roomy.allocation.changes(Allocation.of(ONE)) == {Change.SERVER_SIZE}
    tight = known(limited(growing, maximum_parameter_server_memory=2 * GIB)).memory_wish
    assert tight is not None and tight.allocation.parameter_server_memory_bytes == 2 * GIB
    assert tight.allocation.parameter_servers > 1


def test_the_memory_of_a_forecast_is_requested_from_the_master(cluster: Masters) -> None:
    cluster.add("clicks-1", limited(grown(remaining=2_000_000_000), maximum_parameter_server_memory=64 * GIB))
    (plan,) = (
        each for each in rounds.plan(cluster.platform, ScalingSettings(policy="static"))[0].plans if each.changes
    )
    assert rounds.apply(cluster.platform, plan).changed
    ((_, message),) = cluster.asked
    servers = message.change[Role.PARAMETER_SERVER]
    assert servers.count is None and servers.memory_bytes is not None and servers.memory_bytes > GIB
    assert (message.asked_by, message.plan_id) == ("memory-forecast", plan.plan_id)
    assert message.reason == plan.reason and "at 10,000 samples/s" in message.reason


def test_a_plan_contains_its_memory_forecast_if_there_was_one(cluster: Masters) -> None:
    growing = limited(grown(remaining=2_000_000_000), maximum_parameter_server_memory=64 * GIB)
    cluster.add("clicks-1", growing)
    cluster.add("clicks-2", limited(grown(remaining=2_000_000_000, tables_growth=[]), maximum_workers=4))
    plans = {plan.job_id: plan for plan in rounds.plan(cluster.platform, SETTINGS)[0].plans}
    curve = plans["clicks-1"].memory
    assert curve is not None and plans["clicks-2"].memory is None
    assert curve.samples[0] == growing.trained_samples
    assert curve.samples[-1] == growing.trained_samples + growing.remaining_samples
    assert curve.likely[0] == pytest.approx(growing.servers[0].used_bytes), "it begins with what is measured"
    assert all(low <= likely <= high for low, likely, high in zip(curve.low, curve.likely, curve.high, strict=True))
    assert curve.likely[-1] > curve.safe_bytes == pytest.approx(0.9 * GIB)
    outlook = look_ahead(memory_seen(job_from_json(growing.job_json), growing, 2.0**36), Allocation.of(ONE))
    assert outlook.forecast is not None
    assert (curve.low[-1], curve.likely[-1], curve.high[-1]) == pytest.approx(outlook.forecast.bytes_at_end)
    again = msgspec.convert(msgspec.json.decode(msgspec.json.encode(plans["clicks-1"])), Plan)
    assert again == plans["clicks-1"], "as it travels between tasks"


def measured(worker_cores: float, server_cores: float, workers: int = 2) -> Measured:
    """As eq. 2–5 say: almost all of a step is the worker's own, and falls with its cores."""
    size = shape(workers, 1, worker_cores, server_cores, 2 * GIB, GIB)
    seconds = step_seconds(coefficients((0.85, 0.02, 0.03, 0.02, 0.08)), Allocation.of(size))
    return Measured(
        configuration=size, steps_ever=1000, steps=1000, samples=512e3, worker_seconds=1000 * seconds,
        pull_seconds=100 * seconds, push_seconds=50 * seconds,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("now", "limits", "field", "sign"),
    [
        ((0.5, 1.0), {"maximum_worker_cores": 2, "maximum_workers": 2}, "worker_cores", 1),
        ((1.0, 2.0), {"minimum_parameter_server_cores": "250m", "maximum_workers": 2}, "parameter_server_cores", -1),
    ],
)
def test_cores_of_running_pods_go_up_and_down_where_that_pays(
    cluster: Masters, now: tuple[float, float], limits: dict[str, Any], field: str, sign: int
) -> None:
    seen = [measured(*each) for each in ((0.25, 1.0), (0.5, 0.5), (1.0, 2.0), (0.5, 1.0)) if each != now]
    seen.append(measured(*now))
    cores = {"worker": {"cores": now[0]}, "parameter_server": {"cores": now[1], "memory": "1Gi"}}
    answer = limited(measured_profile(configuration=seen[-1].configuration, measured=seen), **limits)
    content = msgspec.json.decode(answer.job_json)
    content["spec"]["resources"] = cores
    answer = msgspec.structs.replace(answer, job_json=msgspec.json.encode(content), remaining_samples=10**9)
    cluster.add("clicks-1", answer)
    (plan,) = rounds.plan(cluster.platform, SETTINGS)[0].plans
    assert plan.changes and sign * getattr(plan.allocation, field) > sign * getattr(plan.before, field), plan.reason
    rounds.apply(cluster.platform, plan)
    ((_, message),) = cluster.asked
    role = Role.WORKER if field == "worker_cores" else Role.PARAMETER_SERVER
    assert message.change[role].cores == getattr(plan.allocation, field)
