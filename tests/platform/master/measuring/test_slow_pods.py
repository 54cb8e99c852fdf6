"""A pod that has taken far longer for a row than the others of its role for a minute is slow, until it is moved."""

from __future__ import annotations

import pytest

from elastrec.platform.clusters.nodes import Node, NodeCondition
from elastrec.platform.master.machine.events import ServerHot, ShapeAsked
from elastrec.platform.master.measuring.hot_servers import HOT_RATIO, LEAST_ROWS_PER_SECOND, Load
from elastrec.platform.master.measuring.observations import Observations
from elastrec.platform.master.measuring.slow_pods import (
    COOL_DOWN_SECONDS,
    SLOW_RATIO,
    SLOW_SECONDS,
    SlowPods,
    comparable,
    has_room_elsewhere,
    slowest,
)
from elastrec.platform.master.pods.requests import open_requests
from elastrec.platform.specs.shape import PodSize
from elastrec.platform.transport.messages.job import Heartbeat, ServerLoad, WindowMetrics
from tests.platform.master.machine.test_migration import long_job, owners
from tests.platform.master.world import World
from tests.shapes import change

SMALL = PodSize(1.0, 100)


def speeds(*seconds_per_row: float) -> dict[str, float]:
    return {f"worker-{number}": seconds for number, seconds in enumerate(seconds_per_row)}


def test_a_worker_is_compared_with_the_median_of_the_others():
    slow = slowest(speeds(1.0, 4.0, 2.0, 1.5))
    assert slow is not None and (slow.pod, slow.ratio, slow.others_seconds_per_row) == ("worker-1", 4.0 / 1.5, 1.5)
    assert slowest(speeds(1.0, 0.999 * SLOW_RATIO)) is None
    assert slowest(speeds(9.0)) is None and slowest({}) is None and slowest(speeds(0.0, 0.0)) is None


def test_a_pod_is_slow_after_a_whole_minute_and_the_next_one_is_moved_much_later():
    seen, slow, even = SlowPods(), speeds(1.0, 3.0), speeds(1.0, 1.0)
    assert seen.look(slow, 0.0) is None
    assert seen.look(slow, SLOW_SECONDS - 1) is None
    assert seen.look(even, SLOW_SECONDS) is None, "a break"
    begun = SLOW_SECONDS + 1
    assert seen.look(slow, begun) is None
    assert seen.look(slow, begun + SLOW_SECONDS - 1) is None
    for seconds in (0.0, 5.0, 70.0):
        found = seen.look(slow, begun + SLOW_SECONDS + seconds)
        assert found is not None and (found.pod, found.since) == ("worker-1", begun), "nothing was done about it"
    moved = begun + SLOW_SECONDS + 70.0
    seen.moved(moved)
    assert seen.look(slow, moved + COOL_DOWN_SECONDS - 1) is None
    assert seen.look(slow, moved + COOL_DOWN_SECONDS) is not None
    seen.forget()
    assert seen.look(slow, moved + 3 * COOL_DOWN_SECONDS) is None


def servers(*seconds_per_row: float, rows: float = 10_000.0, cores: float = 2.0) -> dict[str, Load]:
    return {f"ps-{number}": Load(rows, cores, [], seconds) for number, seconds in enumerate(seconds_per_row)}


def test_servers_of_the_same_cores_and_about_the_same_load_are_compared():
    slow = slowest(comparable(servers(1e-6, 5e-6, 1e-6)))
    assert slow is not None and (slow.pod, slow.ratio) == ("ps-1", pytest.approx(5.0))
    warm = {**servers(1e-6, 5e-6), "ps-1": Load(0.99 * HOT_RATIO * 10_000.0, 2.0, [], 5e-6)}
    assert slowest(comparable(warm)) is not None


@pytest.mark.parametrize(
    ("loads", "reason"),
    [
        ({**servers(1e-6), "ps-1": Load(HOT_RATIO * 10_000.0, 2.0, [], 5e-6)}, "it is hot"),
        ({**servers(5e-6), "ps-1": Load(9 * 10_000.0, 2.0, [], 1e-6)}, "another one is hot: this one has few rows"),
        ({**servers(1e-6, 1e-6), "ps-2": Load(5_000.0, 1.0, [], 5e-6)}, "it has fewer cores"),
        (servers(1e-6, 5e-6, rows=0.99 * LEAST_ROWS_PER_SECOND), "it has little to do"),
        (servers(5e-6), "it is alone"),
        (servers(0.0, 5e-6), "the other one has not said it"),
        ({}, "there is none"),
    ],
)
def test_a_server_is_not_found_slow_where_others_say_nothing_of_its_node(loads: dict[str, Load], reason: str):
    assert slowest(comparable(loads)) is None, reason


