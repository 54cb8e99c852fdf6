"""The launch data of a container: files in the staging folder, and a command that is the same for all pods."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from elastrec.platform.clusters.pods import PodSpec
from elastrec.platform.specs import environment
from tests.spikes.yarn.application.container import PROCESS_FILE, ContainerProcess
from tests.spikes.yarn.application.hadoop import Hadoop
from tests.spikes.yarn.node_logs import LOG_FILE


@dataclass(frozen=True)
class Site:
    """The surroundings of an attempt.

    Attributes:
        attempt: number of the attempt, from 1.
        staging: folder of the application, shared by all machines.
        step_mb: granted memory is a multiple of it, as configured in the scheduler.
        command: command of all containers.
        environment: environment variables of all containers.
        modules: replacement modules, by the name of the replaced module.
    """

    attempt: int
    staging: Path
    step_mb: int
    command: tuple[str, ...]
    environment: dict[str, str] = field(default_factory=dict)
    modules: dict[str, str] = field(default_factory=dict)


def write_files(site: Site, uid: str, pod: PodSpec) -> None:
    """For the owner's eyes alone."""
    command = tuple(site.modules.get(word, word) for word in pod.command)
    variables = pod.environment | {environment.CORES: f"{pod.size.cores:g}"}
    launched = msgspec.json.encode(ContainerProcess(command=command, environment=variables)).decode()
    texts = {f"files/{name}": text for name, text in (pod.files | pod.secrets).items()}
    (_folder(site, uid) / "files").mkdir(parents=True, mode=0o700)
    for name, text in (texts | {PROCESS_FILE: launched}).items():
        path = _folder(site, uid) / name
        path.touch(mode=0o600)
        path.write_text(text)


def launch_context(hadoop: Hadoop, site: Site, uid: str, pod: PodSpec) -> Any:
    """For a pod whose files are written."""
    names = [PROCESS_FILE, *(f"files/{name}" for name in pod.files | pod.secrets)]
    command = f"exec {shlex.join(site.command)} 1><LOG_DIR>/{LOG_FILE} 2>&1"
    return hadoop.launch_context(command, site.environment, {name: str(_folder(site, uid) / name) for name in names})


def _folder(site: Site, uid: str) -> Path:
    return site.staging / "pods" / uid
