"""Nodes as known to the ResourceManager."""

from __future__ import annotations

from elastrec.platform.clusters.nodes import Node, NodeCondition
from elastrec.platform.specs.shape import PodSize
from tests.spikes.yarn.rest import Object, Rest
from tests.spikes.yarn.sizes import MEGABYTE


def nodes_of(rest: Rest) -> list[Node]:
    """All nodes; the label `http` is the address of a node's web server."""
    return [_node(each) for each in (rest.call("GET", "/nodes")["nodes"] or {}).get("node", [])]


def _node(node: Object) -> Node:
    conditions: list[NodeCondition] = []
    if node["state"] in ("LOST", "SHUTDOWN", "REBOOTED", "NEW"):
        conditions.append(NodeCondition.NOT_READY)
    elif node["state"] != "RUNNING":
        conditions.append(NodeCondition.UNSCHEDULABLE)
    free = PodSize(float(node["availableVirtualCores"]), int(node["availMemoryMB"]) * MEGABYTE)
    used = PodSize(float(node["usedVirtualCores"]), int(node["usedMemoryMB"]) * MEGABYTE)
    size = PodSize(free.cores + used.cores, free.memory_bytes + used.memory_bytes)
    labels = {"http": str(node["nodeHTTPAddress"])}
    return Node(name=node["id"], size=size, free=free, conditions=tuple(conditions), labels=labels)
