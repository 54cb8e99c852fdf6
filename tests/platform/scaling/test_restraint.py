"""Changes that no policy may make: less memory than the rows need, changes too soon, and changes back and forth."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elastrec.platform.scaling.amounts import Allocation, Change
from elastrec.platform.scaling.policies.optimus import Optimus
from elastrec.platform.scaling.policies.three_stage import ThreeStage
from elastrec.platform.scaling.policy import ScalingPolicy, View, decide, propose_safely
from elastrec.platform.scaling.types import EXPLORING, Candidate, JobProfile, MemoryNeed, PastChange
from tests.platform.scaling.jobs import GIB, PLENTY, PRICES, allocation, coefficients, measure, profile, spread

VIEW = View(PLENTY, PRICES)
POLICIES = [ThreeStage(), Optimus()]
GROWN = PastChange(before=allocation(1), after=allocation(2), seconds_ago=300.0, asked_by="three-stage")


def candidates(job: JobProfile, policy: ScalingPolicy | None = None) -> tuple[Candidate, ...]:
    proposal, problem = propose_safely(policy or ThreeStage(), job, VIEW)
    assert proposal is not None, problem
    return proposal.candidates[1:]


needs = st.builds(
    MemoryNeed,
    worker_bytes=st.integers(1, 3 * GIB),
    server_base_bytes=st.integers(0, GIB),
    embedding_bytes=st.integers(1, 64 * GIB),
    imbalance=st.floats(1.0, 2.0),
)
movables = st.frozensets(st.sampled_from(list(Change)), min_size=1)
allocations = st.builds(allocation, st.integers(1, 8), st.integers(1, 6), st.sampled_from([0.5, 1.0, 4.0]))


@settings(deadline=None, max_examples=40)
@given(need=needs, movable=movables, now=allocations, policy=st.sampled_from(POLICIES), young=st.booleans())
def test_no_candidate_has_less_memory_than_the_rows_are_known_to_need(
    need: MemoryNeed, movable: frozenset[Change], now: Allocation, policy: ScalingPolicy, young: bool
) -> None:
    seen = measure(coefficients(), [now] if young else spread(20))
    job = profile(memory=need, movable=movable, allocation=now, observations=seen)
    for each in candidates(job, policy):
        planned = each.allocation
        kept = planned.parameter_servers, planned.parameter_server_memory_bytes
        assert (
            kept == (now.parameter_servers, now.parameter_server_memory_bytes)
            or kept[1] >= need.server_bytes(planned.parameter_servers)
        )  # fmt: skip
        assert planned.worker_memory_bytes in (now.worker_memory_bytes,) or (
            planned.worker_memory_bytes >= need.worker_bytes
        )


def test_candidates_with_too_little_memory_are_removed_for_every_policy() -> None:
    class Thrifty(ThreeStage):
        def propose(self, job, view):  # type: ignore[no-untyped-def]
            found = super().propose(job, view)
            less = msgspec.structs.replace(job.allocation, parameter_server_memory_bytes=GIB)
            return msgspec.structs.replace(
                found, candidates=(*found.candidates, msgspec.structs.replace(found.candidates[0], allocation=less))
            )

    need = MemoryNeed(worker_bytes=1, server_base_bytes=0, embedding_bytes=2 * GIB, imbalance=1.0)
    proposal, problem = propose_safely(Thrifty(), profile(memory=need), VIEW)
    assert proposal is not None and not problem
    assert GIB not in {each.allocation.parameter_server_memory_bytes for each in proposal.candidates}
    assert any("left out: 1 server with 1 GiB each; its rows need 2 GiB" in note for note in proposal.notes)


def test_a_plan_of_a_foreign_policy_with_too_little_memory_is_refused_with_the_amounts() -> None:
    class Thrifty(ThreeStage):
        def select(self, proposals, view):  # type: ignore[no-untyped-def]
            (plan,) = super().select(proposals, view)
            less = msgspec.structs.replace(plan.before, parameter_server_memory_bytes=GIB)
            return [msgspec.structs.replace(plan, allocation=less)]

    need = MemoryNeed(worker_bytes=1, server_base_bytes=0, embedding_bytes=2 * GIB, imbalance=1.0)
    decided = decide(Thrifty(), [profile(memory=need)], VIEW)
    assert not decided.plans[0].changes
    assert "1 server with 1 GiB each; its rows need 2 GiB in each" in decided.problems["job"]


def test_a_fixed_size_does_not_forbid_more_workers() -> None:
    full = MemoryNeed(worker_bytes=8 * GIB, server_base_bytes=0, embedding_bytes=64 * GIB)
    assert any(
        each.allocation.workers > 2 for each in candidates(profile(memory=full, movable=frozenset({Change.WORKERS})))
    )


def test_a_job_rests_after_a_change() -> None:
    assert candidates(profile())
    just = msgspec.structs.replace(GROWN, seconds_ago=10.0)
    proposal, _ = propose_safely(ThreeStage(), profile(changes=(just,)), VIEW)
    assert proposal is not None and len(proposal.candidates) == 1
    assert any("cooling down after three-stage changed workers 10 s ago" in note for note in proposal.notes)


@pytest.mark.parametrize(("asked_by", "seconds_ago", "may"), [
    ("three-stage", 300.0, False), ("three-stage", 1000.0, True), (EXPLORING, 300.0, True), ("", 300.0, False),
])  # fmt: skip
def test_a_change_is_not_undone_soon_unless_it_was_only_tried(asked_by: str, seconds_ago: float, may: bool) -> None:
    dear = allocation(16, 1, 8.0)
    past = PastChange(before=allocation(2, 1, 8.0), after=dear, seconds_ago=seconds_ago, asked_by=asked_by)
    found = candidates(profile(allocation=dear, changes=(past,)))
    assert any(each.allocation.workers < 16 for each in found) == may


def test_servers_keep_their_memory_until_new_servers_have_taken_their_rows() -> None:
    need = MemoryNeed(worker_bytes=1, server_base_bytes=0, embedding_bytes=18 * GIB, imbalance=1.0)
    now = msgspec.structs.replace(allocation(2, 3), parameter_server_memory_bytes=6 * GIB + GIB // 2)
    job = profile(memory=need, allocation=now, observations=measure(coefficients(), [now]))

    def lacking(servers: int, gib: float) -> str:
        planned = msgspec.structs.replace(
            now, parameter_servers=servers, parameter_server_memory_bytes=int(gib * GIB)
        )  # fmt: skip
        return job.lacks_memory(planned)

    assert "rows need 6 GiB" in lacking(4, 5.0), "three servers hold all rows until the fourth has started"
    assert not lacking(4, 6.0) and not lacking(3, 6.0)
    assert "rows need 9 GiB" in lacking(2, 8.0)
    for each in candidates(job, ThreeStage()):
        assert each.allocation.parameter_server_memory_bytes >= 6 * GIB
