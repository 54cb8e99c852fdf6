"""The process that copies parts from memory to their store."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from elastrec.checkpoints import open_store
from elastrec.checkpoints.flash import HeldPart, PartMemory
from elastrec.platform.specs.errors import CheckpointError
from elastrec.trainers.parameter_server.records import flush
from elastrec.trainers.parameter_server.records.flusher import Flusher


def test_progress_is_reported_with_each_piece_of_a_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    volume, data = tmp_path / "volume", bytes(range(250)) * 1000
    with volume.open("xb") as file:
        os.posix_fallocate(file.fileno(), 0, 2**20)
    memory = PartMemory(volume, writes=True)
    copy = memory.begin(f"file://{tmp_path}/store/record", "part.bin", is_full=True)
    copy.write(data)
    part = copy.finish()
    monkeypatch.setattr(flush, "_WRITE_BYTES", 100_000)
    flush.copy_part(memory, part)
    assert open_store(part.uri).get("part.bin") == data
    assert capsys.readouterr().out.count("written_bytes") == 3
    memory.close()


WRITES_WITHOUT_END = """
import sys, time
sys.stdin.readline()
while True:
    sys.stdout.write('{"written_bytes":1}\\n')
    sys.stdout.flush()
    time.sleep(0.001)
"""


@pytest.mark.services
@pytest.mark.timeout(60)
def test_an_unwanted_copy_is_ended_although_it_makes_progress(tmp_path: Path) -> None:
    flusher, reports = Flusher(tmp_path / "volume"), list[bool]()
    command = [sys.executable, "-c", WRITES_WITHOUT_END]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    flusher._process = process
    part = HeldPart("file:///store/record", "part.bin", 0, 1, 0, 1, 0)
    with pytest.raises(CheckpointError, match="not wanted any more"):
        flusher.flush(part, lambda: len(reports) < 3, lambda: reports.append(True))
    assert len(reports) == 3 and process.returncode is not None
