"""Folders for MLflow's files do not stay after a process that was killed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from elastrec.platform.history import scratch
from elastrec.platform.history.decisions import Decisions
from elastrec.platform.history.scratch import scratch_folder

_KILLED = """
import os, signal
from elastrec.platform.history.scratch import scratch_folder
with scratch_folder() as folder:
    (folder / "figure.png").write_bytes(b"png")
    print(folder, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of temporary files of this and other processes; this one has not looked for abandoned ones."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    scratch._delete_abandoned.cache_clear()
    return tmp_path


def test_a_folder_is_deleted_at_its_end_and_that_of_a_killed_process_by_the_next_one(temporary: Path) -> None:
    (temporary / "another").mkdir()
    (temporary / "elastrec-history-link").symlink_to(temporary / "another")
    done = subprocess.run([sys.executable, "-c", _KILLED], stdout=subprocess.PIPE, text=True, check=False)
    left = Path(done.stdout.strip())
    assert left.parent == temporary and (left / "figure.png").exists()
    with scratch_folder() as own:
        assert own.stat().st_mode & 0o777 == 0o700
        assert not left.exists()
        # As in another process: what a living one holds stays.
        scratch._delete_abandoned.cache_clear()
        with scratch_folder():
            assert own.exists()
    assert not own.exists()
    assert sorted(path.name for path in temporary.iterdir()) == ["another", "elastrec-history-link"]


def test_a_folder_that_another_process_deletes_before_it_is_locked_is_made_again(
    temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    locked = scratch.fcntl.flock
    deleted: list[Path] = []

    def late(descriptor: int, kind: int) -> None:
        if not deleted:
            deleted.extend(temporary.glob("elastrec-history-*"))
            deleted[0].rmdir()
        locked(descriptor, kind)

    monkeypatch.setattr(scratch.fcntl, "flock", late)
    with scratch_folder() as folder:
        assert folder.is_dir() and folder != deleted[0]


def test_artifacts_are_read_in_such_a_folder(temporary: Path) -> None:
    """So that one that is killed meanwhile leaves nothing for good."""
    decisions, seen = Decisions(f"sqlite:///{temporary}/mlflow.db", "clicks"), list[str]()

    class Client:
        def list_artifacts(self, run_id: str, path: str = "") -> list[object]:
            return [type("File", (), {"path": "scaling/explain.json"})]

        def download_artifacts(self, run_id: str, path: str, place: str) -> str:
            seen.append(Path(place).name)
            file = Path(place, "explain.json")
            file.write_text("{}")
            return str(file)

    decisions._client = Client()  # type: ignore[assignment]
    assert decisions._text("run", "scaling/explain.json") == "{}"
    assert decisions._picture("run", "scaling/fit.png").startswith("data:image/png")
    assert [name.startswith("elastrec-history-") for name in seen] == [True, True]
