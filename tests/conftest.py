"""What all tests share."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest
import structlog
from hypothesis import settings

from tests.streams import SERVICES, Streams

# How long one example takes says more about the machine's other work than about the code.
settings.register_profile("elastrec", deadline=None)
settings.load_profile("elastrec")


@pytest.fixture(autouse=True)
def logging_as_before() -> Iterator[None]:
    """A test that runs a command in this process leaves no configuration of the log behind."""
    was_configured, before = structlog.is_configured(), structlog.get_config()
    yield
    if was_configured:
        structlog.configure(**before)
    else:
        structlog.reset_defaults()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.nodeid.startswith(SERVICES):
            item.add_marker("services")


def pytest_keyboard_interrupt() -> None:
    """One Ctrl-C is several interrupts for a process of `pytest -n 2`; none of the later ones may end its fixtures."""
    if "PYTEST_XDIST_WORKER" in os.environ:
        signal.signal(signal.SIGINT, signal.SIG_IGN)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Streams:
    """How `pytest -n 2` shares the tests out."""
    return Streams(config, log)
