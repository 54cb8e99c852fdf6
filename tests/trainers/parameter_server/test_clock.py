"""The clock of a job is that of its master, and advances with the monotonic clock."""

from __future__ import annotations

import threading

from elastrec.trainers.parameter_server.clock import JobClock
from elastrec.trainers.parameter_server.pod import PodSettings, ServerPod
from tests.trainers.parameter_server.running import TOKEN, ScriptedMaster, training_job


class Node:
    """The two clocks of a node."""

    def __init__(self, wall: float) -> None:
        self.wall, self.monotonic = wall, 50.0

    def pass_seconds(self, seconds: float) -> None:
        self.wall += seconds
        self.monotonic += seconds

    def clock(self) -> JobClock:
        return JobClock(lambda: self.wall, lambda: self.monotonic)


def test_servers_on_nodes_whose_clocks_differ_agree_with_their_master() -> None:
    nodes = [Node(1_000_000.0), Node(1_000_700.0), Node(900_000.0)]
    clocks = [node.clock() for node in nodes]
    for clock in clocks:
        clock.follow(1_000_300.0)
    for node in nodes:
        node.pass_seconds(25.0)
    assert [clock() for clock in clocks] == [1_000_325.0] * 3


def test_a_node_whose_clock_is_set_changes_nothing() -> None:
    node = Node(1_000_000.0)
    clock = node.clock()
    node.wall -= 86_400.0
    node.pass_seconds(5.0)
    assert clock() == 1_000_005.0


def test_a_later_master_moves_the_clock_forward_and_never_back() -> None:
    node = Node(1_000_000.0)
    clock = node.clock()
    clock.follow(999_000.0)
    assert clock() == 999_000.0, "the first master may be behind the node"
    node.pass_seconds(10.0)
    clock.follow(998_000.0)
    assert clock() == 999_010.0
    clock.follow(999_500.0)
    assert clock() == 999_500.0


def test_a_server_evicts_by_the_clock_of_the_master_that_it_registers_with() -> None:
    master = ScriptedMaster(training_job(), servers=1)
    master.wall_seconds = 4_000_000_000.0
    pod = ServerPod(PodSettings("ps-0", "node", master.address, "127.0.0.1", 0, TOKEN))
    running = threading.Thread(target=pod.run)
    running.start()
    try:
        master.wait(lambda: master.heartbeats, "the server reports")
        assert pod._server is not None
        assert 4_000_000_000.0 <= pod._server.now_seconds() < 4_000_000_500.0
    finally:
        pod.stop()
        running.join(60)
        master.close()
    assert not running.is_alive()
