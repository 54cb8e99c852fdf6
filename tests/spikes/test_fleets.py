"""Properties of every fleet on which the master relies: the same tests for the fakes and the real servers."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from benchmarks.common.nodes import NodesConfig, started_nodes
from elastrec.platform.clusters.local import LocalCluster, find_agent, start_agent, stop_agent
from elastrec.platform.clusters.pods import EndReason, PodEventKind, PodPhase, PodSize, ResizeState
from elastrec.platform.clusters.protocol import snapshot
from elastrec.platform.specs.errors import ClusterError
from elastrec.platform.specs.metrics import Role
from tests.platform.clusters.fake_kubernetes import FakeKubernetes
from tests.platform.clusters.fake_local import FakeLocal
from tests.spikes.kubernetes.lab import NODE_SIZE, Namespace
from tests.spikes.testbeds import Bed, FakeBed, KubernetesBed, LocalBed, NodesBed, Observer, spec

pytestmark = pytest.mark.services

LARGE = PodSize(2.5, 1 << 30)


KINDS = ("fake Kubernetes", "Kubernetes", "fake agent", "local agent", "two local agents")


@pytest.fixture(scope="module")
def agent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, LocalCluster]]:
    """A node agent in a folder."""
    folder = tmp_path_factory.mktemp("agent")
    cluster = start_agent(folder, cores=NODE_SIZE.cores, memory_bytes=NODE_SIZE.memory_bytes, limits="threads")
    yield folder, cluster
    cluster.close()
    stop_agent(folder)


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, LocalCluster, NodesConfig]]:
    """Two node agents as one cluster, the second cordoned: the first one's folder, its client, and the cluster."""
    home = tmp_path_factory.mktemp("nodes")
    with started_nodes(home, {"n1": NODE_SIZE, "n2": NODE_SIZE}, limits="threads") as config:
        cluster = find_agent(home / "n1")
        assert cluster is not None
        yield home / "n1", cluster, msgspec.structs.replace(config, unschedulable=("n2",))
        cluster.close()


@pytest.fixture(params=KINDS)
def testbed(request: pytest.FixtureRequest) -> Iterator[Bed]:
    only = request.node.get_closest_marker("only")
    if only is not None and only.args[0] not in request.param:
        pytest.skip(f"only of {only.args[0]}")
    match request.param:
        case "fake Kubernetes":
            yield FakeBed(FakeKubernetes())
        case "fake agent":
            yield FakeBed(FakeLocal())
        case "local agent":
            local = LocalBed(*request.getfixturevalue("agent"))
            yield local
            local.close()
        case "two local agents":
            several = NodesBed(*request.getfixturevalue("nodes"))
            yield several
            several.close()
        case _:
            namespace = Namespace(request.getfixturevalue("kubernetes"))
            yield KubernetesBed(namespace)
            namespace.close()


@pytest.fixture
def observer(testbed: Bed) -> Observer:
    """One that has read a snapshot without pods: everything else is reported as a change."""
    observer = Observer(testbed)
    observer.until(lambda: observer.observed.is_synced, "a snapshot")
    return observer


def test_a_creation_is_answered_before_the_pod_runs_and_the_watch_reports_both(observer: Observer) -> None:
    fleet = observer.testbed.fleet
    created = fleet.create(spec(name="first"))
    assert not created.phase.is_final and created.end is None and created.asked_size == spec().size
    observer.until_pod(created.uid, lambda pod: pod.phase is PodPhase.RUNNING, "runs")
    kinds = [kind for kind, pod in observer.events if pod is not None and pod.uid == created.uid]
    assert kinds[0] == PodEventKind.ADDED and PodEventKind.SEEN not in kinds
    assert [pod.uid for pod in snapshot(fleet)] == [created.uid]


def test_every_status_has_the_labels_of_its_pod(observer: Observer) -> None:
    fleet = observer.testbed.fleet
    created = fleet.create(spec(name="labelled", labels={"elastrec.io/owned-memory-bytes": "1048576"}))
    (shown,) = snapshot(fleet)
    for status in (created, shown):
        assert status.labels["elastrec.io/owned-memory-bytes"] == "1048576"


def test_a_creation_of_a_pod_that_is_there_returns_it(observer: Observer) -> None:
    pod = observer.running(name="twice")
    again = observer.testbed.fleet.create(spec(name="twice"))
    assert again.uid == pod.uid and len(snapshot(observer.testbed.fleet)) == 1


