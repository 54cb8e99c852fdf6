"""The process that copies parts from memory to their store."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from elastrec.checkpoints import open_store
from elastrec.checkpoints.flash import PartMemory
from elastrec.checkpoints.stores import local_store
from elastrec.trainers.parameter_server.records import flush


def test_the_disk_begins_with_a_part_while_the_rest_of_it_is_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    volume, data = tmp_path / "volume", bytes(range(250)) * 1000
    with volume.open("xb") as file:
        os.posix_fallocate(file.fileno(), 0, 2**20)
    memory = PartMemory(volume, writes=True)
    copy = memory.begin(f"file://{tmp_path}/store/record", "part.bin", is_full=True)
    copy.write(data)
    part = copy.finish()
    begun: list[tuple[int, int]] = []
    monkeypatch.setattr(flush, "_WRITE_BYTES", 100_000)
    monkeypatch.setattr(local_store, "_start_writeback", lambda descriptor, *run: begun.append(run))
    flush.copy_part(memory, part)
    assert begun == [(0, 100_000), (100_000, 100_000), (200_000, 50_000)]
    assert open_store(part.uri).get("part.bin") == data
    assert capsys.readouterr().out.count("written_bytes") == 3
    memory.close()
