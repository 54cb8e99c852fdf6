"""Parts in memory: incomplete, damaged or overwritten ones are not found, and the last complete ones are."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from elastrec.checkpoints import PartManifest, PartWriter, answer, open_store
from elastrec.checkpoints.flash import HeldPart, MemoryStore, MemoryUnusableError, PartMemory
from elastrec.checkpoints.flash.memory import LEAST_BYTES, PAGE_BYTES
from elastrec.checkpoints.sections import SectionKind


def made(path: Path, size_bytes: int = LEAST_BYTES) -> Path:
    """A memory as a node makes it."""
    with path.open("xb") as file:
        os.posix_fallocate(file.fileno(), 0, size_bytes)
    return path


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return made(tmp_path / "memory")


@pytest.fixture
def memory(path: Path) -> Iterator[PartMemory]:
    memory = PartMemory(path, writes=True)
    yield memory
    memory.close()


def put(memory: PartMemory, name: str, data: bytes, *, is_full: bool = True) -> HeldPart:
    copy = memory.begin(name, f"{name}.bin", is_full=is_full)
    assert copy.write(data)
    return copy.finish()


def is_intact(memory: PartMemory, part: HeldPart) -> bool:
    """Whether all bytes are there that were written."""
    data = memory.read(part, 0, part.size_bytes)
    return data is not None and xxhash.xxh3_64_intdigest(data) == part.checksum


def names(memory: PartMemory) -> list[str]:
    return [part.uri for part in memory.parts()]


def test_another_process_finds_the_copied_part(memory: PartMemory, path: Path) -> None:
    put(memory, "a", b"rows" * 1000)
    reader = PartMemory(path, writes=False)
    part = reader.find("a", "a.bin")
    assert part is not None and is_intact(reader, part) and reader.read(part, 4, 8) == b"rowsrows"
    assert reader.find("a", "b.bin") is None
    reader.close()


def test_a_part_brings_the_note_of_its_writer_to_the_process_after_it(memory: PartMemory, path: Path) -> None:
    copy = memory.begin("a", "a.bin", is_full=True, note=b"sizes")
    copy.write(b"rows")
    copy.finish()
    put(memory, "b", b"rows", is_full=False)
    reader = PartMemory(path, writes=False)
    assert [part.note for part in reader.parts()] == [b"sizes", b""]
    reader.close()


def test_the_newest_complete_part_and_its_base_are_kept_during_the_next_copy(memory: PartMemory) -> None:
    put(memory, "full", b"1" * 9000)
    put(memory, "change", b"2" * 100, is_full=False)
    copy = memory.begin("next", "next.bin", is_full=True)
    copy.write(b"3" * 9000)
    assert names(memory) == ["full", "change"]
    copy.finish()
    assert names(memory) == ["full", "change", "next"]
    put(memory, "last", b"4")
    assert names(memory) == ["next", "last"]


def test_a_part_whose_writer_was_killed_is_not_there_and_those_before_it_are(memory: PartMemory, path: Path) -> None:
    put(memory, "full", b"1" * 5000)
    copy = memory.begin("change", "change.bin", is_full=False)
    copy.write(b"2" * 5000)
    memory.close()
    again = PartMemory(path, writes=True)
    assert names(again) == ["full"] and is_intact(again, again.parts()[0])
    put(again, "other", b"3", is_full=False)
    assert names(again) == ["full", "other"]
    again.close()
    memory.__init__(path, writes=False)  # type: ignore[misc]  # the fixture closes it


def test_records_left_behind_a_new_chain_do_not_belong_to_it(memory: PartMemory) -> None:
    for chain in range(3):
        put(memory, f"full-{chain}", b"1" * 100)
        put(memory, f"change-{chain}", b"2" * 100, is_full=False)
    put(memory, "full-3", b"1" * 100)
    # Behind it lies the header of change-1, at the place where the next part of its chain will be.
    assert names(memory) == ["full-2", "change-2", "full-3"]


@settings(max_examples=60, deadline=None)
@given(place=st.integers(0, 3 * PAGE_BYTES - 1), bit=st.integers(0, 7))
def test_a_flipped_bit_is_detected_in_every_part(
    tmp_path_factory: pytest.TempPathFactory, place: int, bit: int
) -> None:
    path = made(tmp_path_factory.mktemp("torn") / "memory")
    memory = PartMemory(path, writes=True)
    part = put(memory, "a", bytes(range(256)) * (PAGE_BYTES // 128))
    at = part.start - PAGE_BYTES + place
    before = path.read_bytes()
    with path.open("r+b") as file:
        file.seek(at)
        file.write(bytes([before[at] ^ 1 << bit]))
    found = memory.find("a", "a.bin")
    (length,) = struct.unpack_from("<I", before, part.start - PAGE_BYTES + 20)
    is_read = place < 32 + length or place >= PAGE_BYTES
    assert (found is None or not is_intact(memory, found)) == is_read
    memory.close()


def test_bytes_of_a_part_that_is_being_overwritten_are_refused(memory: PartMemory) -> None:
    old = put(memory, "a", b"1" * 100)
    put(memory, "b", b"2" * 100)
    memory.begin("c", "c.bin", is_full=True)
    assert memory.read(old, 0, 10) is None and not is_intact(memory, old)


def test_one_process_writes_at_a_time(memory: PartMemory, path: Path) -> None:
    with pytest.raises(MemoryUnusableError, match="another process writes this memory"):
        PartMemory(path, writes=True)


def test_a_memory_of_another_format_holds_nothing(memory: PartMemory, path: Path) -> None:
    part = put(memory, "a", b"1")
    with path.open("r+b") as file:
        file.seek(part.start - PAGE_BYTES)
        file.write(b"ELRMEM99")
    assert names(memory) == []


@pytest.mark.parametrize(("size_bytes", "is_sparse"), [(PAGE_BYTES, False), (LEAST_BYTES, True), (0, False)])
def test_a_memory_that_is_not_there_in_full_is_refused(tmp_path: Path, size_bytes: int, is_sparse: bool) -> None:
    path = tmp_path / "memory"
    with path.open("xb") as file:
        if is_sparse:
            file.truncate(size_bytes)
        elif size_bytes:
            os.posix_fallocate(file.fileno(), 0, size_bytes)
    with pytest.raises(MemoryUnusableError, match=r"bytes are there|at least"):
        PartMemory(path, writes=True)
    with pytest.raises(MemoryUnusableError, match="cannot be used"):
        PartMemory(tmp_path / "absent", writes=True)


def written(store: MemoryStore, ids: int) -> PartManifest:
    columns = {"ids": np.arange(ids, dtype=np.int64), "tables": np.zeros(ids, np.uint16)}
    with PartWriter(store, "ps-0", groups=[answer(["user"], range(4))]) as writer:
        writer.write_chunk(0, SectionKind.ROWS, np.zeros(1, np.int64), np.array([ids]), columns)
        return writer.finish()


def test_a_part_is_read_from_memory_alone_until_it_is_in_the_store(memory: PartMemory, tmp_path: Path) -> None:
    base = open_store(tmp_path / "record")
    store = MemoryStore(base, memory)
    part = written(store, 100)
    assert store.in_memory is not None and base.size(part.file) is None
    assert MemoryStore(base, memory).size(part.file) == part.size_bytes


def test_a_part_that_does_not_fit_goes_to_the_store_whole(memory: PartMemory, tmp_path: Path) -> None:
    base = open_store(tmp_path / "record")
    store = MemoryStore(base, memory)
    part = written(store, LEAST_BYTES)
    assert store.in_memory is None and base.size(part.file) == part.size_bytes
    assert names(memory) == []


def test_a_copy_that_its_reader_found_damaged_is_read_from_the_store(memory: PartMemory, tmp_path: Path) -> None:
    base = open_store(tmp_path / "record")
    copy = MemoryStore(base, memory)
    with copy.open_write("part") as writer:
        writer.write(b"1" * 5000)
    base.put("part", b"1" * 5000)
    assert copy.in_memory is not None
    with memory.path.open("r+b") as file:
        file.seek(copy.in_memory.start + 10)
        file.write(b"2")
    store = MemoryStore(base, memory)
    assert store.get_range("part", 0, 5000)[10] == ord("2") and memory.read_bytes == 5000
    # Two threads may have read it before either of them has checked it.
    assert store.distrust("part") and store.distrust("part")
    assert store.get_range("part", 0, 5000) == b"1" * 5000 and memory.read_bytes == 5000


def test_a_damaged_copy_without_another_one_is_an_error(memory: PartMemory, tmp_path: Path) -> None:
    store = MemoryStore(open_store(tmp_path / "record"), memory)
    with store.open_write("part") as writer:
        writer.write(b"1" * 5000)
    assert store.in_memory is not None
    with memory.path.open("r+b") as file:
        file.seek(store.in_memory.start)
        file.write(b"2")
    assert store.get_range("part", 0, 1) == b"2" and store.distrust("part")
    with pytest.raises(Exception, match="no such file"):
        store.get_range("part", 0, 10)


def test_what_was_read_stays_readable_when_the_memory_is_closed(path: Path) -> None:
    memory = PartMemory(path, writes=True)
    data = bytes(range(256)) * 64
    part = put(memory, "a", data)
    kept = memory.read(part, 0, part.size_bytes)
    array = np.frombuffer(kept, np.uint8)
    memory.close()
    del memory, kept
    assert array.tobytes() == data


def test_a_memory_that_only_reads_cannot_be_changed(memory: PartMemory, path: Path) -> None:
    put(memory, "a", b"rows")
    reader = PartMemory(path, writes=False)
    with pytest.raises(TypeError, match="read-only"):
        reader._wipe(0)
    assert names(reader) == ["a"]
    reader.close()
