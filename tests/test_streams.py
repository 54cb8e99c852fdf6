"""Two streams of tests side by side: who runs what, and that failures of both are told."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.streams import SERVICES

ROOT = Path(__file__).parent.parent
_CONFTEST = """
import os
from pathlib import Path

import pytest

from tests.streams import Streams


def pytest_xdist_make_scheduler(config, log):
    return Streams(config, log)


@pytest.fixture(autouse=True)
def note(request):
    file = Path(__file__).parent / "notes" / request.node.nodeid.replace("/", "+")
    file.write_text(os.environ["PYTEST_XDIST_WORKER"])
"""
_TESTS = """
import pytest


@pytest.mark.parametrize("number", range(4))
def test_it(number):
    assert not ({fails} and number == 3), "of {name}"
"""


def test_every_room_and_file_that_starts_services_is_there() -> None:
    assert [path for path in SERVICES if not (ROOT / path).exists()] == []


def test_jobs_and_the_rest_run_side_by_side_by_whole_files_and_failures_of_both_are_told(tmp_path: Path) -> None:
    files = {
        "tests/e2e/test_run.py": True,
        "tests/e2e/airflow_stack/test_days.py": False,
        "tests/e2e/airflow_stack/test_scaling.py": False,
        "tests/platform/test_master.py": True,
        "tests/trainers/test_models.py": False,
    }
    (tmp_path / "notes").mkdir()
    (tmp_path / "conftest.py").write_text(_CONFTEST)
    for name, fails in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(_TESTS.format(name=name, fails=fails))
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", "2", "--import-mode=importlib"]
    done = subprocess.run(
        [*command, f"--rootdir={tmp_path}", "tests"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert "2 failed, 18 passed" in done.stdout
    assert "of tests/e2e/test_run.py" in done.stdout and "of tests/platform/test_master.py" in done.stdout

    ran: dict[str, set[str]] = {}
    for note in (tmp_path / "notes").iterdir():
        ran.setdefault(note.name.replace("+", "/").partition("::")[0], set()).add(note.read_text())
    assert ran.keys() == files.keys() and all(len(processes) == 1 for processes in ran.values()), ran
    days, scaling = (ran[f"tests/e2e/airflow_stack/test_{name}.py"] for name in ("days", "scaling"))
    assert days == scaling != ran["tests/platform/test_master.py"], ran
