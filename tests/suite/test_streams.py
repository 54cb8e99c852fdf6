"""The distribution of tests over two streams; failures of both are reported."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.processes import wait_for
from tests.suite.streams import FIRST, TOGETHER

pytestmark = pytest.mark.services

ROOT = Path(__file__).parents[2]
_CONFTEST = """
import os
from pathlib import Path

import pytest

from tests.conftest import pytest_keyboard_interrupt, pytest_xdist_make_scheduler


@pytest.fixture(autouse=True)
def note(request):
    file = Path(__file__).parent / "notes" / request.node.nodeid.replace("/", "+")
    file.write_text(os.environ["PYTEST_XDIST_WORKER"])
"""
# Its fixture takes longer than execnet waits before it interrupts the process once more.
_SLOW = """
import time
from pathlib import Path

import pytest


@pytest.fixture(scope="module")
def service():
    yield
    time.sleep(6)
    Path("{folder}", "ended").touch()


def test_it(service):
    Path("{folder}", "begun").touch()
    time.sleep(60)


def test_another():
    pass
"""
_TESTS = """
import pytest


@pytest.mark.parametrize("number", range(4))
def test_it(number):
    assert not ({fails} and number == 3), "of {name}"
"""


def test_every_room_and_file_that_is_named_is_there() -> None:
    assert [path for path in (*TOGETHER, *FIRST) if not (ROOT / path).exists()] == []


def start(folder: Path) -> subprocess.Popen[str]:
    """`pytest -n 2` of the tests in a folder, in a session of its own."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", "2", "--import-mode=importlib"]
    return subprocess.Popen(
        # The shell's background processes ignore SIGINT, and so would this one.
        ["env", "--default-signal", *command, f"--rootdir={folder}", "tests"],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        start_new_session=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def test_after_ctrl_c_fixtures_have_time_to_end_their_processes(tmp_path: Path) -> None:
    (tmp_path / "notes").mkdir()
    (tmp_path / "tests").mkdir()
    (tmp_path / "conftest.py").write_text(_CONFTEST)
    (tmp_path / "tests" / "test_slow.py").write_text(_SLOW.format(folder=tmp_path))
    running = start(tmp_path)
    wait_for(lambda: (tmp_path / "begun").exists(), 180, "a test that runs")
    os.killpg(running.pid, signal.SIGINT)
    output, _ = running.communicate(timeout=240)
    assert running.returncode == 2 and (tmp_path / "ended").exists(), output


def test_jobs_and_other_tests_run_side_by_side_and_failures_of_both_are_reported(tmp_path: Path) -> None:
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
    running = start(tmp_path)
    output, _ = running.communicate(timeout=240)
    assert running.returncode == 1, output
    assert "2 failed, 18 passed" in output
    assert "of tests/e2e/test_run.py" in output and "of tests/platform/test_master.py" in output

    ran: dict[str, set[str]] = {}
    for note in (tmp_path / "notes").iterdir():
        ran.setdefault(note.name.replace("+", "/").partition("::")[0], set()).add(note.read_text())
    assert ran.keys() == files.keys() and all(len(processes) == 1 for processes in ran.values()), ran
    days, scaling = (ran[f"tests/e2e/airflow_stack/test_{name}.py"] for name in ("days", "scaling"))
    assert days == scaling != ran["tests/platform/test_master.py"], ran
