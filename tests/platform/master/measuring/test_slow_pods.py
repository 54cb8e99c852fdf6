"""A pod that is much slower per row than others of its role is moved when this has cost as much as a move."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from elastrec.platform.clusters.nodes import Node, NodeCondition
from elastrec.platform.master.machine.events import PodOrdered, PodSlow, ServerHot, ShapeAsked
from elastrec.platform.master.measuring.hot_servers import HOT_RATIO, LEAST_ROWS_PER_SECOND, Load
from elastrec.platform.master.measuring.observations import Observations
from elastrec.platform.master.measuring.slow_pods import (
    COOL_DOWN_SECONDS,
    LEAST_SLOW_SECONDS,
    MOVE_PRICE_POD_SECONDS,
    SLOW_RATIO,
    SlowPods,
    comparable,
    has_room_elsewhere,
    price_seconds,
    slow_ones,
)
from elastrec.platform.master.pods.requests import open_requests
from elastrec.platform.master.service.journal import decode_state, encode_state
from elastrec.platform.specs.shape import PodSize
from elastrec.platform.transport.messages.job import Heartbeat, ServerLoad, WindowMetrics
from elastrec.platform.transport.messages.observer import WorkerOrder
from tests.platform.master.machine.test_migration import long_job, owners
from tests.platform.master.world import World
from tests.shapes import change

SMALL = PodSize(1.0, 100)


def speeds(*seconds_per_row: float) -> dict[str, float]:
    return {f"worker-{number}": seconds for number, seconds in enumerate(seconds_per_row)}


def test_a_worker_is_compared_with_the_median_of_the_others():
    (slow,) = slow_ones(speeds(1.0, 4.0, 2.0, 1.5))
    assert (slow.pod, slow.ratio, slow.others_seconds_per_row) == ("worker-1", 4.0 / 1.5, 1.5)
    assert [each.pod for each in slow_ones(speeds(1.0, 4.0, 9.0, 1.0, 1.0))] == ["worker-2", "worker-1"]
    assert not slow_ones(speeds(1.0, 0.999 * SLOW_RATIO))
    assert not slow_ones(speeds(9.0)) and not slow_ones({}) and not slow_ones(speeds(0.0, 0.0))


ALL = dict.fromkeys([f"worker-{number}" for number in range(4)], 1.0)


def seconds_until_found(ratio: float, share: float, price: float) -> float:
    seen, times = SlowPods(), speeds(1.0, ratio)
    return next(
        (float(second) for second in range(1000) if seen.look(times, dict.fromkeys(times, share), price, 7.0 + second)),
        math.inf,
    )


def test_a_pod_that_costs_more_is_moved_sooner():
    assert seconds_until_found(5.0, 1.0, 10.0) == LEAST_SLOW_SECONDS
    assert seconds_until_found(SLOW_RATIO, 0.5, 15.0) == 60.0, "one of two workers that wait for nobody, and a server"
    assert seconds_until_found(5.0, 0.5, 15.0) == 38.0
    assert seconds_until_found(5.0, 0.01, 15.0) == math.inf
    assert seconds_until_found(0.99 * SLOW_RATIO, 1.0, 0.0) == math.inf


def test_the_cost_of_a_move_is_one_pods_share_of_a_start():
    assert price_seconds(5.0, 3) == MOVE_PRICE_POD_SECONDS / 3
    assert price_seconds(120.0, 3) == 40.0 and price_seconds(120.0, 60) == 2.0


def test_a_slow_pod_is_named_until_it_is_moved_and_the_next_one_much_later():
    seen, slow = SlowPods(), speeds(1.0, 3.0)
    assert not any(seen.look(slow, ALL, 10.0, 100.0 + second) for second in range(20))
    for seconds in (20.0, 25.0, 90.0):
        found = seen.look(slow, ALL, 10.0, 100.0 + seconds)
        assert found is not None and (found.pod, found.since) == ("worker-1", 100.0), "nothing was done about it"
    seen.moved(190.0)
    assert seen.look(slow, ALL, 10.0, 190.0 + COOL_DOWN_SECONDS - 1) is None
    assert seen.look(slow, ALL, 10.0, 190.0 + COOL_DOWN_SECONDS) is not None
    seen.forget()
    assert seen.look(slow, ALL, 10.0, 191.0 + COOL_DOWN_SECONDS) is None


def test_a_single_quiet_window_delays_a_move_by_at_most_its_length():
    seen, slow = SlowPods(), speeds(1.0, 3.0, 1.0, 1.0)
    assert not any(seen.look(slow, ALL, 10.0, float(second)) for second in range(18))
    assert seen.look(speeds(1.0, 1.0, 1.0, 1.0), ALL, 10.0, 18.0) is None
    assert seen.look(speeds(1.0, 3.0, 1.0, 9.0), ALL, 10.0, 19.0) is None
    assert not any(seen.look(slow, ALL, 10.0, float(second)) for second in (20, 21))
    found = seen.look(slow, ALL, 10.0, 22.0)
    assert found is not None and found.pod == "worker-1"


def test_a_pod_that_is_slow_for_a_moment_again_and_again_stays():
    seen, slow, even = SlowPods(), speeds(1.0, 9.0), speeds(1.0, 1.0)
    for burst in range(20):
        begun = 60.0 * burst
        assert not any(seen.look(slow, ALL, 0.0, begun + second) for second in range(19))
        assert not any(seen.look(even, ALL, 0.0, begun + second) for second in range(19, 60))


def servers(*seconds_per_row: float, rows: float = 10_000.0, cores: float = 2.0) -> dict[str, Load]:
    return {f"ps-{number}": Load(rows, cores, [], seconds) for number, seconds in enumerate(seconds_per_row)}


def test_servers_of_the_same_cores_and_about_the_same_load_are_compared():
    (slow,) = slow_ones(comparable(servers(1e-6, 5e-6, 1e-6)))
    assert (slow.pod, slow.ratio) == ("ps-1", pytest.approx(5.0))
    warm = {**servers(1e-6, 5e-6), "ps-1": Load(0.99 * HOT_RATIO * 10_000.0, 2.0, [], 5e-6)}
    assert slow_ones(comparable(warm))


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
def test_a_server_is_not_slow_if_the_others_are_not_comparable(loads: dict[str, Load], reason: str):
    assert not slow_ones(comparable(loads)), reason


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


def report(
    world: World, seen: Observations, worker: str, compute_seconds: float, number: int, pull_seconds: float = 0.1
) -> None:
    metrics = WindowMetrics(
        number=number, samples=64, steps=2, compute_seconds=compute_seconds, pull_seconds=pull_seconds
    )
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


def test_a_restarted_master_waits_as_long_for_the_next_move_as_the_one_before():
    world = long_job(slow_pod_moves=2)
    slow = world.state.membership.members["j-worker-1"]
    slow.node = "slow"
    event = PodSlow(
        time=world.time, pod=slow.name, incarnation=slow.incarnation, ratio=5.0, seconds_per_row=5.0,
        others_seconds_per_row=1.0,
    )  # fmt: skip
    world.handle(event)
    for _ in range(20):
        world.live_on(1)
    assert not open_requests(world.state) and world.state.slow_moves == 1
    moved, world.state = world.time, decode_state(encode_state(world.state))
    seen, number = Observations(world.time), 0
    seen.recall_changes(world.state)
    found: list[str] = []
    while not found:
        number += 1
        report(world, seen, "j-worker-0", 0.5, number)
        for worker in world.state.membership.workers():
            if worker.name != "j-worker-0":
                report(world, seen, worker.name, 0.1, number)
        pass_window(world, seen)
        found += [slow.pod for slow in seen.slow_pods(world.state, world.time)]
    assert found == ["j-worker-0"] and world.time - moved >= COOL_DOWN_SECONDS


def test_a_slow_worker_that_was_ordered_to_be_idle_is_not_moved():
    world = long_job(slow_pod_moves=1)
    seen, found = Observations(world.time), []
    for number in range(1, 40):
        report(world, seen, "j-worker-0", 0.1, number)
        if number == 3:
            world.handle(PodOrdered(time=world.time, pod="j-worker-1", order=WorkerOrder(is_idle=True)))
        if number <= 3:
            report(world, seen, "j-worker-1", 0.5, number)
        pass_window(world, seen)
        found += seen.slow_pods(world.state, world.time)
    assert found == [], "its last figures, of the time before the order, counted in every window"


@pytest.mark.parametrize("allowed", [0, 1])
def test_figures_of_heartbeats_find_a_slow_server_where_the_job_file_lets_it_move(allowed: int):
    world = long_job(slow_pod_moves=allowed)
    seen, found = Observations(world.time), {}
    for number in range(1, 20):
        report(world, seen, "j-worker-0", 0.1, number, pull_seconds=0.9)
        report_load(world, seen, "j-ps-0", 8e-6)
        report_load(world, seen, "j-ps-1", 2e-6)
        pass_window(world, seen)
        found |= {slow.pod: slow.ratio for slow in seen.slow_pods(world.state, world.time)}
    assert found == ({"j-ps-0": pytest.approx(4.0)} if allowed else {})


def windows_until_found(report_window: Callable[[World, Observations, int], None], world: World | None = None) -> float:
    """Of five seconds each, in which that is reported."""
    world = long_job(slow_pod_moves=1) if world is None else world
    seen = Observations(world.time)
    for number in range(1, 60):
        report_window(world, seen, number)
        pass_window(world, seen)
        if seen.slow_pods(world.state, world.time):
            return number
    return math.inf


@pytest.mark.parametrize(("pull_seconds", "windows"), [(0.0, 7), (0.5, 13), (9.5, 60)])
def test_a_worker_that_waits_for_others_most_of_the_time_is_moved_later(pull_seconds: float, windows: int):
    def both(world: World, seen: Observations, number: int) -> None:
        report(world, seen, "j-worker-0", 0.1, number, pull_seconds)
        report(world, seen, "j-worker-1", 0.5, number, pull_seconds)

    assert windows_until_found(both) == (math.inf if windows == 60 else windows)


@pytest.mark.parametrize(("pull_seconds", "windows"), [(9.9, 5), (0.1, 7), (0.0, 60)])
def test_a_server_for_which_workers_hardly_wait_is_moved_later(pull_seconds: float, windows: int):
    def both(world: World, seen: Observations, number: int) -> None:
        report(world, seen, "j-worker-0", 0.1, number, pull_seconds)
        report_load(world, seen, "j-ps-0", 8e-6)
        report_load(world, seen, "j-ps-1", 2e-6)

    assert windows_until_found(both) == (math.inf if windows == 60 else windows)


@pytest.mark.parametrize("is_asked", [True, False])
def test_slow_servers_are_not_searched_while_servers_change(is_asked: bool):
    world = long_job(slow_pod_moves=1)
    seen = Observations(world.time)

    def slow_windows(count: int) -> list[str]:
        found: list[str] = []
        for _ in range(count):
            report(world, seen, "j-worker-0", 0.01, round(world.time), pull_seconds=1.0)
            report_load(world, seen, "j-ps-0", 8e-6)
            report_load(world, seen, "j-ps-1", 2e-6)
            pass_window(world, seen)
            found += [slow.pod for slow in seen.slow_pods(world.state, world.time)]
        return found

    lasting = int(LEAST_SLOW_SECONDS / 5.0)
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
