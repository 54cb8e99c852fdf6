"""The state machine of async, bsp and ssp under any order of events."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elastrec.trainers.parameter_server.consistency import Consistency

WORKERS = ["a", "b", "c"]


def test_a_round_of_bsp_waits_for_every_member_and_does_not_depend_on_the_order_of_arrival() -> None:
    machine = Consistency("bsp")
    machine.join("a", 1)
    machine.join("b", 1)
    assert machine.push("b", 1) == []
    assert not machine.may_pull("b")
    assert machine.may_pull("a")
    assert machine.push("a", 2) == [[("a", 2), ("b", 1)]]
    assert machine.may_pull("b")


def test_a_member_that_leaves_completes_the_round_and_its_push_counts() -> None:
    machine = Consistency("bsp")
    for worker in WORKERS:
        machine.join(worker, 1)
    machine.push("a", 1)
    machine.push("b", 2)
    assert machine.leave("a") == []
    assert machine.leave("c") == [[("a", 1), ("b", 2)]]


def test_a_dropped_members_pending_push_is_void() -> None:
    machine = Consistency("bsp")
    machine.join("a", 1)
    machine.join("b", 1)
    machine.push("a", 1)
    assert machine.drop("a") == ([1], [])
    assert machine.push("b", 2) == [[("b", 2)]]


def test_a_worker_that_joined_survives_lists_that_are_older_than_its_directive() -> None:
    machine = Consistency("ssp", 1)
    assert machine.join("a", 7)
    assert machine.confirm([], 5) == []
    assert machine.confirm([], 6) == []
    assert machine.confirm(["a"], 7) == []
    assert machine.confirm([], 8) == ["a"]


def test_a_worker_that_died_before_any_list_named_it_is_dropped_by_the_first_that_omits_it() -> None:
    machine = Consistency("bsp")
    machine.join("a", 5)
    machine.join("b", 5)
    assert machine.confirm(["a"], 6) == ["b"]


def test_a_worker_that_the_list_omits_takes_no_part_until_a_newer_list_names_it() -> None:
    machine = Consistency("bsp")
    machine.confirm(["a"], 6)
    assert not machine.join("b", 6)
    assert machine.members == []
    machine.confirm(["a", "b"], 7)
    assert machine.join("b", 6)


def test_an_old_list_that_arrives_late_changes_nothing() -> None:
    machine = Consistency("bsp")
    machine.confirm(["a"], 6)
    machine.join("a", 6)
    assert machine.confirm([], 5) == []
    assert machine.members == ["a"]


@pytest.mark.parametrize("staleness", [0, 1, 3])
def test_ssp_lets_nobody_run_further_ahead_than_k(staleness: int) -> None:
    machine = Consistency("ssp", staleness)
    machine.join("a", 1)
    machine.join("b", 1)
    steps = 0
    while machine.may_pull("a") and steps < 100:
        machine.push("a", steps)
        steps += 1
    assert steps == staleness + 1
    machine.push("b", 1000)
    assert machine.may_pull("a")


events = st.lists(
    st.tuples(st.sampled_from(["step", "step", "step", "step", "leave", "drop", "confirm"]), st.sampled_from(WORKERS)),
    max_size=120,
)


@settings(max_examples=300, deadline=None)
@given(events=events, mode=st.sampled_from(["async", "bsp", "ssp"]), staleness=st.integers(0, 3))
def test_any_order_of_events_applies_each_push_once_keeps_the_bound_and_blocks_not_everybody(
    events: list[tuple[str, str]], mode: str, staleness: int
) -> None:
    machine = Consistency(mode, staleness)  # type: ignore[arg-type]
    sent, applied, void = 0, [], set()
    must_push: set[str] = set()

    def take(rounds: list[list[tuple[str, int]]]) -> None:
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
