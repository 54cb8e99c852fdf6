"""Changes of servers and workers of a job, with every kind of interruption at any moment."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from elastrec.platform.master.machine import events
from elastrec.platform.master.machine.effects import Effect
from elastrec.platform.master.service.journal import decode_state, encode_state
from elastrec.platform.specs.metrics import Phase, Role
from elastrec.platform.transport.messages.observer import PodMove
from tests.platform.master.machine.test_migration import ask, check
from tests.platform.master.world import World, plan
from tests.shapes import change, shape

CHANGE_ROUNDS, SETTLE_ROUNDS = 14, 30
"""So many rounds the change takes at most when nothing upsets it, and a job that was upset until it has settled."""
ROWS = 3_000
"""Of a job that may be trained to its end."""


class Interrupted(Exception):
    """The world stops after an event, so that something can happen there."""


class Interruptible(World):
    """A world that checks the owners after every event, and can stop after a number of events.

    Attributes:
        left: number of events until it stops; None: it does not stop.
    """

    left: int | None = None

    def note(self, event: events.Event, effects: list[Effect]) -> None:
        """Nothing is kept: worlds of this kind live long."""

    def handle(self, event: events.Event) -> list[Effect]:
        effects = super().handle(event)
        if self.state.ownership.owners and not self.state.phase.is_final:
            check(self)
        # A lease whose answer the worker does not get is another story.
        if self.left is not None and not isinstance(event, events.ShardsAsked):
            self.left -= 1
            if self.left < 0:
                self.left = None
                raise Interrupted
        return effects


def small_world(rows: int = 100_000_000) -> Interruptible:
    world = Interruptible(plan(training_rows=rows, shard_rows=100, save_interval_seconds=0.0, shape=shape(1, 2)))
    world.live_on(5)
    assert world.state.phase is Phase.TRAINING
    return world


def change_everything(world: World) -> None:
    """A mixture: one server more, another size, and a server and a worker moved."""
    moves = [PodMove(pod="j-ps-0"), PodMove(pod="j-worker-0", leaves_node=False)]
    asked = change(parameter_servers=3, parameter_server_memory_bytes=3000, worker_cores=2.0)
    world.handle(events.ShapeAsked(time=world.time, change=asked, moves=moves, plan_id="plan-1"))


def more_servers(world: World) -> None:
    ask(world, 4)


def fewer_servers(world: World) -> None:
    ask(world, 1)


def hot_server(world: World) -> None:
    """Buckets move between the servers that are there."""
    ownership = world.state.ownership
    mine = [bucket for bucket in range(64) if ownership.owners[bucket] == 0][:5]
    event = events.ServerHot(
        time=world.time, server=ownership.servers[0], ratio=2.0, ratio_after=1.1,
        moves=dict.fromkeys(mine, ownership.servers[1]), ownership_epoch=ownership.epoch,
    )  # fmt: skip
    world.handle(event)


CHANGES = (change_everything, more_servers, fewer_servers, hot_server)


def lose_owner(world: World) -> None:
    lose(world, *(name for name in world.state.ownership.servers if name in world.up))


def lose_newcomer(world: World) -> None:
    """One that was made for the request and owns nothing yet."""
    owners = world.state.ownership.servers
    lose(world, *(m.name for m in world.state.membership.members.values() if m.made_for and m.name not in owners))


def lose_worker(world: World) -> None:
    lose(world, *(member.name for member in world.state.membership.workers() if member.name in world.up))


def lose(world: World, *pods: str) -> None:
    if pods and pods[0] in world.up:
        world.kill(pods[0])


def restart_master(world: World) -> None:
    world.commits = []
    world.state = decode_state(encode_state(world.state))
    world.handle(events.Restarted(time=world.time, away_seconds=1.0))


def cancel_request(world: World) -> None:
    if world.state.shape_requests:
        request = world.state.shape_requests[-1].request_id
        world.handle(events.ShapeCancelled(time=world.time, request_id=request))


def ask_again(world: World) -> None:
    change_everything(world)
    ask(world, 2)


def give_notice(world: World) -> None:
    """An owner is sent SIGTERM."""
    owners = [name for name in world.state.ownership.servers if name in world.up]
    if owners:
        world.give_notice(owners[0])


def save(world: World) -> None:
    world.handle(events.SaveAsked(time=world.time))


def train_to_the_end(world: World) -> None:
    """Workers train all rows that are left before any server says a word."""
    for _ in range(ROWS):
        for name in [member.name for member in world.state.membership.workers() if member.name in world.up]:
            if world.state.phase is Phase.TRAINING and name in world.up:
                world.act(name)


def stop_job(world: World) -> None:
    if not world.state.phase.is_final:
        world.handle(events.StopAsked(time=world.time, reason="somebody stops it"))


Upset = Callable[[World], None]
UPSETS: tuple[Upset, ...] = (
    lose_owner, lose_newcomer, lose_worker, restart_master, cancel_request, ask_again, give_notice, save,
    train_to_the_end, stop_job,
)  # fmt: skip


def upset_change(start: Callable[[World], None], upsets: Sequence[tuple[int, Upset]]) -> Interruptible | None:
    """Requests a change of a job, interrupts it after a number of events, and again after more events; then the job
    continues.

    Returns:
        None: the change was over before the first interruption.
    """
    world = small_world(ROWS if train_to_the_end in [upset for _, upset in upsets] else 100_000_000)
    for number, (after, upset) in enumerate(upsets):
        world.left = after
        try:
            if number == 0:
                start(world)
            world.live_on(CHANGE_ROUNDS)
            if number == 0:
                check_settled(world, [])
                return None
        except Interrupted:
            pass
        world.left = None
        upset(world)
    world.live_on(SETTLE_ROUNDS)
    return world


def check_settled(world: World, upsets: Sequence[Upset]) -> None:
    """One owner per bucket, as many pods as are wanted, no request left open; a rollback only for an owner lost."""
    state = world.state
    assert state.recovery.rollbacks <= upsets.count(lose_owner)
    if train_to_the_end in upsets or stop_job in upsets:
        world.run_fairly()
        ends = ((train_to_the_end, Phase.SUCCEEDED), (stop_job, Phase.STOPPED))
        assert state.phase in [phase for upset, phase in ends if upset in upsets]
        assert all(member.role is not Role.PARAMETER_SERVER for member in state.membership.members.values())
        assert not any(request.is_open for request in state.shape_requests)
        return
    assert state.migration is None and state.has_wanted_servers and state.phase is Phase.TRAINING
    assert not any(request.is_open for request in state.shape_requests)
    # Two saves may become one; one that was under way when an owner was lost is given up.
    assert state.saves.completed or save not in upsets or lose_owner in upsets
    wanted = {role: places.count for role, places in state.wanted_shape.places.items()}
    members = [member for member in state.membership.members.values() if member.stays]
    assert Counter(member.role for member in members) == wanted and len(members) == len(state.membership.members)
