"""A memory forecast and a plan for the same job: the order, and the fate of the second one."""

from __future__ import annotations

import msgspec

from elastrec.platform.scaling.across_jobs.one_change import describe, one_change
from elastrec.platform.scaling.amounts import Change
from elastrec.platform.scaling.memory_watch import MEMORY
from elastrec.platform.scaling.policies.three_stage import ThreeStage
from elastrec.platform.scaling.policy import Round, View, decide
from elastrec.platform.scaling.types import JobProfile, MemoryWish
from tests.platform.scaling.jobs import PLENTY, PRICES, profile

MORE = MemoryWish(
    allocation=msgspec.structs.replace(profile().allocation, parameter_server_memory_bytes=8 * 2**30),
    reason="the limit is reached in 600 s at the earliest", seconds_to_limit=600.0,
)  # fmt: skip


def round_of(job: JobProfile) -> Round:
    return decide(ThreeStage(), [job], View(PLENTY, PRICES))


def test_without_a_wish_a_round_is_not_changed() -> None:
    job = profile()
    assert one_change(round_of(job), [job]) == (round_of(job), {})


def test_a_change_that_prevents_a_failure_replaces_a_plan_where_it_is_possible() -> None:
    job = profile(memory_wish=MORE)
    found, verdicts = one_change(round_of(job), [job])
    (plan,) = found.plans
    assert plan.policy == MEMORY and plan.allocation == MORE.allocation
    assert "memory-forecast (prevent failure)" in describe(verdicts["job"])


def test_a_change_that_is_not_possible_yet_is_sent_to_the_master_with_the_plan() -> None:
    job = profile(memory_wish=MORE, movable=frozenset({Change.WORKERS}))
    found, verdicts = one_change(round_of(job), [job])
    memory, plan = found.plans
    assert (memory.policy, memory.allocation) == (MEMORY, MORE.allocation)
    assert plan == round_of(job).plans[0] and plan.allocation.workers > job.allocation.workers
    assert "not memory-forecast: server size: left to the job's master" in describe(verdicts["job"])


def test_a_job_without_a_proposal_gets_only_the_memory_plan() -> None:
    asked, resting = profile(job_id="asked"), profile(job_id="resting", memory_wish=MORE)
    found, verdicts = one_change(round_of(asked), [asked, resting])
    assert [(plan.job_id, plan.policy) for plan in found.plans] == [("resting", MEMORY), ("asked", "three-stage")]
    assert "memory-forecast (prevent failure)" in describe(verdicts["resting"])


def test_a_job_without_a_proposal_and_with_enough_memory_is_not_changed() -> None:
    asked = profile(job_id="asked")
    assert one_change(round_of(asked), [asked, profile(job_id="resting")]) == (round_of(asked), {})
