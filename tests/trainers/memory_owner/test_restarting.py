"""The decision to restart a process, by its exit and its running time."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from elastrec.trainers.memory_owner.restarting import HEALTHY_SECONDS, RESTARTS, RestartedProcess

pytestmark = pytest.mark.services

# Writes a line for every process, and kills itself but for the last time.
CRASHING = """
import os, signal, sys
with open(sys.argv[1], "a+") as file:
    file.write("started\\n"); file.flush(); file.seek(0)
    count = len(file.readlines())
if count < int(sys.argv[2]): os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture(autouse=True)
def signals_as_before() -> Iterator[None]:
    """`run` is for a process of its own: it leaves signals blocked."""
    assert threading.current_thread() is threading.main_thread()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    yield
    signal.pthread_sigmask(signal.SIG_SETMASK, before)


def crashing(file: Path, times: int) -> list[str]:
    return ["-c", CRASHING, str(file), str(times + 1)]


def starts(file: Path) -> int:
    return len(file.read_text().splitlines())


def test_crashes_that_are_far_apart_are_not_counted_together(tmp_path: Path) -> None:
    file = tmp_path / "starts"
    moments = iter(number * HEALTHY_SECONDS for number in range(1000))
    process = RestartedProcess(crashing(file, 2 * RESTARTS), {}, clock=lambda: next(moments))
    assert process.run() == 0 and starts(file) == 2 * RESTARTS + 1


def test_crashes_in_a_row_are_counted(tmp_path: Path) -> None:
    file = tmp_path / "starts"
    process = RestartedProcess(crashing(file, 2 * RESTARTS), {}, clock=lambda: 0.0)
    assert process.run() == 128 + signal.SIGKILL and starts(file) == RESTARTS + 1


def test_a_server_killed_for_the_memory_of_its_pod_is_not_restarted(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "starts"
    kills = iter(range(1000))
    process = RestartedProcess(crashing(file, 1), {}, memory_kills=lambda: next(kills))
    assert process.run() == 128 + signal.SIGKILL and starts(file) == 1
    assert 'reason="it was killed for the memory of its pod"' in capfd.readouterr().err


def test_a_program_that_cannot_be_started_ends_the_pod_with_a_reason(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "executable", "/not/there")
    assert RestartedProcess([], {}).run() == 127
    assert "event=server_not_started command=/not/there" in capfd.readouterr().err
