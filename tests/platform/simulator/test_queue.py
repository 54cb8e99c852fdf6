from __future__ import annotations

import math

import msgspec
import numpy as np
import pytest
import simpy
from hypothesis import given, settings
from hypothesis import strategies as st

from elastrec.platform.scaling.amounts import GIBIBYTE, Resources
from elastrec.platform.simulator.nodes import Nodes
from elastrec.platform.simulator.placing import place
from elastrec.platform.simulator.queue import Queue
from elastrec.platform.simulator.running import Running
from elastrec.platform.simulator.settings import Settings
from tests.platform.simulator.cluster import NODE
from tests.platform.simulator.made_up import synthetic

(JOB,) = synthetic(1)
ASKED = st.tuples(st.sampled_from([1.0, 2.0]), st.integers(0, 3), st.sampled_from([1, 2, 4, 8]))


def waiting(number: int, priority: float, arrival: int, workers: int) -> Running:
    job = msgspec.structs.replace(JOB, job_id=f"job {number}", arrival_seconds=float(arrival), priority=priority)
    start = msgspec.structs.replace(job.allocation, workers=workers)
    return Running(job, start, None, simpy.Environment(), Settings(), np.random.default_rng(number))


@settings(max_examples=100, deadline=None)
@given(st.lists(ASKED, max_size=25), st.integers(1, 12), st.integers(4, 12))
def test_the_queue_places_the_jobs_that_trying_each_in_order_would(
    asked: list[tuple[float, int, int]], count: int, cores: int
) -> None:
    jobs = [waiting(number, *each) for number, each in enumerate(asked)]
    nodes = Nodes(count, Resources(float(cores), 64.0 * GIBIBYTE))
    queue, same, found = Queue(), nodes.copy(), []
    for number, each in enumerate(jobs):
        queue.add(number, each)
    for each in queue.tries(nodes, math.inf):
        if place(nodes, each.held) is not None:
            queue.take(each)
            found.append(each)
    expected = [
        each
        for _, _, _, each in sorted((-e.job.priority, e.job.arrival_seconds, n, e) for n, e in enumerate(jobs))
        if place(same, each.held) is not None
    ]
    assert found == expected
    assert len(queue) == len(jobs) - len(found)
    empty = Nodes(count, nodes.size)
    possible = [each for each in jobs if each not in found and place(empty.copy(), each.held) is not None]
    left = sum((each.held.resources for each in possible), Resources())
    assert abs(queue.asked(nodes).cores - left.cores) < 1e-6


@pytest.mark.parametrize(("least_priority", "count"), [(1.0, 2), (2.0, 0)])
def test_without_capacity_one_of_equal_jobs_is_tried_where_others_may_make_room(
    least_priority: float, count: int
) -> None:
    queue, full = Queue(), Nodes(1, NODE)
    full.place(1, NODE)
    for number in range(100):
        queue.add(number, waiting(number, 2.0, number, 1 + number % 2))
    assert len(list(queue.tries(full, least_priority))) == count


@given(st.lists(st.integers(0, 8), min_size=1, max_size=6), st.integers(1, 20), st.integers(1, 8))
def test_exactly_the_groups_of_pods_whose_cores_nodes_refuse_are_ruled_out(
    used: list[int], pods: int, cores: int
) -> None:
    nodes = Nodes(len(used), Resources(8.0, 64.0 * GIBIBYTE))
    for node, each in enumerate(used):
        nodes.resize([node], Resources(), Resources(float(each), 0.0))
    (may,) = nodes.may_hold(np.array([float(pods)]), np.array([float(cores)]))
    assert may == (nodes.place(pods, Resources(float(cores), 0.0)) is not None)
