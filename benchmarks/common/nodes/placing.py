"""The choice of a new pod's node. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from elastrec.platform.clusters.nodes import Node
from elastrec.platform.clusters.pods import Placement, PodSpec, PodStatus
from elastrec.platform.specs.errors import ClusterError


def place(pod: PodSpec, nodes: Sequence[Node], pods: Mapping[str, Sequence[PodStatus]]) -> str:
    """The name of the node for a pod.

    Among the nodes that accept pods, are large enough and suit its placement: first those with free capacity, then the
    one with the fewest pods of its role and job, as Kubernetes spreads them, then the first.

    Args:
        pods: of the pod's job, by node.

    Raises:
        ClusterError: no node can ever run it; or it has a group, whose pods may be on several nodes here.
    """
    if pod.group is not None:
        raise ClusterError(
            f"pod {pod.name}: group {pod.group} is not allowed: no agent sees the pods of other nodes; leave it out"
        )
    large_enough = [node for node in nodes if node.takes_pods and _fits(pod, node, is_now=False)]
    suitable = [node for node in large_enough if suits(pod.placement, node.name, pods.get(node.name, ()))]
    candidates = suitable if suitable or _is_required(pod) else large_enough
    if not candidates:
        taking = ", ".join(f"{node.name} ({node.size})" for node in nodes if node.takes_pods) or "none"
        raise ClusterError(
            f"pod {pod.name} of {pod.size} cannot be placed with {pod.placement}; nodes that take pods: {taking}"
        )

    def rank(node: Node) -> tuple[bool, int]:
        same = [one for one in pods.get(node.name, ()) if one.role is pod.role and not one.phase.is_final]
        return not _fits(pod, node, is_now=True), len(same)

    return min(candidates, key=rank).name


def suits(placement: Placement | None, node: str, pods: Sequence[PodStatus]) -> bool:
    """Whether a node satisfies a placement; nodes have no labels here.

    Args:
        pods: those of the same job on the node.
    """
    if placement is None:
        return True
    labels = [pod.labels for pod in pods if not pod.phase.is_final]
    is_near = not placement.near_pods or any(placement.near_pods.items() <= each.items() for each in labels)
    is_far = not placement.avoid_pods or not any(placement.avoid_pods.items() <= each.items() for each in labels)
    return is_near and is_far and not placement.near_nodes and node not in placement.avoid_node_names


def _is_required(pod: PodSpec) -> bool:
    return pod.placement is not None and pod.placement.is_required


def _fits(pod: PodSpec, node: Node, *, is_now: bool) -> bool:
    room = node.free if is_now else node.size
    volume = pod.memory_volume.size_bytes if pod.memory_volume is not None else 0
    return pod.size.cores <= room.cores and pod.size.memory_bytes + volume <= room.memory_bytes
