"""Inflicts one fault of a plan on the real processes of a job, and undoes it afterwards if necessary."""

from __future__ import annotations

import contextlib
import math
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from elastrec.platform.clusters.local import start_agent
from elastrec.platform.clusters.local.state_folder import StateFolder
from elastrec.platform.specs.errors import ClusterError
from tests.faults.campaign.plan import Fault, Kind, Victim
from tests.faults.campaign.sockets import cut, take_port
from tests.faults.campaign.watching import Hit
from tests.processes import pod_processes

AGENT_CORES = 16.0
_ROLE = {
    Victim.WORKER: "worker", Victim.MASTER: "master",
    # By their place where nobody knows at the moment which servers leave or join.
    **dict.fromkeys((Victim.SERVER, Victim.OLD_SERVER, Victim.NEW_SERVER), "ps"),
}  # fmt: skip
_VICTIM_SECONDS, _PLACE_SECONDS = 12.0, 4.0
"""So long a fault waits for a victim, and for one in its very place: a plan may have taken that away."""
_LISTENING_SECONDS = 60.0
"""So long a process that was just started has until it listens: a busy machine imports slowly."""
_PORT_SECONDS = 60.0
_HOG_SECONDS = 120.0
_DYING_SECONDS = 60.0


@dataclass
class Scene:
    """The processes of a run on which faults are inflicted.

    Attributes:
        master_port: port of the job's master.
        is_over: set when the job has ended, so that no victim is left.
        agent: lock that is held while a fault is inflicted on the node agent.
    """

    home: Path
    job_id: str
    master_port: int
    is_over: threading.Event = field(default_factory=threading.Event)
    agent: threading.Lock = field(default_factory=threading.Lock)

    def process(self, fault: Fault, pods: Sequence[str] = ()) -> psutil.Process | None:
        """The newest process of the pod that the fault names; waits for a replacement that is starting.

        Args:
            pods: names of the possible victims of a fault during a change of servers; empty: the fault names its
                victim.
        """
        began = time.monotonic()
        while (waited := time.monotonic() - began) < _VICTIM_SECONDS and not self.is_over.is_set():
            with contextlib.suppress(psutil.Error):
                if found := self._candidates(fault, pods, is_patient=waited < _PLACE_SECONDS):
                    return max(found, key=lambda process: process.create_time())
            time.sleep(0.05)
        return None

    def _candidates(self, fault: Fault, pods: Sequence[str], *, is_patient: bool) -> list[psutil.Process]:
        if pods:
            everybody = self._processes("")
            named = [process for process in everybody if process.environ()["ELASTREC_POD"] in pods]
            names = sorted({process.environ()["ELASTREC_POD"] for process in named})
            chosen = names[fault.index % len(names)] if names else ""
            return [process for process in named if process.environ()["ELASTREC_POD"] == chosen]
        role = _ROLE[fault.victim]
        if fault.victim is Victim.MASTER:
            return self._processes(role)
        found = self._processes(f"{role}-{fault.index}")
        # A place that runs out of memory twice is given up for good reason: there is no other place for that.
        if found or is_patient or fault.kind is Kind.OUT_OF_MEMORY:
            return found
        return self._processes(f"{role}-")

    def _processes(self, role: str) -> list[psutil.Process]:
        """Of pods, without those that a pod's process has started: a server with memory of its node has a copier."""
        found = pod_processes(self.job_id, role, self.home)
        pids = {process.pid for process in found}
        return [process for process in found if process.ppid() not in pids]


def inflict(fault: Fault, scene: Scene, pods: Sequence[str] = ()) -> Hit | None:
    """Inflicts the fault and returns when it is over; None if the job ended before there was a victim.

    Args:
        pods: see `Scene.process`.

    Raises:
        AssertionError: the fault could not be inflicted although its victim existed.
    """
    if fault.victim is Victim.AGENT:
        with scene.agent:
            began = time.monotonic()
            _hurt_agent(fault, scene)
        return Hit("", began, time.monotonic())
    process = scene.process(fault, pods)
    if process is None:
        return None
    try:
        pod = "" if fault.victim is Victim.MASTER else process.environ()["ELASTREC_POD"]
        began = time.monotonic()
        comes_back = _hurt_pod(fault, scene, process)
    except (psutil.NoSuchProcess, ProcessLookupError):
        return None
    return Hit(pod, began, time.monotonic() if comes_back or not pod else math.inf)


