"""Many migrations of random jobs and of one job: one owner per bucket, every row trained, no growing state."""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest

from elastrec.platform.clusters.pods import PodSize
from elastrec.platform.master.machine import events
from elastrec.platform.master.pods.requests import KEPT_REQUESTS
from elastrec.platform.master.service.journal import encode_state
from elastrec.platform.specs.metrics import Phase, Role
from elastrec.platform.transport.messages.observer import PodMove
from tests.conftest import examples
from tests.platform.clusters.fake_kubernetes import FakeKubernetes
from tests.platform.clusters.fake_local import FakeLocal
from tests.platform.clusters.fleets import FLEETS
from tests.platform.master.machine.interrupted import cancel_request, small_world
from tests.platform.master.machine.test_migration import check, orders
from tests.platform.master.world import World, plan, running
from tests.shapes import change

ROOT = Path(__file__).parents[4]


def ask_for_anything(world: World, chance: random.Random) -> None:
    """Other counts, other sizes, pods to be moved, or several of these at once."""
    asked = change(
        parameter_servers=chance.choice([None, 1, 2, 3, 5]),
        parameter_server_memory_bytes=chance.choice([None, None, 2000, 3000]),
        worker_cores=chance.choice([None, None, 2.0, 3.0]),
    )
    pods = sorted(name for name, member in world.state.membership.members.items() if not member.retiring)
    moves = [PodMove(pod=pod) for pod in chance.sample(pods, min(len(pods), chance.choice([0, 1, 2])))]
    world.handle(events.ShapeAsked(time=world.time, change=asked, moves=moves, plan_id=str(chance.randint(1, 9))))


def crowd(world: World) -> None:
    """Pods that are there cannot grow; new ones find room."""
    if isinstance(world.plane, FakeKubernetes):
        world.plane.refuses_resizes = True
    elif isinstance(world.plane, FakeLocal):
        world.plane.node = PodSize(4.5, 4500)


BLOCKS, JOBS, LEAST_MIGRATIONS = 4, 25, 20
"""Blocks of random jobs under each kind of cluster, jobs of a block, and how many migrations they complete at least."""


@pytest.mark.usefixtures("fleet")
@pytest.mark.parametrize("block", range(examples(BLOCKS)))
def test_whatever_happens_and_whenever_every_bucket_has_one_owner_and_every_row_is_trained(block: int):
    worlds = [lead_a_random_life(seed) for seed in range(JOBS * block, JOBS * (block + 1))]
    assert sum(map(completed, worlds)) >= LEAST_MIGRATIONS


def test_the_nightly_lane_completes_ten_thousand_migrations():
    nightly = re.search(r"^nightly:.*\n\tELASTREC_EXAMPLES=(\d+) ", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert nightly is not None
    assert int(nightly[1]) * BLOCKS * LEAST_MIGRATIONS * len(FLEETS) >= 10_000


def completed(world: World) -> int:
    """How many migrations have handed their buckets over."""
    return [decision for decision, _ in orders(world)].count("migration_ended")


def lead_a_random_life(seed: int) -> World:
    chance = random.Random(seed)
    world = running(plan(training_rows=600, save_interval_seconds=20.0, is_synchronous=seed % 3 == 0))
    if seed % 2:
        crowd(world)
    for _ in range(250):
        what = chance.random()
        if world.state.phase.is_final:
            break
        if what < 0.04:
            ask_for_anything(world, chance)
        elif what < 0.06 and world.state.shape_requests:
            world.handle(events.ShapeCancelled(time=world.time, request_id=world.state.shape_requests[-1].request_id))
        elif what < 0.08 and world.up:
            world.kill(chance.choice(sorted(world.up)))
        elif what < 0.1:
            world.handle(events.Restarted(time=world.time, away_seconds=1.0))
        elif what < 0.2:
            world.start_pod()
        elif what < 0.3:
            world.commit()
        elif what < 0.34:
            world.time += chance.choice([1.0, 15.0])
            world.tick()
        elif world.up:
            world.act(chance.choice(sorted(world.up)))
        if world.state.ownership.owners:
            check(world)
    world.run_fairly()
    assert world.state.phase is Phase.SUCCEEDED
    assert all(member.role is not Role.PARAMETER_SERVER for member in world.state.membership.members.values())
    return world


@pytest.mark.timeout(1800)
def test_a_job_that_changes_all_the_time_keeps_its_size():
    chance, world, sizes = random.Random(1), small_world(), list[int]()
    for number in range(max(200, examples(200))):
        moves = [PodMove(pod=chance.choice(world.state.ownership.servers))] if number % 2 else []
        other = change(parameter_servers=chance.choice([1, 2, 3]), worker_cores=chance.choice([1.0, 2.0]))
        asked = {} if number % 2 else other
        world.handle(events.ShapeAsked(time=world.time, change=asked, moves=moves))
        world.effects.clear()
        if chance.random() < 0.1:
            cancel_request(world)
        while any(request.is_open for request in world.state.shape_requests):
            world.live_on(1)
        if number >= KEPT_REQUESTS + 10:
            sizes.append(len(encode_state(world.state)))
        world.plane.forget_events()
    assert world.state.recovery.rollbacks == 0 and world.state.membership.losses == {}
    assert max(sizes[-10:]) < 1.02 * max(sizes[:10]), sizes
    assert len(world.plane.pods) == len(world.state.membership.members)
