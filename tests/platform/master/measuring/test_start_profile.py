"""Starts of pods: those that count, with their begin and end."""

from __future__ import annotations

import pytest

from elastrec.platform.clusters.pods import EndReason
from elastrec.platform.history import metric_names as names
from elastrec.platform.master.machine import events
from elastrec.platform.master.measuring.start_profile import StartProfile
from elastrec.platform.specs.metrics import Role
from tests.platform.master.world import World, running
from tests.shapes import change

pytestmark = pytest.mark.usefixtures("some_fleet")


def added_worker(world: World, profile: StartProfile, time: float) -> str:
    """Asks for one worker more at this time; returns its pod's name."""
    before = set(world.state.membership.members)
    wanted = len(world.state.membership.workers()) + 1
    world.state.handle(events.ShapeAsked(time=time, change=change(workers=wanted)))
    profile.asked(world.state, time)
    (new,) = set(world.state.membership.members) - before
    return new


def test_the_start_of_a_worker_is_measured_from_the_request_to_its_first_step():
    world, profile = running(), StartProfile()
    pod = added_worker(world, profile, 100.0)
    assert profile.medians() == {}
    profile.works(pod, 107.0)
    profile.works(pod, 999.0)
    assert profile.medians() == {names.WORKER_START_SECONDS: 7.0}


def test_the_cpu_time_of_a_start_comes_from_the_first_heartbeat_at_work():
    world, profile = running(), StartProfile()
    pod = added_worker(world, profile, 100.0)
    profile.reported(pod, 1.0)
    profile.works(pod, 107.0)
    assert names.WORKER_START_CORE_SECONDS not in profile.medians()
    profile.reported(pod, 4.0)
    profile.reported(pod, 50.0)
    assert profile.medians()[names.WORKER_START_CORE_SECONDS] == 4.0


def test_a_start_while_the_job_trains_replaces_those_at_its_beginning():
    world, profile = running(), StartProfile()
    for worker in world.state.membership.workers():
        profile._asked[worker.name] = (Role.WORKER, 0.0, False)
        profile.works(worker.name, 60.0)
    assert profile.medians() == {names.WORKER_START_SECONDS: 60.0}
    profile.works(added_worker(world, profile, 100.0), 105.0)
    assert profile.medians() == {names.WORKER_START_SECONDS: 5.0}


def test_pods_that_a_restarted_master_confirms_do_not_count_as_starts():
    world, profile = running(), StartProfile()
    later = world.state.time + 50.0
    world.state.handle(events.Restarted(time=later))
    profile.asked(world.state, later)
    for name in world.state.membership.members:
        profile.works(name, later + 1.0)
    assert profile.medians() == {}


def test_a_pod_that_never_worked_is_removed_with_its_place():
    world, profile = running(), StartProfile()
    pod = added_worker(world, profile, 100.0)
    world.state.handle(events.PodSeen(time=101.0, pod=pod, uid="u"))
    world.state.handle(events.PodGone(time=101.0, pod=pod, uid="u", end=EndReason.ERROR))
    assert pod in profile._asked
    profile.asked(world.state, 102.0)
    assert profile._asked.keys() <= world.state.membership.members.keys() - {pod}
