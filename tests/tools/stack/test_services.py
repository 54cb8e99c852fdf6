"""Services that end on their own are started again, a few times."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.processes import wait_for
from tools.stack import services
from tools.stack.processes import ServiceError, stop_sessions
from tools.stack.services import ServiceStack, keep_running


@pytest.fixture
def stack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ServiceStack]:
    """A stack whose Airflow is a program that waits."""
    program = tmp_path / "airflow"
    program.write_text("#!/bin/sh\necho the $1 waits\nexec sleep 600\n")
    program.chmod(0o755)
    monkeypatch.setattr(services, "_tool", lambda name: str(program))
    stack = ServiceStack(tmp_path / "home")
    stack.home.mkdir()
    stack.start_airflow("triggerer")
    stack.start_airflow("scheduler")
    yield stack
    stop_sessions([service.process.pid for service in stack.services.values()])
    for service in stack.services.values():
        service.process.wait()


def end(stack: ServiceStack, name: str) -> None:
    process = stack.services[name].process
    process.kill()
    wait_for(lambda: process.poll() is not None, 10.0, f"the end of the {name}")


def test_a_service_that_ended_is_started_again_and_the_others_go_on(stack: ServiceStack) -> None:
    triggerer, scheduler = (stack.services[name].process.pid for name in ("triggerer", "scheduler"))
    assert stack.restart_ended() == []
    end(stack, "triggerer")
    assert stack.restart_ended() == ["triggerer"]
    assert stack.services["triggerer"].process.pid != triggerer
    stack.services["triggerer"].check_alive()
    assert stack.services["scheduler"].process.pid == scheduler
    os.kill(scheduler, 0)


def test_a_service_that_ends_again_and_again_is_named_with_its_log(stack: ServiceStack) -> None:
    for _ in range(3):
        wait_for(lambda: "waits" in stack.services["triggerer"].log_tail(), 10.0, "its first line")
        end(stack, "triggerer")
        assert stack.restart_ended() == ["triggerer"]
    end(stack, "triggerer")
    with pytest.raises(ServiceError, match=r"(?s)triggerer ended with exit code -9.*the triggerer waits"):
        stack.restart_ended()


def test_a_service_that_is_looked_after_comes_back_and_one_that_was_killed_on_purpose_does_not(
    stack: ServiceStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(services, "_LOOK_SECONDS", 0.02)
    triggerer = stack.services["triggerer"].process.pid
    with keep_running(stack):
        stack.kill("scheduler")
        end(stack, "triggerer")
        wait_for(lambda: stack.services["triggerer"].process.pid != triggerer, 10.0, "another triggerer")
    stack.services["triggerer"].check_alive()
    assert list(stack.services) == ["triggerer"]
