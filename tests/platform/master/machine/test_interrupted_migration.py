"""Changes of servers and workers that something interrupts, wherever that is; and very many of them in one job."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable

import pytest

from elastrec.platform.master.machine import events
from elastrec.platform.master.machine.effects import Effect
from elastrec.platform.master.pods.requests import KEPT_REQUESTS
from elastrec.platform.master.service.journal import decode_state, encode_state
from elastrec.platform.specs.metrics import Phase
from elastrec.platform.transport.messages.observer import PodMove
from tests.conftest import examples
from tests.platform.master.machine.test_migration import ask, check
from tests.platform.master.world import World, plan
from tests.shapes import change, shape


class Interrupted(Exception):
    """The world stops after an event, so that something can happen there."""


class Interruptible(World):
    """A world that checks the owners after every event, and stops after one of them.

    Attributes:
        left: events until it stops; None: it does not.
    """

    left: int | None = None

    def note(self, event: events.Event, effects: list[Effect]) -> None:
        """Nothing is kept: worlds of this kind live long."""

    def handle(self, event: events.Event) -> list[Effect]:
        effects = super().handle(event)
        if self.state.ownership.owners:
            check(self)
        # A lease whose answer the worker does not get is another story.
        if self.left is not None and not isinstance(event, events.ShardsAsked):
            self.left -= 1
            if self.left < 0:
                self.left = None
                raise Interrupted
        return effects


def small_world() -> Interruptible:
    world = Interruptible(plan(training_rows=100_000_000, shard_rows=100, save_interval_seconds=0.0, shape=shape(1, 2)))
    world.live_on(5)
    assert world.state.phase is Phase.TRAINING
    return world


def change_everything(world: World) -> None:
    """A mixture: one server more, another size, and a server and a worker moved."""
    moves = [PodMove(pod="j-ps-0"), PodMove(pod="j-worker-0", leaves_node=False)]
    asked = change(parameter_servers=3, parameter_server_memory_bytes=3000, worker_cores=2.0)
    world.handle(events.ShapeAsked(time=world.time, change=asked, moves=moves, plan_id="plan-1"))


def lose_owner(world: World) -> None:
    lose(world, next(name for name in world.state.ownership.servers if name in world.up))


def lose_newcomer(world: World) -> None:
    """One that was made for the request and owns nothing yet."""
    owners = world.state.ownership.servers
    made = [m.name for m in world.state.membership.members.values() if m.made_for and m.name not in owners]
    if made:
        lose(world, made[0])


def lose(world: World, pod: str) -> None:
    if pod in world.up:
        world.kill(pod)


def restart_master(world: World) -> None:
    world.commits = []
    world.state = decode_state(encode_state(world.state))
    world.handle(events.Restarted(time=world.time, away_seconds=1.0))


def take_back(world: World) -> None:
    assert world.state.shape_requests
    world.handle(events.ShapeTakenBack(time=world.time, request_id=world.state.shape_requests[-1].request_id))


def ask_again(world: World) -> None:
    change_everything(world)
    ask(world, 2)


@pytest.mark.parametrize("upset", [lose_owner, lose_newcomer, restart_master, take_back, ask_again])
def test_wherever_a_change_of_everything_is_interrupted_it_ends_on_one_owner_per_bucket(
    upset: Callable[[World], None],
):
    events_handled = 0
    while True:
        world = small_world()
        world.left = events_handled
        try:
            change_everything(world)
            world.live_on(14)
            break
        except Interrupted:
            pass
        upset(world)
        world.live_on(24)
        state = world.state
        assert state.migration is None and state.has_wanted_servers, f"after {events_handled} events"
        assert not any(request.is_open for request in state.shape_requests), f"after {events_handled} events"
        wanted = {role: places.count for role, places in state.wanted_shape.places.items()}
        members = [member for member in state.membership.members.values() if member.stays]
        assert Counter(member.role for member in members) == wanted and len(members) == len(state.membership.members)
        assert state.phase is Phase.TRAINING and state.recovery.rollbacks <= (upset is lose_owner)
        events_handled += 3
    assert events_handled > 20, "too little was interrupted"


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
            take_back(world)
        while any(request.is_open for request in world.state.shape_requests):
            world.live_on(1)
        if number >= KEPT_REQUESTS + 10:
            sizes.append(len(encode_state(world.state)))
        world.plane.forget_events()
    assert world.state.recovery.rollbacks == 0 and world.state.membership.losses == {}
    assert max(sizes[-10:]) < 1.02 * max(sizes[:10]), sizes
    assert len(world.plane.pods) == len(world.state.membership.members)
