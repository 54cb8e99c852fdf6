"""What a change of a simulated job waits for, and when its training pauses: the rules of a real node and master."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastrec.platform.clusters.local.agent import pod_life as life
from elastrec.platform.clusters.pods import PodSize, PodSpec
from elastrec.platform.scaling.amounts import GIBIBYTE, Allocation, Resources
from elastrec.platform.simulator.nodes import Nodes
from elastrec.platform.simulator.placing import Part, Placing, move, place
from elastrec.platform.specs.metrics import Role
from tests.platform.simulator.cluster import NODE, asked

FULL = Resources(12.0, 16.0 * GIBIBYTE)
"""What four workers and two servers of `asked` have together."""
WORKER_SIZE = ("worker_cores", "worker_memory_bytes")
SERVER_SIZE = ("parameter_server_cores", "parameter_server_memory_bytes")
SIZES = st.builds(PodSize, st.integers(1, 12).map(lambda halves: halves / 2), st.integers(1, 6).map(GIBIBYTE.__mul__))


def resources_of(size: PodSize) -> Resources:
    return Resources(size.cores, float(size.memory_bytes))


def granted_by_an_agent(total: PodSize, pods: list[PodSize], number: int, wanted: PodSize) -> bool:
    records = []
    for order, size in enumerate(pods):
        spec = PodSpec(name=f"pod-{order}", job="job", role=Role.WORKER, command=("python",), size=size)
        record = life.new_record(spec, uid=str(order), node="n", port=0, now=0.0)
        records.append(msgspec.structs.replace(record, stage=life.Stage.LIVE))
    others = [record for order, record in enumerate(records) if order != number]
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
    assert moved.placing == Placing(tuple(workers), tuple(servers))
    assert not any(part.starts or part.hands_over for part in moved.parts)


def test_only_pods_whose_node_has_no_room_for_their_size_are_moved() -> None:
    # Four pods of two cores fill a node; one node has a pod less.
    nodes = Nodes(3, Resources(8.0, 192.0 * GIBIBYTE))
    held = asked(workers=5, servers=2)
    placing = place(nodes, held)
    assert placing == Placing((0, 0, 0, 0, 1), (1, 1))
    moved = move(nodes, placing, held, msgspec.structs.replace(held, parameter_server_cores=4.0))
    assert moved is not None
    assert moved.placing == Placing((0, 0, 0, 0, 1), (1, 2))


@pytest.mark.parametrize(
    ("changed", "node", "parts"),
    [
        # In place: larger where the node has the room, smaller everywhere.
        ({"worker_cores": 4.0}, NODE, {Part(WORKER_SIZE)}),
        ({"parameter_server_cores": 4.0}, NODE, {Part(SERVER_SIZE)}),
        ({"worker_cores": 1.0}, FULL, {Part(WORKER_SIZE)}),
        ({"parameter_server_cores": 1.0}, FULL, {Part(SERVER_SIZE)}),
        ({"worker_memory_bytes": GIBIBYTE, "parameter_server_memory_bytes": GIBIBYTE}, FULL,
         {Part(WORKER_SIZE), Part(SERVER_SIZE)}),
        # What one role frees, the other one takes.
        ({"workers": 3, "parameter_server_cores": 3.0}, FULL, {Part(("workers",)), Part(SERVER_SIZE)}),
        # Replaced: the node has no room.
        ({"worker_cores": 4.0}, FULL, {Part(WORKER_SIZE, starts=True)}),
        ({"parameter_server_cores": 4.0}, FULL, {Part(SERVER_SIZE, starts=True, hands_over=True)}),
        # Numbers: only pods that are added start, and only servers have rows.
        ({"workers": 5}, NODE, {Part(("workers",), starts=True)}),
        ({"workers": 3}, NODE, {Part(("workers",))}),
        ({"parameter_servers": 3}, NODE, {Part(("parameter_servers",), starts=True, hands_over=True)}),
        ({"parameter_servers": 1}, NODE, {Part(("parameter_servers",), hands_over=True)}),
        # Both: surplus workers leave before others are replaced; servers hand their rows over once.
        ({"workers": 5, "worker_cores": 4.0}, NODE, {Part(WORKER_SIZE), Part(("workers",), starts=True)}),
        ({"workers": 3, "worker_cores": 8.0}, FULL, {Part(("workers",)), Part(WORKER_SIZE, starts=True)}),
        ({"workers": 5, "worker_cores": 4.0}, FULL, {Part((*WORKER_SIZE, "workers"), starts=True)}),
        ({"parameter_servers": 3, "parameter_server_cores": 3.0}, FULL,
         {Part((*SERVER_SIZE, "parameter_servers"), starts=True, hands_over=True)}),
        ({"parameter_servers": 1, "parameter_server_cores": 1.0}, FULL,
         {Part(SERVER_SIZE), Part(("parameter_servers",), hands_over=True)}),
    ],
)  # fmt: skip
def test_only_pods_that_start_are_waited_for_and_only_moved_rows_pause_the_training(
    changed: dict[str, float], node: Resources, parts: set[Part]
) -> None:
    nodes, held = Nodes(20, node), asked()
    placing = place(nodes, held)
    assert placing is not None
    moved = move(nodes, placing, held, msgspec.structs.replace(held, **changed))
    assert moved is not None
    assert set(moved.parts) == parts
