"""Environments of peers that cannot be installed beside elastrec, created on demand from the configured package
index."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path


def python_of(environment: Path) -> Path:
    return environment / "bin" / "python"


def install(environment: Path, packages: Sequence[str], benchmark: str) -> None:
    """Creates an environment with these packages; an older one is replaced.

    Args:
        benchmark: that needs it, for messages.

    Raises:
        SystemExit: uv is missing, or the packages cannot be installed; the message has the reason.
    """
    uv = shutil.which("uv", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}")
    if uv is None:
        raise SystemExit(f"{benchmark}: uv is not installed; `make setup` brings it")
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    for command in (
        [uv, "venv", "--quiet", "--clear", "--python", version, str(environment)],
        [uv, "pip", "install", "--quiet", "--python", str(python_of(environment)), *packages],
    ):
        done = subprocess.run(command, check=False, stderr=subprocess.PIPE, text=True)
        if done.returncode:
            raise SystemExit(f"{benchmark}: {' '.join(command)} failed:\n{done.stderr}")
