"""`plan` shows what a round would do and how reliable the model of each job is, without further options."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from elastrec.platform import jobs
from elastrec.platform.cli.app import root
from elastrec.platform.cli.commands import plan as command
from tests.platform.jobs.scaling.masters import Masters, masters
from tests.platform.jobs.scaling.test_profiles import measured_profile

GROWS, STAYS = {"minimum_workers": 1, "maximum_workers": 6}, {"minimum_workers": 1, "maximum_workers": 1}


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Masters]:
    with masters(tmp_path) as found:
        monkeypatch.setattr(jobs.Platform, "from_environment", lambda *, start: found.platform)
        # The cluster of this test lists masters alone; whether a job has pods is another command's business.
        monkeypatch.setattr(command, "pods_of", lambda platform, name: [])
        yield found


def said(*arguments: str) -> str:
    done = CliRunner().invoke(root, ["plan", *arguments], terminal_width=400)
    assert done.exit_code == 0, done.output
    return done.output


def test_every_job_has_one_line_of_notes_without_explain(cluster: Masters) -> None:
    for job_id in ("clicks-1", "clicks-2"):
        cluster.add(job_id, measured_profile(GROWS))
    for arguments in ((), ("--explain",)):
        lines = said(*arguments).splitlines()
        for job_id in ("clicks-1", "clicks-2"):
            (line,) = [each for each in lines if each.startswith(f"{job_id}: ")]
            assert "size measured" in line or "sizes measured" in line


def test_notes_that_are_the_reason_of_a_job_are_not_repeated(cluster: Masters) -> None:
    cluster.add("clicks-1", measured_profile(STAYS))
    text = "".join(said("clicks-1").split())
    assert text.count("sizemeasured") + text.count("sizesmeasured") == 1


def test_notes_are_in_the_json_of_a_plan(cluster: Masters) -> None:
    cluster.add("clicks-1", measured_profile(GROWS))
    found = json.loads(said("--output", "json").splitlines()[-1])
    assert any("measured" in note for note in found["notes"]["clicks-1"])
