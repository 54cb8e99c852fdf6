"""Memory on clusters without memory volumes: pods are larger, but their servers are reported with their own size."""

from __future__ import annotations

import pytest

from elastrec.platform.clusters.owned_memory import (
    BYTES_LABEL,
    OWNER_BYTES,
    OwnedMemoryFleet,
    with_owner,
    without_owner,
)
from elastrec.platform.clusters.pods import (
    MemoryVolume,
    PodEventKind,
    PodPhase,
    PodSize,
    PodSpec,
    PodStatus,
    ResizeState,
)
from elastrec.platform.specs.metrics import Role
from tests.platform.clusters.fake_fleet import FakeFleet
from tests.platform.clusters.fleets import FLEETS

MIB = 2**20
SIZE = PodSize(1.0, 512 * MIB)
MORE = 64 * MIB + OWNER_BYTES


def pod(*, has_memory: bool = True) -> PodSpec:
    return PodSpec(
        name="clicks-1-ps-0", job="clicks-1", role=Role.PARAMETER_SERVER, command=("python", "-m", "a.server"),
        size=SIZE, labels={"a": "b"}, memory_volume=MemoryVolume("ps-0", 64 * MIB) if has_memory else None,
    )  # fmt: skip


@pytest.fixture(params=sorted(FLEETS))
def plane(request: pytest.FixtureRequest) -> FakeFleet:
    return FLEETS[request.param](None)


def seen(fleet: OwnedMemoryFleet, resume: str = "") -> list[PodStatus]:
    return [event.pod for event in fleet.watch(resume, 0.0) if event.pod is not None]


def test_the_pods_first_process_owns_the_memory_and_starts_the_server() -> None:
    made = with_owner(pod())
    assert made.command == ("python", "-m", "elastrec.trainers.memory_owner", str(64 * MIB), "-m", "a.server")
    assert made.size == PodSize(1.0, SIZE.memory_bytes + MORE) and made.memory_volume is None
    assert made.labels == {"a": "b", BYTES_LABEL: str(MORE)}
    assert with_owner(pod(has_memory=False)) == pod(has_memory=False)


def test_a_master_sees_the_size_of_its_server_and_the_cluster_that_of_the_pod(plane: FakeFleet) -> None:
    fleet = OwnedMemoryFleet(plane)
    created = fleet.create(pod())
    assert created.size == SIZE and plane.pods[created.uid].size == PodSize(1.0, SIZE.memory_bytes + MORE)
    plane.start(created.uid)
    assert [status.size for status in seen(fleet)] == [SIZE]
    other = fleet.create(
        PodSpec(name="clicks-1-worker-0", job="clicks-1", role=Role.WORKER, command=("python",), size=SIZE)
    )
    assert other.size == plane.pods[other.uid].size == SIZE


@pytest.mark.parametrize("is_restarted", [False, True], ids=["the same master", "a restarted master"])
def test_a_server_is_resized_as_its_master_requests(plane: FakeFleet, is_restarted: bool) -> None:
    fleet = OwnedMemoryFleet(plane)
    created = fleet.create(pod())
    plane.start(created.uid)
    if is_restarted:
        fleet = OwnedMemoryFleet(plane)
        seen(fleet)
    larger = PodSize(2.0, 1024 * MIB)
    plane.delays = True
    token = plane.token()
    fleet.resize(created.name, created.uid, larger)
    plane.settle()
    assert plane.pods[created.uid].size == PodSize(2.0, larger.memory_bytes + MORE)
    last = seen(fleet, token)[-1]
    assert last.size == last.asked_size == larger and last.resize is ResizeState.DONE


def test_the_owners_memory_is_subtracted_from_a_requested_size_too() -> None:
    status = PodStatus(
        name="a", uid="1", job="j", role=Role.PARAMETER_SERVER, phase=PodPhase.RUNNING, labels={BYTES_LABEL: str(MORE)},
        size=PodSize(1.0, SIZE.memory_bytes + MORE), asked=PodSize(2.0, SIZE.memory_bytes + 2 * MORE), memory_bytes=9,
    )  # fmt: skip
    server = without_owner(status)
    assert (server.size, server.asked, server.memory_bytes) == (SIZE, PodSize(2.0, SIZE.memory_bytes + MORE), 0)


def test_events_without_a_pod_and_the_last_of_a_pod_come_through(plane: FakeFleet) -> None:
    fleet = OwnedMemoryFleet(plane)
    created = fleet.create(pod())
    snapshot = list(fleet.watch("", 0.0))
    assert [event.kind for event in snapshot] == [PodEventKind.SEEN, PodEventKind.SYNCED]
    token = plane.token()
    fleet.delete(created.name, created.uid)
    plane.settle()
    last = [event for event in fleet.watch(token, 0.0) if event.pod is not None][-1]
    assert last.kind is PodEventKind.DELETED and last.pod is not None and last.pod.size == SIZE
