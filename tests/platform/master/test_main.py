"""The real process of the master on a local cluster that is too small for its pods, which stay pending."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from elastrec.checkpoints import list_terms, open_store, predictions_folder, take_term
from elastrec.platform.clusters import ClusterConfig
from elastrec.platform.clusters.local import LocalCluster, start_agent, stop_agent
from elastrec.platform.clusters.pods import PodSize, PodSpec
from elastrec.platform.master.pods.launch import LaunchRequest, encode_launch
from elastrec.platform.specs.errors import TransportError
from elastrec.platform.specs.metrics import Phase, Role, TrainingMetrics
from elastrec.platform.transport import RpcClient
from elastrec.platform.transport.messages.job import Done
from elastrec.platform.transport.messages.observer import FinishJob, GetStatus, Status, StopJob
from tests.platform.master.fakes import job, launch
from tests.processes import wait_for

pytestmark = pytest.mark.services


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    folder = tmp_path_factory.mktemp("agent")
    agent = start_agent(folder, cores=2.0, memory_bytes=2**30, limits="threads")
    yield agent
    stop_agent(folder)


class Master:
    """One master process."""

    def __init__(self, folder: Path, config: ClusterConfig, request: LaunchRequest) -> None:
        self.folder = folder
        files = folder / "files"
        files.mkdir(exist_ok=True)
        (folder / "work").mkdir(exist_ok=True)
        (files / "token").write_text("secret")
        (files / "launch.json").write_text(encode_launch(request))
        (files / "cluster.json").write_bytes(msgspec.json.encode(config))
        with socket.socket() as chooser:
            chooser.bind(("127.0.0.1", 0))
            self.port = chooser.getsockname()[1]
        self.client = RpcClient(f"127.0.0.1:{self.port}", "secret")

    def start(self, **changes: str) -> subprocess.Popen[str]:
        variables = os.environ | {
            "ELASTREC_FILES": str(self.folder / "files"),
            "ELASTREC_WORK": str(self.folder / "work"),
            "ELASTREC_PORT": str(self.port),
            "ELASTREC_HOST": "127.0.0.1",
        }
        self.process = subprocess.Popen(
            [sys.executable, "-m", "elastrec.platform.master"],
            env=variables | changes,
            stderr=subprocess.PIPE,
            text=True,
        )
        return self.process

    def call(self, message: msgspec.Struct, answer: Any = Done) -> Any:
        return self.client.call(message, answer, timeout_seconds=30)

    def metrics(self) -> TrainingMetrics:
        return TrainingMetrics.model_validate_json(self.call(GetStatus(), Status).metrics_json)

    def end(self) -> tuple[int, str]:
        _, said = self.process.communicate(timeout=30)
        return self.process.returncode, said


@pytest.fixture
def master(tmp_path: Path, cluster: LocalCluster) -> Iterator[Callable[..., Master]]:
    made: list[Master] = []

    def make(worker_cores: float = 1.9) -> Master:
        size = {"count": 1, "cores": worker_cores, "memory": "900Mi"}
        sections = {"worker": size, "parameter_server": {"count": 1, "cores": 1.9, "memory": "900Mi"}}
        request = launch(str(tmp_path / "store"), job(resources=sections | {"virtual_buckets": 64}))
        made.append(Master(tmp_path, cluster.config, request))
        return made[-1]

    # Something that fills the cluster, so that no pod of these jobs ever starts.
    cluster.create(
        PodSpec(name="filler", job="filler", role=Role.WORKER, command=("sleep", "600"), size=PodSize(1.0, 2**28))
    )
    yield make
    for one in made:
        one.client.close()
        if one.process.poll() is None:
            one.process.kill()
        one.process.wait(10)
        if one.process.stderr:
            one.process.stderr.close()
    for pod in cluster.list():
        cluster.delete(pod.name, grace_seconds=0.0)


def test_a_master_survives_kill_9_and_sigterm_and_its_pods_stay(master: Callable[..., Master], cluster: LocalCluster):
    m = master()
    m.start()
    wait_for(lambda: len(cluster.list("clicks-1")) == 2, 20, "two pods")
    wait_for(lambda: "insufficient cpu" in m.metrics().reason, 20, "a pod without room")
    m.process.kill()
    m.end()
    m.start()
    metrics = m.metrics()
    assert metrics.phase is Phase.PENDING and len(metrics.pods) == 2
    assert len(cluster.list("clicks-1")) == 2
    m.process.send_signal(signal.SIGTERM)
    code, said = m.end()
    assert code == 143 and "master_leaves" in said, said
    assert len(cluster.list("clicks-1")) == 2
    m.start()
    assert m.metrics().phase is Phase.PENDING


def test_a_master_that_moved_with_the_journal_of_an_earlier_term_does_not_take_the_job_back(
    master: Callable[..., Master], cluster: LocalCluster, tmp_path: Path
):
    m, store = master(), str(tmp_path / "store")
    m.start()
    wait_for(lambda: len(cluster.list("clicks-1")) == 2, 20, "two pods")
    m.process.kill()
    m.end()
    pods = {(pod.name, pod.uid) for pod in cluster.list("clicks-1")}
    take_term(store, "clicks", "clicks-1", holder="another", address="127.0.0.1:9", base=lambda: "")
    with socket.socket() as chooser:
        chooser.bind(("127.0.0.1", 0))
        port = chooser.getsockname()[1]
    m.start(ELASTREC_PORT=str(port))
    code, said = m.end()
    assert code == 0 and "the master at 127.0.0.1:9 has taken term 2; this one had term 1" in said, said
    assert len(list_terms(store, "clicks", "clicks-1")) == 2
    assert {(pod.name, pod.uid) for pod in cluster.list("clicks-1")} == pods


def test_a_signal_does_not_lose_the_result_of_an_ended_job(master: Callable[..., Master], cluster: LocalCluster):
    m = master()
    m.start()
    assert m.call(StopJob(reason="enough")).accepted
    m.process.send_signal(signal.SIGTERM)
    code, said = m.end()
    assert code == 143, said
    m.start()
    assert m.metrics().phase is Phase.STOPPED
    assert m.call(FinishJob()).accepted
    code, said = m.end()
    assert code == 0, said
    assert cluster.list("clicks-1") == []


def test_a_stopped_job_is_read_and_finished(master: Callable[..., Master], cluster: LocalCluster):
    m = master()
    m.start()
    assert m.call(StopJob(reason="enough")).accepted
    assert m.metrics().phase is Phase.STOPPED
    assert m.call(FinishJob()).accepted
    code, said = m.end()
    assert code == 0, said
    assert cluster.list("clicks-1") == []


@pytest.mark.parametrize("phase", [Phase.STOPPED, Phase.FAILED])
def test_a_job_that_has_not_succeeded_leaves_no_predictions(
    master: Callable[..., Master], tmp_path: Path, phase: Phase
):
    """Of its own; it may have been evaluating its rows for a while."""
    m = master(worker_cores=50.0 if phase is Phase.FAILED else 1.9)
    store = str(tmp_path / "store")
    folders = [open_store(predictions_folder(store, "clicks", job_id)) for job_id in ("clicks-1", "clicks-2")]
    for folder in folders:
        folder.put("00000000.parquet", b"rows")
    m.start()
    if phase is Phase.STOPPED:
        assert m.call(StopJob(reason="enough")).accepted
    wait_for(lambda: m.metrics().phase is phase, 20, "the end of the job")
    # The master of a job that has ended may be started again: it has not finished with it.
    assert folders[0].keys()
    assert m.call(FinishJob()).accepted
    code, said = m.end()
    assert code == 0, said
    assert [folder.keys() for folder in folders] == [[], ["00000000.parquet"]]


def test_a_pod_larger_than_the_cluster_fails_the_job_with_the_clusters_words(master: Callable[..., Master]):
    m = master(worker_cores=50.0)
    m.start()
    wait_for(lambda: m.metrics().phase is Phase.FAILED, 20, "the job's failure")
    failure = m.call(GetStatus(), Status).failure
    assert "clicks-1-worker-0 cannot be created" in failure and "50" in failure
    assert m.call(FinishJob()).accepted
    assert m.end()[0] == 0


def test_a_bad_launch_file_ends_with_code_2_and_the_reason(master: Callable[..., Master]):
    m = master()
    launch_file = m.folder / "files/launch.json"
    launch_file.write_text(launch_file.read_text().replace('"training_rows": 1000', '"training_rows": -5'))
    m.start()
    code, said = m.end()
    assert code == 2 and "training_rows: -5 is not allowed" in said


def test_a_missing_variable_is_named(master: Callable[..., Master]):
    m = master()
    m.start(ELASTREC_WORK="")
    code, said = m.end()
    assert code == 2 and "ELASTREC_WORK" in said


def test_a_master_loads_neither_torch_nor_mlflow():
    program = (
        "import sys, elastrec.platform.master.__main__;"
        "print([m for m in ('torch', 'torchrec', 'mlflow', 'matplotlib', 'airflow') if m in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert found.stdout.strip() == "[]"


def test_a_master_without_its_token_is_not_reached(master: Callable[..., Master]):
    m = master()
    m.start()
    m.metrics()
    stranger = RpcClient(m.client.address, "guess")
    with pytest.raises(TransportError, match="refused the token"):
        stranger.call(GetStatus(), Status)
    stranger.close()
