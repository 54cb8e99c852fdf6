"""Killed processes that end late, as on an overloaded machine: their pod is neither forgotten nor leaked."""

from __future__ import annotations

import contextlib
import os
import signal
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from elastrec.platform.clusters.local import LocalCluster, start_agent, stop_agent
from elastrec.platform.clusters.local.state_folder import StateFolder
from elastrec.platform.clusters.pods import PodPhase, PodSpec, PodStatus
from tests.processes import wait_for

pytestmark = pytest.mark.services

CORES, MEMORY_BYTES = 2.0, 1 << 30
_FREEZER = Path("/sys/fs/cgroup/freezer")


@contextlib.contextmanager
def frozen(process: psutil.Process) -> Iterator[None]:
    """Nothing reaches the process, not even SIGKILL."""
    group = _FREEZER / f"elastrec-test-{uuid.uuid4().hex[:8]}"
    try:
        group.mkdir()
    except OSError as error:
        pytest.skip(f"left out: no group can be frozen here: {error}")
    (group / "cgroup.procs").write_text(str(process.pid))
    (group / "freezer.state").write_text("FROZEN")
    wait_for(lambda: (group / "freezer.state").read_text().strip() == "FROZEN", 10, "a frozen process")
    try:
        yield
    finally:
        (group / "freezer.state").write_text("THAWED")
        wait_for(lambda: not (group / "cgroup.procs").read_text(), 20, "the end of the process")
        group.rmdir()


def groups(agent_id: str) -> list[Path]:
    """Control groups of pods."""
    return [group for group in Path("/sys/fs/cgroup").glob(f"**/elastrec-{agent_id}/*") if group.is_dir()]


def main_process(uid: str) -> psutil.Process:
    """The pod's own process; its parent, which carries the pod's mark, too, supervises it."""

    def is_marked(process: psutil.Process | None) -> bool:
        return process is not None and process.environ().get("ELASTREC_POD_UID") == uid

    def find() -> psutil.Process | None:
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if is_marked(process) and is_marked(process.parent()):
                    return process
        return None

    return wait_for(find, 20, f"a process of pod {uid}")


@pytest.mark.timeout(200)
def test_a_pod_ends_when_its_last_process_has_ended_and_leaves_no_group(
    tmp_path: Path, make_pod: Callable[..., PodSpec], until: Callable[..., PodStatus]
) -> None:
    folder = tmp_path / "agent"

    def start() -> LocalCluster:
        return start_agent(folder, cores=CORES, memory_bytes=MEMORY_BYTES)

    cluster = start()
    try:
        if cluster.agent().limits == "threads":
            pytest.skip("left out: no control groups here")
        pod = cluster.create(make_pod(name="frozen", cores=CORES))
        process = main_process(pod.uid)
        with frozen(process):
            os.kill(process.ppid(), signal.SIGKILL)
            log = StateFolder(folder).log
            wait_for(lambda: "pod_still_dying" in log.read_text(), 20, "an agent that cannot end the pod")
            # A new agent finds it in the same state.
            psutil.Process(cluster.agent().pid).kill()
            cluster.close()
            cluster = start()
            found = cluster.get("frozen")
            assert found is not None and found.phase is PodPhase.RUNNING
            assert cluster.nodes()[0].free.cores == 0, "what it holds is not given to others"
        ended = until(cluster, "frozen")
        assert (ended.phase, ended.message) == (PodPhase.FAILED, "the pod's supervisor died")
        cluster.delete("frozen")
        agent_id = cluster.agent().agent_id
        wait_for(lambda: not groups(agent_id), 10, "no group is left")
    finally:
        cluster.close()
        stop_agent(folder)


@pytest.mark.timeout(200)
def test_an_agent_that_starts_removes_groups_that_an_earlier_one_could_not(
    tmp_path: Path, make_pod: Callable[..., PodSpec]
) -> None:
    folder = tmp_path / "agent"
    cluster = start_agent(folder, cores=CORES, memory_bytes=MEMORY_BYTES)
    try:
        agent = cluster.agent()
        if agent.limits == "threads":
            pytest.skip("left out: no control groups here")
        cluster.create(make_pod(name="known"))
        (own,) = {group.parent for group in groups(agent.agent_id) if group.parents[1].name == "memory"} or {
            group.parent for group in groups(agent.agent_id)
        }
        (own / uuid.uuid4().hex).mkdir()
        psutil.Process(agent.pid).kill()
        cluster.close()
        cluster = start_agent(folder, cores=CORES, memory_bytes=MEMORY_BYTES)
        assert len([group for group in groups(agent.agent_id) if group.parent == own]) == 1, "that of the pod that runs"
        assert cluster.get("known") is not None
    finally:
        cluster.close()
        stop_agent(folder)
