from __future__ import annotations

import msgspec
import numpy as np
import simpy
from hypothesis import given, settings
from hypothesis import strategies as st

from elastrec.platform.scaling.amounts import Resources
from elastrec.platform.simulator.queue import Queue
from elastrec.platform.simulator.running import Running
from elastrec.platform.simulator.settings import Settings
from tests.platform.simulator.made_up import synthetic

(JOB,) = synthetic(1)
ASKED = st.tuples(st.sampled_from([1.0, 2.0]), st.integers(0, 3), st.sampled_from([1, 2, 4, 8]))


def waiting(number: int, priority: float, arrival: int, workers: int) -> Running:
    job = msgspec.structs.replace(JOB, job_id=f"job {number}", arrival_seconds=float(arrival), priority=priority)
    start = msgspec.structs.replace(job.allocation, workers=workers)
    return Running(job, start, None, simpy.Environment(), Settings(), np.random.default_rng(number))


@settings(max_examples=100, deadline=None)
@given(st.lists(ASKED, max_size=25), st.integers(0, 40))
def test_the_queue_places_the_jobs_that_trying_each_in_order_would(
    asked: list[tuple[float, int, int]], room: int
) -> None:
    jobs = [waiting(number, *each) for number, each in enumerate(asked)]
    queue, free, found = Queue(), room, []
    for number, each in enumerate(jobs):
        queue.add(number, each)
    for each in queue.tries():
        if each.held.workers <= free:
            free -= each.held.workers
            queue.take(each)
            found.append(each)
    free, expected = room, []
    for _, _, _, each in sorted((-e.job.priority, e.job.arrival_seconds, n, e) for n, e in enumerate(jobs)):
        if each.held.workers <= free:
            free -= each.held.workers
            expected.append(each)
    assert found == expected
    assert len(queue) == len(jobs) - len(found)
    left = sum((each.held.resources for each in jobs if each not in found), Resources())
    assert abs(queue.asked().cores - left.cores) < 1e-6


def test_only_one_of_many_equal_jobs_is_tried_without_capacity() -> None:
    queue = Queue()
    for number in range(100):
        queue.add(number, waiting(number, 1.0, number, 1 + number % 2))
    assert len(list(queue.tries())) == 2
