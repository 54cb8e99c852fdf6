"""A small job on real servers: it grows, is resized, loses containers and its master, and trains every row."""

from __future__ import annotations

import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from elastrec.checkpoints import newest_term
from elastrec.platform.clusters.pods import PodPhase, PodStatus
from elastrec.platform.master.pods.launch import LaunchRequest, master_pod
from elastrec.platform.transport.messages.observer import FinishJob, ShapeOutcome
from tests.platform.master.fakes import job, launch
from tests.spikes.running_job import JOB, MASTER, TOKEN, RunningJob
from tests.spikes.yarn.backend import YarnConfig
from tests.spikes.yarn.launcher import YarnLauncher
from tools.yarn.cluster import YarnCluster

pytestmark = pytest.mark.services

MEMORY = 320 * 2**20  # a multiple of the scheduler's step above 300 MiB


class YarnJob(RunningJob):
    """What a caller outside sees of the job, and the processes of this machine that are its containers."""

    def __init__(self, launcher: YarnLauncher, request: LaunchRequest, yarn: YarnCluster) -> None:
        super().__init__(launcher, request)
        self._yarn = yarn

    def process(self, name: str) -> psutil.Process:
        """The process in a pod's container."""
        found: list[psutil.Process] = []

        def is_there() -> bool:
            found[:] = self._yarn.processes("ELASTREC_POD", f"{JOB}-{name}")
            return bool(found)

        self.wait(f"a process of {name}", is_there)
        (process,) = found
        return process

    def wait_for_another_master(self, before: PodStatus) -> None:
        """The next attempt has registered, and answers."""
        self.wait("another master", lambda: self.find_master().address not in ("", before.address))
        self.wait_for_master()


@pytest.fixture
def running(config: YarnConfig, yarn: YarnCluster, tmp_path: Path) -> Iterator[YarnJob]:
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
    made = YarnJob(launcher, request, yarn)
    try:
        made.wait_for_master()
        yield made
    finally:
        launcher.remove(JOB)


@pytest.mark.timeout(600)
def test_a_job_is_resized_and_survives_the_loss_of_containers_master_and_resource_manager(
    running: YarnJob, yarn: YarnCluster, tmp_path: Path
) -> None:
    r = running
    r.wait_for_training()
    first = r.find_master()
    assert first.phase is PodPhase.RUNNING
    assert r.members()["worker-0"].size.memory_bytes == MEMORY

    # It grows, and its pods are resized, without a restart.
    process = r.process("worker-0")
    r.ask(count=3, cores=1.5)
    r.wait("the larger shape", lambda: r.outcome() is ShapeOutcome.DONE)
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
    term = newest_term(r.request.store, "clicks", JOB)
    assert term is not None and term.term == 2

    # The ResourceManager is away, which costs no training, and comes back.
    yarn.kill_resource_manager()
    before = r.trained()
    assert before >= 0
    deadline = time.monotonic() + 60.0
    # Of the master alone: nobody else knows anything of it now.
    while r.trained() <= before:
        assert time.monotonic() < deadline
        time.sleep(0.2)
    yarn.start_resource_manager()
    yarn.wait_for_nodes(1)
    r.wait_for_progress()
    assert kept == {name: r.process(name).pid for name in kept}

    (tmp_path / "fast").touch()
    r.wait_for_end()
    story = r.story().splitlines()
    for pod, end in (("worker-0", "Killed"), ("worker-1", "OutOfMemory"), ("worker-2", "Killed")):
        assert any(pod in line and end in line for line in story), (pod, story)
    # The log is that of the last attempt.
    assert any("attempt_begins" in line and "attempt=2" in line for line in r.launcher.logs(MASTER))
    assert len(list(r.launcher.logs(MASTER, tail_lines=1))) == 1
    r.call(FinishJob())
    r.wait("the application's end", lambda: r.find_master().phase is PodPhase.SUCCEEDED)
    assert r.launcher.remove(JOB) and r.launcher.find(JOB) is None


@pytest.mark.timeout(600)
def test_a_master_without_its_journal_continues_from_the_newest_record_in_the_same_containers(
    running: YarnJob, tmp_path: Path
) -> None:
    r = running
    r.wait("a record", lambda: (m := r.metrics()) is not None and m.checkpoint)
    first = r.find_master()
    kept = {name: r.process(name).pid for name in ("worker-0", "worker-1", "ps-0")}
    master = r.process("master")
    journal_folder = Path(master.environ()["LOCAL_DIRS"].split(",")[0]) / "master"
    assert list(journal_folder.glob("journal*"))
    master.send_signal(signal.SIGKILL)
    # As if the next attempt ran on another node.
    shutil.rmtree(journal_folder)
    r.wait_for_another_master(first)
    r.wait_for_progress()
    term = newest_term(r.request.store, "clicks", JOB)
    assert term is not None and term.term == 2 and "/records/" in term.base
    assert kept == {name: r.process(name).pid for name in kept}
    (tmp_path / "fast").touch()
    r.wait_for_end()
