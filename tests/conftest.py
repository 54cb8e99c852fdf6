"""Fixtures and options of all tests."""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog
from hypothesis import settings

from elastrec.trainers.imports import without_collector
from tests.suite import skips
from tests.suite.services import Services, has_only_services
from tests.suite.streams import Streams

# How long one example takes says more about the machine's other work than about the code.
settings.register_profile("elastrec", deadline=None)
settings.load_profile("elastrec")

_LEFT_OUT = pytest.StashKey[Counter[str]]()
_ROOT = Path(__file__).resolve().parent.parent


def example_factor() -> float:
    """Factor on the number of random examples: below 1 in `make quick`, 1 in `make test`, above in `make nightly`."""
    return float(os.environ.get("ELASTREC_EXAMPLES", "1"))


def examples(usual: int) -> int:
    """The number of random examples of a test that has `usual` ones in `make test`."""
    return max(1, round(usual * example_factor()))


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_LEFT_OUT] = Counter()
    config.pluginmanager.register(Services())


@pytest.fixture(autouse=True)
def logging_as_before() -> Iterator[None]:
    """A test that runs a command in this process leaves no configuration of the log behind."""
    was_configured, before = structlog.is_configured(), structlog.get_config()
    yield
    if was_configured:
        structlog.configure(**before)
    else:
        structlog.reset_defaults()


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Any:
    """Collecting loads torch, torchrec and thousands of tests, none of which is garbage: no collector looks at them."""
    with without_collector():
        return (yield)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """The fast lane does not even import files of services: some load Airflow, which takes half a minute."""
    if config.option.markexpr != "not services" or not collection_path.is_relative_to(_ROOT / "tests"):
        return None
    return True if has_only_services(collection_path) else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if example_factor() == 1:
        return
    for test in {getattr(item, "obj", None) for item in items}:
        # hypothesis has no public way to change what a test's own `@settings` says.
        own = getattr(test, "_hypothesis_internal_use_settings", None)
        if own is not None:
            test._hypothesis_internal_use_settings = settings(own, max_examples=examples(own.max_examples))
    for machine in {item.cls for item in items if isinstance(item, pytest.Function)}:
        if isinstance(own := getattr(machine, "settings", None), settings):
            machine.settings = settings(own, max_examples=examples(own.max_examples))


@pytest.hookimpl(wrapper=True)
def pytest_report_teststatus(report: pytest.TestReport, config: pytest.Config) -> Any:
    # Asked once for each report in the process that sums up, also with `pytest -n 2`.
    if report.skipped and not hasattr(report, "wasxfail"):
        config.stash[_LEFT_OUT][skips.reason_of(report.longrepr)] += 1
    return (yield)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    # Not the environment's word for it, which a run of pytest inside a test inherits.
    is_summing_up = not hasattr(session.config, "workerinput")
    if skips.is_complete() and is_summing_up and skips.not_allowed(session.config.stash[_LEFT_OUT]):
        session.exitstatus = session.exitstatus or pytest.ExitCode.TESTS_FAILED


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> Any:
    # After pytest's own list of skips, so that the end of a log says why the run failed.
    result = yield
    if skips.is_complete():
        for line in skips.not_allowed(config.stash[_LEFT_OUT]):
            terminalreporter.write_line(f"{line} (allowed are the reasons of tests/suite/skips.py)", red=True)
    return result


def pytest_keyboard_interrupt() -> None:
    """One Ctrl-C is several interrupts for a process of `pytest -n 2`; none of the later ones may end its fixtures."""
    if "PYTEST_XDIST_WORKER" in os.environ:
        signal.signal(signal.SIGINT, signal.SIG_IGN)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Streams:
    """How `pytest -n 2` shares the tests out."""
    return Streams(config, log)
