"""Parameter servers as real processes, for a master whose other pods are played by threads."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from elastrec.platform.clusters.pods import MemoryVolume, PodSpec
from elastrec.platform.specs import environment


class Servers:
    """Processes of server pods on one node, which keeps their memory volumes; by the pods' names."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def volume(self, wanted: MemoryVolume) -> Path:
        path = self.folder / wanted.name
        with path.open("ab") as file:
            os.posix_fallocate(file.fileno(), 0, wanted.size_bytes)
        return path

    def start(self, spec: PodSpec) -> None:
        files = self.folder / spec.name
        files.mkdir()
        for name, text in (spec.files | spec.secrets).items():
            (files / name).write_text(text)
        variables = {**os.environ, **spec.environment, environment.FILES: str(files), environment.HOST: "127.0.0.1"}
        if spec.memory_volume is not None:
            variables[environment.MEMORY] = str(self.volume(spec.memory_volume))
        with (self.folder / f"{spec.name}.log").open("ab") as log:
            command = [sys.executable, "-m", "elastrec.trainers.parameter_server"]
            self.processes[spec.name] = subprocess.Popen(command, env=variables, stderr=log)

    def log(self, pod: str) -> str:
        return (self.folder / f"{pod}.log").read_text()

    def close(self) -> None:
        for process in self.processes.values():
            process.kill()
            process.wait(10)
