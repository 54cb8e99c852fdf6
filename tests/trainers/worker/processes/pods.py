"""Workers and parameter servers as real processes, under the scripted master."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.trainers.worker.conftest import ScriptedMaster


class Pods:
    """Real pod processes of a test, with their own folders; none outlives the test."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def start(
        self, master: ScriptedMaster, name: str, module: str, *, within: Sequence[str] = (), **variables: str
    ) -> subprocess.Popen[bytes]:
        """Starts a pod; `within` is a command that runs another one, such as `ip netns exec NAME`."""
        files, work = self.folder / name / "files", self.folder / name / "work"
        files.mkdir(parents=True, exist_ok=True)
        work.mkdir(parents=True, exist_ok=True)
        (files / "token").write_text(master.token)
        (files / "store").write_text(str(self.folder / "store"))
        environment = {
            **os.environ,
            "ELASTREC_JOB": "test-job",
            "ELASTREC_POD": name,
            "ELASTREC_NODE": "test-node",
            "ELASTREC_MASTER_ADDRESS": master.server.address,
            "ELASTREC_JOB_NAME": "test-job",
            "ELASTREC_MASTER_TIMEOUT": "600",
            "ELASTREC_HOST": "127.0.0.1",
            "ELASTREC_PORT": "0",
            "ELASTREC_CORES": "1",
            "ELASTREC_FILES": str(files),
            "ELASTREC_WORK": str(work),
            **variables,
        }
        with (self.folder / f"{name}.log").open("ab") as output:
            process = subprocess.Popen(
                [*within, sys.executable, "-m", module], cwd=work, env=environment, stdout=output, stderr=output
            )
        self.processes[name] = process
        return process

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text()

    def stop(self) -> None:
        for process in self.processes.values():
            if process.poll() is None:
                process.kill()
        for process in self.processes.values():
            process.wait(60)
