"""What `run` says while it ends its job."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from elastrec.platform import jobs
from elastrec.platform.cli import job_course
from elastrec.platform.cli.run_claim import RunClaim

ENDING = "Ending job j and removing its pods"


def said(monkeypatch: pytest.MonkeyPatch, folder: Path, stop: Any) -> list[str]:
    """The lines of a job's end, with `stop` as the answer of the cluster."""
    lines: list[str] = []
    monkeypatch.setattr(jobs, "stop", stop)
    platform: Any = SimpleNamespace(launcher=SimpleNamespace(pods=lambda job_id: []))
    progress: Any = SimpleNamespace(say=lines.append)
    with RunClaim(folder, "j") as claim:
        try:
            job_course._stop(platform, "j", claim, progress)
        except KeyboardInterrupt:
            lines.append("interrupted")
    return lines


def test_the_end_of_a_job_is_announced_because_it_takes_seconds(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert said(monkeypatch, tmp_path, lambda *of, **more: True) == [ENDING]


def test_a_second_interrupt_says_that_the_job_may_continue_and_how_to_stop_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def interrupted(*of: Any, **more: Any) -> bool:
        raise KeyboardInterrupt

    begin, words, end = said(monkeypatch, tmp_path, interrupted)
    assert (begin, end) == (ENDING, "interrupted")
    assert words == "Job j may continue, because its end was interrupted; to stop it: elastrec stop j"


def test_another_process_that_waits_for_the_job_keeps_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def never(*of: Any, **more: Any) -> bool:
        raise AssertionError("the job has another owner")

    with RunClaim(tmp_path, "j"):
        (words,) = said(monkeypatch, tmp_path, never)
    assert words == "Job j continues: another `elastrec run` with the same key waits for it"
