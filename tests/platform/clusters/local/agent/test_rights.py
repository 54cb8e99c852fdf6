"""The token of a job's master gives access to the pods of that job, even after the cluster's token has changed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from elastrec.platform.clusters.backends import encode_config
from elastrec.platform.clusters.local import LocalCluster, find_agent, start_agent, stop_agent
from elastrec.platform.clusters.local.config import LocalConfig
from elastrec.platform.clusters.local.launcher import LocalLauncher
from elastrec.platform.clusters.pods import PodEventKind, PodSize, PodSpec, PodStatus
from elastrec.platform.specs.environment import CLUSTER_FILE
from elastrec.platform.specs.errors import ClusterError
from elastrec.platform.specs.metrics import Role
from tests.platform.clusters.local.conftest import MakePod, Until
from tests.processes import restart_with_another_token

pytestmark = pytest.mark.services

SIZE = PodSize(0.1, 2**20)


@pytest.fixture
def state(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "agent"
    stop_agent(tmp_path / "agent")


@pytest.fixture
def outside(state: Path) -> LocalCluster:
    """A caller with the cluster's own token."""
    return start_agent(state, cores=0.2, memory_bytes=2**28, limits="threads")


@pytest.fixture
def launched(outside: LocalCluster, make_pod: MakePod) -> Iterator[Callable[[str], LocalCluster]]:
    """Makes the master of a job; gives what that master connects with."""
    opened: list[LocalCluster] = []

    def launch(job: str) -> LocalCluster:
        config = outside.config.for_master()
        assert config.token != outside.token and outside.config.for_master().token != config.token
        pod = make_pod(
            name=f"{job}-master", job=job, role=Role.MASTER, size=SIZE, secrets={CLUSTER_FILE: encode_config(config)}
        )
        LocalLauncher(outside).submit(pod)
        opened.append(LocalCluster(config.address, config.token, config.client_tls))
        return opened[-1]

    yield launch
    for cluster in opened:
        cluster.close()


def member(make_pod: MakePod, job: str, role: Role = Role.WORKER) -> PodSpec:
    return make_pod(name=f"{job}-{role.value}-0", job=job, role=role, size=SIZE)


def refused(act: Callable[[], object]) -> None:
    with pytest.raises(ClusterError, match="may ask for nodes, and for workers and servers of its job alone") as caught:
        act()
    assert not caught.value.retryable


def seen(cluster: LocalCluster, job: str) -> list[PodStatus]:
    """The pods that a watch shows first."""
    return [event.pod for event in cluster.fleet(job).watch("", 0.0) if event.kind is PodEventKind.SEEN and event.pod]


def test_a_master_creates_sees_resizes_reads_and_deletes_workers_and_servers_of_its_job(
    launched: Callable[[str], LocalCluster], make_pod: MakePod
) -> None:
    fleet = launched("one").fleet("one")
    for role in (Role.WORKER, Role.PARAMETER_SERVER):
        created = fleet.create(member(make_pod, "one", role))
        fleet.resize(created.name, created.uid, PodSize(0.05, 2**20))
        assert list(fleet.logs(created.name)) == []
        fleet.delete(created.name, created.uid, grace_seconds=0.0)
    assert len(fleet.nodes()) == 1


def test_a_masters_token_is_refused_for_all_other_calls(
    outside: LocalCluster, launched: Callable[[str], LocalCluster], make_pod: MakePod
) -> None:
    one, _ = launched("one"), launched("two")
    others = outside.create(member(make_pod, "two"))
    master = outside.get("one-master")
    assert master is not None
    fleet = one.fleet("one")
    for spec in (
        member(make_pod, "two"),
        member(make_pod, "one", Role.MASTER),
        member(make_pod, "one", Role.EVALUATOR),
    ):
        refused(lambda spec=spec: fleet.create(spec))  # type: ignore[misc]
    refused(lambda: one.create(member(make_pod, "one"), replaces_ended=True))
    for pod in (others, master):
        refused(lambda pod=pod: fleet.delete(pod.name, pod.uid))  # type: ignore[misc]
        refused(lambda pod=pod: fleet.delete(pod.name, ""))  # type: ignore[misc]
        refused(lambda pod=pod: fleet.resize(pod.name, pod.uid, SIZE))  # type: ignore[misc]
    refused(lambda: list(fleet.logs(others.name)))
    refused(lambda: list(one.fleet("two").watch("", 0.0)))
    refused(one.list)
    refused(lambda: one.secrets("two-master", others.uid))
    refused(one.agent)
    refused(one.stop)
    assert {pod.name for pod in outside.list()} == {"one-master", "two-master", others.name}


def test_a_masters_token_is_independent_of_the_clusters_and_ends_with_its_pod(
    state: Path, outside: LocalCluster, launched: Callable[[str], LocalCluster], make_pod: MakePod
) -> None:
    one = launched("one")
    fleet = one.fleet("one")
    assert [pod.name for pod in seen(one, "one")] == ["one-master"]
    again = restart_with_another_token(state)
    with pytest.raises(ClusterError, match="refused the token"):
        outside.list()
    created = fleet.create(member(make_pod, "one"))
    assert created.name in [pod.name for pod in again.list("one")]
    again.delete("one-master", grace_seconds=0.0)
    late = LocalCluster(again.address, one.token)
    with pytest.raises(ClusterError, match="refused the token"):
        late.nodes()
    found = find_agent(state)
    assert found is not None
    found.close()


def test_a_token_that_no_pod_has_and_an_empty_one_open_nothing(outside: LocalCluster, make_pod: MakePod) -> None:
    LocalLauncher(outside).submit(
        make_pod(
            name="empty-master", job="empty", role=Role.MASTER, size=SIZE,
            secrets={CLUSTER_FILE: encode_config(msgspec.structs.replace(outside.config, token=""))},
        )
    )  # fmt: skip
    LocalLauncher(outside).submit(make_pod(name="other-master", job="other", role=Role.MASTER, size=SIZE))
    for token in ("", "guessed"):
        stranger = LocalCluster(outside.address, token)
        with pytest.raises(ClusterError, match="refused the token"):
            stranger.nodes()
        stranger.close()


def test_the_token_of_a_master_that_has_ended_opens_nothing(
    outside: LocalCluster, make_pod: MakePod, until: Until
) -> None:
    config = outside.config.for_master()
    secrets = {CLUSTER_FILE: encode_config(config)}
    spec = make_pod("pass", name="one-master", job="one", role=Role.MASTER, size=PodSize(0.1, 2**27), secrets=secrets)
    LocalLauncher(outside).submit(spec)
    until(outside, "one-master")
    late = LocalCluster(config.address, config.token)
    with pytest.raises(ClusterError, match="refused the token"):
        late.nodes()
    late.close()


def test_a_master_gets_a_configuration_of_the_same_cluster(outside: LocalCluster) -> None:
    config = outside.config.for_master()
    assert isinstance(config, LocalConfig)
    assert msgspec.structs.replace(config, token="") == msgspec.structs.replace(outside.config, token="")
