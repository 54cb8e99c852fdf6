"""The command line without a cluster: help, exit codes, messages."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import click
import pytest
import yaml

from elastrec.platform.cli.app import _COMMANDS, main, root

README = Path(__file__).resolve().parents[3] / "README.md"
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


@dataclass
class Shown:
    returncode: int
    stdout: str
    stderr: str


Elastrec = Callable[..., Shown]


@pytest.fixture
def elastrec(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Elastrec:
    """The entry point of the command in this process, which has imported its modules already."""

    def call(*arguments: str, home: Path) -> Shown:
        monkeypatch.setenv("ELASTREC_HOME", str(home))
        monkeypatch.chdir(home)
        with pytest.raises(SystemExit) as ended:
            main(list(arguments))
        assert isinstance(ended.value.code, int)
        return Shown(ended.value.code, *capsys.readouterr())

    return call


def test_the_installed_program_ends_with_the_code_of_the_error(tmp_path: Path) -> None:
    environment = os.environ | {"ELASTREC_HOME": str(tmp_path), "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin"}
    command = ["elastrec", "validate", "nowhere.yaml"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=tmp_path, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert "nowhere.yaml" in done.stderr and "Traceback" not in done.stderr


def test_help_names_every_command(tmp_path: Path, elastrec: Elastrec) -> None:
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


def test_the_list_of_commands_has_the_first_sentence_of_the_help_of_each() -> None:
    context = click.Context(root)
    of_commands = {}
    for name in root.list_commands(context):
        command = root.get_command(context, name)
        assert command is not None
        of_commands[name] = command.get_short_help_str(500)
    assert {name: text for name, (_, text) in _COMMANDS.items()} == of_commands
    completed = root.shell_complete(context, "re")
    assert [(item.value, item.help) for item in completed] == [
        (name, of_commands[name]) for name in ("render", "resume", "report")
    ]


@pytest.mark.parametrize(
    "call", ["main(['--help'])", "root.shell_complete(click.Context(root), '')"], ids=["help", "completion"]
)
def test_the_list_of_commands_imports_none_of_them(call: str) -> None:
    script = f"""
import atexit, click, sys
from elastrec.platform.cli import main
from elastrec.platform.cli.app import root
atexit.register(lambda: print([name for name in ("pydantic", "elastrec.platform.jobs") if name in sys.modules]))
{call}
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "[]"), done.stderr


