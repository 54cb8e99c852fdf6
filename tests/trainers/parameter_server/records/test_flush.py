"""The process that copies parts from memory to their store."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from elastrec.checkpoints import open_store
from elastrec.checkpoints.flash import HeldPart, PartMemory
from elastrec.platform.specs.errors import CheckpointError
from elastrec.trainers.parameter_server.records import flush
from elastrec.trainers.parameter_server.records.flusher import Flusher

DATA = bytes(range(250)) * 1000


@pytest.fixture
def memory(tmp_path: Path) -> Iterator[PartMemory]:
    with (tmp_path / "volume").open("xb") as file:
        os.posix_fallocate(file.fileno(), 0, 2**20)
    memory = PartMemory(tmp_path / "volume", writes=True)
    yield memory
    memory.close()


def held_part(tmp_path: Path, memory: PartMemory) -> HeldPart:
    """DATA in memory, as a part of a record."""
    open_store(tmp_path / "store").create()
    copy = memory.begin(f"file://{tmp_path}/store/record", "part.bin", is_full=True)
    copy.write(DATA)
    return copy.finish()


def test_progress_is_reported_with_each_piece_of_a_part(
    tmp_path: Path, memory: PartMemory, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    part = held_part(tmp_path, memory)
    monkeypatch.setattr(flush, "_WRITE_BYTES", 100_000)
    flush.copy_part(memory, part)
    assert open_store(part.uri).get("part.bin") == DATA
    assert capsys.readouterr().out.count("written_bytes") == 3


@pytest.mark.services
def test_a_copy_has_some_of_the_cores_that_requests_keep_busy(tmp_path: Path, memory: PartMemory) -> None:
    part, flusher = held_part(tmp_path, memory), Flusher(tmp_path / "volume")
    flusher.flush(part)
    assert open_store(part.uri).get("part.bin") == DATA and flusher._process is not None
    own, its = os.getpriority(os.PRIO_PROCESS, 0), os.getpriority(os.PRIO_PROCESS, flusher._process.pid)
    flusher.close()
    # Each step of niceness is a quarter more of the time for the others: with 19 they have 99.3 % of it.
    assert min(19, own + 1) <= its <= own + 10


WRITES_WITHOUT_END = """
import sys, time
sys.stdin.readline()
while True:
    sys.stdout.write('{"written_bytes":1}\\n')
    sys.stdout.flush()
    time.sleep(0.001)
"""


@pytest.mark.services
def test_an_unwanted_copy_is_ended_although_it_makes_progress(tmp_path: Path) -> None:
    flusher, reports = Flusher(tmp_path / "volume"), list[bool]()
    command = [sys.executable, "-c", WRITES_WITHOUT_END]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    flusher._process = process
    part = HeldPart("file:///store/record", "part.bin", 0, 1, 0, 1, 0)
    with pytest.raises(CheckpointError, match="not wanted any more"):
        flusher.flush(part, lambda: len(reports) < 3, lambda: reports.append(True))
    assert len(reports) == 3 and process.returncode is not None
