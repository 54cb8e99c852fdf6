"""First program of every container: prepares the environment of a pod's process as described in `specs.environment`.

`python -m tests.spikes.yarn.application.container`; it then becomes the pod's process. The command comes in a file,
because a node writes commands and variables into a shell script, between double quotes without escapes.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import msgspec

from elastrec.platform.specs import environment
from tools.ports import free_ports

PROCESS_FILE = "process.json"


class ContainerProcess(msgspec.Struct, frozen=True):
    """The file `PROCESS_FILE` of a container: what its pod asks for."""

    command: tuple[str, ...]
    environment: dict[str, str]


def surroundings(work: Path) -> dict[str, str]:
    """Variables of the pod's process."""
    files = Path.cwd() / "files"
    files.mkdir(exist_ok=True)
    work.mkdir(parents=True, exist_ok=True)
    return {
        environment.FILES: str(files),
        environment.WORK: str(work),
        environment.HOST: os.environ["NM_HOST"],
        # YARN knows nothing of ports. Between this look and the process's own another one may take it.
        environment.PORT: str(free_ports(1)[0]),
    }


if __name__ == "__main__":
    process = msgspec.json.decode(Path(PROCESS_FILE).read_bytes(), type=ContainerProcess)
    command = [sys.executable if word == "python" else word for word in process.command]
    os.execvpe(command[0], command, os.environ | process.environment | surroundings(Path.cwd() / "work"))
