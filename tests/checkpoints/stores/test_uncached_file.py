"""Files that are written past the page cache: their bytes, and what happens where that is refused."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path
from typing import Any

import pytest

from elastrec.checkpoints.stores import uncached_file
from elastrec.checkpoints.stores.store import open_store
from elastrec.checkpoints.stores.uncached_file import UncachedFile

PIECE = 8192


class Disk:
    """The writes to files and the requests to pass the cache, in order; a file system without them is imitated.

    Args:
        refuses_flag, refuses_writes: whether the file system refuses the flag, or every write with it.
        most_bytes: that one write takes.
    """

    def __init__(
        self,
        monkeypatch: pytest.MonkeyPatch,
        *,
        refuses_flag: bool = False,
        refuses_writes: bool = False,
        most_bytes: int = PIECE,
    ) -> None:
        self.done: list[tuple[str, int]] = []
        direct: set[int] = set()
        write, control = os.write, fcntl.fcntl

        def recorded_control(descriptor: int, command: int, argument: Any = 0) -> Any:
            if command != fcntl.F_SETFL:
                return control(descriptor, command, argument)
            # Whether the file system of these tests can do it does not matter.
            if argument & os.O_DIRECT:
                if refuses_flag:
                    raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
                direct.add(descriptor)
            else:
                direct.discard(descriptor)
            return 0

        def recorded_write(descriptor: int, data: Any) -> int:
            if descriptor in direct and refuses_writes:
                raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
            written = write(descriptor, data[:most_bytes])
            self.done.append(("past" if descriptor in direct else "through", written))
            return written

        monkeypatch.setattr(uncached_file, "PIECE_BYTES", PIECE)
        monkeypatch.setattr(fcntl, "fcntl", recorded_control)
        monkeypatch.setattr(os, "write", recorded_write)


def written(path: Path, data: bytes, run: int = 1000) -> bytes:
    """The contents of a file to which bytes were written in runs."""
    file = UncachedFile(path)
    file.write(b"")
    for start in range(0, len(data), run):
        file.write(memoryview(data)[start : start + run])
    file.synchronise()
    return path.read_bytes()


DATA = bytes(range(251)) * 100  # three pieces, and a tail of 524 bytes


def test_whole_pieces_go_past_the_page_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = Disk(monkeypatch)
    assert written(tmp_path / "part", DATA) == DATA
    assert disk.done == [("past", PIECE)] * 3 + [("through", 524)]


def test_a_small_file_goes_through_the_page_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = Disk(monkeypatch)
    assert written(tmp_path / "marker", b"") == b""
    assert written(tmp_path / "manifest", DATA[: PIECE - 1]) == DATA[: PIECE - 1]
    assert disk.done == [("through", PIECE - 1)]


@pytest.mark.parametrize("refused", ["refuses_flag", "refuses_writes"])
def test_a_file_system_that_refuses_gets_all_bytes_through_the_page_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: str
) -> None:
    disk = Disk(monkeypatch, **{refused: True})  # type: ignore[arg-type]
    assert written(tmp_path / "part", DATA) == DATA
    assert disk.done == [("through", PIECE)] * 3 + [("through", 524)]


def test_a_write_that_takes_only_some_bytes_is_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Disk(monkeypatch, most_bytes=3072)
    assert written(tmp_path / "part", DATA, run=30_000) == DATA


def test_other_errors_of_the_disk_are_raised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int, data: Any) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "write", full)
    file = UncachedFile(tmp_path / "part")
    file.write(b"gathered")
    with pytest.raises(OSError, match="No space left"):
        file.synchronise()
    file.close()


def test_a_real_file_of_some_pieces_holds_its_bytes(tmp_path: Path) -> None:
    data = os.urandom(1000) * (2 * uncached_file.PIECE_BYTES // 1000 + 7)
    with open_store(tmp_path).open_write("part") as writer:
        writer.write(data)
    assert (tmp_path / "part").read_bytes() == data
