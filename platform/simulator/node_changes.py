"""Nodes that are added or removed: maintenance, enlarged clusters, spot nodes that end without notice.

Pods on a removed node are lost. Their job gets new ones on other nodes as soon as capacity is free: a lost worker costs
its part of the work until then, a lost server the training since the last checkpoint. A job without servers or without
any worker frees its pods and waits like a new one.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import msgspec
import numpy as np

from elastrec.platform.scaling.amounts import require
from elastrec.platform.simulator.nodes import Nodes
from elastrec.platform.simulator.placing import Placing, free, server_size, worker_size
from elastrec.platform.simulator.running import Running


class NodeChange(msgspec.Struct, frozen=True):
    """A number of nodes to add (above 0) or to remove (below 0) at a time; removed ones are drawn from the simulation's
    seed."""

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
    """The losses of one job with nodes that are removed together.

    Attributes:
        replaced: workers that were placed on other nodes; they have to start.
        missing: workers that do not fit at present.
        restarts: whether servers were lost, so that the job restarts from its last checkpoint.
        waits: whether it could not continue with its remaining pods and has freed them.
    """

    replaced: int = 0
    missing: int = 0
    restarts: bool = False
    waits: bool = False


def draw(nodes: Nodes, count: int, random: np.random.Generator) -> Sequence[int]:
    """Removed nodes, drawn with equal probability; at most all existing ones."""
    there = nodes.open
    return sorted(int(node) for node in random.choice(there, size=min(count, len(there)), replace=False))


def lose_nodes(nodes: Nodes, closed: Collection[int], running: Running, now: float) -> Loss | None:
    """Moves a job's pods from closed nodes to other nodes; None where it has none there.

    Afterwards, `running` holds the remaining pods; the caller starts new ones or lets the job wait.
    """
    placing, held = running.placing, running.held
    kept_workers = tuple(each for each in placing.workers if each not in closed)
    kept_servers = tuple(each for each in placing.servers if each not in closed)
    lost_workers = len(placing.workers) - len(kept_workers)
    lost_servers = len(placing.servers) - len(kept_servers)
    if not lost_workers and not lost_servers:
        return None
    servers = nodes.place(lost_servers, server_size(held))
    workers = [at for _ in range(lost_workers) for at in nodes.place(1, worker_size(held)) or ()]
    left = len(kept_workers) + len(workers)
    if servers is None or not left:
        free(nodes, Placing((*kept_workers, *workers), (*kept_servers, *(servers or ()))), held)
        running.counts["failures"] += lost_workers + lost_servers
        return Loss(waits=True)
    found = Placing((*kept_workers, *workers), (*kept_servers, *servers))
    missing = held.workers - left
    # Pods that were starting for another allocation start again with the servers.
    restarts = bool(lost_servers) or held != running.allocation
    smaller = msgspec.structs.replace(held, workers=left)
    running.lose_pods(lost_workers + lost_servers, smaller, found, now)
    return Loss(replaced=len(workers), missing=missing, restarts=restarts)
