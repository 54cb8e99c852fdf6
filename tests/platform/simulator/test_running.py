from __future__ import annotations

import numpy as np
import pytest
import simpy

from elastrec.platform.master.measuring.growth_profile import GrowthProfile
from elastrec.platform.scaling.types import Coefficients
from elastrec.platform.simulator.placing import Placing
from elastrec.platform.simulator.running import Running
from elastrec.platform.specs.metrics import WINDOW_SECONDS
from elastrec.platform.transport.messages.job import TableUsage
from tests.platform.simulator.cluster import QUIET, asked, growing, job


@pytest.mark.parametrize("passes", [1, 4])
def test_a_simulated_master_counts_rows_as_often_as_a_real_one(passes: int) -> None:
    full = growing(job(), needed_at_end=0.5)
    environment = simpy.Environment()
    running = Running(full, full.allocation, None, environment, QUIET, np.random.default_rng(0))
    running.take_place(Placing(), 0.0)
    running.begin(0.0)
    seconds = QUIET.interval_seconds * passes
    for number in range(passes):
        running.pass_time(QUIET.interval_seconds * (number + 1))
    memory = running.facts(QUIET.interval_seconds, 1e12).memory
    assert memory is not None
    simulated = memory.tables[0].samples

    real = GrowthProfile()
    for second in np.arange(WINDOW_SECONDS, seconds + 1.0, WINDOW_SECONDS):
        samples = int(running.rate.samples * second)
        real.add(samples, 0, [TableUsage(table="all", rows=samples, bytes=samples)])
    counted = real.tables()[0].samples

    # A real master counts at the ends of windows, a simulated one at exact distances: a few fall together.
    assert abs(len(simulated) - len(counted)) <= 0.2 * len(counted), (simulated, counted)
    assert simulated[0] == pytest.approx(counted[0], rel=1e-3)
    assert simulated[-1] == pytest.approx(counted[-1], rel=1e-3)


def test_steps_that_are_longer_than_a_look_at_the_job_are_counted() -> None:
    slow = Coefficients(gradient=0.0, update=0.0, synchronise=0.0, embedding=0.0, fixed=8.0)
    environment = simpy.Environment()
    start = asked(workers=1)
    running = Running(job(coefficients=slow), start, None, environment, QUIET, np.random.default_rng(0))
    running.take_place(Placing(), 0.0)
    running.begin(0.0)
    for number in range(100):
        running.pass_time(WINDOW_SECONDS * (number + 1))
    facts = running.facts(QUIET.interval_seconds, None)
    # 500 s.
    assert facts.steps == 62
    (seen,) = facts.observations
    assert seen.iteration_seconds == pytest.approx(8.0)


def test_a_job_of_milliseconds_ends_also_after_a_month() -> None:
    month = 30 * 86_400.0
    for number in range(50):
        begin = month + 1.37 * number
        short = job(seconds=0.01)
        running = Running(short, short.allocation, None, simpy.Environment(begin), QUIET, np.random.default_rng(0))
        running.take_place(Placing(), begin)
        running.begin(begin)
        now = begin
        for _ in range(3):
            # The clock resolves half a nanosecond: a rest may be left for which it cannot advance.
            now += running.seconds_left
            running.pass_time(now)
        assert running.remaining == 0, number


@pytest.mark.parametrize("how", ["evicted", "restarted"])
def test_new_pods_of_a_job_are_not_slow(how: str) -> None:
    environment = simpy.Environment()
    start = asked()
    running = Running(job(), start, None, environment, QUIET, np.random.default_rng(0))
    running.take_place(Placing(), 0.0)
    running.begin(0.0)
    calm = running.rate
    running.slow_workers, running.is_hot = 1, True
    assert running.rate.samples < calm.samples
    if how == "evicted":
        running.evict(60.0)
    else:
        running.restart(start, Placing(), 30.0, 60.0)
    assert running.rate == calm


def test_a_checkpoint_within_a_pause_has_the_training_before_it() -> None:
    whole = job()
    running = Running(whole, whole.allocation, None, simpy.Environment(), QUIET, np.random.default_rng(0))
    running.take_place(Placing(), 0.0)
    running.begin(0.0)
    every = QUIET.handling.checkpoint_seconds
    # The checkpoint is 10 s after the begin of the pause, 20 s before its end.
    running.pause(30.0, every - 10.0)
    before = running.remaining
    running.pass_time(every + 60.0)
    assert running.remaining < before < whole.samples
    running.lose_server(0.0, every + 60.0)
    assert running.remaining == pytest.approx(before)
