"""Rounds of bsp have the same members on every server, for any order of requests."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from hypothesis import given, settings
from hypothesis import strategies as st

from elastrec.platform.transport.messages.directive import WorkerProcess
from elastrec.trainers.parameter_server.serving.consistency import Consistency, Round

A, B, C = WORKERS = [WorkerProcess(pod, "first") for pod in "abc"]
Action = Callable[[], None]


def test_a_worker_joins_the_open_round_until_its_rows_are_shared_out() -> None:
    machine = Consistency("bsp")
    machine.join(A, 1)
    machine.join(B, 1)
    machine.open_round()
    machine.join(C, 1)
    assert machine.awaited == [A, B] and not machine.may_pull(C)
    machine.push(A, 1, 0)
    assert machine.push(B, 2, 0) == [[(A, 1), (B, 2)]]
    assert machine.awaited == WORKERS and machine.may_pull(C)


def test_no_server_waits_for_a_worker_before_the_round_that_another_has_named() -> None:
    machine = Consistency("bsp")
    for worker in (A, B):
        machine.join(worker, 1)
    machine.open_round()
    machine.push(A, 1, 0)
    assert machine.advance(B, 1) == [[(A, 1)]]
    machine.push(B, 2, 1)
    assert machine.push(A, 3, 1) == [[(A, 3), (B, 2)]]


def test_a_push_may_be_marked_as_the_workers_last_one() -> None:
    machine = Consistency("bsp")
    for worker in (A, B):
        machine.join(worker, 1)
    machine.leave_after_push(A)
    machine.push(A, 1, 0)
    assert machine.members == [A, B]
    assert machine.push(B, 2, 0) == [[(A, 1), (B, 2)]]
    assert machine.members == [B]
    assert machine.push(B, 3, 1) == [[(B, 3)]]


def test_a_round_does_not_wait_for_a_member_without_a_share_which_joins_the_next_one() -> None:
    machine = Consistency("bsp")
    for worker in (A, B):
        machine.join(worker, 1)
    machine.open_round(without=[B])
    assert machine.push(A, 1, 0) == [[(A, 1)]]
    assert machine.awaited == [A, B]


def test_rounds_without_workers_are_skipped() -> None:
    machine = Consistency("bsp")
    machine.join(A, 1)
    machine.advance(A, 7)
    assert machine.round == 7 and machine.awaited == [A]


class Worker:
    """One worker against all servers: its requests reach them one by one, in any order."""

    def __init__(self, process: WorkerProcess, servers: list[Server]) -> None:
        self.process, self.servers = process, servers
        self.state = "away"
        self.waits_for: set[int] = set()
        self.round = -1

    def actions(self, *, joins: bool) -> list[Action]:
        """What may happen to it next."""
        if self.state == "away":
            return [partial(self._become, "joining")] if joins else []
        if self.state == "released":
            return [partial(self._become, "leaving"), *([partial(self._become, "pulling")] if joins else [])]
        return [partial(self._reach, server) for server in self.waits_for if self._may_reach(server)]

    def _become(self, state: str) -> None:
        self.state, self.waits_for = state, set(range(len(self.servers)))

    def _may_reach(self, number: int) -> bool:
        machine = self.servers[number].machine
        if self.state == "asking":
            return machine.first_round(self.process) < self.round or number > 0 or machine.is_awaited(self.process)
        if self.state == "pulling":
            return machine.may_pull(self.process)
        return self.state != "waiting" or machine.round > self.round

    def _reach(self, number: int) -> None:
        server, machine = self.servers[number], self.servers[number].machine
        if self.state == "joining":
            machine.join(self.process, 1)
            self.round = max(self.round, machine.first_round(self.process))
        elif self.state == "asking":
            server.take(machine.advance(self.process, self.round))
            if number == 0:
                if not machine.is_awaited(self.process):
                    return
                machine.open_round()
        elif self.state == "pushing":
            server.take(machine.push(self.process, 0, self.round))
        elif self.state == "waiting" and number == 0:
            machine.open_round()
        elif self.state == "leaving":
            server.take(machine.leave(self.process))
        self.waits_for.discard(number)
        if not self.waits_for:
            self._next()

    def _next(self) -> None:
        following = {"joining": "asking", "asking": "pulling", "pulling": "pushing", "pushing": "waiting"}
        if self.state == "waiting":
            self.round += 1
            self.state = "released"
        elif self.state == "leaving":
            self.state, self.round = "away", -1
        else:
            self._become(following[self.state])


class Server:
    """One server, and who was in each of its rounds."""

    def __init__(self) -> None:
        self.machine = Consistency("bsp")
        self.rounds: list[list[WorkerProcess]] = []

    def take(self, rounds: list[Round]) -> None:
        self.rounds += [[worker for worker, _ in pushes] for pushes in rounds]


@settings(max_examples=400, deadline=None)
@given(st.lists(st.integers(0, 1000), max_size=200), st.integers(1, 3))
def test_all_servers_see_the_same_rounds_in_any_order_of_events(picks: list[int], count: int) -> None:
    servers = [Server() for _ in range(count)]
    workers = [Worker(process, servers) for process in WORKERS]
    for pick in picks:
        actions = [action for worker in workers for action in worker.actions(joins=True)]
        assert actions, "all wait for each other"
        actions[pick % len(actions)]()
    for _ in range(1000):
        actions = [action for worker in workers for action in worker.actions(joins=False)]
        if not actions:
            break
        actions[0]()
    assert [worker.state for worker in workers] == ["away"] * len(workers)
    assert all(server.rounds == servers[0].rounds for server in servers)
