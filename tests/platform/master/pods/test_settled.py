"""Whatever was requested, cancelled and lost: once nothing happens any more, a job has exactly the wanted pods."""

from __future__ import annotations

import random

import pytest

from elastrec.platform.specs.metrics import Phase, Role
from tests.conftest import examples
from tests.platform.master.disturbing import change_or_disturb, end_notices
from tests.platform.master.world import World, plan, running

pytestmark = pytest.mark.usefixtures("fleet")

MOST = {Role.WORKER: 100_000, Role.PARAMETER_SERVER: 100_000}


def long_job(chance: random.Random, *, is_synchronous: bool) -> World:
    """Its pods may be lost as often as they are."""
    return running(
        plan(
            training_rows=100_000, save_interval_seconds=chance.choice([0.0, 20.0]), is_synchronous=is_synchronous,
            slow_pod_moves=10, migration_timeout_seconds=chance.choice([100.0, 7200.0]), relieves_hot_servers=True,
            pod_restarts=1000, shard_attempts=10_000, most_memory_bytes=MOST,
        )
    )  # fmt: skip


def settle(world: World) -> None:
    """Everybody behaves for some minutes, in which the job does not end."""
    for broken in (world.hung, world.stalled, world.stuck, world.damaged):
        broken.clear()
    world.plane.defers_resizes = False
    for _ in range(450):
        world.plane.settle()
        world.reconcile()
        world.live_on()
        end_notices(world)
        world.time += 0.5
        world.tick()


@pytest.mark.parametrize("seed", range(examples(16)))
def test_a_job_has_the_wanted_pods_once_nothing_happens_any_more(seed: int):
    chance = random.Random(seed)
    world = long_job(chance, is_synchronous=seed % 3 == 0)
    state = world.state
    for _ in range(chance.randint(20, 200)):
        change_or_disturb(world, chance)
        if state.phase.is_final:
            # The same limit exceeded twice in a row ends a job.
            assert "killed for memory twice" in state.failure
            return
        assert set(state.ownership.servers) <= state.membership.members.keys()
    settle(world)
    assert state.phase is Phase.TRAINING and state.migration is None and state.saves.held_since is None
    assert [request for request in state.shape_requests if request.is_open] == []
    for role in (Role.WORKER, Role.PARAMETER_SERVER):
        members = [member for member in state.membership.members.values() if member.role is role]
        assert len(members) == state.wanted_shape[role].count, role
        assert not any(member.outgoing or member.made_for or member.retiring for member in members)
    assert not state.membership.leaving and set(world.up) == set(state.membership.members)
