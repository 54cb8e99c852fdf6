"""On a cluster of several nodes, a pod must fit on one of them, regardless of the total capacity."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from elastrec.platform.clusters.backends import _loaded
from elastrec.platform.clusters.local.config import LocalConfig
from elastrec.platform.clusters.nodes import Capacity, Node, NodeCondition
from elastrec.platform.clusters.owned_memory import BYTES_LABEL
from elastrec.platform.clusters.pods import PodPhase, PodSize, PodStatus
from elastrec.platform.jobs.scaling.masters import largest_bytes_of
from elastrec.platform.jobs.scaling.standing import room_of
from elastrec.platform.jobs.starting.preparation import _check_capacity
from elastrec.platform.scaling.amounts import Allocation, Resources
from elastrec.platform.specs.errors import SpecError
from elastrec.platform.specs.metrics import Role
from tests.platform.master.fakes import job
from tests.remote_cluster import BACKEND, FarConfig

GIB = 2**30


def node(name: str, memory: int, free: int, cores: float = 4.0, *conditions: NodeCondition) -> Node:
    size, left = PodSize(cores, memory * GIB), PodSize(cores, free * GIB)
    return Node(name=name, size=size, free=left, conditions=conditions)


def server(node: str, memory: int, role: Role = Role.PARAMETER_SERVER) -> PodStatus:
    return PodStatus(
        name=f"clicks-1-{role}-{node}", uid=node, job="clicks-1", role=role, phase=PodPhase.RUNNING,
        size=PodSize(1.0, memory * GIB), node=node,
    )  # fmt: skip


def platform(nodes: list[Node], pods: list[PodStatus] | None = None) -> Any:
    launcher = SimpleNamespace(nodes=lambda: nodes, pods=lambda: pods or [])
    return SimpleNamespace(launcher=launcher, cluster_config=LocalConfig(address="127.0.0.1:1", token="t"))


def test_a_server_can_have_what_is_free_on_one_node_and_no_sum_over_nodes() -> None:
    nodes = [node("a", 16, 6), node("b", 16, 5)]
    assert largest_bytes_of(nodes, [], ["clicks-1"]) == {"clicks-1": 6 * GIB}


def test_present_resources_of_a_server_count_only_on_its_own_node() -> None:
    nodes = [node("a", 16, 6), node("b", 16, 5)]
    on_b = [server("b", 4), server("b", 2), server("a", 9, Role.WORKER)]
    found = largest_bytes_of(nodes, on_b, ["clicks-1", "clicks-2"])
    assert found == {"clicks-1": 9 * GIB, "clicks-2": 6 * GIB}


def test_a_pod_larger_than_every_node_is_refused_although_it_is_smaller_than_the_cluster() -> None:
    nodes = [node("a", 8, 8, 2.0), node("b", 4, 4, 6.0)]
    asked = {"worker": {"count": 2, "cores": 7.0, "memory": "1Gi"}, "parameter_server": {"count": 1, "memory": "9Gi"}}
    with pytest.raises(SpecError) as refused:
        _check_capacity(platform(nodes), job(resources=asked))
    says = str(refused.value)
    assert "spec.resources.worker.cores: 7 is not allowed; allowed: at most 6" in says
    assert "spec.resources.parameter_server.memory: 9Gi is not allowed; allowed: at most 8Gi" in says


def test_a_server_that_fits_a_node_without_its_memory_alone_is_refused() -> None:
    asked = {"worker": {"count": 1}, "parameter_server": {"count": 1, "memory": "6Gi"}}
    checkpoint: dict[str, Any] = {"interval": 0, "memory": "2Gi"}
    _check_capacity(platform([node("a", 8, 8), node("b", 8, 8)]), job(resources=asked, checkpoint=checkpoint))
    checkpoint["memory"] = "3Gi"
    with pytest.raises(
        SpecError, match=r"memory: 9Gi with spec\.checkpoint\.memory is not allowed; allowed: at most 8Gi"
    ):
        _check_capacity(platform([node("a", 8, 8), node("b", 8, 8)]), job(resources=asked, checkpoint=checkpoint))


def test_the_owner_of_a_pods_memory_is_included_in_its_size() -> None:
    asked = {"worker": {"count": 1}, "parameter_server": {"count": 1, "memory": "6Gi"}}
    without_volumes = platform([node("a", 8, 8), node("b", 8, 8)])
    without_volumes.cluster_config = FarConfig()
    _loaded["far"] = BACKEND
    try:
        with pytest.raises(SpecError, match=r"memory: 8200Mi with spec\.checkpoint\.memory is not allowed"):
            _check_capacity(without_volumes, job(resources=asked, checkpoint={"interval": 0, "memory": "2Gi"}))
    finally:
        del _loaded["far"]


def test_the_largest_size_of_a_server_excludes_its_owned_memory() -> None:
    more = 3 * GIB
    pod = server("b", 7)
    beside = msgspec.structs.replace(pod, labels={BYTES_LABEL: str(more)})
    assert largest_bytes_of([node("b", 16, 5)], [beside], ["clicks-1"]) == {"clicks-1": 9 * GIB}


def test_the_capacity_excludes_resources_that_no_pod_can_get() -> None:
    cordoned = node("b", 8, 8, 4.0, NodeCondition.UNSCHEDULABLE)
    gone = node("c", 8, 8, 4.0, NodeCondition.NOT_READY)
    capacity = Capacity.of([node("a", 8, 3), cordoned, gone])
    assert (capacity.total.memory_bytes, capacity.free.memory_bytes) == (16 * GIB, 3 * GIB)
    assert Capacity.of([]) == Capacity(PodSize(0, 0), PodSize(0, 0), PodSize(0, 0))


def test_a_plan_has_no_pod_larger_than_a_node() -> None:
    """What the simulator shows to policies, the live cluster shows them, too."""
    room = room_of([node("a", 8, 6, 2.0), node("b", 4, 1, 6.0)])
    assert room.free == Resources(8.0, 7.0 * GIB) and room.largest_pod == Resources(6.0, 8.0 * GIB)
    assert room_of([]).free == Resources(0.0, 0.0)
    sizes = {"workers": 1, "parameter_servers": 1, "worker_cores": 1.0, "parameter_server_cores": 1.0}
    fits, large = (
        Allocation(**sizes, worker_memory_bytes=GIB, parameter_server_memory_bytes=memory * GIB) for memory in (8, 9)
    )
    assert room.holds_pods_of(fits) and not room.holds_pods_of(large)
