"""Services that end on their own, or hang, are started again, a few times.

Airflow is replaced by a program that waits, and its health page by values of the tests.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.processes import wait_for
from tools.stack import services, watching
from tools.stack.processes import ServiceError, stop_sessions
from tools.stack.services import ServiceStack
from tools.stack.watching import Watch, keep_running

pytestmark = pytest.mark.services


@pytest.fixture
def stack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ServiceStack]:
    """A stack whose Airflow is a program that waits."""
    program = tmp_path / "airflow"
    # It says that it waits once the signal does not end it any more. A shell cannot do that where whoever started the
    # tests ignores the signal, as `nohup` and `&` in a script do.
    program.write_text(
        f"#!{sys.executable} -SE\nimport signal, sys\n"
        "signal.signal(signal.SIGQUIT, lambda *_: print('its stacks', flush=True))\n"
        "print(f'the {sys.argv[1]} waits', flush=True)\n"
        "while True:\n    signal.pause()\n"
    )
    program.chmod(0o755)
    monkeypatch.setattr(services, "_tool", lambda name: str(program))
    stack = ServiceStack(tmp_path / "home")
    stack.home.mkdir()
    stack.start_airflow("triggerer")
    stack.start_airflow("scheduler")
    monkeypatch.setattr(stack, "airflow_health", dict)
    yield stack
    stop_sessions([service.process.pid for service in stack.services.values()])
    for service in stack.services.values():
        service.process.wait()


def end(stack: ServiceStack, name: str) -> None:
    process = stack.services[name].process
    process.kill()
    wait_for(lambda: process.poll() is not None, 10.0, f"the end of the {name}")


def test_an_ended_service_is_restarted_and_the_others_continue(stack: ServiceStack) -> None:
    watch = Watch(stack)
    triggerer, scheduler = (stack.services[name].process.pid for name in ("triggerer", "scheduler"))
    assert watch.look() == []
    end(stack, "triggerer")
    assert watch.look() == ["triggerer"]
    assert stack.services["triggerer"].process.pid != triggerer
    stack.services["triggerer"].check_alive()
    assert stack.services["scheduler"].process.pid == scheduler
    os.kill(scheduler, 0)


def test_a_service_that_ends_repeatedly_is_reported_with_its_log(stack: ServiceStack) -> None:
    watch = Watch(stack)
    for _ in range(3):
        wait_for(lambda: "waits" in stack.services["triggerer"].log_tail(), 10.0, "its first line")
        end(stack, "triggerer")
        assert watch.look() == ["triggerer"]
    end(stack, "triggerer")
    with pytest.raises(ServiceError, match=r"(?s)triggerer ended with exit code -9.*the triggerer waits"):
        watch.look()


def test_a_service_that_is_unhealthy_for_long_writes_its_stacks_and_is_started_again(
    stack: ServiceStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    health = {"scheduler": "healthy", "triggerer": "unhealthy", "dag_processor": "unhealthy"}
    monkeypatch.setattr(stack, "airflow_health", lambda: dict(health))
    triggerer, scheduler = (stack.services[name].process.pid for name in ("triggerer", "scheduler"))
    patient = Watch(stack, unhealthy_seconds=60.0)
    assert patient.look() == patient.look() == []
    wait_for(lambda: "waits" in stack.services["triggerer"].log_tail(), 10.0, "its first line")
    watch = Watch(stack, unhealthy_seconds=0.0)
    assert watch.look() == ["triggerer"]
    assert stack.services["triggerer"].process.pid != triggerer
    assert stack.services["scheduler"].process.pid == scheduler
    assert "its stacks" in stack.services["triggerer"].log_tail()


def test_a_service_that_recovers_has_its_whole_time_again(stack: ServiceStack, monkeypatch: pytest.MonkeyPatch) -> None:
    health, now = {"triggerer": "unhealthy"}, [0.0]
    monkeypatch.setattr(stack, "airflow_health", lambda: dict(health))
    watch = Watch(stack, unhealthy_seconds=60.0, clock=lambda: now[0])
    assert watch.look() == []
    health["triggerer"], now[0] = "healthy", 59.0
    assert watch.look() == []
    health["triggerer"], now[0] = "unhealthy", 61.0
    assert watch.look() == []


def test_a_supervised_stack_restarts_services_that_were_not_ended_on_purpose(
    stack: ServiceStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watching, "_LOOK_SECONDS", 0.02)
    ended = stack.services["triggerer"]
    with keep_running(stack):
        stack.kill("scheduler")
        ended.process.kill()
        wait_for(lambda: stack.services.get("triggerer", ended) is not ended, 10.0, "another triggerer")
    stack.services["triggerer"].check_alive()
    assert list(stack.services) == ["triggerer"]
