"""A round over several teams: the same policy, with guaranteed shares first."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from elastrec.platform.scaling.across_jobs.quota import POLICY, Holder, Shares
from elastrec.platform.scaling.across_jobs.shared_round import Standing, decide_shared
from elastrec.platform.scaling.amounts import Capacity, Change, Resources
from elastrec.platform.scaling.policies.three_stage import ThreeStage
from elastrec.platform.scaling.policy import Round, View, decide
from elastrec.platform.scaling.types import JobProfile, Limits, Plan, Proposal
from tests.platform.scaling.jobs import GIB, PRICES, allocation, profile

TOTAL = Resources(24.0, 400.0 * GIB)


def job(job_id: str, team: str, workers: int, **changes: object) -> JobProfile:
    made = profile(
        job_id=job_id, team=team, allocation=allocation(workers, 1), limits=Limits(workers=(1, 64)),
        movable=frozenset({Change.WORKERS}),
    )  # fmt: skip
    return msgspec.structs.replace(made, **changes)


def view(jobs: Sequence[JobProfile]) -> View:
    held = sum((each.allocation.resources for each in jobs), Resources())
    return View(Capacity(free=TOTAL - held), PRICES)


def standing(
    jobs: Sequence[JobProfile], waiting: dict[str, list[Resources]] | None = None, **shares: float
) -> Standing:
    held: dict[str, Resources] = {}
    for each in jobs:
        held[each.team] = held.get(each.team, Resources()) + each.allocation.resources
    holders = [
        Holder(job_id=each.job_id, team=each.team, allocation=each.allocation, least_workers=each.limits.workers[0])
        for each in jobs
    ]
    return Standing(Shares(total=TOTAL, entitled=shares, held=held), holders, waiting or {})


def workers(found: Round) -> dict[str, int]:
    return {plan.job_id: plan.allocation.workers for plan in found.plans}


def test_without_shares_a_round_equals_the_decision_of_the_policy() -> None:
    jobs = [job("a", "ads", 2), job("b", "search", 2)]
    assert (
        decide_shared(ThreeStage(), jobs, view(jobs), standing(jobs)).plans
        == decide(ThreeStage(), jobs, view(jobs)).plans
    )


def test_without_shares_the_policy_chooses_once() -> None:
    class Counting(ThreeStage):
        selections = 0

        def select(self, proposals: Sequence[Proposal], view: View) -> tuple[Plan, ...]:
            self.selections += 1
            return super().select(proposals, view)

    policy, jobs = Counting(), [job("a", "ads", 2), job("b", "search", 2)]
    assert len(decide_shared(policy, jobs, view(jobs), standing(jobs)).plans) == 2
    assert policy.selections == 1


def test_a_job_grows_beyond_its_teams_share_into_idle_capacity() -> None:
    jobs = [job("a", "ads", 2)]
    assert workers(decide_shared(ThreeStage(), jobs, view(jobs), standing(jobs, ads=0.2, search=0.8)))["a"] > 5


def test_a_team_with_a_right_to_grow_gets_it_back_in_this_round_and_grows_in_the_next() -> None:
    jobs = [job("borrower", "ads", 20), job("owner", "search", 1)]
    first = decide_shared(ThreeStage(), jobs, view(jobs), standing(jobs, ads=0.25, search=0.75))
    (given,) = [plan for plan in first.plans if plan.policy == POLICY]
    assert given.job_id == "borrower" and given.allocation.workers < 20
    assert first.plans[0] is given and workers(first)["owner"] <= 2, "what comes back is granted when it is there"
    jobs = [job("borrower", "ads", given.allocation.workers), jobs[1]]
    second = decide_shared(ThreeStage(), jobs, view(jobs), standing(jobs, ads=0.25, search=0.75))
    assert workers(second)["owner"] > 2 and workers(second)["borrower"] <= given.allocation.workers


def test_no_job_grows_into_the_entitlement_of_a_waiting_pod() -> None:
    jobs = [job("a", "ads", 10)]
    free = view(jobs).capacity.free.cores
    pods = [Resources(1.0, GIB)] * 12
    found = decide_shared(ThreeStage(), jobs, view(jobs), standing(jobs, {"search": pods}, ads=0.25, search=0.75))
    assert workers(found)["a"] - 10 <= free - 12


def test_a_job_without_a_decision_still_returns_borrowed_workers() -> None:
    young = job("young", "ads", 19, observations=())
    jobs = [young, job("b", "search", 3)]
    pods = [Resources(2.0, GIB)]
    known = standing(jobs, {"search": pods}, ads=0.25, search=0.75)
    found = decide_shared(ThreeStage(), [], view(jobs), known)
    assert workers(found) == {"young": 17}


def test_every_job_has_one_plan_and_together_they_fit() -> None:
    jobs = [job("a", "ads", 6), job("b", "search", 2), job("c", "guest", 3), job("d", "ads", 1, observations=())]
    found = decide_shared(ThreeStage(), jobs, view(jobs), standing(jobs, ads=0.4, search=0.5))
    assert sorted(plan.job_id for plan in found.plans) == ["a", "b", "c", "d"]
    more = sum((plan.allocation.resources - plan.before.resources for plan in found.plans), Resources())
    assert more.fits(view(jobs).capacity.free)
    assert "d" in found.problems


def test_a_cluster_smaller_than_its_jobs_reclaims_workers_and_no_job_grows() -> None:
    jobs = [job("a", "ads", 14), job("b", "search", 12, limits=Limits(workers=(10, 64)))]
    overdrawn = view(jobs)
    assert overdrawn.capacity.free.cores == -4.0
    found = workers(decide_shared(ThreeStage(), jobs, overdrawn, standing(jobs)))
    assert found["a"] + found["b"] == 22 and found["a"] < 14 and found["b"] >= 10
    alone = decide(ThreeStage(), jobs, overdrawn)
    assert all(plan.allocation.workers <= plan.before.workers for plan in alone.plans)
