"""A pod is placed on a node that accepts it, has room, satisfies its placement, and has the fewest similar pods."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.common.nodes.placing import place
from elastrec.platform.clusters.nodes import Node, NodeCondition
from elastrec.platform.clusters.pods import MemoryVolume, Placement, PodGroup, PodPhase, PodSize, PodSpec, PodStatus
from elastrec.platform.specs.errors import ClusterError
from elastrec.platform.specs.metrics import Role

SIZE = PodSize(2.0, 1000)


def node(name: str, free: PodSize = SIZE, *conditions: NodeCondition) -> Node:
    return Node(name=name, size=SIZE, free=free, conditions=conditions)


def spec(cores: float = 0.5, memory: int = 100, **fields: Any) -> PodSpec:
    values: dict[str, Any] = {"name": "new", "job": "job", "role": Role.WORKER, "command": ("python",)}
    return PodSpec(size=PodSize(cores, memory), **{**values, **fields})


def pod(role: Role = Role.WORKER, phase: PodPhase = PodPhase.RUNNING, **labels: str) -> PodStatus:
    return PodStatus(name="p", uid="u", job="job", role=role, phase=phase, size=PodSize(0.5, 100), labels=labels)


TWO = (node("a"), node("b"))


def test_pods_of_one_role_are_spread_and_the_first_node_is_filled_first() -> None:
    assert place(spec(), TWO, {}) == "a"
    assert place(spec(), TWO, {"a": [pod()]}) == "b"
    assert place(spec(), TWO, {"a": [pod()], "b": [pod()]}) == "a"
    assert place(spec(), TWO, {"a": [pod(Role.PARAMETER_SERVER), pod(phase=PodPhase.FAILED)]}) == "a"


def test_a_node_with_room_is_preferred_to_one_where_a_pod_waits() -> None:
    full = node("a", PodSize(0.4, 1000))
    assert place(spec(), (full, TWO[1]), {"b": [pod(), pod()]}) == "b"
    assert place(spec(), (full, node("b", PodSize(2.0, 99))), {}) == "a"
    volume = MemoryVolume("ps-0", 500)
    assert place(spec(memory=400, memory_volume=volume), (node("a", PodSize(2.0, 899)), TWO[1]), {}) == "b"


@pytest.mark.parametrize(
    ("placement", "there", "chosen"),
    [
        (Placement(avoid_node_names=("a",), is_required=True), {"b": [pod()]}, "b"),
        (Placement(avoid_node_names=("a",)), {"b": [pod()]}, "b"),
        (Placement(avoid_node_names=("a", "b")), {}, "a"),
        (Placement(near_pods={"x": "1"}), {"b": [pod(x="1", y="2")]}, "b"),
        (Placement(avoid_pods={"x": "1"}), {"a": [pod(Role.MASTER, x="1")], "b": [pod()]}, "b"),
        (Placement(near_nodes={"x": "1"}), {"a": [pod()]}, "b"),
        (Placement(avoid_nodes={"x": "1"}, is_required=True), {}, "a"),
    ],
)
def test_a_placement_is_honoured(placement: Placement, there: dict[str, list[PodStatus]], chosen: str) -> None:
    assert place(spec(placement=placement), TWO, there) == chosen


@pytest.mark.parametrize(
    "pod_spec",
    [
        spec(placement=Placement(avoid_node_names=("a",), is_required=True)),
        spec(placement=Placement(near_nodes={"x": "1"}, is_required=True)),
        spec(placement=Placement(near_pods={"x": "1"}, is_required=True)),
        spec(cores=2.1),
        spec(memory=1001),
        spec(memory=501, memory_volume=MemoryVolume("ps-0", 500)),
    ],
)
def test_a_pod_that_no_node_can_ever_run_is_refused_permanently(pod_spec: PodSpec) -> None:
    cordoned = node("b", PodSize(0.0, 0), NodeCondition.UNSCHEDULABLE)
    with pytest.raises(ClusterError, match=r"pod new .* cannot be placed .*nodes that take pods: a \(") as refused:
        place(pod_spec, (TWO[0], cordoned), {})
    assert not refused.value.retryable


def test_a_group_is_refused_because_no_agent_sees_all_of_it() -> None:
    with pytest.raises(ClusterError, match="pod new: group"):
        place(spec(group=PodGroup("workers", 2)), TWO, {})
