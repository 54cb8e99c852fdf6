"""Speed by configuration: measurements that count, and those that do not."""

from __future__ import annotations

import pytest

from elastrec.platform.master.machine import events
from elastrec.platform.master.measuring.speed_profile import (
    SETTLING_SECONDS,
    SpeedProfile,
    are_servers_settled,
    configuration_of,
    is_settled,
)
from elastrec.platform.master.scaling.facts import observation_of
from elastrec.platform.scaling.model.profile import summarise
from elastrec.platform.specs.metrics import FADING_SECONDS, PERIOD_SECONDS, share_kept
from elastrec.platform.specs.shape import PodSize
from elastrec.platform.transport.messages.job import WindowMetrics
from tests.platform.master.world import World, plan, running
from tests.shapes import change, shape

pytestmark = pytest.mark.usefixtures("some_fleet")

STEPS = WindowMetrics(samples=200, steps=4, pull_seconds=0.2, push_seconds=0.1)
# In whole steps of memory: the size that a pod is granted is the one that was asked for, in every fleet.
BYTES = 1024
TWO = shape(2, 2, 1.0, 1.0, BYTES, BYTES)
LATER = SETTLING_SECONDS + 1.0


def ask(world: World, **wanted: int) -> None:
    world.handle(events.ShapeAsked(time=world.time, change=change(**wanted)))


def test_steps_are_added_up_for_the_configuration_in_which_they_were_made():
    world, profile = running(plan(shape=TWO)), SpeedProfile()
    for time in (0.0, LATER, LATER + 1, LATER + 2.5):
        profile.add("j-worker-0", STEPS, world.state, time)
    (measured,) = profile.measured()
    assert measured.configuration == TWO
    assert measured.steps_ever == 8
    sums = (measured.steps, measured.samples, measured.worker_seconds, measured.pull_seconds)
    assert sums == pytest.approx((8, 400, 2.5, 0.4), rel=0.01)


def test_a_model_learns_how_long_its_configuration_was_measured():
    # The workers' steps differ in length, and are made side by side.
    world, profile = running(plan(shape=TWO)), SpeedProfile()
    for second in range(100):
        for pod, steps in (("j-worker-0", 4), ("j-worker-1", 6)):
            window = WindowMetrics(samples=50 * steps, steps=steps)
            profile.add(pod, window, world.state, float(second))
    seen = [observation_of(measured) for measured in profile.measured()]
    trained = 99.0 - SETTLING_SECONDS
    # Older steps count a little less.
    assert summarise(seen).measured_seconds.tolist() == [
        pytest.approx(trained * (1 + share_kept(trained)) / 2, rel=0.03)
    ]


def test_later_measurements_correct_those_of_a_disturbed_job():
    # Less than a shift, after which the earlier ones would not count at all.
    world, profile, time, step = running(plan(shape=TWO)), SpeedProfile(), 0.0, 10.0
    for window in range(20):
        if window == 10:
            step, disturbed = 7.5, profile.measured()[0]
        for _ in range(int(FADING_SECONDS / step)):
            time += step
            profile.add("j-worker-0", WindowMetrics(samples=50, steps=1), world.state, time)
    (measured,) = profile.measured()
    assert disturbed.worker_seconds / disturbed.steps == pytest.approx(10.0, rel=0.01)
    # Of what was disturbed 0.8^10 = 11 % are left; a plain mean would be at 8.6.
    assert measured.worker_seconds / measured.steps == pytest.approx(7.5, rel=0.05)
    assert measured.steps_ever > measured.steps


