"""Real processes for tests that start, watch and kill whole jobs."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import psutil

from elastrec.platform.clusters.local import LocalCluster, find_agent, start_agent, stop_agent
from elastrec.platform.jobs import Platform
from elastrec.platform.jobs import jobs as observe_all
from elastrec.platform.specs.errors import ClusterError
from elastrec.platform.specs.metrics import TrainingMetrics

T = TypeVar("T")
_COMMAND_SECONDS = 600.0
"""Of a command, which may train a whole job: for a slow machine that is busy with other work."""


def wait_for(fact: Callable[[], T | None], seconds: float, what: str) -> T:
    """The first truthy answer; fails with `what` when there is none in time."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        answer = fact()
        if answer:
            return answer
        time.sleep(0.05)
    raise AssertionError(f"not within {seconds} s: {what}")


@dataclass
class Elastrec:
    """The command line with a home folder of its own."""

    home: Path

    @property
    def environment(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if name != "MLFLOW_TRACKING_URI"}
        return {**kept, "ELASTREC_HOME": str(self.home)}

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "elastrec.platform.cli", *arguments],
            env=self.environment,
            cwd=self.home,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def call(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        process = self.start(*arguments)
        try:
            output, errors = process.communicate(timeout=_COMMAND_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            raise
        return subprocess.CompletedProcess(arguments, process.returncode, output, errors)

    def json(self, *arguments: str) -> Any:
        done = self.call(*arguments, "--output", "json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    def jobs(self) -> list[TrainingMetrics]:
        """The jobs of the cluster, asked in this process: a command would take too long to catch a quick job."""
        cluster = find_agent(self.home / "agent")
        if cluster is None:
            return []
        platform = Platform.connect(cluster.config, "", str(self.home / "work"))
        try:
            return [observation.metrics for observation in observe_all(platform)]
        except ClusterError:
            return []  # a job ended between two questions
        finally:
            cluster.close()

    def start_agent(self) -> None:
        # More than the machine has: quotas would make every process start slowly.
        started = self.call("agent", "start", "--cores", "8")
        assert started.returncode == 0, started.stderr

    def close(self) -> None:
        self.call("agent", "stop")


@contextlib.contextmanager
def private_platform(home: Path, cores: float) -> Iterator[Platform]:
    """A node agent with so many cores, and a platform that uses it and a tracking database, all in one folder."""
    cluster = start_agent(home / "agent", cores=cores, memory_bytes=24 * 2**30)
    (home / "work").mkdir()
    try:
        yield Platform.connect(cluster.config, f"sqlite:///{home}/mlflow.db", str(home / "work"))
    finally:
        cluster.close()
        stop_agent(home / "agent")


def restart_with_another_token(folder: Path, timeout_seconds: float = 30) -> LocalCluster:
    """The node agent of a folder ends, its pods run on, and another one begins, with another token."""
    agent = find_agent(folder)
    assert agent is not None
    with contextlib.closing(agent):
        process = psutil.Process(agent.agent().pid)
    process.terminate()
    process.wait(timeout_seconds)
    (folder / "token").unlink()
    again = start_agent(folder, limits="threads")
    assert again.token != agent.token
    return again


def pod_processes(job: str, role: str, home: Path) -> list[psutil.Process]:
    """The Python processes of a job's pods whose name has `-{role}`, found by their environment."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            environment = process.environ()
            name = environment.get("ELASTREC_POD", "")
            if name.startswith(f"{job}-{role}") and str(home) in environment.get("ELASTREC_WORK", ""):
                command = process.cmdline()
                if any(part.startswith("elastrec.") for part in command):
                    found.append(process)
    return found


def processes_of(home: Path) -> list[psutil.Process]:
    """Everything that runs because of this home folder."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get("ELASTREC_HOME") == str(home) or str(home) in " ".join(process.cmdline()):
                found.append(process)
    return [process for process in found if process.pid != os.getpid()]


@contextlib.contextmanager
def elastrec_at(home: Path) -> Iterator[Elastrec]:
    """A command line whose agent is stopped at the end; nothing may be left."""
    home.mkdir(parents=True, exist_ok=True)
    command_line = Elastrec(home)
    try:
        command_line.start_agent()
        yield command_line
    finally:
        command_line.close()
        wait_for(lambda: not processes_of(home), 60, f"no process left: {processes_of(home)}")
