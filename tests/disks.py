"""A small tmpfs, which a test can fill."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

_CHUNK_BYTES = 4096


class SmallDisk:
    """A mounted folder with a bounded number of bytes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._ballast = folder / "ballast"

    def fill(self) -> None:
        """Takes the last byte of room."""
        with self._ballast.open("ab", buffering=0) as file, contextlib.suppress(OSError):
            while True:
                file.write(bytes(_CHUNK_BYTES))

    def free(self) -> None:
        """Gives the room back."""
        self._ballast.unlink()

    @property
    def free_bytes(self) -> int:
        found = os.statvfs(self.folder)
        return found.f_bavail * found.f_frsize


@contextlib.contextmanager
def small_disk(folder: Path, size_bytes: int) -> Iterator[SmallDisk]:
    """Mounts a tmpfs over an empty folder; the test is left out where that is not allowed."""
    folder.mkdir(parents=True, exist_ok=True)
    options = f"size={size_bytes},mode=0700"
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", options, "elastrec-test", str(folder)],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        pytest.skip(f"left out: no disk can be mounted here ({done.stderr.strip()}); root may")
    try:
        yield SmallDisk(folder)
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)
