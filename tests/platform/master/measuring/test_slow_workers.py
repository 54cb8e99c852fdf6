"""A worker that has computed far longer for a row than the others for a minute is found slow."""

from __future__ import annotations

import pytest

from elastrec.platform.clusters.nodes import Node, NodeCondition
from elastrec.platform.master.measuring.observations import Observations
from elastrec.platform.master.measuring.slow_workers import (
    COOL_DOWN_SECONDS,
    SLOW_RATIO,
    SLOW_SECONDS,
    SlowWorkers,
    has_room_elsewhere,
    slowest,
)
from elastrec.platform.specs.shape import PodSize
from elastrec.platform.transport.messages.job import Heartbeat, WindowMetrics
from tests.platform.master.machine.test_migration import long_job
from tests.platform.master.world import World

SMALL = PodSize(1.0, 100)


def speeds(*seconds_per_row: float) -> dict[str, float]:
    return {f"worker-{number}": seconds for number, seconds in enumerate(seconds_per_row)}


def test_a_worker_is_compared_with_the_median_of_the_others():
    slow = slowest(speeds(1.0, 4.0, 2.0, 1.5))
    assert slow is not None and (slow.pod, slow.ratio, slow.others_seconds_per_row) == ("worker-1", 4.0 / 1.5, 1.5)
    assert slowest(speeds(1.0, 0.999 * SLOW_RATIO)) is None
    assert slowest(speeds(9.0)) is None and slowest({}) is None and slowest(speeds(0.0, 0.0)) is None


def test_a_worker_is_slow_when_it_was_for_a_minute_without_a_break_and_the_next_one_much_later():
    seen, slow, even = SlowWorkers(), speeds(1.0, 3.0), speeds(1.0, 1.0)
    assert seen.look(slow, 0.0) is None
    assert seen.look(slow, SLOW_SECONDS - 1) is None
    assert seen.look(even, SLOW_SECONDS) is None, "a break"
    begun = SLOW_SECONDS + 1
    assert seen.look(slow, begun) is None
    assert seen.look(slow, begun + SLOW_SECONDS - 1) is None
    found = begun + SLOW_SECONDS
    assert seen.look(slow, found) is not None
    assert seen.look(slow, found + COOL_DOWN_SECONDS - 1) is None
    assert seen.look(slow, found + COOL_DOWN_SECONDS) is not None
    seen.forget()
    assert seen.look(slow, found + 3 * COOL_DOWN_SECONDS) is None


@pytest.mark.parametrize(
    ("node", "has_room"),
    [
        (Node(name="here", size=SMALL, free=SMALL), False),
        (Node(name="there", size=SMALL, free=SMALL), True),
        (Node(name="there", size=SMALL, free=PodSize(0.5, 100)), False),
        (Node(name="there", size=SMALL, free=SMALL, conditions=(NodeCondition.UNSCHEDULABLE,)), False),
    ],
)
def test_a_worker_stays_where_no_other_node_has_the_room(node: Node, has_room: bool):
    assert has_room_elsewhere([node], "here", SMALL) is has_room
    assert not has_room_elsewhere([], "here", SMALL)


def report(world: World, seen: Observations, worker: str, compute_seconds: float, number: int) -> None:
    metrics = WindowMetrics(number=number, samples=64, steps=2, compute_seconds=compute_seconds, pull_seconds=9.0)
    beat = Heartbeat(pod=worker, incarnation="i", generation=0, reached_version=1, metrics=metrics)
    seen.heartbeat(beat, world.state, world.time)


@pytest.mark.parametrize("allowed", [0, 1])
def test_figures_of_heartbeats_find_a_slow_worker_where_the_job_file_lets_it_move(allowed: int):
    world = long_job(slow_worker_moves=allowed)
    seen, found = Observations(world.time), []
    for number in range(1, 20):
        report(world, seen, "j-worker-0", 0.1, number)
        report(world, seen, "j-worker-1", 0.5, number)
        world.time += 5.0
        assert seen.close_window(world.state, world.time)
        if (slow := seen.slow_worker(world.state, world.time)) is not None:
            found.append((slow.pod, slow.ratio))
    assert found == [("j-worker-1", pytest.approx(5.0))] * allowed
