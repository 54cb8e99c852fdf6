"""Folders for MLflow's files do not stay after a process that was killed."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from mlflow import MlflowClient

from elastrec.platform.history import History, scratch
from elastrec.platform.history.decisions import Decisions
from elastrec.platform.history.inspections import Inspections
from elastrec.platform.history.report import Story
from elastrec.platform.history.scratch import scratch_folder
from elastrec.platform.jobs.types import Allocation, Prepared
from elastrec.platform.specs.metrics import Phase
from tests.platform.history.test_inspections import FACTS
from tests.platform.history.test_scaling_figures import GREW, MOVED

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


def test_all_artifacts_are_written_in_such_folders(
    temporary: Path,
    monkeypatch: pytest.MonkeyPatch,
    make_prepared: Callable[..., Prepared],
    allocation: Allocation,
) -> None:
    """Not in those of MLflow's own methods, which nobody deletes after a kill."""
    uri, folders, log_artifact = f"sqlite:///{temporary}/mlflow.db", dict[str, str](), MlflowClient.log_artifact

    def noted(client: MlflowClient, run_id: str, file: str, path: str | None = None) -> None:
        folders[Path(file).name] = Path(file).parent.name
        log_artifact(client, run_id, file, path)

    monkeypatch.setattr(MlflowClient, "log_artifact", noted)
    history = History(uri, "clicks")
    run_id = history.start_run(make_prepared(), allocation)
    story = Story(text="it began", wall_seconds=1.0, goodput=0.0, parts=[], timeline=[], migrations=[MOVED])
    history.finish_run(run_id, Phase.FAILED, "no rows", story)
    Decisions(uri, "clicks").log_decision(run_id, GREW, [{"why": "a"}], {})
    Inspections(uri, "logs").record(FACTS, "/logs/clicks", "2026-01-01")
    assert set(folders) >= {
        "job.json", "reason.txt", "explanation.txt", "report.html", "migrations.png", "explain.json", "decisions.json",
        "inspection.json", "inspection.png",
    }  # fmt: skip
    assert [name for name, folder in folders.items() if not folder.startswith("elastrec-history-")] == []