@pytest.mark.parametrize("module", ["elastrec.platform.cli.reader", "elastrec.platform.cli.commands.job"])
def test_an_interrupt_while_modules_are_imported_ends_the_command_without_a_traceback(module: str) -> None:
    script = f"""
import sys

class Interrupted:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            raise KeyboardInterrupt

sys.meta_path.insert(0, Interrupted())
from elastrec.platform.cli import main
main(["schema"])
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr.strip()) == (130, "interrupted")


def test_a_valid_file_ends_with_zero(job_file: Path, elastrec: Elastrec) -> None:
    shown = elastrec("validate", str(job_file), "--output", "json", home=job_file.parent)
    assert shown.returncode == 0, shown.stderr
    assert json.loads(shown.stdout) == {
        "file": str(job_file), "valid": True, "name": "click", "data_checked": False, "steps": {},
    }  # fmt: skip


def test_validating_a_file_shows_its_steps_and_what_was_not_checked(job_file: Path, elastrec: Elastrec) -> None:
    sections = {
        "data.dense": [{"name": "I1"}],
        "data.features": {"I1": [{"step": "clip", "low": 0}, {"step": "standardize"}]},
        "resources.worker.count": 500,
        "scaling.maximum_workers": 500,
    }
    overrides = [each for path, value in sections.items() for each in ("--set", f"spec.{path}={json.dumps(value)}")]
    shown = elastrec("validate", str(job_file), *overrides, home=job_file.parent)
    assert shown.stdout.splitlines() == [
        f"{job_file}: valid",
        "  steps of I1: clip(low=0), standardize(to be fitted)",
        "  not checked: data, model and cluster; --data checks them as `run` does",
    ]


def test_bad_input_ends_with_two_and_every_problem_on_standard_error(job_file: Path, elastrec: Elastrec) -> None:
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
def test_wrong_calls_end_with_two_and_say_what_is_allowed(
    job_file: Path, arguments: list[str], words: str, elastrec: Elastrec
) -> None:
    shown = elastrec(*arguments, home=job_file.parent)
    assert shown.returncode == 2
    assert words in shown.stderr
    assert "Traceback" not in shown.stderr


def test_the_schema_is_printed_in_both_forms(tmp_path: Path, elastrec: Elastrec) -> None:
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


@pytest.mark.parametrize("arguments", [["schema"], ["--help"], ["data", "--help"]])
def test_output_without_a_reader_ends_the_command_silently_as_sigpipe_would(
    arguments: list[str], tmp_path: Path
) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    environment = os.environ | {"ELASTREC_HOME": str(tmp_path / "home")}
    done = subprocess.run(
        [sys.executable, "-m", "elastrec.platform.cli", *arguments], stdout=writing, stderr=subprocess.PIPE, text=True,
        env=environment, check=False,
    )  # fmt: skip
    os.close(writing)
    assert (done.returncode, done.stderr) == (141, "")


def test_a_table_without_a_reader_ends_the_command_silently(tmp_path: Path) -> None:
    program = (
        "from elastrec.platform.cli import app\n"
        "from elastrec.platform.cli.options import wide_console\n"
        "app.root.callback = lambda **_: wide_console().print('x' * 100)\n"
        "app.root.invoke_without_command, app.root.no_args_is_help = True, False\n"
        "app.main([])"
    )
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        [sys.executable, "-c", program], stdout=writing, stderr=subprocess.PIPE, text=True, check=False
    )
    os.close(writing)
    assert (done.returncode, done.stderr) == (141, "")


@pytest.mark.parametrize(("closed", "code"), [("schema >&-", 0), ("nosuch 2>&-", 2), ("agent capacity >&-", 1)])
def test_a_closed_stream_changes_no_exit_code(closed: str, code: int, tmp_path: Path) -> None:
    environment = os.environ | {"ELASTREC_HOME": str(tmp_path / "home")}
    command = f"{sys.executable} -m elastrec.platform.cli {closed}"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ["report", "j", "--file"],
        ["ledger", "j", "--parquet"],
        ["simulate", "s.yaml", "--picture"],
        ["data", "inspect", "clicks", "--picture"],
    ],
)
def test_an_output_file_in_no_folder_is_refused_before_the_work(
    arguments: list[str], tmp_path: Path, elastrec: Elastrec
) -> None:
    done = elastrec(*arguments, str(tmp_path / "no" / "file"), home=tmp_path)
    assert done.returncode == 2
    assert f"'{tmp_path}/no' is not a folder; create it, or name another file" in done.stderr


def test_a_policy_that_does_not_exist_is_bad_input(tmp_path: Path, elastrec: Elastrec) -> None:
    (tmp_path / "simulation.yaml").write_text("workload: {made_up: {jobs: 2}}\n")
    done = elastrec("simulate", "simulation.yaml", "--policy", "nope", home=tmp_path)
    assert done.returncode == 2 and "policy: nope is not allowed; allowed: " in done.stderr


def test_a_folder_that_is_no_record_is_bad_input(tmp_path: Path, elastrec: Elastrec) -> None:
    done = elastrec("inspect", "nowhere", home=tmp_path)
    assert done.returncode == 2
    assert "CHECKPOINT: 'nowhere' is not allowed" in done.stderr and "add --job NAME" in done.stderr


def test_a_wait_for_mlflow_is_logged_to_standard_error(tmp_path: Path) -> None:
    program = (
        "from types import SimpleNamespace\n"
        "from elastrec.platform.cli import app\n"
        "from elastrec.platform.jobs.ending.tracking import wait_for_tracking\n"
        "app.configure_logs(False)\n"
        "wait_for_tracking(SimpleNamespace(tracking_uri='http://127.0.0.1:9'), 0.1)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "" and "http://127.0.0.1:9 does not answer" in done.stderr


def test_the_readme_names_the_commands_without_json() -> None:
    (line,) = re.findall(r"Every command except\s(.*?) takes `--output json`", README.read_text(encoding="utf-8"))
    groups = {"data", "agent"}
    context = click.Context(root)
    found = {name for name in root.list_commands(context) if name not in groups and not _has_json(name)}
    assert {*re.findall(r"`(\w+)`", line)} - {"agent"} == found
    for group, has in (("data", True), ("agent", False)):
        commands = root.get_command(context, group).commands.values()
        assert {any(option.name == "output" for option in command.params) for command in commands} == {has}


def _has_json(name: str) -> bool:
    command = root.get_command(click.Context(root), name)
    assert command is not None
    return any(option.name == "output" for option in command.params)


@pytest.mark.parametrize(
    "call",
    [
        ["status", ""],
        ["inspect", ""],
        ["inspect", "checkpoints", "--job", ""],
        ["explain", "click-1", "--store", " "],
        ["resume", "click", "--store", ""],
        ["data", "generate", " "],
        ["data", "convert", "", "clicks", "-d", "job.yaml"],
        ["data", "convert", "log.csv", "", "-d", "job.yaml"],
    ],
    ids=" ".join,
)
def test_a_blank_name_such_as_of_an_unset_variable_is_refused(
    job_file: Path, call: list[str], elastrec: Elastrec
) -> None:
    refused = elastrec(*call, home=job_file.parent)
    assert refused.returncode == 2 and "is blank" in refused.stderr
