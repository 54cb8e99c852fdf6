"""A round from masters to plans and back: requests, the cost of a silent master, and outdated plans."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from elastrec.platform.jobs.scaling import masters as asking
from elastrec.platform.jobs.scaling import rounds
from elastrec.platform.scaling.amounts import Change
from elastrec.platform.scaling.types import Plan
from elastrec.platform.specs.errors import JobNotFoundError
from elastrec.platform.specs.metrics import Role
from elastrec.platform.specs.scaling import ScalingSettings
from elastrec.platform.specs.shape import PlacesChange
from elastrec.platform.transport.messages.observer import ChangeShape, ShapeAnswer, ShapeOutcome, ShapeRequest
from elastrec.platform.transport.messages.profile import Measured
from tests.platform.jobs.scaling.masters import Masters, masters
from tests.platform.jobs.scaling.test_profiles import measured_profile
from tests.platform.scaling.jobs import allocation
from tests.shapes import shape

SETTINGS, THREE_STAGE = ScalingSettings(policy="static"), ScalingSettings()
PLAN = Plan(
    job_id="clicks-1", policy="three-stage", before=allocation(1), allocation=allocation(2), reason="faster",
    plan_id="plan-1", shape_version=7, expires_unix_seconds=2e9,
)  # fmt: skip


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Masters]:
    with masters(tmp_path) as found:
        yield found


def test_a_master_that_does_not_answer_costs_only_its_own_job_the_round(
    cluster: Masters, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(asking.ask_profiles, "__defaults__", (0.5,))
    for job_id in ("clicks-1", "clicks-2", "clicks-3"):
        cluster.add_silent(f"silent-{job_id}")
        cluster.add(job_id, measured_profile())
    begun = time.monotonic()
    decided, left_alone = rounds.plan(cluster.platform, SETTINGS)
    assert [plan.job_id for plan in decided.plans] == ["clicks-1", "clicks-2", "clicks-3"]
    silent = {each.job_id: each.reason for each in left_alone}
    assert silent.keys() == {"silent-clicks-1", "silent-clicks-2", "silent-clicks-3"}
    assert all(reason.startswith("its master does not answer: ") for reason in silent.values())
    assert time.monotonic() - begun < 3 * 0.5 + 5.0, "they are asked side by side"


def test_nodes_and_pods_are_read_once_for_any_number_of_jobs(cluster: Masters, monkeypatch: pytest.MonkeyPatch) -> None:
    reads: list[str] = []
    for name in ("nodes", "pods", "jobs"):
        listed = getattr(cluster.platform.launcher, name)
        monkeypatch.setattr(
            cluster.platform.launcher, name, lambda name=name, listed=listed: reads.append(name) or listed()
        )
    for job_id in ("clicks-1", "clicks-2"):
        cluster.add(job_id, measured_profile())
    decided, _ = rounds.plan(cluster.platform, SETTINGS)
    assert len(decided.plans) == 2
    assert sorted(reads) == ["jobs", "nodes", "pods"]


def test_masters_are_asked_concurrently(cluster: Masters) -> None:
    for number in range(8):
        cluster.add_silent(f"silent-{number}")
    begun = time.monotonic()
    answers = asking.ask_profiles(cluster.platform, asking.masters_of(cluster.platform), timeout_seconds=1.0)
    assert len(answers) == 8 and all(isinstance(each, str) for each in answers.values())
    assert time.monotonic() - begun < 4.0, "one after the other they would take eight seconds"


def test_a_job_that_is_not_in_the_cluster_is_named(cluster: Masters) -> None:
    with pytest.raises(JobNotFoundError, match="clicks-9"):
        rounds.plan(cluster.platform, SETTINGS, ["clicks-9"])


def test_jobs_that_do_not_train_are_named_only_on_request(cluster: Masters) -> None:
    cluster.add("clicks-1", measured_profile(phase="Evaluating"))
    assert rounds.plan(cluster.platform, SETTINGS)[1] == []
    (other,) = rounds.plan(cluster.platform, SETTINGS, ["clicks-1"])[1]
    assert other.reason == "it is evaluating"


def test_plans_carry_the_version_of_the_shape_that_they_were_made_for_and_when_they_expire(cluster: Masters) -> None:
    cluster.add("clicks-1", measured_profile(shape_version=7))
    (plan,) = rounds.plan(cluster.platform, SETTINGS)[0].plans
    assert plan.shape_version == 7
    assert plan.expires_unix_seconds == pytest.approx(time.time() + SETTINGS.plan_lifetime, abs=30.0)


def test_a_plan_carries_the_version_of_the_shape_and_its_policy(cluster: Masters) -> None:
    cluster.add("clicks-1", measured_profile())
    assert rounds.apply(cluster.platform, PLAN).changed
    ((_, message),) = cluster.asked
    assert (message.expected_version, message.asked_by) == (7, "three-stage")


def test_workers_and_servers_of_one_plan_are_one_request(cluster: Masters) -> None:
    cluster.add("clicks-1", measured_profile())
    rounds.apply(cluster.platform, msgspec.structs.replace(PLAN, allocation=allocation(3, 2)))
    ((_, message),) = cluster.asked
    assert {role: places.count for role, places in message.change.items()} == {
        Role.WORKER: 3, Role.PARAMETER_SERVER: 2,
    }  # fmt: skip


def test_a_job_that_waits_for_its_server_gets_more_of_them_where_rows_can_move(cluster: Masters) -> None:
    def measured(workers: int, servers: int) -> Measured:
        """20 ms of its own work, and 100 ms of one server's for every worker."""
        size, waited = shape(workers, servers, 0.5, 1.0, 2**31, 2**30), 0.1 * workers / servers
        return Measured(
            configuration=size, steps_ever=1000, steps=1000, samples=5e5, worker_seconds=1000 * (0.02 + waited),
            pull_seconds=600 * waited, push_seconds=400 * waited,
        )  # fmt: skip

    seen = [measured(1, 1), measured(2, 1), measured(2, 2), measured(4, 1)]
    for moves in (False, True):
        servers = {"configuration": seen[-1].configuration, "measured": seen, "servers_move": moves}
        cluster.add(f"clicks-{moves}", measured_profile(**servers))
    plans = {plan.job_id: plan for plan in rounds.plan(cluster.platform, THREE_STAGE)[0].plans}
    assert Change.SERVERS in plans["clicks-True"].changes
    assert Change.SERVERS not in plans["clicks-False"].changes


