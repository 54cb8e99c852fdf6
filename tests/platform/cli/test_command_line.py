"""The command line without a cluster: help, exit codes, messages."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

JOB = {
    "apiVersion": "elastrec.io/v1alpha1",
    "kind": "TrainingJob",
    "metadata": {"name": "click"},
    "spec": {"model": {"architecture": "dlrm"}, "data": {"path": "clicks", "sparse": [{"name": "C1"}]}},
}


@pytest.fixture
def job_file(tmp_path: Path) -> Path:
    file = tmp_path / "job.yaml"
    file.write_text(yaml.safe_dump(JOB))
    return file


def elastrec(*arguments: str, home: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "elastrec.platform.cli", *arguments]
    environment = {**os.environ, "ELASTREC_HOME": str(home)}
    return subprocess.run(command, capture_output=True, text=True, env=environment, cwd=home, check=False)


def test_help_names_every_command(tmp_path: Path) -> None:
    shown = elastrec("--help", home=tmp_path)
    assert shown.returncode == 0
    for command in (
        "validate",
        "render",
        "run",
        "status",
        "logs",
        "stop",
        "explain",
        "report",
        "ledger",
        "inspect",
        "data",
        "schema",
    ):
        assert command in shown.stdout


def test_a_valid_file_ends_with_zero(job_file: Path) -> None:
    shown = elastrec("validate", str(job_file), "--output", "json", home=job_file.parent)
    assert shown.returncode == 0, shown.stderr
    assert json.loads(shown.stdout) == {
        "file": str(job_file), "valid": True, "name": "click", "data_checked": False, "steps": {},
    }  # fmt: skip


def test_validating_a_file_shows_its_steps_and_what_was_not_checked(job_file: Path) -> None:
    sections = {
        "data.dense": [{"name": "I1"}],
        "data.features": {"I1": [{"step": "clip", "low": 0}, {"step": "standardize"}]},
        "resources.worker.count": 500,
    }
    overrides = [each for path, value in sections.items() for each in ("--set", f"spec.{path}={json.dumps(value)}")]
    shown = elastrec("validate", str(job_file), *overrides, home=job_file.parent)
    assert shown.stdout.splitlines() == [
        f"{job_file}: valid",
        "  steps of I1: clip(low=0), standardize(to be fitted)",
        "  not checked: data, model and cluster; --data checks them as `run` does",
    ]


def test_bad_input_ends_with_two_and_every_problem_on_standard_error(job_file: Path) -> None:
    shown = elastrec(
        "validate", str(job_file), "--set", "spec.training.batch_size=0", "--set", "spec.wat=1", home=job_file.parent
    )
    assert shown.returncode == 2
    assert shown.stdout == ""
    assert "spec.training.batch_size" in shown.stderr and "spec.wat" in shown.stderr
    assert "Traceback" not in shown.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["validate", "nowhere.yaml"], "nowhere.yaml"),
        (["validat"], "validate"),
        (["run"], "FILE"),
        (["validate", "job.yaml", "--set", "nonsense"], "PATH=VALUE"),
        (["run", "job.yaml", "--from", "yesterday"], "ISO 8601"),
        (["run", "job.yaml", "--until", "2026-01-01"], "--from"),
    ],
)
def test_wrong_calls_end_with_two_and_say_what_is_allowed(job_file: Path, arguments: list[str], words: str) -> None:
    shown = elastrec(*arguments, home=job_file.parent)
    assert shown.returncode == 2
    assert words in shown.stderr
    assert "Traceback" not in shown.stderr


def test_the_schema_is_printed_in_both_forms(tmp_path: Path) -> None:
    assert "properties" in json.loads(elastrec("schema", "--output", "json", home=tmp_path).stdout)
    assert yaml.safe_load(elastrec("schema", "--crd", home=tmp_path).stdout)["kind"] == "CustomResourceDefinition"


def test_completion_is_offered_for_bash(tmp_path: Path) -> None:
    shown = subprocess.run(
        ["elastrec"],
        env={**os.environ, "_ELASTREC_COMPLETE": "bash_source", "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "complete" in shown.stdout


def test_output_that_cannot_be_written_is_an_error_of_one_line(tmp_path: Path) -> None:
    environment = os.environ | {"ELASTREC_HOME": str(tmp_path / "home")}
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "elastrec.platform.cli", "schema"], stdout=full, stderr=subprocess.PIPE, text=True,
            env=environment, check=False,
        )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr == "Error: [Errno 28] No space left on device\n"
