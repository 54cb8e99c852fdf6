"""A small job on real servers: it runs, grows, is resized, loses containers and its master, and ends with every row."""

from __future__ import annotations

import shutil
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest

from elastrec.checkpoints import newest_term
from elastrec.platform.clusters.pods import PodPhase, PodStatus
from elastrec.platform.master.launch import LaunchRequest, master_pod
from elastrec.platform.specs.errors import ClusterError, TransportError
from elastrec.platform.specs.metrics import Phase, Role, TrainingMetrics
from elastrec.platform.specs.shape import PlacesChange
from elastrec.platform.transport import RpcClient
from elastrec.platform.transport.job_messages import Done
from elastrec.platform.transport.ledger_messages import Explanation, GetExplanation
from elastrec.platform.transport.observer_messages import (
    ChangeShape,
    FinishJob,
    GetStatus,
    ShapeAnswer,
    ShapeOutcome,
    Status,
)
from tests.platform.master.fakes import job, launch
from tests.spikes.yarn.backend import YarnConfig
from tests.spikes.yarn.launcher import YarnLauncher
from tools.yarn.cluster import YarnCluster

ROOT = Path(__file__).resolve().parents[3]
TOKEN = "secret"
MEMORY = 320 * 2**20  # a multiple of the scheduler's step above 300 MiB


class RunningJob:
    """What a caller outside sees of the job, and the processes of this machine that are its containers."""

    def __init__(self, launcher: YarnLauncher, request: LaunchRequest, yarn: YarnCluster) -> None:
        self.launcher, self.request, self._yarn = launcher, request, yarn

    def call(self, message: msgspec.Struct, answer: Any) -> Any:
        first = self.first()
        if not first.address:
            raise ClusterError("the master has not registered yet", retryable=True)
        client = RpcClient(self.launcher.address(first), TOKEN)
        try:
            return client.call(message, answer, timeout_seconds=5.0)
        finally:
            client.close()

    def status(self) -> Status | None:
        """None while no master answers."""
        try:
            found: Status = self.call(GetStatus(), Status)
        except (ClusterError, TransportError):
            return None
        return found

    def metrics(self) -> TrainingMetrics | None:
        status = self.status()
        return None if status is None else TrainingMetrics.model_validate_json(status.metrics_json)

    def members(self) -> dict[str, PodStatus]:
        return {pod.name.removeprefix("clicks-1-"): pod for pod in self.launcher.pods("clicks-1")}

    def process(self, name: str) -> psutil.Process:
        """The process in a pod's container."""
        found: list[psutil.Process] = []

        def is_there() -> bool:
            found[:] = self._yarn.processes("ELASTREC_POD", f"clicks-1-{name}")
            return bool(found)

        self.wait(f"a process of {name}", is_there)
        (process,) = found
        return process

    def wait(self, what: str, condition: Callable[[], object], seconds: float = 90.0) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > deadline:
                raise AssertionError(f"in vain: {what}; {self.metrics()}\n{self.members()}\n{self.master_log()}")
            time.sleep(0.2)

    def master_log(self) -> str:
        """Of its last attempt."""
        try:
            return "\n".join(self.launcher.logs("clicks-1-master", tail_lines=60))
        except ClusterError as error:
            return str(error)

    def trained(self) -> int:
        """Rows, as far as a master says."""
        metrics = self.metrics()
        return metrics.samples_trained if metrics else -1

    def first(self) -> PodStatus:
        """The master's pod."""
        found = self.launcher.find(self.request.job_id)
        assert found is not None
        return found

    def wait_for_another_master(self, before: PodStatus) -> None:
        """The next attempt has registered."""
        self.wait("another master", lambda: self.first().address not in ("", before.address))

    def wait_for_end(self) -> None:
        """The job is over, and all of it was trained."""
        self.wait("the end", lambda: (m := self.metrics()) is not None and m.phase.is_final, seconds=240.0)
        metrics = self.metrics()
        assert metrics is not None and metrics.phase is Phase.SUCCEEDED, metrics
        assert metrics.shards_done == metrics.shards_total

    def wait_for_progress(self) -> None:
        """More is trained than now."""
        self.wait("a master answers", lambda: self.trained() >= 0)
        before = self.trained()
        self.wait("progress", lambda: self.trained() > before)


def _trained_at(address: str) -> int:
    """Asked of the master itself: nobody else knows where it is while the ResourceManager is away."""
    client = RpcClient(address, TOKEN)
    try:
        status: Status = client.call(GetStatus(), Status, timeout_seconds=5.0)
    finally:
        client.close()
    return TrainingMetrics.model_validate_json(status.metrics_json).samples_trained


@pytest.fixture
def running(config: YarnConfig, yarn: YarnCluster, tmp_path: Path) -> Iterator[RunningJob]:
    size = {"cores": 1, "memory": "300Mi"}
    sections = {
        "resources": {
            "master": {"cores": 1, "memory": "800Mi"},
            "worker": {"count": 2, **size},
            "parameter_server": {"count": 1, **size},
            "virtual_buckets": 64,
        },
        "checkpoint": {"interval": 5},
        "faults": {"heartbeat_interval": 0.2, "heartbeat_timeout": 40, "lease": 60},
    }
    request = launch(str(tmp_path / "store"), job(**sections), rows=20_000)
    launcher = YarnLauncher(config)
    launcher.submit(master_pod(request, config, TOKEN))
    yield RunningJob(launcher, request, yarn)
    launcher.remove(request.job_id)