def test_a_refused_plan_changes_nothing_and_has_a_reason(cluster: Masters) -> None:
    cluster.add("clicks-1", measured_profile(), lambda _: ShapeAnswer(reason="expected_version: 7 is not allowed"))
    done = rounds.apply(cluster.platform, PLAN)
    assert not done.changed and "expected_version: 7" in done.reason


def test_every_plan_of_every_round_has_an_id_of_its_own(cluster: Masters) -> None:
    for job_id in ("clicks-1", "clicks-2"):
        cluster.add(job_id, measured_profile())
    plans = [plan for _ in range(2) for plan in rounds.plan(cluster.platform, SETTINGS)[0].plans]
    assert len({plan.plan_id for plan in plans}) == len(plans) == 4 and "" not in {plan.plan_id for plan in plans}


def test_a_plan_that_is_handed_over_again_is_the_request_that_it_was(cluster: Masters) -> None:
    requests = dict[str, str]()

    def change(message: ChangeShape) -> ShapeAnswer:
        """As a master: a plan that it knows is not made for a version that has passed."""
        if requests and message.plan_id not in requests:
            return ShapeAnswer(reason="expected_version: 7 is not allowed")
        return ShapeAnswer(requests.setdefault(message.plan_id, f"shape-{len(requests) + 1}"))

    cluster.add("clicks-1", measured_profile(), change)
    first, again = rounds.apply(cluster.platform, PLAN), rounds.apply(cluster.platform, PLAN)
    assert again == first and (first.changed, first.request_id) == (True, "shape-1")
    other = rounds.apply(cluster.platform, msgspec.structs.replace(PLAN, plan_id="plan-2"))
    assert (other.changed, other.request_id) == (False, ""), "the same change, but another plan"
    assert [message.plan_id for _, message in cluster.asked] == ["plan-1", "plan-1", "plan-2"]


def test_a_plan_names_every_size_that_differs_and_no_other(cluster: Masters) -> None:
    cluster.add("clicks-1", measured_profile())
    sizes = {"worker_cores": 0.5, "worker_memory_bytes": 2**30, "parameter_server_memory_bytes": 2**33}
    rounds.apply(
        cluster.platform, msgspec.structs.replace(PLAN, allocation=msgspec.structs.replace(PLAN.before, **sizes))
    )
    ((_, message),) = cluster.asked
    assert message.change == {
        Role.WORKER: PlacesChange(cores=0.5, memory_bytes=2**30),
        Role.PARAMETER_SERVER: PlacesChange(memory_bytes=2**33),
    }


def test_a_plan_that_is_too_old_is_not_even_sent(cluster: Masters) -> None:
    cluster.add("clicks-1", measured_profile())
    old = msgspec.structs.replace(PLAN, expires_unix_seconds=time.time() - 60.0)
    done = rounds.apply(cluster.platform, old)
    assert not done.changed and cluster.asked == []
    assert "stale: its time was over 6" in done.reason and "plan_lifetime" in done.reason


def test_a_plan_that_expired_after_its_master_accepted_it_is_still_its_request(cluster: Masters) -> None:
    """As a retry does, after the wait of the first try has ended because the cluster did not answer for long."""
    cluster.add("clicks-1", measured_profile())
    cluster.requests = [
        ShapeRequest(request_id=f"shape-{number}", wanted="2 workers", outcome=ShapeOutcome.OPEN, plan_id=plan_id)
        for number, plan_id in enumerate(("", "plan-1", "plan-2"))
    ]
    done = rounds.apply(cluster.platform, msgspec.structs.replace(PLAN, expires_unix_seconds=time.time() - 60.0))
    assert (done.changed, done.request_id) == (True, "shape-1")
    assert cluster.asked == []
