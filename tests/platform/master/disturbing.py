"""Random disturbances: pods and stores fail, requests arrive at the wrong moment, time jumps."""

from __future__ import annotations

import random

from elastrec.platform.clusters.pods import EndReason
from elastrec.platform.master.machine import events
from elastrec.platform.transport.messages.observer import PodMove
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