def test_no_size_keeps_the_speed_that_it_had_while_other_programs_used_the_nodes():
    world, profile, time = running(plan(shape=TWO)), SpeedProfile(), 0.0

    def train(seconds: float, steps: int) -> None:
        nonlocal time
        until = time + seconds
        while time < until:
            time += 1.0
            metrics = WindowMetrics(samples=50 * steps, steps=steps, pull_seconds=0.2, push_seconds=0.1)
            profile.add("j-worker-0", metrics, world.state, time)

    train(5 * PERIOD_SECONDS, steps=4)
    ask(world, workers=3)
    while not is_settled(world.state):
        world.live_on()
    train(5 * PERIOD_SECONDS, steps=4)
    assert len(profile.measured()) == 2
    train(3 * PERIOD_SECONDS, steps=20)
    (measured,) = profile.measured()
    assert measured.configuration == configuration_of(world.state) != TWO
    sums = (measured.samples, measured.worker_seconds, measured.pull_seconds, measured.push_seconds)
    assert sums == pytest.approx([each * measured.steps for each in (50, 0.05, 0.01, 0.005)], rel=0.01)
    assert measured.steps_ever >= measured.steps > 0
    again = SpeedProfile()
    again.recall(profile.measured())
    assert again.measured() == profile.measured()


def test_measurements_of_another_configuration_do_not_fade():
    world, profile = running(plan(shape=TWO)), SpeedProfile()
    for time in (0.0, LATER, LATER + 1):
        profile.add("j-worker-0", STEPS, world.state, time)
    before = profile.measured()
    ask(world, parameter_servers=3)
    for time in (LATER + 1000, LATER + 1001, LATER + 1010):
        profile.add("j-worker-0", STEPS, world.state, time)
    assert profile.measured() == before


def test_speed_right_after_a_change_does_not_count():
    world, profile = running(plan(shape=TWO)), SpeedProfile()
    for time in (0.0, 0.1, SETTLING_SECONDS - 0.1):
        profile.add("j-worker-0", STEPS, world.state, time)
    assert profile.measured() == []


def test_a_job_with_joining_pods_is_not_settled_and_has_the_wanted_configuration():
    world, profile = running(plan(shape=TWO)), SpeedProfile()
    profile.add("j-worker-0", STEPS, world.state, 0.0)
    ask(world, workers=3)
    assert not is_settled(world.state)
    assert configuration_of(world.state) == shape(3, 2, 1.0, 1.0, BYTES, BYTES)
    profile.add("j-worker-0", STEPS, world.state, LATER)
    assert profile.measured() == []


def test_a_worker_that_leaves_belongs_to_no_configuration_any_more():
    world = running(plan(shape=TWO))
    ask(world, workers=1)
    assert configuration_of(world.state) == shape(1, 2, 1.0, 1.0, BYTES, BYTES)
    assert not is_settled(world.state)


def test_a_job_is_unsettled_until_requested_servers_have_started():
    world = running(plan(shape=TWO))
    assert is_settled(world.state)
    ask(world, parameter_servers=3)
    assert not is_settled(world.state)


def test_joining_workers_leave_servers_settled_and_joining_servers_do_not():
    world = running(plan(shape=TWO))
    assert are_servers_settled(world.state)
    ask(world, workers=3)
    assert are_servers_settled(world.state) and not is_settled(world.state)
    ask(world, parameter_servers=3)
    assert not are_servers_settled(world.state)


def test_servers_are_settled_while_a_save_is_under_way():
    world = running(plan(shape=TWO))
    world.handle(events.SaveAsked(time=world.time))
    assert are_servers_settled(world.state) and not is_settled(world.state)


def test_servers_that_wait_for_another_size_are_not_settled():
    world = running(plan(shape=TWO))
    membership, larger = world.state.membership, PodSize(7.0, BYTES)
    membership.ask_for(membership.servers()[0], larger, world.time)
    assert not are_servers_settled(world.state)


def test_a_job_whose_pods_wait_for_another_size_is_not_settled():
    world = running(plan(shape=TWO))
    membership, larger = world.state.membership, PodSize(7.0, BYTES)
    worker = membership.workers()[0]
    membership.ask_for(worker, larger, world.time)
    assert not is_settled(world.state)
    membership.granted(worker, larger, outcome_of=larger)
    assert is_settled(world.state)


def test_time_without_a_step_belongs_to_the_next_step():
    world, profile = running(plan(shape=TWO)), SpeedProfile()
    for time in (0.0, LATER, LATER + 3):
        profile.add("j-worker-0", STEPS, world.state, time)
    (measured,) = profile.measured()
    assert (measured.steps, measured.worker_seconds) == (4, 3.0)
