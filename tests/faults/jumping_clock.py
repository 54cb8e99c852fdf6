"""A wall clock that jumps, in all processes that are started with its folder in PYTHONPATH.

A test cannot set the clock of the machine. Instead, a library in each process replaces the clock functions of the C
library (`jumping_clock.c`), so Python, SQLite, gRPC and Arrow all see the jump.
"""

from __future__ import annotations

import shutil
import struct
import subprocess
from pathlib import Path

import pytest

_SITE = """
import os
import sys

# The variable does not reach pods, the folder does.
if {library!r} not in os.environ.get("LD_PRELOAD", ""):
    os.environ["LD_PRELOAD"] = {library!r}
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])
"""


class JumpingClock:
    """Builds the clock; processes with `folder` in their PYTHONPATH use it.

    Args:
        folder: is created.
    """

    def __init__(self, folder: Path) -> None:
        compiler = shutil.which("cc")
        if compiler is None:
            pytest.skip("left out: a jumping clock needs a C compiler (apt-get install gcc libc6-dev)")
        folder.mkdir(parents=True)
        self.folder = folder
        self._offset = folder / "offset"
        self._offset.write_bytes(struct.pack("q", 0))
        library = folder / "jumping_clock.so"
        source = Path(__file__).with_suffix(".c")
        define = f'-DOFFSET_FILE="{self._offset}"'
        command = [compiler, "-O1", "-Wall", "-Werror", "-shared", "-fPIC", define, "-o", str(library), str(source)]
        subprocess.run([*command, "-ldl"], check=True)
        (folder / "sitecustomize.py").write_text(_SITE.format(library=str(library)))

    def jump(self, seconds: int) -> None:
        """The clock is so far ahead (or behind) of the machine's from now on."""
        with self._offset.open("r+b") as file:
            file.write(struct.pack("q", seconds))
