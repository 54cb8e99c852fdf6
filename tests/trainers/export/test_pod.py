"""The evaluator as a process."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from elastrec.platform.specs import environment
from elastrec.platform.specs.errors import DataError, HistoryError
from elastrec.platform.transport.messages.export import EXPORT_FILE, ExportRequest, ExportResult, encode_request
from elastrec.trainers.export import pod
from tests.trainers.export.conftest import FinishedJob


@pytest.fixture
def work(finished: FinishedJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a pod whose request is there."""
    files, work = tmp_path / "files", tmp_path / "work"
    for folder in (files, work):
        folder.mkdir()
    (files / EXPORT_FILE).write_text(encode_request(finished.request))
    monkeypatch.setenv(environment.FILES, str(files))
    monkeypatch.setenv(environment.WORK, str(work))
    monkeypatch.setattr(tempfile, "tempdir", None)
    for name, value in {"configure_logging": lambda: None, "granted_threads": lambda _: 1}.items():
        monkeypatch.setattr(pod, name, value)
    return work


def test_temporary_files_are_in_the_pods_own_folder(
    finished: FinishedJob, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def export(request: ExportRequest, folder: Path) -> ExportResult:
        downloaded = Path(tempfile.mkdtemp())
        assert downloaded.parent == folder == work and request == finished.request
        return ExportResult(model_uri="file:///model", checked_rows=1, largest_difference=0.0)

    monkeypatch.setattr(pod, "export", export)
    assert pod.main() == 0


@pytest.mark.parametrize(
    ("error", "cause", "code"),
    [
        (DataError("a bad row"), None, 2),
        (DataError("a file"), OSError("connection lost"), 1),
        (OSError("no space left"), None, 1),
        (MemoryError(), None, 1),
        (ValueError("of a user's model"), None, 2),
        (HistoryError("MLflow is away"), OSError("connection lost"), 3),
    ],
    ids=str,
)
def test_the_exit_code_says_whether_another_evaluator_may_succeed(
    work: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, cause: Exception | None, code: int
) -> None:
    def export(request: ExportRequest, folder: Path) -> ExportResult:
        raise error from cause

    monkeypatch.setattr(pod, "export", export)
    assert pod.main() == code
