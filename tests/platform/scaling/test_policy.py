from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import EntryPoint
from typing import Any

import msgspec
import pytest

from elastrec.platform.scaling import policy as room
from elastrec.platform.scaling.amounts import Allocation, Capacity, Change, Resources
from elastrec.platform.scaling.policies.static import Static
from elastrec.platform.scaling.policy import View, decide, load_policy, policy_names, propose_safely, select_safely
from elastrec.platform.scaling.types import JobProfile, Limits, Plan, Proposal
from elastrec.platform.specs.errors import ScalingError
from tests.platform.scaling.jobs import (
    GIB,
    PLENTY,
    PRICES,
    allocation,
    coefficients,
    measure,
    profile,
    speed,
)

VIEW = View(PLENTY, PRICES)
WORKERS = frozenset({Change.WORKERS})


class Broken(Static):
    """Does wrong what a test asks for."""

    name = "broken"

    def __init__(self, *plans: Any, proposing: Exception | None = None, selecting: Exception | None = None) -> None:
        self._plans, self._proposing, self._selecting = plans, proposing, selecting

    def propose(self, job: JobProfile, view: View) -> Proposal:
        if self._proposing is not None and job.job_id == "job":
            raise self._proposing
        return super().propose(job, view)

    def select(self, proposals: Sequence[Proposal], view: View) -> Sequence[Plan]:
        if self._selecting is not None:
            raise self._selecting
        return self._plans or super().select(proposals, view)


def plan_to(target: Any, job: str = "job") -> Plan:
    return Plan(job_id=job, policy="broken", before=allocation(), allocation=target, reason="")


def test_the_shipped_policies_are_found_by_name() -> None:
    assert {"three-stage", "three-stage-exact", "optimus", "elastic-scheduler", "static"} <= set(policy_names())
    for name in policy_names():
        assert load_policy(name).name == name


def test_an_unknown_policy_is_refused_with_those_that_exist() -> None:
    with pytest.raises(ScalingError, match=r"policy: best is not allowed; allowed: .*three-stage"):
        load_policy("best")


def test_a_policy_that_cannot_be_imported_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = EntryPoint("mine", "no_such_package:Policy", room.GROUP)
    monkeypatch.setattr(room, "entry_points", lambda group: (entry,))
    with pytest.raises(ScalingError, match=r"policy mine \(no_such_package:Policy\) cannot be loaded"):
        load_policy("mine")


def test_an_entry_point_that_is_not_a_policy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = EntryPoint("mine", "builtins:dict", room.GROUP)
    monkeypatch.setattr(room, "entry_points", lambda group: (entry,))
    with pytest.raises(ScalingError, match="dict has no name, propose, select; allowed: a class"):
        load_policy("mine")


def test_a_policy_that_raises_for_one_job_leaves_the_others_alone() -> None:
    jobs = [profile(), profile(job_id="other")]
    answer = decide(Broken(proposing=ZeroDivisionError("oops")), jobs, VIEW)
    assert "policy broken failed for job: ZeroDivisionError: oops" in answer.problems["job"]
    assert "other" not in answer.problems
    plans = {plan.job_id: plan for plan in answer.plans}
    assert not plans["job"].changes
    assert "oops" in plans["job"].reason


def test_a_policy_that_fails_to_select_keeps_every_plan() -> None:
    answer = decide(Broken(selecting=KeyError("x")), [profile(), profile(job_id="other")], VIEW)
    assert "policy broken failed to select: KeyError" in answer.problems[""]
    assert [plan.changes for plan in answer.plans] == [frozenset(), frozenset()]


@pytest.mark.parametrize(
    "plans, message",
    [
        (["nonsense"], "returned a str"),
        ([None], "returned a NoneType"),
        ([plan_to(allocation(3, 1)), plan_to(allocation(4, 1))], "2 plans; allowed: one"),
        ([plan_to(allocation(3, 1), "unknown")], "no such job runs"),
        ([plan_to(allocation(5000, 1))], "needs 4998 cores"),
        ([plan_to(allocation(2, 1, server_cores=2000))], "larger than the largest node"),
        ([msgspec.structs.replace(plan_to(allocation(3, 1)), before=allocation(9, 9))], "made for 9 workers"),
    ],
)
def test_nonsense_is_named_and_the_job_keeps_its_plan(plans: list[Any], message: str) -> None:
    view = View(msgspec.structs.replace(PLENTY, largest_pod=Resources(64.0, 256.0 * GIB)), PRICES)
    answer = decide(Broken(*plans), [profile()], view)
    assert message in " ".join(answer.problems.values())
    (plan,) = [plan for plan in answer.plans if plan.job_id == "job"]
    assert not plan.changes


def test_a_change_that_a_job_cannot_take_is_refused() -> None:
    answer = decide(Broken(plan_to(allocation(2, 2))), [profile(movable=WORKERS)], VIEW)
    assert "changes servers, which this job cannot change while it runs" in answer.problems["job"]


