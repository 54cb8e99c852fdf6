"""The nodes of a cluster: their sizes, their free resources, and whether they accept pods."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum

import msgspec

from elastrec.platform.clusters.pods import PodSize


class NodeCondition(StrEnum):
    """A problem of a node.

    Attributes:
        NOT_READY: its agent does not answer the cluster.
        UNSCHEDULABLE: it accepts no new pods: cordoned, drained, decommissioned, or short of memory or disk.
        LIMITS_NOT_ENFORCED: pods on it can use more cores and memory than they were granted.
    """

    NOT_READY = "NotReady"
    UNSCHEDULABLE = "Unschedulable"
    LIMITS_NOT_ENFORCED = "LimitsNotEnforced"


class Node(msgspec.Struct, frozen=True, kw_only=True):
    """The part of a machine that pods may use.

    Attributes:
        size: the resources for all pods together.
        free: resources that a new pod could get; zero if the node accepts no pods.
        conditions: its problems; empty if it is healthy and accepts pods.
        labels: by which `Placement` chooses nodes.
    """

    name: str
    size: PodSize
    free: PodSize
    conditions: tuple[NodeCondition, ...] = ()
    labels: dict[str, str] = {}

    @property
    def takes_pods(self) -> bool:
        return not {NodeCondition.NOT_READY, NodeCondition.UNSCHEDULABLE} & set(self.conditions)


class Capacity(msgspec.Struct, frozen=True):
    """The capacity of a whole cluster.

    Attributes:
        total, free: sums over its nodes; they do not tell whether a pod fits on one node.
        largest: maximum cores and maximum memory of a node, possibly of two different nodes.
    """

    total: PodSize
    free: PodSize
    largest: PodSize

    @staticmethod
    def of(nodes: Iterable[Node]) -> Capacity:
        """Nodes that do not answer are not counted; nodes that accept no new pods have no free resources."""
        there = [node for node in nodes if NodeCondition.NOT_READY not in node.conditions]
        return Capacity(
            total=_sum(node.size for node in there),
            free=_sum(node.free for node in there if node.takes_pods),
            largest=PodSize(
                max((node.size.cores for node in there), default=0.0),
                max((node.size.memory_bytes for node in there), default=0),
            ),
        )


def limits_enforced(nodes: Iterable[Node]) -> bool:
    """Whether every node limits pods to the granted cores and memory."""
    return all(NodeCondition.LIMITS_NOT_ENFORCED not in node.conditions for node in nodes)


def _sum(sizes: Iterable[PodSize]) -> PodSize:
    added = list(sizes)
    return PodSize(sum(size.cores for size in added), sum(size.memory_bytes for size in added))


__all__ = ["Capacity", "Node", "NodeCondition", "limits_enforced"]
