"""Files that are replaced as a whole, by processes that are killed and by several at once."""

from __future__ import annotations

import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from elastrec.platform.specs.text.whole_file import write_whole

_KILLED = """
import os, signal, sys
from pathlib import Path
from elastrec.platform.specs.text.whole_file import write_whole

Path.replace = lambda *names: os.kill(os.getpid(), signal.SIGKILL)
write_whole(Path(sys.argv[1]), b"new")
"""


def _killed_before_the_rename(path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", _KILLED, str(path)], check=False, timeout=60)
    assert done.returncode == -signal.SIGKILL


def _names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_what_a_killed_process_has_left_of_a_file_is_deleted_by_the_next_one(tmp_path: Path) -> None:
    token, other = tmp_path / "token", tmp_path / "token.old"
    write_whole(token, b"old")
    for path in (token, token, other):
        _killed_before_the_rename(path)
    assert token.read_bytes() == b"old" and len(_names(tmp_path)) == 4
    write_whole(token, b"newer", mode=0o600)
    assert token.read_bytes() == b"newer" and stat.S_IMODE(token.stat().st_mode) == 0o600
    # The file of another name is left to its own next writer.
    (left,) = _names(tmp_path) - {"token"}
    assert left.startswith(".elastrec-token.old-")
    write_whole(other, b"other")
    assert _names(tmp_path) == {"token", "token.old"}


def test_of_two_that_write_a_file_at_once_neither_fails_and_the_later_one_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace = Path.replace

    def meets_another(temporary: Path, target: Path) -> Path:
        monkeypatch.setattr(Path, "replace", replace)
        write_whole(target, b"earlier")
        return replace(temporary, target)

    monkeypatch.setattr(Path, "replace", meets_another)
    write_whole(tmp_path / "report", b"later")
    assert (tmp_path / "report").read_bytes() == b"later" and _names(tmp_path) == {"report"}


def test_a_file_that_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "taken" / "inside").mkdir(parents=True)
    with pytest.raises(IsADirectoryError):
        write_whole(tmp_path / "taken", b"new")
    with pytest.raises(FileNotFoundError):
        write_whole(tmp_path / "absent" / "file", b"new")
    assert _names(tmp_path) == {"taken"}