def test_the_name_of_a_pod_of_another_role_is_refused_permanently(observer: Observer) -> None:
    observer.running(name="taken")
    with pytest.raises(ClusterError, match="taken") as caught:
        observer.testbed.fleet.create(spec(name="taken", role=Role.PARAMETER_SERVER))
    assert not caught.value.retryable


def test_a_deletion_is_reported_when_it_is_ordered_and_when_it_is_done(observer: Observer) -> None:
    pod = observer.running()
    observer.testbed.fleet.delete(pod.name, pod.uid)
    gone = observer.until_gone(pod.uid)
    assert gone.end is EndReason.DELETED
    ending = [status.is_ending for _, status in observer.events if status is not None and status.uid == pod.uid]
    assert ending[0] is False and ending[-1] is True
    observer.testbed.fleet.delete(pod.name, pod.uid)  # again: nothing to do


@pytest.mark.only("Kubernetes")
def test_a_name_is_in_use_until_its_previous_pod_has_ended(observer: Observer) -> None:
    pod = observer.running(name="again", grace_seconds=5.0, environment={"STUBBORN": "for the whole grace"})
    observer.testbed.fleet.delete(pod.name, pod.uid)
    with pytest.raises(ClusterError, match=r"again is (still terminating|being deleted)") as caught:
        observer.testbed.fleet.create(spec(name="again"))
    assert caught.value.retryable
    observer.until_gone(pod.uid)
    assert observer.testbed.fleet.create(spec(name="again")).uid != pod.uid


def test_deleting_a_pod_does_not_affect_a_later_pod_of_the_same_name(observer: Observer) -> None:
    earlier = observer.running(name="later")
    observer.testbed.fleet.delete(earlier.name, earlier.uid)
    observer.until_gone(earlier.uid)
    later = observer.running(name="later")
    observer.testbed.fleet.delete(earlier.name, earlier.uid)
    (pod,) = snapshot(observer.testbed.fleet)
    assert pod.uid == later.uid and not pod.is_ending


@pytest.mark.parametrize(
    ("reason", "code"),
    [
        (EndReason.COMPLETED, 0),
        (EndReason.ERROR, 1),
        (EndReason.BAD_INPUT, 2),
        (EndReason.KILLED, 137),
        (EndReason.OUT_OF_MEMORY, 137),
    ],
)
def test_an_end_has_its_reason_and_stays_until_it_is_deleted(observer: Observer, reason: EndReason, code: int) -> None:
    if reason is EndReason.OUT_OF_MEMORY and isinstance(observer.testbed, LocalBed):
        pytest.skip("an agent's memory limits have their own tests")
    pod = observer.running()
    logs = observer.testbed.fleet.logs
    observer.testbed.end(pod.uid, reason)
    ended = observer.until_pod(pod.uid, lambda status: status.phase.is_final, "has ended")
    assert (ended.end, ended.exit_code, ended.is_ending) == (reason, code, False)
    assert ended.phase is (PodPhase.SUCCEEDED if reason is EndReason.COMPLETED else PodPhase.FAILED)
    assert list(logs(pod.name, tail_lines=1)) == ["last"]
    observer.testbed.fleet.delete(pod.name, pod.uid)
    # A cluster whose times are whole seconds may take an end within the second of the deletion for the deletion's.
    assert observer.until_gone(pod.uid).end in (reason, EndReason.DELETED)


@pytest.mark.only("Kubernetes")
def test_an_eviction_gives_notice_and_is_the_clusters_doing(observer: Observer) -> None:
    pod = observer.running(grace_seconds=2.0)
    observer.testbed.evict(pod)
    status = observer.until_pod(pod.uid, lambda status: status.is_ending, "was given notice")
    assert not status.phase.is_final and status.end is None
    assert status.ending_until_unix_seconds is not None and status.ending_until_unix_seconds > time.time() - 60.0
    assert observer.until_gone(pod.uid).end is EndReason.EVICTED


@pytest.mark.only("Kubernetes")
def test_a_pod_of_a_lost_node_has_ended_and_can_be_removed(observer: Observer) -> None:
    pod = observer.running()
    observer.testbed.lose_node()
    lost = observer.until_pod(pod.uid, lambda status: status.phase.is_final, "is known to be lost")
    assert (lost.end, lost.exit_code, lost.is_ending) == (EndReason.NODE_LOST, None, False)
    observer.testbed.fleet.delete(pod.name, pod.uid)
    observer.until_gone(pod.uid)