@pytest.mark.timeout(600)
def test_a_job_grows_is_resized_and_survives_the_loss_of_containers_master_and_resource_manager(
    running: RunningJob, yarn: YarnCluster, tmp_path: Path
) -> None:
    r = running
    r.wait("training", lambda: (m := r.metrics()) is not None and m.phase is Phase.TRAINING)
    first = r.first()
    assert first.phase is PodPhase.RUNNING
    assert r.members()["worker-0"].size.memory_bytes == MEMORY

    # It grows, and its pods are resized, without a restart.
    process = r.process("worker-0")
    grown = r.call(ChangeShape(change={Role.WORKER: PlacesChange(count=3, cores=1.5)}), ShapeAnswer)
    assert grown.accepted, grown.reason
    r.wait("the larger shape", lambda: (s := r.status()) and s.shape_request.outcome is ShapeOutcome.DONE)
    # What was asked for is granted in whole cores.
    assert {r.members()[f"worker-{number}"].size.cores for number in range(3)} == {2.0}
    assert process.is_running()

    # A process is killed, and another one takes more memory than it may have.
    process.send_signal(signal.SIGKILL)
    r.wait("a replacement", lambda: "worker-0-r1" in r.members() and r.members()["worker-0-r1"].node)
    (tmp_path / "hog-clicks-1-worker-1").touch()
    r.wait("another replacement", lambda: "worker-1-r1" in r.members() and r.members()["worker-1-r1"].node)
    r.wait("all work", lambda: (m := r.metrics()) is not None and len(m.pods) >= 4)
    r.wait_for_progress()

    # The master is killed; the next attempt finds its containers, and the job goes on in the next term.
    # What ends while there is none is known to the next one.
    kept = {name: r.process(name).pid for name in ("worker-0-r1", "worker-1-r1", "ps-0")}
    master, unheard = r.process("master"), r.process("worker-2")
    master.send_signal(signal.SIGKILL)
    unheard.send_signal(signal.SIGKILL)
    r.wait_for_another_master(first)
    r.process("worker-2-r1")
    r.wait_for_progress()
    assert kept == {name: r.process(name).pid for name in kept}
    term = newest_term(r.request.store, "clicks", "clicks-1")
    assert term is not None and term.term == 2

    # The ResourceManager is away, which costs no training, and comes back.
    address = r.launcher.address(r.first())
    yarn.kill_resource_manager()
    before = _trained_at(address)
    deadline = time.monotonic() + 60.0
    while _trained_at(address) <= before:
        assert time.monotonic() < deadline
        time.sleep(0.2)
    yarn.start_resource_manager()
    yarn.wait_for_nodes(1)
    r.wait_for_progress()
    assert kept == {name: r.process(name).pid for name in kept}

    (tmp_path / "fast").touch()
    r.wait_for_end()
    story = [f"{entry.what}: {entry.cause}" for entry in r.call(GetExplanation(), Explanation).timeline]
    for pod, end in (("worker-0", "Killed"), ("worker-1", "OutOfMemory"), ("worker-2", "Killed")):
        assert any(pod in line and end in line for line in story), (pod, story)
    # The log is that of the last attempt.
    assert any("attempt_begins" in line and "attempt=2" in line for line in r.launcher.logs("clicks-1-master"))
    assert len(list(r.launcher.logs("clicks-1-master", tail_lines=1))) == 1
    r.call(FinishJob(), Done)
    r.wait("the application's end", lambda: r.first().phase is PodPhase.SUCCEEDED)
    assert r.launcher.remove("clicks-1") and r.launcher.find("clicks-1") is None


@pytest.mark.timeout(600)
def test_a_master_whose_journal_is_lost_goes_on_from_the_newest_record_with_the_containers_that_run(
    running: RunningJob, tmp_path: Path
) -> None:
    r = running
    r.wait("a record", lambda: (m := r.metrics()) is not None and m.checkpoint)
    first = r.first()
    kept = {name: r.process(name).pid for name in ("worker-0", "worker-1", "ps-0")}
    master = r.process("master")
    journal_folder = Path(master.environ()["LOCAL_DIRS"].split(",")[0]) / "master"
    assert list(journal_folder.glob("journal*"))
    master.send_signal(signal.SIGKILL)
    # As if the next attempt ran on another node.
    shutil.rmtree(journal_folder)
    r.wait_for_another_master(first)
    r.wait_for_progress()
    term = newest_term(r.request.store, "clicks", "clicks-1")
    assert term is not None and term.term == 2 and "/records/" in term.base
    assert kept == {name: r.process(name).pid for name in kept}
    (tmp_path / "fast").touch()
    r.wait_for_end()
