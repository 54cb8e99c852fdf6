"""The parts of a server are saved to the memory of its node, restored from it, and made durable by a separate
process.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from structlog.testing import capture_logs

from elastrec.checkpoints import DamagedRecordError, open_store
from elastrec.checkpoints.flash import PartMemory
from elastrec.checkpoints.parts import ALIGNMENT_BYTES
from elastrec.platform.transport.messages.directive import SaveOrder
from elastrec.trainers.parameter_server.records.memory import RecordMemory
from elastrec.trainers.parameter_server.records.share import restore
from tests.trainers.parameter_server.calls import push
from tests.trainers.parameter_server.records.saves import IDS, Saves, rows
from tests.trainers.parameter_server.running import routing_of


@pytest.mark.services
def test_a_record_and_its_bases_are_restored_from_memory_only(tmp_path: Path, memory: RecordMemory) -> None:
    saves = Saves(str(tmp_path / "store"), memory)
    files = [saves.file("save-1", saves.commit("save-1"))]
    push(saves.server, "a", 1, IDS[:5], 1.0)
    files.append(saves.file("save-2", saves.commit("save-2", base="save-1")))
    saved, opened = rows(saves.server), memory.opened()
    assert opened is not None and len(opened.parts()) == 2
    push(saves.server, "a", 2, IDS, 1.0)
    for file in files:
        file.write_bytes(b"gone")
    restore(saves.server, saves.uri("save-2"), routing_of(["here:1"]), 1, memory=opened)
    np.testing.assert_array_equal(rows(saves.server), saved)
    with pytest.raises(DamagedRecordError):
        restore(saves.server, saves.uri("save-2"), routing_of(["here:1"]), 1)


@pytest.mark.services
@pytest.mark.parametrize("place", ["rows", "index"])
def test_a_torn_copy_is_restored_from_the_store(tmp_path: Path, memory: RecordMemory, volume: Path, place: str) -> None:
    saves = Saves(str(tmp_path / "store"), memory)
    saves.commit("save-1")
    saved, opened = rows(saves.server), memory.opened()
    assert opened is not None
    (part,) = opened.parts()
    with volume.open("r+b") as file:
        file.seek(part.start + (ALIGNMENT_BYTES if place == "rows" else part.size_bytes - 60))
        file.write(b"\xff" * 20)
    with capture_logs() as logs:
        restore(saves.server, saves.uri("save-1"), routing_of(["here:1"]), 1, memory=opened)
    np.testing.assert_array_equal(rows(saves.server), saved)
    assert [entry["event"] for entry in logs].count("memory_copy_damaged") == 1
    # The store is not asked for what is whole in memory, nor the memory for anything after the damage.
    with pytest.raises(DamagedRecordError):
        file = open_store(saves.uri("save-1")).local_path(part.file)
        assert file is not None
        file.write_bytes(b"gone")
        restore(saves.server, saves.uri("save-1"), routing_of(["here:1"]), 1, memory=opened)


@pytest.mark.services
def test_a_killed_or_cancelled_copy_to_the_store_only_loses_its_part(tmp_path: Path, memory: RecordMemory) -> None:
    saves = Saves(str(tmp_path / "store"), memory)
    saves.commit("save-1")
    assert memory._flusher is not None and memory._flusher._process is not None
    process = memory._flusher._process
    os.kill(process.pid, signal.SIGSTOP)
    saves.saver.begin(SaveOrder("save-2", saves.uri("save-2")))
    deadline = time.monotonic() + 60
    while len((memory.opened() or pytest.fail()).parts()) < 2 and time.monotonic() < deadline:
        time.sleep(0.01)
    # Its rows are in memory and requests are served; the store does not get them.
    while "save-2" not in saves.copied and time.monotonic() < deadline:
        time.sleep(0.01)
    assert saves.copied == ["save-1", "save-2"]
    assert saves.saver.writing == "save-2" and not open_store(saves.uri("save-2")).keys()
    saves.saver.cancel()
    while saves.saver.writing and time.monotonic() < deadline:
        time.sleep(0.01)
    assert process.poll() is not None and "save-2" not in saves.parts
    saves.commit("save-3")
    process = memory._flusher._process
    process.kill()
    assert "has ended" in saves.save("save-4").problem
    saves.commit("save-5")


@pytest.mark.services
def test_a_process_that_is_dead_before_it_gets_an_order_is_named_and_closed(
    tmp_path: Path, memory: RecordMemory
) -> None:
    saves = Saves(str(tmp_path / "store"), memory)
    saves.commit("save-1")
    assert memory._flusher is not None and memory._flusher._process is not None
    process = memory._flusher._process
    process.kill()
    process.wait()
    assert "has ended" in saves.save("save-2").problem
    assert process.stdin is not None and process.stdout is not None
    assert process.stdin.closed and process.stdout.closed
    saves.commit("save-3")


@pytest.mark.services
def test_memory_that_another_process_writes_is_not_used(tmp_path: Path, memory: RecordMemory, volume: Path) -> None:
    other = PartMemory(volume, writes=True)
    saves = Saves(str(tmp_path / "store"), memory)
    saves.commit("save-1")
    assert not other.parts()
    other.close()
    saves.commit("save-2")
    opened = memory.opened()
    assert opened is not None and [part.uri.rpartition("/")[2] for part in opened.parts()] == ["save-2"]


def killed_in_the_copy(saves: Saves, name: str) -> None:
    """The server was killed while it copied its part into memory."""
    opened = saves.memory.opened()
    assert opened is not None
    assert opened.begin(saves.uri(name), "torn.part", is_full=True).write(b"\x5a" * (opened.size_bytes // 4))


def refused_by_the_store(saves: Saves, name: str) -> None:
    """The part is whole in memory; the store takes no object of this record, as if it was full."""
    folder = open_store(saves.uri(name)).local_path("part")
    assert folder is not None
    folder.parent.write_bytes(b"not a folder")
    assert saves.save(name).problem


def damaged_before_the_flush(saves: Saves, name: str) -> None:
    """A byte of the part changes after the server has copied it into memory."""
    assert saves.memory._flusher is not None and saves.memory._flusher._process is not None
    process = saves.memory._flusher._process
    os.kill(process.pid, signal.SIGSTOP)
    saves.begin(name)
    deadline = time.monotonic() + 60
    while name not in saves.copied and time.monotonic() < deadline:
        time.sleep(0.01)
    opened = saves.memory.opened()
    assert opened is not None
    part = next(part for part in opened.parts() if part.uri.endswith(f"/{name}"))
    opened._bytes[part.start] ^= 1
    os.kill(process.pid, signal.SIGCONT)
    assert "checksum differs" in saves.reported(name).problem


@pytest.mark.services
@pytest.mark.parametrize(
    "failures",
    [
        (killed_in_the_copy, refused_by_the_store),
        (refused_by_the_store, killed_in_the_copy),
        (refused_by_the_store, damaged_before_the_flush),
        (damaged_before_the_flush, killed_in_the_copy),
        (refused_by_the_store, refused_by_the_store),
    ],
    ids=lambda failures: "-".join(failure.__name__ for failure in failures),
)
def test_after_two_failed_saves_in_a_row_the_last_record_is_restored_whole_and_the_next_one_is_made(
    tmp_path: Path, memory: RecordMemory, failures: tuple[Callable[[Saves, str], None], ...]
) -> None:
    """Together they may overwrite both halves of the memory."""
    saves = Saves(str(tmp_path / "store"), memory)
    saves.commit("save-1")
    saved, opened = rows(saves.server), memory.opened()
    assert opened is not None
    for number, fail in enumerate(failures, 2):
        push(saves.server, "a", number - 1, IDS, 1.0)
        fail(saves, f"save-{number}")
    push(saves.server, "a", 3, IDS, 1.0)
    newest = rows(saves.server)
    assert not np.array_equal(newest, saved)
    saves.commit("save-4", base="save-1")
    for name, expected in (("save-1", saved), ("save-4", newest), ("save-1", saved)):
        restore(saves.server, saves.uri(name), routing_of(["here:1"]), 1, memory=opened)
        np.testing.assert_array_equal(rows(saves.server), expected)
    push(saves.server, "a", 4, IDS, 1.0)
    newest = rows(saves.server)
    saves.commit("save-5")
    restore(saves.server, saves.uri("save-5"), routing_of(["here:1"]), 1, memory=opened)
    np.testing.assert_array_equal(rows(saves.server), newest)
