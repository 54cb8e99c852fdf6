"""A master that checks the memory of its servers between rounds: its single request, and the later record of it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from elastrec.platform.history import metric_names as names
from elastrec.platform.master.scaling.memory_watch import MemoryWatch, plan_seconds
from elastrec.platform.master.service.service import JobService
from elastrec.platform.scaling.memory_watch import MEMORY
from elastrec.platform.scaling.types import Plan
from elastrec.platform.specs.errors import ClusterError
from elastrec.platform.specs.job import TrainingJob
from elastrec.platform.specs.metrics import Phase, Role
from elastrec.platform.specs.text.plain_words import numbered
from elastrec.platform.transport.messages.ledger import Explanation, GetExplanation
from elastrec.platform.transport.messages.observer import GetStatus, ShapeOutcome, ShapeRequest, Status
from elastrec.platform.transport.messages.profile import GetProfile, Profile, ServerUse, TableGrowth
from tests.platform.master.fakes import job
from tests.platform.master.stage import Stage

GIB = 2**30
SAMPLES = [100_000 * 2**i for i in range(6)]
ROWS = [round(2.0 * samples**0.8) for samples in SAMPLES]
ELASTIC = {"maximum_parameter_server_memory": "64Gi", "minimum_parameter_servers": 2, "maximum_parameter_servers": 2}
PATIENT = {"heartbeat_interval": 0.02, "heartbeat_timeout": 15, "lease": 20}


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Callable[[TrainingJob], Stage]]:
    with contextlib.ExitStack() as stack:

        def make(training_job: TrainingJob) -> Stage:
            made = Stage(tmp_path, training_job, rows=20_000, step_seconds=0.05)
            stack.callback(made.close)
            return made

        yield make


@pytest.fixture(autouse=True)
def tables_fill_the_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a master measures of its job's memory is given; its shape, its versions and its limits are the job's."""
    profile = JobService.profile

    def measured(service: JobService, message: GetProfile) -> Profile:
        found = profile(service, message)
        servers = [
            ServerUse(pod=server.name, used_bytes=3 * GIB // 4, limit_bytes=server.memory_bytes, table_bytes=GIB // 2)
            for server in service.state.membership.servers()
        ]
        growth = TableGrowth(table="user", samples=SAMPLES, rows=ROWS, bytes_per_row=2**29 * 2 / ROWS[-1])
        return msgspec.structs.replace(
            found, tables_growth=[growth], servers=servers, trained_samples=SAMPLES[-1],
            remaining_samples=4 * SAMPLES[-1], samples_per_second=400_000.0,
        )  # fmt: skip

    monkeypatch.setattr(JobService, "profile", measured)


def own_requests(s: Stage) -> list[ShapeRequest]:
    found = s.call(GetStatus(), Status).shape_requests
    return [request for request in found if request.asked_by == MEMORY]


@pytest.mark.usefixtures("fleet")
def test_servers_get_the_memory_that_the_forecast_asks_for_without_any_round(stage: Callable[[TrainingJob], Stage]):
    s = stage(job(scaling=ELASTIC, faults=PATIENT))
    s.start()
    s.wait(lambda: any(request.outcome is ShapeOutcome.DONE for request in own_requests(s)))
    sizes = {pod.size.memory_bytes for pod in s.cluster.pods.values() if pod.role is Role.PARAMETER_SERVER}
    assert len(sizes) == 1 and min(sizes) > GIB
    assert {name for name, _ in s.cluster.resized} == {"clicks-1-ps-0", "clicks-1-ps-1"}, "in place"
    (request,) = own_requests(s)
    explained = s.call(GetExplanation(), Explanation)
    (entry,) = [
        each
        for each in explained.timeline
        if f"({numbered(request.request_id)})" in each.what and "requested" in each.what
    ]
    assert "by the memory forecast" in entry.what and "the limit less 10 % is reached in" in entry.cause
    (own,) = explained.own_plans
    plan = msgspec.json.decode(own.plan_json, type=Plan)
    assert (own.outcome, own.samples, plan.plan_id) == ("done", SAMPLES[-1], request.plan_id)
    assert plan.memory is not None and plan.memory.samples[0] == SAMPLES[-1], "with its band, for the picture"
    assert {plan.allocation.parameter_server_memory_bytes} == sizes


@pytest.mark.usefixtures("fleet")
def test_a_restarted_master_continues_the_request_and_makes_no_second_one(
    stage: Callable[[TrainingJob], Stage],
):
    s = stage(job(scaling=ELASTIC, faults=PATIENT))
    has_room = False

    def before(operation: str, name: str) -> None:
        if operation == "resize" and not has_room:
            raise ClusterError("the cluster does not answer", retryable=True)

    s.cluster.before = before
    s.start()
    s.wait(lambda: bool(own_requests(s)))
    s.stop()
    s.start()
    s.wait_for(Phase.TRAINING)
    looked = s.service._memory_watch
    s.wait(lambda: not looked.is_due(0.0))
    has_room = True
    s.wait(lambda: any(request.outcome is ShapeOutcome.DONE for request in own_requests(s)))
    assert len(own_requests(s)) == 1
    assert len(s.call(GetExplanation(), Explanation).own_plans) == 1


def watch(**scaling: Any) -> MemoryWatch:
    return MemoryWatch("clicks-1", job(scaling=scaling))


def test_the_memory_of_an_unscaled_job_is_never_checked() -> None:
    assert watch().is_due(0.0)
    assert not watch(enabled=False).is_due(1e9)


def test_refused_memory_is_requested_again_after_the_time_of_a_round() -> None:
    found = watch()
    found.refused(100.0)
    assert (found.is_due(279.0), found.is_due(281.0)) == (False, True)
    found.round_announced(30.0)
    found.refused(100.0)
    assert (found.is_due(129.0), found.is_due(131.0)) == (False, True), "rounds say when the next one comes"


def test_a_plan_takes_as_long_as_starts_and_migrations_of_the_job_did() -> None:
    assert plan_seconds({}) == 60.0 + 60.0 + 0.0 + 30.0
    known = {names.SERVER_START_SECONDS: 7.0, names.MIGRATION_COPY_SECONDS: 2.0}
    assert plan_seconds(known) == 60.0 + 7.0 + 2.0 + 30.0
