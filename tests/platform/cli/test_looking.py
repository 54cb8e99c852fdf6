"""Read-only commands start no node agent, and report that none is running."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
import yaml
from click.testing import CliRunner

from elastrec.platform import jobs
from elastrec.platform.cli.app import root
from elastrec.platform.cli.commands import resume, run
from elastrec.platform.cli.job_course import Course
from elastrec.platform.clusters.local import start_agent, stop_agent
from elastrec.platform.jobs import KeptLaunch, Platform
from elastrec.platform.specs.errors import ClusterError, ElastrecError, SpecError
from elastrec.platform.specs.text.loading import job_to_json
from tests.operators.steps import ALLOCATION, PREPARED
from tests.platform.master.fakes import job

_JOB = "job.yaml"
_ON_RUNNING_JOBS = ("status", "logs", "plan", "scale", "order", "stop")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty home; the current folder has a job file whose data does not exist."""
    home = tmp_path / "home"
    monkeypatch.setenv("ELASTREC_HOME", str(home))
    for variable in ("ELASTREC_TLS", "ELASTREC_CLUSTER", "MLFLOW_TRACKING_URI"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.chdir(tmp_path)
    Path(_JOB).write_text(yaml.safe_dump(job().model_dump(mode="json", by_alias=True, exclude_none=True)))
    return home


@pytest.mark.parametrize(
    "arguments",
    [
        ["status"],
        ["status", "a-job"],
        ["logs", "a-job"],
        ["logs", "a-job-worker-0"],
        ["plan"],
        ["plan", "a-job"],
        ["scale", "a-job", "--workers", "2"],
        ["order", "a-job", "--idle", "--worker", "a-job-worker-0"],
        ["stop", "a-job"],
        ["explain", "a-job"],
        ["report", "a-job"],
        ["ledger", "a-job"],
        ["render", _JOB],
        ["validate", _JOB, "--data"],
    ],
    ids=" ".join,
)
def test_commands_that_read_report_a_missing_agent_and_start_none(home: Path, arguments: list[str]) -> None:
    done = CliRunner().invoke(root, arguments)
    assert isinstance(done.exception, ElastrecError), done.output
    assert f"no node agent runs for {home}" in f"{done.output}{done.exception}"
    # An unknown job is bad input, but what the cluster has is not known.
    assert isinstance(done.exception, ClusterError) is (arguments[0] in _ON_RUNNING_JOBS)
    assert not (home / "agent").exists()


def test_no_agent_is_started_to_resume_a_job_that_the_store_does_not_know(home: Path) -> None:
    done = CliRunner().invoke(root, ["resume", "a-job"])
    assert isinstance(done.exception, SpecError) and "'a-job' is not allowed" in str(done.exception)
    assert not (home / "agent").exists()


@pytest.mark.services
def test_a_job_is_compared_with_the_size_that_the_agent_would_have(home: Path) -> None:
    for size in ({"cores": 7.0, "memory_bytes": 3 << 30}, {"cores": 5.0}):
        start_agent(home / "agent", **size, limits="threads").close()
        stop_agent(home / "agent")
        launcher = Platform.for_looking().launcher
        total = launcher.nodes()[0].size
        assert (total.cores, total.memory_bytes) == (size["cores"], 3 << 30)
        assert launcher.pods() == launcher.jobs() == [] and launcher.find("a-job") is None
        with pytest.raises(ClusterError, match="no node agent runs"):
            launcher.remove("a-job")


def test_a_resumed_job_is_launched_with_the_fields_that_the_command_names(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not only with their values: the job may have other sizes by now than at its launch."""
    prepared = msgspec.structs.replace(PREPARED, job_json=job_to_json(job()))
    launched = KeptLaunch(prepared=prepared, allocation=ALLOCATION, launched="", earlier_terms=3)
    for name, result in (("resumable", launched), ("remove_unsuccessful", False), ("prepare_again", prepared)):
        monkeypatch.setattr(jobs, name, lambda *values, result=result: result)
    platform = Platform.for_looking()
    monkeypatch.setattr(Platform, "from_environment", lambda **named: platform)
    monkeypatch.setattr(resume, "show_outcome", lambda *values: None)
    courses: list[Course] = []
    monkeypatch.setattr(resume, "train_and_publish", lambda platform, course, progress: courses.append(course))
    sizes = ["--set", "spec.resources.worker.count=2", "--set", "spec.resources.parameter_server={cores: 1}"]
    done = CliRunner().invoke(root, ["resume", "clicks-1", *sizes], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    assert [course.named_fields for course in courses] == [
        {"spec.resources.worker.count", "spec.resources.parameter_server.cores"}
    ]
    # Fields of other things leave the start-up sizes of the launch as they were.
    done = CliRunner().invoke(root, ["resume", "clicks-1", "--set", "spec.data.path=/mnt"], catch_exceptions=False)
    assert done.exit_code == 0 and courses[1].allocation == ALLOCATION


def test_a_run_with_a_key_is_launched_with_the_fields_that_the_command_names(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job may exist and continue with the sizes that it has reached, except for those that the command names."""
    platform = Platform.for_looking()
    monkeypatch.setattr(Platform, "from_environment", lambda **named: platform)
    for name, result in (("days_to_continue", None), ("prepare", PREPARED)):
        monkeypatch.setattr(jobs, name, lambda *values, result=result: result)
    monkeypatch.setattr(run, "show_outcome", lambda *values: None)
    courses: list[Course] = []
    monkeypatch.setattr(run, "train_and_publish", lambda platform, course, progress: courses.append(course))
    words = ["run", _JOB, "--run-key", "monday", "--set", "spec.resources.worker.count=2"]
    done = CliRunner().invoke(root, words, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    assert [course.named_fields for course in courses] == [{"spec.resources.worker.count"}]
