"""Shares of a cluster: what is returned to whom, and what is never taken away."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from elastrec.platform.scaling.across_jobs.quota import Holder, Shares, reclaim
from elastrec.platform.scaling.amounts import Allocation, Resources
from elastrec.platform.specs.errors import ScalingError
from tests.platform.scaling.jobs import GIB

TOTAL = Resources(16.0, 64.0 * GIB)
WORKER = Resources(1.0, 2.0 * GIB)


def holder(job_id: str, team: str, workers: int, **changes: object) -> Holder:
    allocation = Allocation(
        workers=workers, parameter_servers=1, worker_cores=1.0, parameter_server_cores=1.0,
        worker_memory_bytes=2 * GIB, parameter_server_memory_bytes=2 * GIB,
    )  # fmt: skip
    return msgspec.structs.replace(Holder(job_id=job_id, team=team, allocation=allocation), **changes)


def held_by(holders: list[Holder]) -> dict[str, Resources]:
    """What pods hold that do not wait for room."""
    held: dict[str, Resources] = {}
    for each in holders:
        waiting = Resources(each.worker.cores * each.pending_workers, each.worker.memory_bytes * each.pending_workers)
        held[each.team] = held.get(each.team, Resources()) + (each.allocation.resources - waiting)
    return held


def standing(holders: list[Holder], total: Resources = TOTAL, **entitled: float) -> Shares:
    return Shares(total=total, entitled=entitled, held=held_by(holders))


def test_a_borrower_gives_back_as_much_as_others_ask_for_by_right() -> None:
    jobs = [holder("ads-1", "ads", 11), holder("search-1", "search", 1)]
    found = reclaim(jobs, standing(jobs, ads=0.5, search=0.5), {"search": [WORKER] * 4})
    (plan,) = found.plans
    # 14 of 16 cores are held, so that two of the four that search asks for are free.
    assert (plan.job_id, plan.before.workers, plan.allocation.workers) == ("ads-1", 11, 9)
    assert "search asks for 4 cores" in plan.reason and found.rightful["search"].cores == 4.0


def test_of_two_teams_that_borrow_neither_gives_more_than_it_has_borrowed() -> None:
    jobs = [holder("ads-1", "ads", 6), holder("guest-1", "guest", 5), holder("search-1", "search", 1)]
    found = reclaim(jobs, standing(jobs, ads=0.25, guest=0.25, search=0.5), {"search": [WORKER] * 6})
    # One of 16 cores is free. Ads has 7 and a share of 4, guest 6 and a share of 4: five are to come from both.
    assert {plan.job_id: plan.allocation.workers for plan in found.plans} == {"ads-1": 3, "guest-1": 3}


def test_no_team_returns_capacity_while_enough_is_idle() -> None:
    jobs = [holder("ads-1", "ads", 9), holder("search-1", "search", 1)]
    assert not reclaim(jobs, standing(jobs, ads=0.5, search=0.5), {"search": [WORKER] * 4}).plans


def test_requests_beyond_the_share_take_nothing_from_others() -> None:
    jobs = [holder("ads-1", "ads", 7), holder("search-1", "search", 7)]
    found = reclaim(jobs, standing(jobs, ads=0.5, search=0.5), {"search": [WORKER] * 4})
    assert not found.plans and found.rightful == {"search": Resources()}


def test_a_pod_that_does_not_fit_into_the_share_as_a_whole_takes_nothing() -> None:
    jobs = [holder("ads-1", "ads", 11), holder("search-1", "search", 3)]
    huge = Resources(5.0, 2.0 * GIB)
    assert not reclaim(jobs, standing(jobs, ads=0.5, search=0.5), {"search": [huge]}).plans


def test_no_worker_is_taken_for_a_pod_for_which_all_borrowed_capacity_is_too_small() -> None:
    jobs = [holder("ads-1", "ads", 11, least_workers=9), holder("search-1", "search", 1)]
    shares = standing(jobs, ads=0.375, search=0.625)
    huge = Resources(5.0, 2.0 * GIB)
    # Two of 16 cores are free, and ads can give up two workers.
    found = reclaim(jobs, shares, {"search": [huge]})
    assert not found.plans and found.rightful["search"].cores == 5.0
    (plan,) = reclaim(jobs, shares, {"search": [huge, *[WORKER] * 3]}).plans
    assert plan.allocation.workers == 10 and "search asks for 3 cores" in plan.reason


def test_the_job_of_least_priority_gives_first_and_none_falls_below_its_least_number() -> None:
    jobs = [
        holder("nightly", "ads", 4, priority=1.0, least_workers=3),
        holder("urgent", "ads", 7, priority=5.0),
        holder("search-1", "search", 2),
    ]
    found = reclaim(jobs, standing(jobs, ads=0.4, search=0.6), {"search": [WORKER] * 5})
    assert {plan.job_id: plan.allocation.workers for plan in found.plans} == {"nightly": 3, "urgent": 3}


def test_an_unlisted_team_uses_only_idle_capacity() -> None:
    jobs = [holder("guest-1", "guest", 14), holder("ads-1", "ads", 1)]
    (plan,) = reclaim(jobs, standing(jobs, ads=1.0), {"ads": [WORKER] * 14}).plans
    assert (plan.job_id, plan.allocation.workers) == ("guest-1", 1)


def test_a_waiting_worker_is_given_up_before_a_training_one() -> None:
    jobs = [holder("ads-1", "ads", 12, pending_workers=2), holder("search-1", "search", 4)]
    (plan,) = reclaim(jobs, standing(jobs, ads=0.5, search=0.5), {"search": [WORKER], "ads": [WORKER] * 2}).plans
    assert plan.allocation.workers == 9


def test_capacity_that_is_lost_is_made_good_without_any_share() -> None:
    jobs = [holder("ads-1", "ads", 9), holder("search-1", "search", 5)]
    found = reclaim(jobs, standing(jobs, Resources(10.0, 64.0 * GIB)), {})
    assert sum(plan.before.workers - plan.allocation.workers for plan in found.plans) == 6
    assert all("the cluster has lost 6 cores" in plan.reason for plan in found.plans)


@pytest.mark.parametrize(
    ("entitled", "message"), [({"ads": 0.7, "search": 0.6}, "at most 1"), ({"ads": -0.1}, "teams.ads.share: -0.1")]
)
def test_shares_that_cannot_be_are_refused(entitled: dict[str, float], message: str) -> None:
    with pytest.raises(ScalingError, match=message):
        standing([], **entitled)


TEAMS = ("ads", "search", "guest")


@st.composite
def clusters(draw: st.DrawFn) -> tuple[list[Holder], Shares, dict[str, list[Resources]]]:
    """Jobs of three teams in a cluster that is large enough for them, or has become too small."""
    jobs = []
    for index in range(draw(st.integers(1, 6))):
        least = draw(st.integers(1, 4))
        workers = least + draw(st.integers(0, 8))
        pending = draw(st.integers(0, min(2, workers - 1)))
        cores, memory = draw(st.sampled_from([0.25, 0.5, 1.0, 2.0])), draw(st.sampled_from([1, 2, 8]))
        job = holder(
            f"j{index}", draw(st.sampled_from(TEAMS)), workers, least_workers=least, pending_workers=pending,
            priority=draw(st.sampled_from([1.0, 2.0])),
        )  # fmt: skip
        sized = msgspec.structs.replace(job.allocation, worker_cores=cores, worker_memory_bytes=memory * GIB)
        jobs.append(msgspec.structs.replace(job, allocation=sized))
    together = sum(held_by(jobs).values(), Resources())
    more = draw(st.floats(0.6, 2.0))
    entitled = {"ads": draw(st.floats(0, 0.6)), "search": draw(st.floats(0, 0.4))}
    shares = Shares(
        total=Resources(together.cores * more, together.memory_bytes * more), entitled=entitled, held=held_by(jobs)
    )
    waiting = {team: [WORKER] * draw(st.integers(0, 5)) for team in TEAMS}
    return jobs, shares, waiting


def after(jobs: list[Holder], shares: Shares, plans: dict[str, Allocation]) -> tuple[list[Holder], Shares]:
    """The cluster when the plans have been carried out."""
    changed = []
    for job in jobs:
        given = job.allocation.workers - plans.get(job.job_id, job.allocation).workers
        left = max(0, job.pending_workers - given)
        now = plans.get(job.job_id, job.allocation)
        changed.append(msgspec.structs.replace(job, allocation=now, pending_workers=left))
    return changed, Shares(total=shares.total, entitled=shares.entitled, held=held_by(changed))


def is_whole(shares: Shares) -> bool:
    return min(shares.free.cores, shares.free.memory_bytes) >= 0


@given(clusters())
def test_one_round_is_enough_and_no_job_falls_below_its_least_number(
    cluster: tuple[list[Holder], Shares, dict[str, list[Resources]]],
) -> None:
    jobs, shares, waiting = cluster
    found = reclaim(jobs, shares, waiting)
    plans = {plan.job_id: plan.allocation for plan in found.plans}
    for job in jobs:
        assert plans.get(job.job_id, job.allocation).workers >= job.least_workers
    if is_whole(shares):
        assert not reclaim(*after(jobs, shares, plans), waiting).plans, "a second round takes more"


@given(clusters())
def test_a_team_within_its_share_keeps_it_while_the_cluster_is_whole(
    cluster: tuple[list[Holder], Shares, dict[str, list[Resources]]],
) -> None:
    jobs, shares, waiting = cluster
    assume(is_whole(shares))
    found = reclaim(jobs, shares, waiting)
    _, left = after(jobs, shares, {plan.job_id: plan.allocation for plan in found.plans})
    for team in TEAMS:
        held, share = shares.held.get(team, Resources()), shares.entitled.get(team, 0.0)
        if any(job.team == team for job in jobs):
            least = min(shares.dominant(held), share)
            assert shares.dominant(left.held[team]) >= least - 1e-6


@given(clusters())
def test_nothing_is_taken_when_nothing_is_missing(
    cluster: tuple[list[Holder], Shares, dict[str, list[Resources]]],
) -> None:
    jobs, shares, _ = cluster
    assume(is_whole(shares))
    assert not reclaim(jobs, shares, {}).plans