def test_a_watch_continues_at_its_token(observer: Observer) -> None:
    pod = observer.running()
    token = observer.observed.resume
    observer.testbed.end(pod.uid, EndReason.ERROR)
    observer.until_pod(pod.uid, lambda status: status.phase.is_final, "has ended")
    events = list(observer.testbed.fleet.watch(token, 1.0))
    assert events and PodEventKind.SYNCED not in {event.kind for event in events}
    assert events[-1].pod is not None and events[-1].pod.end is EndReason.ERROR and events[-1].resume != token


def test_an_expired_watch_token_gives_a_snapshot(observer: Observer) -> None:
    pod = observer.running()
    events = list(observer.testbed.fleet.watch(observer.testbed.stale_token(), 1.0))
    assert [(event.kind, event.pod and event.pod.uid) for event in events[:2]] == [
        (PodEventKind.SEEN, pod.uid),
        (PodEventKind.SYNCED, None),
    ]
    assert events[1].resume


def test_a_resize_is_done_in_place(observer: Observer) -> None:
    pod, size = observer.running(), PodSize(1.5, 256 << 20)
    observer.testbed.fleet.resize(pod.name, pod.uid, size)
    resized = observer.until_pod(pod.uid, lambda status: status.size == size, "has the size")
    assert resized.asked is None and resized.resize is ResizeState.DONE and resized.phase is PodPhase.RUNNING


@pytest.mark.only("agent")
def test_a_resize_without_room_is_refused(observer: Observer) -> None:
    pod = observer.running()
    observer.running(size=LARGE)
    with pytest.raises(ClusterError, match="cannot be resized") as caught:
        observer.testbed.fleet.resize(pod.name, pod.uid, LARGE)
    assert not caught.value.retryable


@pytest.mark.only("Kubernetes")
def test_a_resize_waits_for_room_and_is_done_when_there_is(observer: Observer) -> None:
    pod, other = observer.running(), observer.running(size=LARGE)
    observer.testbed.fleet.resize(pod.name, pod.uid, LARGE)
    deferred = observer.until_pod(pod.uid, lambda status: status.resize is ResizeState.DEFERRED, "is deferred")
    assert deferred.size == pod.size and deferred.asked == LARGE and deferred.resize_message
    observer.testbed.fleet.delete(other.name, other.uid)
    resized = observer.until_pod(pod.uid, lambda status: status.size == LARGE, "has the size")
    assert resized.resize is ResizeState.DONE and not resized.resize_message


def test_a_resize_beyond_the_node_is_refused_permanently(observer: Observer) -> None:
    pod = observer.running()
    with pytest.raises(ClusterError) as caught:
        observer.testbed.fleet.resize(pod.name, pod.uid, PodSize(NODE_SIZE.cores + 1.0, 128 << 20))
    assert not caught.value.retryable
    (unchanged,) = snapshot(observer.testbed.fleet)
    assert unchanged.size == pod.size and unchanged.asked is None


@pytest.mark.only("Kubernetes")
def test_a_resize_that_the_node_refuses_will_never_be_done(observer: Observer) -> None:
    pod, size = observer.running(), PodSize(1.0, 128 << 20)
    observer.testbed.refuse_resizes()
    observer.testbed.fleet.resize(pod.name, pod.uid, size)
    refused = observer.until_pod(pod.uid, lambda status: status.resize is ResizeState.INFEASIBLE, "is infeasible")
    assert refused.size == pod.size and refused.asked == size and refused.resize_message
    # What it has is another request.
    observer.testbed.fleet.resize(pod.name, pod.uid, pod.size)
    observer.until_pod(pod.uid, lambda status: status.resize is ResizeState.DONE, "is done")


@pytest.mark.only("Kubernetes")
def test_a_resize_of_an_ended_pod_is_accepted_and_changes_nothing(observer: Observer) -> None:
    pod = observer.running()
    observer.testbed.end(pod.uid, EndReason.ERROR)
    ended = observer.until_pod(pod.uid, lambda status: status.phase.is_final, "has ended")
    observer.testbed.fleet.resize(pod.name, pod.uid, PodSize(1.0, 128 << 20))
    asked = observer.until_pod(pod.uid, lambda status: status.asked is not None, "is asked for another size")
    assert (asked.size, asked.end, asked.phase) == (ended.size, ended.end, ended.phase)


@pytest.mark.only("Kubernetes")
def test_an_exceeded_quota_may_pass(observer: Observer) -> None:
    pod = observer.running()
    observer.testbed.set_quota(1)
    with pytest.raises(ClusterError, match="exceeded quota") as caught:
        observer.testbed.fleet.create(spec(name="one-too-many"))
    assert caught.value.retryable
    observer.testbed.set_quota(None)
    assert observer.testbed.fleet.create(spec(name="one-too-many")).uid != pod.uid
