"""An unmarked test must not start a service, and a marked file or test must start one."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

from tests.suite import skips

ROOT = Path(__file__).resolve().parents[2]
_CONFTEST = """
import os, subprocess, sys

import pytest

from tests.suite.services import Services, has_only_services

SLEEP = [sys.executable, "-c", "import time; time.sleep(60)"]


def pytest_configure(config):
    config.addinivalue_line("markers", "services: x")
    config.pluginmanager.register(Services())


def pytest_ignore_collect(collection_path):
    return True if has_only_services(collection_path) and "FAST" in os.environ else None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item):
    yield
    for start in getattr(item, "later", ()):
        start()


@pytest.fixture
def master(request):
    # As a master whose thread starts a pod a moment after the set-up of all fixtures.
    processes = []
    request.node.later = [lambda: processes.append(subprocess.Popen(SLEEP))]
    yield
    for process in processes:
        process.kill()
        process.wait()


@pytest.fixture(scope="session")
def agent():
    process = subprocess.Popen(SLEEP)
    yield process
    process.kill()
    process.wait()
"""
_FAST = """
import ctypes.util, subprocess, sys


def test_first(agent):
    pass


def test_second(agent):
    pass


def test_calls_and_waits():
    subprocess.run([sys.executable, "-c", ""], check=True)
    assert subprocess.check_output([sys.executable, "-c", "print(1)"]).strip() == b"1"
    assert ctypes.util.find_library("c")  # runs ldconfig


def test_starts_and_goes_on():
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
"""
_HEAD = "import pytest\n\npytestmark = pytest.mark.services\n\n\n"
_MARKED = _HEAD + "def test_uses_one(agent):\n    pass\n\n\ndef test_uses_none():\n    pass\n"
_LATER = _HEAD + "def test_of_master(master):\n    pass\n\n\ndef test_after_it():\n    pass\n"
_NONE = _HEAD + "def test_first():\n    pass\n\n\ndef test_last():\n    pass\n"
_SINGLE = """
import pytest


@pytest.mark.services
@pytest.mark.parametrize("starts", [True, False])
def test_marked(starts, request):
    if starts and {starts}:
        request.getfixturevalue("agent")


def test_other():
    pass
"""
_KINDS = """
import pytest


@pytest.fixture(params=["folder", pytest.param("server", marks=pytest.mark.services)])
def store(request):
    return request.param == "server" and request.getfixturevalue("agent")


def test_writes(store):
    pass


def test_reads(store):
    pass
"""


def run(folder: Path, complete: str) -> tuple[dict[str, str], str]:
    """The outcomes of the tests in a folder, by name, and what pytest printed."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-v", "-p", "no:cacheprovider", "-c", "/dev/null", "--rootdir", str(folder),
         "--import-mode=importlib", "."],
        # Installed plug-ins of pytest would take longer to load than the tests run.
        cwd=folder,
        env=os.environ | {skips.VARIABLE: complete, "PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True, text=True, timeout=200,
    )  # fmt: skip
    outcomes = re.findall(r"::(test_\w+) (PASSED|FAILED|ERROR)", done.stdout)
    return {name: ("passed", "failed", "error")["PFE".index(outcome[0])] for name, outcome in outcomes}, done.stdout


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "conftest.py").write_text(_CONFTEST)
    (tmp_path / "marked").mkdir()
    return tmp_path


def test_a_service_without_the_marker_fails_every_test_that_uses_it_and_no_other(folder: Path) -> None:
    (folder / "test_fast.py").write_text(_FAST)
    (folder / "marked" / "test_marked.py").write_text(_MARKED)
    outcomes, printed = run(folder, "1")
    assert outcomes == {
        "test_first": "failed",
        "test_second": "failed",
        "test_calls_and_waits": "passed",
        "test_starts_and_goes_on": "failed",
        "test_uses_one": "passed",
        "test_uses_none": "passed",
    }
    assert "starts a service without the marker" in printed and "time.sleep(60)" in printed


def test_only_the_cases_that_use_a_service_need_the_marker(folder: Path) -> None:
    (folder / "test_kinds.py").write_text(_KINDS)
    _, printed = run(folder, "1")
    assert re.search(r"= 4 passed in ", printed), printed


def test_a_service_that_a_fixture_starts_after_its_set_up_counts(folder: Path) -> None:
    (folder / "marked" / "test_later.py").write_text(_LATER)
    assert run(folder, "1")[0] == {"test_of_master": "passed", "test_after_it": "passed"}
    (folder / "test_later.py").write_text(_LATER.removeprefix(_HEAD))
    outcomes, printed = run(folder, "1")
    assert outcomes["test_of_master"] == "failed" and "starts a service without the marker" in printed, printed


def test_a_marked_file_without_a_service_fails_a_complete_run(folder: Path) -> None:
    (folder / "marked" / "test_none.py").write_text(_NONE)
    outcomes, printed = run(folder, "1")
    assert outcomes["test_last"] == "error" and "starts no service: test_none.py" in printed
    assert run(folder, "0")[0] == {"test_first": "passed", "test_last": "passed"}


def test_a_marked_test_without_a_service_in_any_of_its_cases_fails_a_complete_run(folder: Path) -> None:
    (folder / "test_single.py").write_text(_SINGLE.format(starts=False))
    outcomes, printed = run(folder, "1")
    assert outcomes["test_other"] == "error" and "starts no service: test_marked" in printed
    (folder / "test_single.py").write_text(_SINGLE.format(starts=True))
    assert "error" not in run(folder, "1")[0].values()


@pytest.mark.services
@pytest.mark.parametrize("category", [ResourceWarning, DeprecationWarning, UserWarning])
def test_a_warning_is_an_error_also_beside_a_service(category: type[Warning]) -> None:
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as service:
        try:
            with pytest.raises(category, match="nobody closed it"):
                warnings.warn("nobody closed it", category, stacklevel=1)
        finally:
            service.kill()


def test_the_fast_lane_imports_no_marked_file(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "marked" / "test_none.py").write_text(_NONE + "\nraise AssertionError\n")
    (folder / "test_single.py").write_text(_SINGLE.format(starts=False))
    monkeypatch.setenv("FAST", "1")
    outcomes, printed = run(folder, "0")
    assert outcomes["test_other"] == "passed" and "AssertionError" not in printed
