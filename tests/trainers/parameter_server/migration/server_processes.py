"""Parameter servers as real processes, for a master whose other pods are threads."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from elastrec.checkpoints import open_store
from elastrec.platform.clusters.pods import MemoryVolume, PodSpec
from elastrec.platform.specs import environment
from elastrec.platform.specs.metrics import Role
from tests.platform.master.fakes import job
from tests.platform.master.stage import Stage


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
            process.wait(60)


@contextlib.contextmanager
def stage_of(folder: Path, servers: Servers, **checkpoint: Any) -> Iterator[Stage]:
    """A master with a running job of one worker, which is a thread, and one server process.

    Args:
        checkpoint: the section `checkpoint` of the job file, without periodic records.
    """
    faults = {"heartbeat_interval": 0.05, "heartbeat_timeout": 10, "lease": 60}
    resources = {"worker": {"count": 1}, "parameter_server": {"count": 1}, "virtual_buckets": 64}
    spec = job(faults=faults, resources=resources, checkpoint={"interval": 0, **checkpoint})
    made = Stage(folder, spec, rows=1_000_000)
    open_store(made.request.store).create()
    play = made.cluster.on_create
    made.cluster.on_create = lambda spec: play(spec) if spec.role is Role.WORKER else servers.start(spec)
    with contextlib.ExitStack() as stack:
        for close in (made.close, servers.close):
            stack.callback(close)
        made.start()
        yield made
