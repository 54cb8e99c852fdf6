"""The memory of a node, as opened by a server."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from elastrec.trainers.parameter_server.records.memory import RecordMemory


@pytest.fixture
def volume(tmp_path: Path) -> Path:
    path = tmp_path / "volume"
    with path.open("xb") as file:
        os.posix_fallocate(file.fileno(), 0, 2**20)
    return path


@pytest.fixture
def memory(volume: Path) -> Iterator[RecordMemory]:
    memory = RecordMemory(volume)
    yield memory
    memory.close()
