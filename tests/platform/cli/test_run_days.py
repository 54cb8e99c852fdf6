"""The days of a `run` that is called again with its key, after the log has got another day."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from elastrec.platform import jobs
from elastrec.platform.cli import job_course
from elastrec.platform.cli.app import root
from elastrec.platform.cli.progress import JobProgress
from elastrec.platform.specs.errors import ElastrecError, OtherJobError
from elastrec.platform.specs.text.loading import job_to_json
from tests.operators.steps import PREPARED
from tests.platform.master.fakes import job

BEGUN = jobs.Interval("2026-01-01T00:00:00+00:00", "2026-01-02T00:00:00+00:00", "2026-01-03T00:00:00+00:00")


@pytest.fixture
def prepared_on(monkeypatch: pytest.MonkeyPatch) -> list[jobs.Interval | None]:
    """The days on which a job is prepared; every job has begun on BEGUN."""
    seen: list[jobs.Interval | None] = []

    def prepare(platform: object, job: object, job_id: str, interval: jobs.Interval | None) -> jobs.Prepared:
        seen.append(interval)
        raise ElastrecError("enough")

    monkeypatch.setattr(jobs.Platform, "from_environment", staticmethod(lambda: None))
    monkeypatch.setattr(jobs, "days_to_continue", lambda platform, job, job_id: BEGUN)
    monkeypatch.setattr(jobs, "prepare", prepare)
    return seen


def run(folder: Path, *options: str) -> str:
    file = folder / "job.yaml"
    file.write_text(job_to_json(job()))
    result = CliRunner().invoke(root, ["run", str(file), *options])
    assert isinstance(result.exception, ElastrecError), result.output
    return result.output


def test_a_run_with_a_key_continues_on_the_days_on_which_its_job_was_begun(
    tmp_path: Path, prepared_on: list[jobs.Interval | None]
) -> None:
    said = run(tmp_path, "--run-key", "nightly")
    assert prepared_on == [BEGUN]
    assert "was begun on the days from 2026-01-01T00:00:00+00:00 to 2026-01-02T00:00:00+00:00, evaluated to" in said


def test_a_run_on_days_that_are_named_or_with_a_new_key_asks_for_no_other_ones(
    tmp_path: Path, prepared_on: list[jobs.Interval | None]
) -> None:
    run(tmp_path)
    run(tmp_path, "--run-key", "nightly", "--from", "2026-01-05")
    assert prepared_on == [None, jobs.Interval("2026-01-05T00:00:00", "", "")]


def test_the_days_to_evaluate_on_may_begin_later_and_are_in_the_command_that_continues_the_job(
    tmp_path: Path, prepared_on: list[jobs.Interval | None]
) -> None:
    days = "--from 2026-01-05 --until 2026-01-06 --evaluate-from 2026-01-07"
    said = run(tmp_path, *days.split())
    assert prepared_on == [
        jobs.Interval("2026-01-05T00:00:00", "2026-01-06T00:00:00", evaluation_start="2026-01-07T00:00:00")
    ]
    assert f"job.yaml {days} --run-key " in said


def test_a_job_that_was_trained_otherwise_is_not_published_as_another_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(prepared: jobs.Prepared) -> None:
        raise OtherJobError("trained with another job file")

    monkeypatch.setattr(jobs, "is_trained", lambda platform, prepared: True)
    monkeypatch.setattr(jobs, "warm_start", lambda platform, prepared, named: None)
    monkeypatch.setattr(jobs, "refuse_other_training", refuse)
    platform: Any = None
    with pytest.raises(OtherJobError, match="another job file"):
        job_course._trained(platform, job_course.Course(PREPARED, "", False), "", JobProgress(quiet=True))
    # Another machine may have other paths.
    resumed = job_course.Course(PREPARED, "", False, is_resumed=True)
    assert job_course._trained(platform, resumed, "", JobProgress(quiet=True)).job_id == PREPARED.job_id
