"""The state machine of async, bsp and ssp, for any order of events."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elastrec.platform.transport.messages.directive import WorkerProcess
from elastrec.trainers.parameter_server.serving.consistency import Consistency, Round

A, B, C = (WorkerProcess(pod, "first") for pod in "abc")
WORKERS = [A, B, C]


def test_a_bsp_round_waits_for_every_member_in_any_order() -> None:
    machine = Consistency("bsp")
    machine.join(A, 1)
    machine.join(B, 1)
    assert machine.push(B, 1) == []
    assert not machine.may_pull(B)
    assert machine.may_pull(A)
    assert machine.push(A, 2) == [[(A, 2), (B, 1)]]
    assert machine.may_pull(B)


def test_a_member_that_leaves_completes_the_round_and_its_push_counts() -> None:
    machine = Consistency("bsp")
    for worker in WORKERS:
        machine.join(worker, 1)
    machine.push(A, 1)
    machine.push(B, 2)
    assert machine.leave(A) == []
    assert machine.leave(C) == [[(A, 1), (B, 2)]]


def test_a_pending_push_of_a_removed_member_is_discarded() -> None:
    machine = Consistency("bsp")
    machine.join(A, 1)
    machine.join(B, 1)
    machine.push(A, 1)
    assert machine.drop(A) == ([1], [])
    assert machine.push(B, 2) == [[(B, 2)]]


def test_a_worker_that_joined_survives_lists_that_are_older_than_its_directive() -> None:
    machine = Consistency("ssp", 1)
    assert machine.join(A, 7)
    assert machine.confirm([], 5) == []
    assert machine.confirm([], 6) == []
    assert machine.confirm([A], 7) == []
    assert machine.confirm([], 8) == [A]


def test_a_worker_missing_from_the_first_membership_list_is_dropped() -> None:
    machine = Consistency("bsp")
    machine.join(A, 5)
    machine.join(B, 5)
    assert machine.confirm([A], 6) == [B]


def test_a_worker_that_the_list_omits_takes_no_part_until_a_newer_list_names_it() -> None:
    machine = Consistency("bsp")
    machine.confirm([A], 6)
    assert not machine.join(B, 6)
    assert machine.members == []
    machine.confirm([A, B], 7)
    assert machine.join(B, 6)


def test_an_old_list_that_arrives_late_changes_nothing() -> None:
    machine = Consistency("bsp")
    machine.confirm([A], 6)
    machine.join(A, 6)
    assert machine.confirm([], 5) == []
    assert machine.members == [A]


@pytest.mark.parametrize("staleness", [0, 1, 3])
def test_with_ssp_no_worker_is_more_than_k_steps_ahead(staleness: int) -> None:
    machine = Consistency("ssp", staleness)
    machine.join(A, 1)
    machine.join(B, 1)
    steps = 0
    while machine.may_pull(A) and steps < 100:
        machine.push(A, steps)
        steps += 1
    assert steps == staleness + 1
    machine.push(B, 1000)
    assert machine.may_pull(A)


events = st.lists(
    st.tuples(st.sampled_from(["step", "step", "step", "step", "leave", "drop", "confirm"]), st.sampled_from(WORKERS)),
    max_size=120,
)


@settings(max_examples=300, deadline=None)
@given(events=events, mode=st.sampled_from(["async", "bsp", "ssp"]), staleness=st.integers(0, 3))
def test_any_order_of_events_applies_each_push_once_within_the_bound_without_deadlock(
    events: list[tuple[str, WorkerProcess]], mode: str, staleness: int
) -> None:
    machine = Consistency(mode, staleness)  # type: ignore[arg-type]
    sent, applied, void = 0, [], set()
    must_push: set[WorkerProcess] = set()

    def take(rounds: list[Round]) -> None:
        for pushes in rounds:
            assert len({worker for worker, _ in pushes}) == len(pushes)
            applied.extend(token for _, token in pushes)

    for version, (kind, worker) in enumerate(events):
        if kind == "step" and worker in must_push:
            must_push.discard(worker)
            assert machine.join(worker, version)
            take(machine.push(worker, sent))
            sent += 1
        elif kind == "step":
            assert machine.join(worker, version)
            if machine.may_pull(worker):
                must_push.add(worker)
                if mode == "ssp":
                    slowest = min(machine.clock(member) for member in machine.members)
                    assert machine.clock(worker) - slowest <= staleness
        elif kind == "leave":
            must_push.discard(worker)
            take(machine.leave(worker))
        elif kind == "drop":
            must_push.discard(worker)
            gone, rounds = machine.drop(worker)
            void.update(gone)
            take(rounds)
        else:
            for gone_worker in machine.confirm([worker], version):
                must_push.discard(gone_worker)
                gone, rounds = machine.drop(gone_worker)
                void.update(gone)
                take(rounds)
        if machine.members:
            assert any(member in must_push or machine.may_pull(member) for member in machine.members)
    for worker in list(machine.members):
        take(machine.leave(worker))
    assert sorted(applied) == sorted(set(applied))
    assert set(applied) | void == set(range(sent))
    assert not set(applied) & void
