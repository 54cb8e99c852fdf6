"""The secret of a job: created once, found by every caller, and valid only for this job."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest

from elastrec.platform.clusters.local.config import LocalConfig
from elastrec.platform.clusters.pods import PodPhase, PodSize, PodSpec, PodStatus
from elastrec.platform.jobs import Platform, Prepared, launch, observe
from elastrec.platform.jobs.identity import new_job_secret, new_job_tls, secret_of
from elastrec.platform.jobs.watching.masters import pod_of_master
from elastrec.platform.specs.errors import ClusterError, TransportError
from elastrec.platform.specs.metrics import Role
from elastrec.platform.specs.text.loading import job_to_json
from elastrec.platform.transport import RpcClient, RpcServer, TlsConfig
from elastrec.platform.transport.messages.job import Done
from elastrec.platform.transport.messages.observer import GetStatus, TakeOver
from elastrec.platform.transport.security import job_server_name
from tests.operators.steps import ALLOCATION, PREPARED
from tests.platform.jobs.conftest import JOB
from tests.platform.master.fakes import FakeCluster, FakeLauncher
from tests.platform.master.fakes import job as training_job
from tests.processes import restart_with_another_token, wait_for

WITHOUT_MLFLOW = "http://127.0.0.1:9"


@pytest.fixture
def prepared(tmp_path: Path) -> Prepared:
    """Its launch does not wait for MLflow."""
    asked = training_job(history={"launch_wait": 0.01}, checkpoint={"store": str(tmp_path / "store"), "interval": 0})
    return msgspec.structs.replace(PREPARED, job_json=job_to_json(asked))


def client_side(tls: TlsConfig, job: str) -> TlsConfig:
    return TlsConfig(tls.root_pem, server_name=job_server_name(job))


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_a_jobs_certificate_is_valid_for_all_its_addresses_and_no_other_job(host: str) -> None:
    tls, other = new_job_tls("one"), new_job_tls("other")
    server = RpcServer({GetStatus: lambda message: Done()}, token="t", host=host, tls=tls)
    server.serve_in_background()
    try:
        own = RpcClient(server.address, "t", client_side(tls, "one"))
        assert own.call(GetStatus(), Done).accepted
        own.close()
        for stranger in (client_side(other, "one"), client_side(tls, "other"), TlsConfig(tls.root_pem)):
            with pytest.raises(TransportError, match="its certificate is refused"):
                RpcClient(server.address, "t", stranger).call(GetStatus(), Done, timeout_seconds=1.0)
    finally:
        server.shutdown()


def test_a_job_has_a_random_token_and_certificates_if_the_cluster_uses_tls() -> None:
    plain = LocalConfig(address="127.0.0.1:1", token="t")
    secrets = [
        new_job_secret(Platform.connect(config, "", "work"), JOB)
        for config in (plain, plain, msgspec.structs.replace(plain, tls="PEM"))
    ]
    assert len({secret.token for secret in secrets}) == 3
    assert [secret.tls is not None for secret in secrets] == [False, False, True]
    assert all(secret.token not in repr(secret) and "BEGIN" not in repr(secret) for secret in secrets)


class BusyCluster(FakeCluster):
    """Two callers create their pods at the same moment; masters answer with the token of their own pod."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[PodSpec] = []
        self.owners: list[str] = []
        self.servers: list[RpcServer] = []
        self._both = threading.Barrier(2)
        self._one = threading.Lock()

    def create(self, pod: PodSpec) -> PodStatus:
        self.asked.append(pod)
        self._both.wait(30)
        with self._one:
            status = super().create(pod)
            if status.address:
                return status
            server = RpcServer({TakeOver: self._take_over}, token=pod.secrets["token"])
            server.serve_in_background()
            self.servers.append(server)
            self.plane.pods[status.uid] = msgspec.structs.replace(status, address=server.address)
            return self.plane.pods[status.uid]

    def _take_over(self, message: TakeOver) -> Done:
        self.owners.append(message.owner)
        return Done()


@pytest.fixture
def busy() -> Iterator[BusyCluster]:
    cluster = BusyCluster()
    yield cluster
    for server in cluster.servers:
        server.shutdown()


def test_two_concurrent_launches_of_a_job_have_one_secret(
    busy: BusyCluster, prepared: Prepared, tmp_path: Path
) -> None:
    configs = [LocalConfig(address="127.0.0.1:1", token=token) for token in ("one", "two")]
    platforms = [Platform(FakeLauncher(busy), config, WITHOUT_MLFLOW, str(tmp_path), tmp_path) for config in configs]
    with ThreadPoolExecutor(2) as pool:
        calls = [
            pool.submit(launch, platform, prepared, ALLOCATION, platform.cluster_config.token) for platform in platforms
        ]
        names = {call.result(60).master_pod for call in calls}
    (name,) = names
    assert len({pod.secrets["token"] for pod in busy.asked}) == 2, "each caller has made a secret"
    assert sorted(busy.owners) == ["one", "two"], "and both talk to the one master"
    found = [secret_of(platform, busy.pods[name]) for platform in platforms]
    assert {secret.token for secret in found if secret} == {busy.specs[name].secrets["token"]}


def test_a_refused_master_is_an_error_of_its_launch(prepared: Prepared, tmp_path: Path) -> None:
    class Full(FakeCluster):
        def create(self, pod: PodSpec) -> PodStatus:
            raise ClusterError("larger than the whole cluster")

    config = LocalConfig(address="127.0.0.1:1", token="t")
    platform = Platform(FakeLauncher(Full()), config, WITHOUT_MLFLOW, str(tmp_path), tmp_path)
    with pytest.raises(ClusterError, match="larger than the whole cluster"):
        launch(platform, prepared, ALLOCATION)


@pytest.mark.services
def test_running_jobs_stay_reachable_after_a_new_token_of_the_cluster(
    platform_with_master: Platform, tmp_path: Path
) -> None:
    again = restart_with_another_token(tmp_path / "agent")
    with pytest.raises(ClusterError, match="refused the token"):
        observe(platform_with_master, JOB)
    platform = Platform.connect(again.config, "", platform_with_master.work_uri)
    wait_for(lambda: observe(platform, JOB).reachable, 30, "an answer of the master")
    master = pod_of_master(platform, JOB)
    assert master is not None and master.restarts == 0


def test_the_secret_is_fetched_once_per_pod(tmp_path: Path) -> None:
    class Counting(FakeLauncher):
        asked = 0

        def secrets(self, name: str, uid: str) -> dict[str, str] | None:
            self.asked += 1
            return {"token": f"of {uid}"} if uid != "gone" else None

    master = PodStatus(
        name=f"{JOB}-master", uid="", job=JOB, role=Role.MASTER, phase=PodPhase.RUNNING, size=PodSize(1.0, 1)
    )
    launcher = Counting()
    platform = Platform(launcher, LocalConfig(address="", token=""), "", "work", tmp_path)
    first, second = (msgspec.structs.replace(master, uid=uid) for uid in ("first", "second"))
    tokens = [secret.token for pod in (first, first, second) if (secret := secret_of(platform, pod))]
    assert tokens == ["of first", "of first", "of second"] and launcher.asked == 2
    assert secret_of(platform, msgspec.structs.replace(master, uid="gone")) is None
    assert "of first" not in repr(platform)
