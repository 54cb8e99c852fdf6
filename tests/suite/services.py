"""A pytest plug-in that compares the marker `services` with the processes that tests start.

A service is a process that a test or one of its fixtures starts and that runs beside the test: a node agent, a pod, a
broker, MLflow, Airflow. A program for whose end the test waits (`subprocess.run`) is no service, nor is a server in a
thread of the test process.

`make check` does not run marked tests. A file whose tests mostly start services has `pytestmark = pytest.mark.services`
and is not even imported; in other files, individual tests are marked. A test without the marker fails if it starts a
service. In a complete run (`ELASTREC_TESTS_COMPLETE=1`), the last test of a file fails if the marked file, or a marked
test in it, starts no service.
"""

from __future__ import annotations

import ctypes.util
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from tests.suite import skips

_MARKED = re.compile(r"^pytestmark = .*\bpytest\.mark\.services\b", re.MULTILINE)
_WAITING = (subprocess.run, subprocess.call, subprocess.check_call, ctypes.util.find_library)
_WAITED_FOR = {function.__code__ for function in _WAITING}
"""The code of functions that wait for the programs that they start."""
_STARTING = ("subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.spawn")
_started: list[str] = []
"""The command of each service that this process of tests has started, in order."""


@cache
def has_only_services(path: Path) -> bool:
    """Whether the text of a test file marks the whole file, or that of each test file in a folder does."""
    if path.is_dir():
        files = list(path.rglob("test_*.py"))
        return bool(files) and all(map(has_only_services, files))
    return path.match("test_*.py") and _MARKED.search(path.read_text()) is not None


def _note(event: str, arguments: tuple[Any, ...]) -> None:
    """An audit hook (https://docs.python.org/3/library/audit_events.html)."""
    if event in _STARTING and not any(frame.f_code in _WAITED_FOR for frame in _callers()):
        command = arguments[1] if event == "subprocess.Popen" else event
        _started.append(command if isinstance(command, str) else " ".join(map(str, command)))


def _callers() -> Iterator[FrameType]:
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        yield frame
        frame = frame.f_back


class Services:
    """A plug-in of pytest: compares the marker `services` with the processes that tests start."""

    def __init__(self) -> None:
        self.of_fixtures: dict[tuple[str, str], str] = {}
        """Where a fixture is defined and its name → the service that its set-up started."""
        self.assigned = 0
        """So many of the services belong to a fixture or started before the set-up of this test or of a fixture."""
        self.of_tests: dict[Path, list[tuple[pytest.Function, str | None]]] = {}
        """Of each file, the tests that ran, each with a service that it used."""
        sys.addaudithook(_note)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self) -> None:
        self.assigned = len(_started)

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef[Any]) -> Any:
        before = len(_started)
        result = yield
        # Without what another fixture has started that this one asked for.
        if own := _started[max(before, self.assigned) :]:
            self.of_fixtures[fixturedef.baseid, fixturedef.argname] = own[0]
        self.assigned = len(_started)
        return result

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Function) -> Any:
        result = yield
        # Also what a thread of a fixture has started between its set-up and the test.
        used = [*_started[self.assigned :], *self._fixtures_of(item)]
        self.of_tests.setdefault(item.path, []).append((item, used[0] if used else None))
        if used and item.get_closest_marker("services") is None:
            pytest.fail(
                f"starts a service without the marker `services`: {used[0]:.100}; wait for the end of a program with "
                "subprocess.run, or mark the test with @pytest.mark.services",
                pytrace=False,
            )
        return result

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_teardown(self, item: pytest.Item, nextitem: pytest.Item | None) -> Any:
        result = yield
        is_last = nextitem is None or nextitem.path != item.path
        if skips.is_complete() and is_last and (needless := self._marked_without_service(item)):
            pytest.fail(
                f"starts no service: {needless}; without the marker `services` `make check` runs it, too",
                pytrace=False,
            )
        return result

    def _fixtures_of(self, item: pytest.Function) -> list[str]:
        """Services that the fixtures of a test have started, for it or for a test before it."""
        return [
            service
            for (place, name), service in self.of_fixtures.items()
            # Also those that `request.getfixturevalue` has set up.
            if name in item._request.fixturenames and item.nodeid.startswith(place)
        ]

    def _marked_without_service(self, last: pytest.Item) -> str:
        """In the file of `last`: the file or the first test that is marked but started no service; "" if there is none,
        or if some tests of the file did not run.
        """
        ran = self.of_tests.get(last.path, [])
        if len(ran) < sum(other.path == last.path for other in last.session.items):
            return ""
        if has_only_services(last.path):
            return "" if any(service for _, service in ran) else last.path.name
        marked = {item.originalname: False for item, _ in ran if item.get_closest_marker("services")}
        for item, service in ran:
            marked[item.originalname] = marked.get(item.originalname, True) or service is not None
        return next((name for name, started in marked.items() if not started), "")
