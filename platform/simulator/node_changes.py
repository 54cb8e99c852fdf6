"""Nodes that come and go: maintenance, a cluster that is enlarged, spot nodes that are taken away without notice.

Pods on a node that goes are lost. Their job gets them again on other nodes as soon as there is room: a lost worker
costs its part of the work until then, a lost server what was trained since the last checkpoint. A job that cannot get
its servers back, or has no worker left, gives back what it has and waits like a new one.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from elastrec.platform.scaling.amounts import require
from elastrec.platform.simulator.nodes import Nodes
from elastrec.platform.simulator.placing import Placing, free, server_size, worker_size
from elastrec.platform.simulator.running import Running


class NodeChange(msgspec.Struct, frozen=True):
    """So many nodes come (above 0) or go (below 0) at a moment; which ones go is drawn from the simulation's seed."""

    seconds: float
    nodes: int

    def __post_init__(self) -> None:
        require(
            0 <= self.seconds < float("inf"), "node_changes.seconds", self.seconds, "0 or more", "correct the trace"
        )
        require(
            self.nodes != 0, "node_changes.nodes", self.nodes, "above 0: they come; below 0: they go", "leave it out"
        )


class Loss(msgspec.Struct, frozen=True):
    """What one job loses with a node.

    Attributes:
        replaced: workers that found room elsewhere; they have to start.
        missing: workers for which there is no room now.
        restarts: its servers are among what was lost: it begins again from its last checkpoint.
        waits: it could not go on with what is left, and has given everything back.
    """

    replaced: int = 0
    missing: int = 0
    restarts: bool = False
    waits: bool = False


def draw(nodes: Nodes, count: int, random: np.random.Generator) -> Sequence[int]:
    """Nodes that go: at most all that there are, each as likely as another."""
    there = nodes.open
    return sorted(int(node) for node in random.choice(there, size=min(count, len(there)), replace=False))


def lose_node(nodes: Nodes, node: int, running: Running, now: float) -> Loss | None:
    """Takes a job's pods off a node that is closed, and places them anew; None where it has none there.

    `running` holds what is left of it afterwards; starting pods and waiting are the caller's.
    """
    placing, held = running.placing, running.held
    kept_workers = tuple(each for each in placing.workers if each != node)
    kept_servers = tuple(each for each in placing.servers if each != node)
    lost_workers = len(placing.workers) - len(kept_workers)
    lost_servers = len(placing.servers) - len(kept_servers)
    if not lost_workers and not lost_servers:
        return None
    nodes.give_back([node] * lost_workers, worker_size(held))
    nodes.give_back([node] * lost_servers, server_size(held))
    servers = nodes.place(lost_servers, server_size(held))
    workers = [at for _ in range(lost_workers) for at in nodes.place(1, worker_size(held)) or ()]
    left = len(kept_workers) + len(workers)
    if servers is None or not left:
        free(nodes, Placing((*kept_workers, *workers), (*kept_servers, *(servers or ()))), held)
        return Loss(waits=True)
    found = Placing((*kept_workers, *workers), (*kept_servers, *servers))
    missing = held.workers - left
    # Pods that were on their way to another allocation start anew with the servers.
    restarts = bool(lost_servers) or held != running.allocation
    smaller = msgspec.structs.replace(held, workers=left)
    running.lose_pods(lost_workers + lost_servers, smaller, found, now)
    return Loss(replaced=len(workers), missing=missing, restarts=restarts)