def _hurt_pod(fault: Fault, scene: Scene, process: psutil.Process) -> bool:
    """Whether the process comes back by itself."""
    match fault.kind:
        case Kind.STOP:
            _stop_for(process, fault.seconds)
            return True
        case Kind.CUT:
            _wait_until_it_listens(process)
            others = [pod for pod in pod_processes(scene.job_id, "", scene.home) if pod.pid != process.pid]
            with cut(process, others):
                time.sleep(fault.seconds)
            return True
        case Kind.KILL:
            process.kill()
        case Kind.JOURNAL:
            _lose_journal(process)
        case Kind.TERMINATE:
            process.terminate()
        case Kind.OUT_OF_MEMORY:
            starve(process)
        case Kind.PORT:
            process.kill()
            with contextlib.closing(take_port(scene.master_port, _PORT_SECONDS)):
                time.sleep(fault.seconds)
    return False


def _lose_journal(master: psutil.Process) -> None:
    work = Path(master.environ()["ELASTREC_WORK"])
    # It must not make the files again before it is killed.
    master.suspend()
    try:
        for file in work.glob("journal.sqlite*"):
            file.unlink()
    finally:
        master.kill()


def _wait_until_it_listens(process: psutil.Process) -> None:
    deadline = time.monotonic() + _LISTENING_SECONDS
    while not any(link.status == psutil.CONN_LISTEN for link in process.net_connections("tcp")):
        assert time.monotonic() < deadline, f"{process} does not listen within {_LISTENING_SECONDS} s"
        time.sleep(0.05)


def _stop_for(process: psutil.Process, seconds: float) -> None:
    process.suspend()
    try:
        time.sleep(seconds)
    finally:
        # It may have been replaced and killed meanwhile; if not, it comes back as if nothing had happened.
        with contextlib.suppress(psutil.NoSuchProcess):
            process.resume()


def starve(process: psutil.Process) -> None:
    """Allocates memory in a pod's control group until the kernel kills the pod's process.

    Raises:
        psutil.NoSuchProcess: the process had already ended.
    """
    command = [sys.executable, "-m", "tests.faults.campaign.hog", str(process.pid)]
    deadline = time.monotonic() + _HOG_SECONDS
    while True:
        code = subprocess.run(command, cwd=Path(__file__).parents[3], timeout=_HOG_SECONDS, check=False).returncode
        if code == 1 and _is_gone(process):
            raise psutil.NoSuchProcess(process.pid)
        # The kernel may kill the hog, too, while the pod's process is dying and its memory is not free yet.
        if code == 0 or (code == -signal.SIGKILL and _is_gone(process, _DYING_SECONDS)):
            return
        # It may also kill the hog alone: then another one goes on.
        is_killed = code == -signal.SIGKILL
        assert is_killed and time.monotonic() < deadline, (
            f"the memory limit of {process} could not be exceeded: exit code {code}"
        )


def _is_gone(process: psutil.Process, patience_seconds: float = 0.0) -> bool:
    deadline = time.monotonic() + patience_seconds
    while process.is_running():
        try:
            if process.status() == psutil.STATUS_ZOMBIE:
                return True
        except psutil.NoSuchProcess:
            return True
        if time.monotonic() >= deadline:
            return False
        time.sleep(0.02)
    return True


def _hurt_agent(fault: Fault, scene: Scene) -> None:
    folder = scene.home / "agent"
    info = StateFolder(folder).agent()
    assert info is not None, "no node agent runs"
    process = psutil.Process(info.pid)
    if fault.kind is Kind.STOP:
        _stop_for(process, fault.seconds)
        return
    process.kill()
    _wait_for_end(process)
    if fault.kind is Kind.PORT:
        with contextlib.closing(take_port(int(info.address.rpartition(":")[2]), _PORT_SECONDS)):
            time.sleep(fault.seconds)
            # Pods know the agent by this address: another one would be worse than none.
            try:
                start_agent(folder, cores=AGENT_CORES).close()
            except ClusterError as error:
                assert "taken by another program" in str(error), error
            else:
                raise AssertionError("the node agent started on a port that somebody else has")
    else:
        time.sleep(fault.seconds)
    start_agent(folder, cores=AGENT_CORES).close()


def _wait_for_end(process: psutil.Process) -> None:
    # The process that started the agent reaps it; a zombie holds neither port nor lock.
    with contextlib.suppress(psutil.TimeoutExpired):
        process.wait(_DYING_SECONDS)


def kinds_that_work(cgroups: bool) -> tuple[Kind, ...]:
    """Kinds of faults that can be inflicted on this machine.

    Args:
        cgroups: whether the kernel enforces the node agent's limits.
    """
    without = set() if cgroups else {Kind.OUT_OF_MEMORY}
    if os.geteuid() != 0:
        without |= {Kind.OUT_OF_MEMORY, Kind.CUT}
    return tuple(kind for kind in Kind if kind not in without)
