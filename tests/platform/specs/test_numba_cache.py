"""Compiled kernels are cached in a folder that depends on all of their sources."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from elastrec.platform.specs import numba_cache
from elastrec.platform.specs.numba_cache import kernels_of
from tests.disks import small_disk

# The package cannot be written, so that the test leaves nothing in it.
_CODE = """
import os, sys
from pathlib import Path
from elastrec.platform.specs import numba_cache
package, may = Path(numba_cache.__file__).parent, os.access
os.access = lambda path, mode: not Path(path).is_relative_to(package) and may(path, mode)
folder = Path(sys.argv[1])
sys.path.insert(0, str(folder))
import calling
print(calling.twice(3), sum(calling.twice.stats.cache_hits.values()))
"""


def run(folder: Path, home: Path, **variables: str) -> list[str]:
    """What a fresh process gets from the kernel, and how often it found it compiled."""
    done = subprocess.run(
        [sys.executable, "-c", _CODE, str(folder)],
        env={name: value for name, value in os.environ.items() if name != "NUMBA_CACHE_DIR"}
        | {"XDG_CACHE_HOME": str(home), "PYTHONDONTWRITEBYTECODE": "1"}
        | variables,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.split()


@pytest.fixture
def room(tmp_path: Path) -> Path:
    """Two files of kernels, of which one calls the other."""
    folder = tmp_path / "room"
    folder.mkdir()
    (folder / "called.py").write_text(
        "from pathlib import Path\n"
        "from elastrec.platform.specs.numba_cache import kernels_of\n"
        "kernel = kernels_of(Path(__file__).parent)()\n"
        "@kernel\ndef factor():\n    return 2\n"
    )
    (folder / "calling.py").write_text(
        "from called import factor, kernel\n@kernel\ndef twice(value):\n    return value * factor()\n"
    )
    return folder


def test_a_kernel_is_recompiled_when_a_called_kernel_has_changed(room: Path, tmp_path: Path) -> None:
    home = tmp_path / "home"
    assert run(room, home) == ["6", "0"]
    assert run(room, home) == ["6", "1"]
    called = room / "called.py"
    called.write_text(called.read_text().replace("return 2", "return 5"))
    assert run(room, home) == ["15", "0"]


def test_a_folder_of_the_user_keeps_kernels_of_each_state_of_the_sources(room: Path, tmp_path: Path) -> None:
    chosen, home = tmp_path / "chosen", tmp_path / "home"
    assert run(room, home, NUMBA_CACHE_DIR=str(chosen)) == ["6", "0"]
    assert list(chosen.rglob("calling.twice*.nbc")) and not home.exists()
    assert run(room, home, NUMBA_CACHE_DIR=str(chosen)) == ["6", "1"]
    called = room / "called.py"
    called.write_text(called.read_text().replace("return 2", "return 5"))
    assert run(room, home, NUMBA_CACHE_DIR=str(chosen)) == ["15", "0"]


def test_nothing_is_removed_from_a_folder_of_the_user(
    room: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    of_others = tmp_path / "kernels-of-others"
    of_others.mkdir()
    eight_days_ago = time.time() - 8 * 86_400
    os.utime(of_others, (eight_days_ago, eight_days_ago))
    folder = numba_cache._folder_for((room,))
    assert folder is not None and folder.parent == tmp_path
    assert of_others.exists()


def test_kernels_of_a_folder_that_cannot_be_written_are_not_compiled_again(room: Path, tmp_path: Path) -> None:
    image, home = tmp_path / "image", tmp_path / "home"
    with small_disk(image, 1 << 20):
        variables = {"NUMBA_CACHE_DIR": str(image)}
        assert run(room, tmp_path / "builder", **variables) == ["6", "0"]
        subprocess.run(["mount", "-o", "remount,ro", str(image)], check=True)
        assert run(room, home, **variables) == ["6", "1"]
        called = room / "called.py"
        called.write_text(called.read_text().replace("return 2", "return 5"))
        assert run(room, home, **variables) == ["15", "0"]
        assert run(room, home, **variables) == ["15", "1"]


def test_a_user_without_a_home_keeps_kernels_in_the_temporary_folder(
    room: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(os, "access", lambda path, mode: False)
    monkeypatch.setattr(Path, "home", no_home)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    for name in ("XDG_CACHE_HOME", "NUMBA_CACHE_DIR"):
        monkeypatch.delenv(name, raising=False)
    folder = numba_cache._folder_for((room,))
    assert folder is not None and folder.parent == tmp_path / f"elastrec-kernels-{os.getuid()}"


def test_a_kernel_that_cannot_be_saved_is_used_and_the_log_says_so_once(room: Path, tmp_path: Path) -> None:
    home = tmp_path / "home"
    with small_disk(tmp_path / "disk", 1 << 20) as disk:
        disk.fill()
        *said, result, hits = run(room, home, NUMBA_CACHE_DIR=str(disk.folder))
        assert (result, hits) == ("6", "0")
        assert said.count("kernels_not_saved") == 1 and "space" in said
        disk.free()
        assert run(room, home, NUMBA_CACHE_DIR=str(disk.folder)) == ["6", "0"]
        assert run(room, home, NUMBA_CACHE_DIR=str(disk.folder)) == ["6", "1"]


def test_nothing_is_handed_on_to_child_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
    source = tmp_path / "source.py"
    source.write_text("")
    kernels_of(source)()(lambda: 1)
    assert "NUMBA_CACHE_DIR" not in os.environ


def test_a_package_that_cannot_be_written_keeps_its_kernels_with_the_user(
    room: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    folder = numba_cache._folder_for((room,))
    assert folder is not None
    assert folder.parent == tmp_path / "home" / f"elastrec-kernels-{os.getuid()}"
    assert folder.parent.stat().st_mode & 0o777 == 0o700


def test_folders_that_were_not_used_for_a_week_are_removed(
    room: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    first = numba_cache._folder_for((room,))
    assert first is not None
    (room / "called.py").write_text("# another state\n")
    numba_cache._digest_of.cache_clear()
    second = numba_cache._folder_for((room,))
    assert second is not None and second != first
    assert first.exists()
    eight_days_ago = time.time() - 8 * 86_400
    os.utime(first, (eight_days_ago, eight_days_ago))
    assert numba_cache._folder_for((room,)) == second
    assert not first.exists()


def test_a_rooms_sources_are_read_once_for_all_kernels_that_are_made_of_them(
    room: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = room.parent / "other.py"
    other.write_text("# calls the room's kernels\n")
    read: list[str] = []
    read_bytes = Path.read_bytes

    def counted(file: Path) -> bytes:
        read.append(file.name)
        return read_bytes(file)

    monkeypatch.setattr(Path, "read_bytes", counted)
    alone, together = numba_cache._digest((room,)), numba_cache._digest((other, room))
    assert sorted(read) == ["called.py", "calling.py", "other.py"]
    assert len({alone, together, numba_cache._digest((other,)), numba_cache._digest((room, other))}) == 4