@pytest.mark.parametrize(
    ("target", "words"),
    [
        (allocation(5), "workers: 5 is not allowed; allowed: 1 to 4"),
        (allocation(2, worker_cores=3.0), "worker_cores: 3 is not allowed; allowed: 1 to 2"),
        (allocation(2, server_cores=0.5), "parameter_server_cores: 0.5 is not allowed; allowed: 1 to 1"),
    ],
)
def test_a_plan_beyond_the_limits_of_its_job_is_named_and_not_carried_out(target: Allocation, words: str) -> None:
    limits = Limits(workers=(1, 4), worker_cores=(1.0, 2.0), parameter_server_cores=(1.0, 1.0))
    answer = decide(Broken(plan_to(target)), [profile(limits=limits)], VIEW)
    assert words in answer.problems["job"] and not answer.plans[0].changes


def test_a_job_beyond_its_limits_may_return_into_them() -> None:
    answer = decide(Broken(plan_to(allocation(1))), [profile(limits=Limits(workers=(1, 1)))], VIEW)
    assert not answer.problems and answer.plans[0].changes


def test_plans_that_are_too_much_together_are_cut_in_their_order() -> None:
    plans = [plan_to(allocation(8, 1), name) for name in ("a", "b")]
    jobs = [profile(job_id=name) for name in ("a", "b")]
    answer = decide(Broken(*plans), jobs, View(Capacity(free=Resources(7.0, 100.0 * GIB)), PRICES))
    assert {plan.job_id: bool(plan.changes) for plan in answer.plans} == {"a": True, "b": False}
    assert "needs 6 cores" in answer.problems["b"]


def test_a_proposal_about_another_job_is_refused() -> None:
    class Mixed(Static):
        def propose(self, job: JobProfile, view: View) -> Proposal:
            return msgspec.structs.replace(super().propose(job, view), job_id="another")

    assert "is about another" in propose_safely(Mixed(), profile(), VIEW)[1]


def test_a_proposal_with_an_invalid_number_is_refused() -> None:
    class NoNumber(Static):
        def propose(self, job: JobProfile, view: View) -> Proposal:
            fine = super().propose(job, view)
            wrong = msgspec.structs.replace(fine.candidates[0], gain=float("nan"))
            return msgspec.structs.replace(fine, candidates=(fine.candidates[0], wrong))

    assert "gain nan; allowed: a number" in propose_safely(NoNumber(), profile(), VIEW)[1]


def test_a_job_without_a_usable_measurement_keeps_its_plan_with_a_reason() -> None:
    answer = decide(load_policy("three-stage"), [profile(observations=())], VIEW)
    assert "no usable one" in answer.problems["job"]
    assert not answer.plans[0].changes


def test_proposals_of_other_processes_are_selected_in_the_same_way() -> None:
    three = load_policy("three-stage")
    jobs = [profile(), profile(job_id="other", remaining_samples=5e8)]
    view = View(Capacity(free=Resources(6.0, 100.0 * GIB)), PRICES)
    carried = [
        msgspec.json.decode(msgspec.json.encode(three.propose(job, view)), type=Proposal) for job in jobs
    ]  # fmt: skip
    assert select_safely(three, jobs, carried, view).plans == decide(three, jobs, view).plans


def grown(name: str, rounds: int, **changes: Any) -> list[JobProfile]:
    """A job that begins with one worker, as a policy scales it; its measurements are exact."""
    true = coefficients((0.7, 0.04, 0.02, 0.14, 0.1))
    job = profile(allocation=allocation(1, 1), observations=measure(true, [allocation(1, 1)]), **changes)
    path, free = [job], Resources(60.0, 200.0 * GIB)
    for _ in range(rounds):
        plan = decide(load_policy(name), [job], View(Capacity(free=free), PRICES)).plans[0]
        free = free - (plan.allocation.resources - job.allocation.resources)
        job = msgspec.structs.replace(
            job, allocation=plan.allocation, observations=job.observations + measure(true, [plan.allocation])
        )
        path.append(job)
    return path


def test_a_job_that_begins_with_one_worker_has_its_best_count_within_three_rounds() -> None:
    true = coefficients((0.7, 0.04, 0.02, 0.14, 0.1))
    path = grown("three-stage", 6, movable=WORKERS)
    assert path[3].allocation.workers >= 0.6 * path[6].allocation.workers
    assert speed(true, path[3].allocation) >= 0.9 * speed(true, path[6].allocation)
    assert path[6].allocation == path[5].allocation


def test_baselines_take_one_step_at_a_time() -> None:
    for name in ("optimus", "elastic-scheduler"):
        for before, after in zip(path := grown(name, 4), path[1:], strict=False):
            steps = (
                abs(after.allocation.workers - before.allocation.workers),
                abs(after.allocation.parameter_servers - before.allocation.parameter_servers),
            )
            assert sum(steps) <= 1
            assert name == "optimus" or steps[1] == 0
        assert path[-1].allocation.workers > 1


def test_static_changes_nothing() -> None:
    assert len({job.allocation for job in grown("static", 3)}) == 1


def test_equal_arguments_give_equal_rounds() -> None:
    jobs = [profile(job_id=str(k), remaining_samples=1e8 * (k + 1)) for k in range(3)]
    view = View(Capacity(free=Resources(9.0, 100.0 * GIB)), PRICES)
    for name in policy_names():
        assert decide(load_policy(name), jobs, view) == decide(load_policy(name), jobs, view)
