"""A simulated node resizes a pod in place where a real one does."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from elastrec.platform.clusters.local.agent import pod_life as life
from elastrec.platform.clusters.pods import PodSize, PodSpec
from elastrec.platform.scaling.amounts import GIBIBYTE, Allocation, Change, Resources
from elastrec.platform.simulator.nodes import Nodes
from elastrec.platform.simulator.placing import Placing, move
from elastrec.platform.specs.metrics import Role

SIZES = st.builds(PodSize, st.integers(1, 12).map(lambda halves: halves / 2), st.integers(1, 6).map(GIBIBYTE.__mul__))


def resources_of(size: PodSize) -> Resources:
    return Resources(size.cores, float(size.memory_bytes))


def granted_by_an_agent(total: PodSize, pods: list[PodSize], number: int, wanted: PodSize) -> bool:
    records = []
    for place, size in enumerate(pods):
        spec = PodSpec(name=f"pod-{place}", job="job", role=Role.WORKER, command=("python",), size=size)
        record = life.new_record(spec, uid=str(place), node="n", port=0, now=0.0)
        records.append(msgspec.structs.replace(record, stage=life.Stage.LIVE))
    others = [record for place, record in enumerate(records) if place != number]
    return not life.shortage(wanted, life.free_of(total, others))


@given(st.lists(SIZES, min_size=1, max_size=5), SIZES, SIZES, st.data())
def test_a_pod_is_resized_in_place_if_its_node_has_room(
    pods: list[PodSize], more: PodSize, wanted: PodSize, data: st.DataObject
) -> None:
    held = PodSize(sum(pod.cores for pod in pods), sum(pod.memory_bytes for pod in pods))
    total = PodSize(held.cores + more.cores, held.memory_bytes + more.memory_bytes)
    number = data.draw(st.integers(0, len(pods) - 1))
    nodes = Nodes(1, resources_of(total))
    for pod in pods:
        nodes.place(1, resources_of(pod))
    free = nodes.free
    (granted,) = nodes.resize([0], resources_of(pods[number]), resources_of(wanted))
    assert granted == granted_by_an_agent(total, pods, number, wanted)
    used = resources_of(wanted) - resources_of(pods[number]) if granted else Resources()
    assert nodes.free == free - used


@given(SIZES, SIZES, SIZES, st.integers(1, 4))
def test_pods_whose_size_only_falls_find_the_room_where_they_are_on_full_nodes(
    held: PodSize, one: PodSize, other: PodSize, count: int
) -> None:
    """Plans count on it: they charge no starts for them (`scaling.search.objectives`)."""
    smaller = [PodSize(min(held.cores, size.cores), min(held.memory_bytes, size.memory_bytes)) for size in (one, other)]

    def of(worker: PodSize, server: PodSize) -> Allocation:
        return Allocation(
            workers=count, parameter_servers=count, worker_cores=worker.cores, parameter_server_cores=server.cores,
            worker_memory_bytes=worker.memory_bytes, parameter_server_memory_bytes=server.memory_bytes,
        )  # fmt: skip

    before, after = of(held, held), of(*smaller)
    nodes = Nodes(2 * count, resources_of(held))
    workers, servers = (nodes.place(count, resources_of(held)) for _ in range(2))
    assert workers is not None and servers is not None and nodes.free.cores == 0
    moved = move(nodes, Placing(tuple(workers), tuple(servers)), before, after)
    assert moved is not None
    assert moved.in_place == before.changes(after) & {Change.WORKER_SIZE, Change.SERVER_SIZE}
