"""Pages of memory files: all of them are made, contents stay, and huge ones are used where the system makes them."""

from __future__ import annotations

import ctypes
import mmap
import os
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from elastrec.platform.memory import HUGE_PAGE_BYTES, AlignedMap, make_pages
from elastrec.platform.memory import pages as pages_module

SIZE_BYTES = 3 * HUGE_PAGE_BYTES + 5 * mmap.PAGESIZE


@pytest.fixture
def descriptor() -> Iterator[int]:
    """Of an empty file in memory."""
    path = Path("/dev/shm") / f"elastrec-test-{uuid.uuid4().hex}"
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    path.unlink()
    yield descriptor
    os.close(descriptor)


def made_bytes(descriptor: int) -> int:
    return os.fstat(descriptor).st_blocks * 512


def mapped_huge_bytes(address: int) -> int:
    """Of the mapping that contains an address, in huge pages of a memory file."""
    inside = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        first, _, rest = line.partition(" ")
        start, dash, end = first.partition("-")
        if dash and not first.endswith(":"):
            inside = int(start, 16) <= address < int(end, 16)
        elif inside and first == "ShmemPmdMapped:":
            return int(rest.split()[0]) * 1024
    return 0


def test_all_pages_are_made_and_read_as_zeros(descriptor: int) -> None:
    huge_bytes = make_pages(descriptor, SIZE_BYTES)
    assert made_bytes(descriptor) >= SIZE_BYTES == os.fstat(descriptor).st_size
    assert huge_bytes in range(0, SIZE_BYTES, HUGE_PAGE_BYTES)
    assert os.pread(descriptor, SIZE_BYTES, 0) == bytes(SIZE_BYTES)


def test_another_mapping_uses_the_huge_pages(descriptor: int) -> None:
    huge_bytes = make_pages(descriptor, SIZE_BYTES)
    if not huge_bytes:
        pytest.skip("this system makes no huge pages of memory files")
    mapped = AlignedMap(descriptor, SIZE_BYTES, writes=True, populate=True)
    try:
        assert mapped_huge_bytes(mapped.address) == huge_bytes == 3 * HUGE_PAGE_BYTES
    finally:
        mapped.unmap()


def test_contents_stay(descriptor: int) -> None:
    data = os.urandom(SIZE_BYTES)
    os.pwrite(descriptor, data, 0)
    make_pages(descriptor, SIZE_BYTES)
    assert os.pread(descriptor, SIZE_BYTES, 0) == data


def test_a_system_that_makes_no_huge_pages_makes_all_as_small_ones(
    descriptor: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    def refuse(address: int, size_bytes: int, advice: int) -> int:
        asked.append(size_bytes)
        return -1

    monkeypatch.setattr(pages_module, "_madvise", refuse)
    assert make_pages(descriptor, SIZE_BYTES) == 0
    assert asked == [HUGE_PAGE_BYTES]
    assert made_bytes(descriptor) >= SIZE_BYTES
    mapped = AlignedMap(descriptor, SIZE_BYTES, writes=True, populate=True)
    assert mapped_huge_bytes(mapped.address) == 0
    mapped.unmap()


@pytest.mark.parametrize("size_bytes", [mmap.PAGESIZE, HUGE_PAGE_BYTES - mmap.PAGESIZE])
def test_a_file_smaller_than_a_huge_page_has_small_ones(descriptor: int, size_bytes: int) -> None:
    assert make_pages(descriptor, size_bytes) == 0
    assert made_bytes(descriptor) == size_bytes


@pytest.mark.parametrize("writes", [True, False])
def test_a_mapping_is_aligned_and_shares_the_bytes(descriptor: int, writes: bool) -> None:
    os.pwrite(descriptor, b"rows", SIZE_BYTES - 4)
    mapped = AlignedMap(descriptor, SIZE_BYTES, writes=writes)
    try:
        assert mapped.address % HUGE_PAGE_BYTES == 0
        assert ctypes.string_at(mapped.address + SIZE_BYTES - 4, 4) == b"rows"
        if writes:
            ctypes.memmove(mapped.address, b"more", 4)
            assert os.pread(descriptor, 4, 0) == b"more"
    finally:
        mapped.unmap()


def test_a_refused_mapping_leaves_no_address_space_reserved(descriptor: int) -> None:
    before = Path("/proc/self/maps").read_text().count("\n")
    closed = os.dup(descriptor)
    os.close(closed)
    for _ in range(20):
        with pytest.raises(OSError, match="Bad file descriptor"):
            AlignedMap(closed, SIZE_BYTES, writes=True)
    assert Path("/proc/self/maps").read_text().count("\n") < before + 20
