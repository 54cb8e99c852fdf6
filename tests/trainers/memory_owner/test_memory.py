"""Unavailable memory: the message, and whether the pod starts anyway."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from elastrec.checkpoints.flash import MemoryUnusableError, PartMemory
from elastrec.trainers.memory_owner.memory import MemoryRefusedError, make_memory

MIB = 2**20


@pytest.fixture
def paths() -> Iterator[list[str]]:
    """Of memory that was made; it is given back."""
    made: list[str] = []
    yield made
    for path in made:
        os.close(int(path.rpartition("/")[2]))


def test_the_memory_holds_parts(paths: list[str]) -> None:
    paths.append(make_memory(4 * MIB, 8 * MIB))
    memory = PartMemory(Path(paths[0]), writes=True)
    copy = memory.begin("file:///record", "part-0", is_full=True)
    assert copy.write(b"rows") and copy.finish().size_bytes == 4
    memory.close()
    again = PartMemory(Path(paths[0]), writes=False)
    assert [part.file for part in again.parts()] == ["part-0"]
    again.close()


def test_a_pod_that_is_smaller_than_its_memory_is_refused() -> None:
    says = "spec.checkpoint.memory: 2097152 bytes are not allowed in this pod; allowed: less than 2097152, the limit"
    with pytest.raises(MemoryRefusedError, match=re.escape(says)):
        make_memory(2 * MIB, 2 * MIB)


def test_a_machine_without_memory_files_reports_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(name: str) -> int:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "memfd_create", refuse)
    with pytest.raises(MemoryRefusedError, match=r"memfd_create: Operation not permitted; allow the call.*leave the"):
        make_memory(2 * MIB, None)


def test_a_node_without_room_starts_the_pod_whose_server_does_without(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], paths: list[str]
) -> None:
    def refuse(descriptor: int, start: int, length: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", refuse)
    paths.append(make_memory(2 * MIB, None))
    said = capfd.readouterr().err
    assert 'level=error event=memory_not_made bytes=2097152 reason="No space left on device"' in said
    with pytest.raises(MemoryUnusableError, match="0 of 0 bytes are there"):
        PartMemory(Path(paths[0]), writes=True)
