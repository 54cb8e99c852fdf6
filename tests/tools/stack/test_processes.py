"""Services end together with their child processes, even if the process that started them was killed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tools.stack.processes import (
    Service,
    ServiceError,
    end_forgotten,
    hold,
    remember,
    session_members,
    start_service,
    stop_sessions,
    wait_until,
)

pytestmark = pytest.mark.services

# A parent that ignores SIGTERM and a child in a process group of its own, as Airflow's children are.
FAMILY = """
import os, pathlib, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if os.fork() == 0:
    os.setpgid(0, 0)
    pathlib.Path(sys.argv[1]).touch()
time.sleep(600)
"""


def family(folder: Path) -> Service:
    ready = folder / "ready"
    service = start_service(
        "family", [sys.executable, "-c", FAMILY, str(ready)], os.environ, folder / "logs" / "family.log", folder
    )
    wait_until(ready.exists, [service], "family", 20)
    return service


def test_children_that_left_the_group_and_ignore_signals_end_too(tmp_path: Path) -> None:
    service = family(tmp_path)
    members = session_members(service.process.pid)
    assert len(members) == 2
    stop_sessions([service.process.pid], grace_seconds=0.2)
    assert not any(process.is_running() and process.status() != psutil.STATUS_ZOMBIE for process in members)
    service.process.wait()


def test_processes_of_a_killed_stack_are_ended_by_the_next(tmp_path: Path) -> None:
    service = family(tmp_path)
    record = tmp_path / "services.json"
    remember(record, [service])
    service.process.kill()
    service.process.wait()
    assert len(session_members(service.process.pid)) == 1
    assert end_forgotten(record, grace_seconds=0.2) == ["family"]
    assert not session_members(service.process.pid)
    assert not record.exists()


def test_a_process_that_only_has_the_same_number_is_left_alone(tmp_path: Path) -> None:
    other = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
    try:
        record = tmp_path / "services.json"
        record.write_text(f'{{"old": [{other.pid}, 1.0]}}')
        assert end_forgotten(record, grace_seconds=0.2) == []
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()


def test_a_service_that_ends_is_reported_with_the_end_of_its_log(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "print('no room left'); raise SystemExit(3)"]
    service = start_service("short", command, os.environ, tmp_path / "short.log", tmp_path)
    with pytest.raises(ServiceError, match=r"(?s)short ended with exit code 3.*no room left"):
        wait_until(lambda: False, [service], "short", 20)


def test_a_second_stack_on_the_same_home_is_refused(tmp_path: Path) -> None:
    held = hold(tmp_path / "lock")
    with pytest.raises(ServiceError, match="in use by another process"):
        hold(tmp_path / "lock")
    held.close()
    hold(tmp_path / "lock").close()
