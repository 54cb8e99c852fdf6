"""A small job on a real API server: its real master creates, resizes and loses pods, is killed itself, and succeeds."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from elastrec.platform.clusters.pods import PodPhase
from elastrec.platform.master.pods.launch import LaunchRequest, master_pod
from elastrec.platform.specs.metrics import Role
from elastrec.platform.transport.messages.observer import FinishJob, ShapeOutcome
from tests.platform.master.fakes import job, launch
from tests.spikes.kubernetes.backend import KubernetesConfig, KubernetesLauncher, entry_point
from tests.spikes.kubernetes.lab import TOLERATED_SECONDS, Lab, Namespace
from tests.spikes.kubernetes.node_pod import NodePod
from tests.spikes.running_job import JOB, MASTER, TOKEN, RunningJob

pytestmark = pytest.mark.services

ROOT = Path(__file__).resolve().parents[3]


class KubernetesJob(RunningJob):
    """What a caller outside sees of the job, and what its nodes see of its pods."""

    def __init__(self, namespace: Namespace, request: LaunchRequest, config: KubernetesConfig) -> None:
        super().__init__(KubernetesLauncher(namespace.admin), request)
        self.namespace, self.config = namespace, config

    def submit(self) -> None:
        """Starts the job's master, or another one in its place."""
        self.launcher.submit(master_pod(self.request, self.config, TOKEN))

    def on_node(self, name: str) -> NodePod:
        return self.namespace.on_node(self.members()[name].uid)

    def runs(self, name: str) -> bool:
        pod = self.members().get(name)
        return pod is not None and pod.phase is PodPhase.RUNNING and not pod.is_ending


