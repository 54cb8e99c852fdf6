"""The nodes of a cluster: what each has, what is free on it, and whether it takes pods."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum

import msgspec

from elastrec.platform.clusters.pods import PodSize


class NodeCondition(StrEnum):
    """What is the matter with a node.

    Attributes:
        NOT_READY: its agent does not answer the cluster.
        UNSCHEDULABLE: it takes no new pods: cordoned, drained, decommissioned, or short of memory or disk.
        LIMITS_NOT_ENFORCED: a pod there can take more cores and memory than it was granted.
    """

    NOT_READY = "NotReady"
    UNSCHEDULABLE = "Unschedulable"
    LIMITS_NOT_ENFORCED = "LimitsNotEnforced"


class Node(msgspec.Struct, frozen=True, kw_only=True):
    """One machine, as far as pods may use it.

    Attributes:
        size: what all pods on it may be granted together.
        free: what a new pod there could still get; nothing where it takes none.
        conditions: empty: it is well and takes pods.
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
    """Of a whole cluster.

    Attributes:
        total, free: sums over its nodes, which say nothing about whether a pod fits one.
        largest: the most cores and the most memory that a node has; it may be two nodes that have them.
    """

    total: PodSize
    free: PodSize
    largest: PodSize

    @staticmethod
    def of(nodes: Iterable[Node]) -> Capacity:
        """Nodes that do not answer count nothing; those that take no new pods have nothing free."""
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
    """Whether pods get no more cores and memory than they were granted, on every node."""
    return all(NodeCondition.LIMITS_NOT_ENFORCED not in node.conditions for node in nodes)


def _sum(sizes: Iterable[PodSize]) -> PodSize:
    added = list(sizes)
    return PodSize(sum(size.cores for size in added), sum(size.memory_bytes for size in added))


__all__ = ["Capacity", "Node", "NodeCondition", "limits_enforced"]
