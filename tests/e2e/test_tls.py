"""A whole job with TLS on every port: node agent, master and parameter servers."""

from __future__ import annotations

from pathlib import Path

import pytest

from elastrec.platform import jobs
from elastrec.platform.clusters.local import start_agent, stop_agent
from elastrec.platform.jobs.identity import secret_of
from elastrec.platform.jobs.watching.masters import pod_of_master
from elastrec.platform.specs.errors import TransportError
from elastrec.platform.specs.metrics import Phase, Role
from elastrec.platform.specs.text.loading import load_job
from elastrec.platform.transport import RpcClient, TlsConfig
from elastrec.platform.transport.messages.observer import GetStatus, Status
from tests.bad_input.case import Place
from tests.certificates import certify
from tests.processes import wait_for

pytestmark = pytest.mark.services


@pytest.fixture(scope="module")
def tls_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return certify(tmp_path_factory.mktemp("tls"))


def test_a_job_trains_with_tls_on_every_port(tmp_path: Path, tls_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # MLflow puts artifacts beside an SQLite file's user
    place = Place(tmp_path)
    monkeypatch.setenv("ELASTREC_HOME", str(tmp_path))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    monkeypatch.setenv("ELASTREC_TLS", str(tls_folder))
    agent = tmp_path / "agent"
    cluster = start_agent(agent, cores=8, memory_bytes=16 * 2**30, limits="threads", tls_folder=tls_folder)
    try:
        platform = jobs.Platform.from_environment(start=False)
        # Another caller, who knows the cluster's address, token and root alone.
        other = jobs.Platform.connect(cluster.config, platform.tracking_uri, platform.work_uri)
        prepared = jobs.prepare(platform, load_job(place.content), "click-tls")
        jobs.launch(platform, prepared, jobs.warm_start(platform, prepared))
        master = pod_of_master(other, prepared.job_id)
        assert master is not None
        secret = secret_of(other, master)
        assert secret is not None and secret.tls is not None

        def over() -> bool:
            for pod in cluster.list():
                if pod.role in (Role.MASTER, Role.PARAMETER_SERVER) and pod.address:
                    # Neither without TLS, nor by the certificate of the cluster.
                    for tls in (None, TlsConfig.from_folder(tls_folder)):
                        stranger = RpcClient(pod.address, secret.token, tls)
                        with pytest.raises(TransportError):
                            stranger.call(GetStatus(), Status, timeout_seconds=0.3)
                        stranger.close()
            phase = jobs.observe(other, prepared.job_id).metrics.phase
            assert phase in (Phase.SUCCEEDED,) or not phase.is_final, jobs.failure_report(platform, prepared.job_id)
            return phase is Phase.SUCCEEDED

        wait_for(over, 240, "the job succeeds")
        metrics = jobs.observe(other, prepared.job_id).metrics
        assert metrics.shards_done == metrics.shards_total > 0
        jobs.finish(platform, prepared.job_id)
    finally:
        cluster.close()
        stop_agent(agent, tls_folder=tls_folder)
