"""Random disturbances: pods and stores fail, requests arrive at the wrong moment, time jumps."""

from __future__ import annotations

import random

from elastrec.platform.clusters.pods import EndReason
from elastrec.platform.master.machine import events
from elastrec.platform.specs.metrics import Role
from elastrec.platform.transport.messages.observer import PodMove, WorkerOrder
from tests.platform.master.world import World
from tests.shapes import change


def disturb(world: World, chance: random.Random) -> None:
    """One act of a hostile world."""
    what = chance.random()
    name = chance.choice(sorted(world.up)) if world.up else ""
    if what < 0.15:
        world.start_pod()
    elif what < 0.75 and name:
        world.act(name, late=chance.random() < 0.2)
    elif what < 0.79 and name:
        world.kill(name, end=chance.choice([EndReason.KILLED, EndReason.ERROR, EndReason.PREEMPTED]))
    elif what < 0.80:
        unborn = sorted(world.state.membership.members.keys() - world.up.keys())
        if unborn:
            pod = chance.choice(unborn)
            world.handle(events.PodSilent(time=world.time, pod=pod, incarnation="", silent_seconds=900.0))
    elif what < 0.81 and name:
        incarnation = world.up[name]["incarnation"]
        world.handle(events.PodSilent(time=world.time, pod=name, incarnation=incarnation, silent_seconds=15.0))
    elif what < 0.83 and name:
        pod = world.up.pop(name)
        incarnation = pod["incarnation"]
        world.handle(
            events.PodFailed(time=world.time, pod=name, incarnation=incarnation, retryable=True, reason="no memory")
        )
        if pod["uid"] in world.plane.pods:
            world.plane.end(pod["uid"], EndReason.ERROR, 1)
    elif what < 0.85 and name:
        # Another process under the same name.
        world.serial += 1
        world.up[name] |= {"incarnation": str(world.serial), "restored": "", "shards": [], "generation": 0}
        world.up[name] |= {"writing": "", "uri": "", "transfers": 0, "reached": 0, "frozen": "", "ends_at": None}
        world.register(name)
    elif what < 0.89:
        world.commit(succeed=chance.random() < 0.7)
    elif what < 0.905:
        world.handle(events.SaveAsked(time=world.time))
    elif what < 0.91 and world.state.recovery.record is not None:
        world.damaged.add(world.state.recovery.record.uri)
    elif what < 0.93:
        # With a new process what the old one had under way is gone, except what it repeats.
        away_seconds = chance.choice([0.0, 3.0])
        world.commits = [] if away_seconds else world.commits
        world.handle(events.Restarted(time=world.time, away_seconds=away_seconds))
    elif what < 0.935 and name:
        world.give_notice(name)
    elif what < 0.94 and name:
        # Its store does not answer any more, or does again.
        world.hung ^= {name}
        world.stalled ^= {name}
    elif what < 0.95:
        asked = change(workers=chance.randint(1, 4), parameter_servers=chance.randint(1, 3))
        pods = sorted(name for name, member in world.state.membership.members.items() if not member.retiring)
        moves = [PodMove(pod=pod) for pod in chance.sample(pods, min(len(pods), chance.choice([0, 0, 1, 2])))]
        world.handle(events.ShapeAsked(time=world.time, change=asked, moves=moves))
        if chance.random() < 0.3 and world.state.shape_requests:
            request_id = world.state.shape_requests[-1].request_id
            world.handle(events.ShapeCancelled(time=world.time, request_id=request_id))
    else:
        world.time += chance.choice([0.1, 5.0, 70.0])
        world.tick()


def change_or_disturb(world: World, chance: random.Random) -> None:
    """One act of a hostile world in which the job's pods are changed all the time, by everybody who may do so."""
    what, state = chance.random(), world.state
    name = chance.choice(sorted(world.up)) if world.up else ""
    if what < 0.12:
        _ask_for_anything(world, chance)
    elif what < 0.16:
        if asked := [request.request_id for request in state.shape_requests if request.is_open]:
            world.handle(events.ShapeCancelled(time=world.time, request_id=chance.choice(asked)))
    elif what < 0.22:
        _relieve(world, chance)
    elif what < 0.25 and name:
        world.handle(
            events.PodSlow(
                time=world.time, pod=name, incarnation=world.up[name]["incarnation"], ratio=3.0, seconds_per_row=3.0,
                others_seconds_per_row=1.0,
            )
        )  # fmt: skip
    elif what < 0.27 and name:
        world.kill(name, end=EndReason.OUT_OF_MEMORY)
    elif what < 0.30 and name and world.up[name]["role"] is Role.PARAMETER_SERVER:
        world.give_notice(name, chance.choice([5.0, 60.0]))
    elif what < 0.34:
        world.time += chance.choice([1.0, 10.0, 30.0])
        end_notices(world)
        world.tick()
    elif what < 0.37:
        world.plane.defers_resizes = not world.plane.defers_resizes
    elif what < 0.40 and name and world.up[name]["role"] is Role.WORKER:
        order = WorkerOrder(is_idle=chance.random() < 0.6)
        world.handle(events.PodOrdered(time=world.time, pod=name, order=order))
    elif what < 0.42:
        world.handle(events.WorkersOrdered(time=world.time, order=WorkerOrder(batch_size=chance.choice([1, 2, 4]))))
    else:
        disturb(world, chance)


def _ask_for_anything(world: World, chance: random.Random) -> None:
    asked = change(
        parameter_servers=chance.choice([None, None, 1, 2, 3, 4]),
        workers=chance.choice([None, None, 1, 2, 3]),
        parameter_server_memory_bytes=chance.choice([None, None, 1500, 2000, 3000]),
        parameter_server_cores=chance.choice([None, None, None, 2.0, 3.0]),
        worker_cores=chance.choice([None, None, 2.0, 3.0]),
    )
    members = world.state.membership.members
    pods = sorted(name for name, member in members.items() if not member.retiring)
    moves = [
        PodMove(pod=pod, leaves_node=bool(members[pod].node) and chance.random() < 0.3)
        for pod in chance.sample(pods, min(len(pods), chance.choice([0, 0, 1, 2])))
    ]
    world.handle(events.ShapeAsked(time=world.time, change=asked, moves=moves))


def _relieve(world: World, chance: random.Random) -> None:
    ownership = world.state.ownership
    if len(ownership.servers) < 2:
        return
    hot = chance.randrange(len(ownership.servers))
    others = [server for place, server in enumerate(ownership.servers) if place != hot]
    buckets = [bucket for bucket, owner in enumerate(ownership.owners) if owner == hot]
    moves = {bucket: chance.choice(others) for bucket in chance.sample(buckets, min(8, len(buckets)))}
    world.handle(
        events.ServerHot(
            time=world.time, server=ownership.servers[hot], ratio=2.0, ratio_after=1.0, moves=moves,
            ownership_epoch=ownership.epoch,
        )
    )  # fmt: skip


def end_notices(world: World) -> None:
    """Servers whose time after a notice is over are ended."""
    for name, pod in list(world.up.items()):
        ends_at = pod.get("ends_at")
        if name in world.up and ends_at is not None and ends_at <= world.time:
            world.kill(name, end=EndReason.PREEMPTED)