@pytest.mark.parametrize(
    ("node", "has_room"),
    [
        (Node(name="here", size=SMALL, free=SMALL), False),
        (Node(name="there", size=SMALL, free=SMALL), True),
        (Node(name="there", size=SMALL, free=PodSize(0.5, 100)), False),
        (Node(name="there", size=SMALL, free=SMALL, conditions=(NodeCondition.UNSCHEDULABLE,)), False),
    ],
)
def test_a_pod_stays_where_no_other_node_has_the_room(node: Node, has_room: bool):
    assert has_room_elsewhere([node], "here", SMALL) is has_room
    assert not has_room_elsewhere([], "here", SMALL)


def report(world: World, seen: Observations, worker: str, compute_seconds: float, number: int) -> None:
    metrics = WindowMetrics(number=number, samples=64, steps=2, compute_seconds=compute_seconds, pull_seconds=9.0)
    beat = Heartbeat(pod=worker, incarnation="i", generation=0, reached_version=1, metrics=metrics)
    seen.heartbeat(beat, world.state, world.time)


def report_load(world: World, seen: Observations, server: str, seconds_per_row: float, rows: float = 5000.0) -> None:
    load = ServerLoad(rows_per_second=rows, seconds_per_row=seconds_per_row)
    beat = Heartbeat(pod=server, incarnation="i", generation=0, reached_version=1, load=load)
    seen.heartbeat(beat, world.state, world.time)


def pass_window(world: World, seen: Observations) -> None:
    world.time += 5.0
    assert seen.close_window(world.state, world.time)


@pytest.mark.parametrize("allowed", [0, 1])
def test_figures_of_heartbeats_find_a_slow_worker_where_the_job_file_lets_it_move(allowed: int):
    world = long_job(slow_pod_moves=allowed)
    seen, found = Observations(world.time), {}
    for number in range(1, 20):
        report(world, seen, "j-worker-0", 0.1, number)
        report(world, seen, "j-worker-1", 0.5, number)
        pass_window(world, seen)
        found |= {slow.pod: slow.ratio for slow in seen.slow_pods(world.state, world.time)}
    assert found == ({"j-worker-1": pytest.approx(5.0)} if allowed else {})


@pytest.mark.parametrize("allowed", [0, 1])
def test_figures_of_heartbeats_find_a_slow_server_where_the_job_file_lets_it_move(allowed: int):
    world = long_job(slow_pod_moves=allowed)
    seen, found = Observations(world.time), {}
    for _ in range(20):
        report_load(world, seen, "j-ps-0", 8e-6)
        report_load(world, seen, "j-ps-1", 2e-6)
        pass_window(world, seen)
        found |= {slow.pod: slow.ratio for slow in seen.slow_pods(world.state, world.time)}
    assert found == ({"j-ps-0": pytest.approx(4.0)} if allowed else {})


@pytest.mark.parametrize("is_asked", [True, False])
def test_a_server_is_not_found_slow_while_servers_change_and_the_minute_begins_anew_afterwards(is_asked: bool):
    world = long_job(slow_pod_moves=1)
    seen = Observations(world.time)

    def slow_windows(count: int) -> list[str]:
        found: list[str] = []
        for _ in range(count):
            report_load(world, seen, "j-ps-0", 8e-6)
            report_load(world, seen, "j-ps-1", 2e-6)
            pass_window(world, seen)
            found += [slow.pod for slow in seen.slow_pods(world.state, world.time)]
        return found

    lasting = int(SLOW_SECONDS / 5.0)
    assert not slow_windows(lasting)
    if is_asked:
        world.handle(ShapeAsked(time=world.time, change=change(workers=3)))
    else:
        bucket = owners(world).index("j-ps-0")
        epoch = world.state.ownership.epoch
        moves = {bucket: "j-ps-1"}
        world.handle(
            ServerHot(time=world.time, server="j-ps-0", ratio=2.0, ratio_after=1.0, moves=moves, ownership_epoch=epoch)
        )
        assert world.state.migration is not None
    assert not slow_windows(2)
    world.live_on(12)
    assert world.state.migration is None and not open_requests(world.state)
    assert not slow_windows(lasting)
    assert slow_windows(1) == ["j-ps-0"]