@pytest.fixture
def running(kubernetes: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[KubernetesJob]:
    """A job that trains slowly until the file `fast` lies in the test's folder."""
    monkeypatch.setenv("PYTHONPATH", f"{entry_point(tmp_path / 'packages')}:{ROOT}")
    namespace = Namespace(kubernetes)
    config = KubernetesConfig(
        address=kubernetes.servers.url,
        token=namespace.token,
        authority=kubernetes.authority,
        namespace=namespace.name,
        scripted=True,
        tolerated_seconds=TOLERATED_SECONDS,
    )
    size = {"cores": 0.5, "memory": "128Mi"}
    sections = {
        "resources": {
            "master": {"cores": 0.5, "memory": "256Mi"},
            "worker": {"count": 2, **size},
            "parameter_server": {"count": 1, **size},
            "virtual_buckets": 64,
        },
        # Long: nothing of what follows is noticed by silence.
        "faults": {"heartbeat_interval": 0.2, "heartbeat_timeout": 60, "lease": 90},
    }
    made = KubernetesJob(namespace, launch(str(tmp_path / "store"), job(**sections), rows=20_000), config)
    made.submit()
    made.wait_for_master()
    made.wait_for_training()
    yield made
    namespace.close()


def test_a_job_grows_and_its_pods_are_resized_in_place_or_not(running: KubernetesJob, tmp_path: Path) -> None:
    r = running
    before = r.on_node("worker-0")._process
    assert before is not None
    r.ask(count=3)
    r.wait("a third worker", lambda: r.outcome() is ShapeOutcome.DONE and r.runs("worker-2"))

    r.ask(count=2, cores=1.25)
    r.wait("the larger size", lambda: r.outcome() is ShapeOutcome.DONE)
    assert {r.members()[f"worker-{index}"].size.cores for index in range(2)} == {1.25}
    assert before.poll() is None, "the process was started again"

    # 4 cores: 0.5 for the master, 0.5 for the server, two times 1.25 for workers; 0.5 are left.
    r.ask(cores=2.0)
    r.wait("a deferred resize", lambda: "2 cores requested: Node has only" in str(r.metrics()))
    assert r.outcome() is ShapeOutcome.OPEN
    r.wait_for_progress()
    r.ask(count=1)
    r.wait("room for the other one", lambda: r.members()["worker-0"].size.cores == 2.0)
    r.wait("the outcome", lambda: r.outcome() is ShapeOutcome.DONE)

    # No node has so many: the successor waits for one, as a cluster may grow, until the request is cancelled.
    request_id = r.ask(cores=5.0)
    r.wait("a successor", lambda: "Unschedulable" in str(r.metrics()))
    assert "keeps 2 cores instead of 5: pods" in r.story()
    assert r.outcome() is ShapeOutcome.OPEN
    r.wait_for_progress()
    r.cancel(request_id)
    r.wait("the outcome", lambda: r.outcome() is ShapeOutcome.CANCELLED)
    r.wait("no successor", lambda: [name for name in r.members() if name.startswith("worker")] == ["worker-0"])
    assert r.members()["worker-0"].asked is None and r.members()["worker-0"].size.cores == 2.0
    assert before.poll() is None
    master = r.find_master()
    assert (r.launcher.secrets(MASTER, master.uid) or {})["token"] == TOKEN
    finish(r, tmp_path)


def test_a_job_survives_the_loss_of_pods_a_node_the_api_server_and_its_master(
    running: KubernetesJob, kubernetes: Lab, tmp_path: Path
) -> None:
    r = running
    r.on_node("worker-0").end(signal.SIGKILL)
    r.wait("a replacement", lambda: r.runs("worker-0-r1"))
    r.namespace.evict(f"{JOB}-worker-1")
    r.wait("another replacement", lambda: r.runs("worker-1-r1"))

    kubernetes.open_node("n2", is_open=True)
    kubernetes.open_node("n1", is_open=False)
    r.ask(count=3)
    r.wait("a worker on the other node", lambda: r.runs("worker-2"))
    assert r.members()["worker-2"].node == "n2"
    kubernetes.open_node("n1", is_open=True)
    kubernetes.open_node("n2", is_open=False)
    kubernetes.agents["n2"].fall_silent()
    r.wait("a replacement for the one on the lost node", lambda: r.runs("worker-2-r1"))
    r.wait("the lost one is forgotten", lambda: "worker-2" not in r.members())
    story = r.story()
    for pod, reason in (("worker-0", "Killed"), ("worker-1", "Evicted"), ("worker-2", "NodeLost")):
        assert f"lost {JOB}-{pod}, replaced by {JOB}-{pod}-r1: ended" in story and f"({reason})" in story, story

    # The API server is away: nothing is asked of it, and nothing waits for it.
    kubernetes.servers.kill("kube-apiserver")
    r.wait_for_progress()
    r.ask(count=4)
    r.wait("the reason", lambda: "Kubernetes does not answer" in str(r.metrics()))
    r.wait_for_progress()
    kubernetes.servers.start("kube-apiserver")
    r.wait("a fourth worker", lambda: r.runs("worker-3"))
    r.wait("the outcome", lambda: r.outcome() is ShapeOutcome.DONE)

    # Its node starts the master's process again, which goes on from its journal.
    kept = {name: pod.uid for name, pod in r.members().items()}
    r.on_node("master").end(signal.SIGKILL)
    r.wait("another process", lambda: r.members()["master"].restarts == 1)
    r.wait_for_master()
    r.wait_for_progress()
    assert {name: pod.uid for name, pod in r.members().items()} == kept

    # Another master, without that journal, goes on in the next term.
    r.namespace.evict(MASTER)
    r.wait("the master is gone", lambda: r.launcher.find(JOB) is None)
    r.submit()
    r.wait_for_master()
    r.wait_for_training()
    r.wait_for_progress()
    assert "resumed from" in r.story()
    assert len([pod for pod in r.members().values() if pod.role is Role.WORKER and not pod.is_ending]) >= 2
    finish(r, tmp_path)


def finish(r: KubernetesJob, folder: Path) -> None:
    """The job ends well, its master with it, and nothing of it is left."""
    (folder / "fast").touch()
    r.wait_for_end()
    r.wait("no pod but the master", lambda: r.members().keys() == {"master"})
    r.call(FinishJob())
    r.wait("the master ends", lambda: r.find_master().phase is PodPhase.SUCCEEDED)
    assert r.launcher.remove(JOB) == [MASTER]
    r.wait("nothing is left", lambda: not r.members())
