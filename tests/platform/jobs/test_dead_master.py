"""A real master cannot restart, because its journal was damaged while it was not running."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path
from typing import Any

import psutil
import pytest

from elastrec.platform.clusters.local.config import LocalConfig
from elastrec.platform.clusters.pods import PodPhase, PodSize, PodSpec, PodStatus
from elastrec.platform.jobs import Observation, Platform, failure_report, observe, stop
from elastrec.platform.jobs.starting import launching
from elastrec.platform.jobs.watching.masters import pod_of_master
from elastrec.platform.specs.errors import TransportError
from elastrec.platform.specs.metrics import Phase, Role
from tests.platform.jobs.conftest import JOB
from tests.platform.master.fakes import FakeLauncher
from tests.processes import pod_processes, wait_for

pytestmark = pytest.mark.services


@pytest.fixture
def platform(platform_with_master: Platform) -> Platform:
    return platform_with_master


@pytest.fixture
def stopped_master(platform: Platform, tmp_path: Path) -> psutil.Process:
    process = pod_processes(JOB, "master", tmp_path)[0]
    process.suspend()
    return process


@pytest.fixture
def journal(platform: Platform, tmp_path: Path) -> Path:
    return next((tmp_path / "agent/pods").glob("*/work/journal.sqlite"))


def test_a_damaged_journal_fails_the_job_with_the_journals_message_and_its_log_is_kept(
    platform: Platform, stopped_master: psutil.Process, journal: Path
) -> None:
    with journal.open("r+b") as file:
        file.write(bytes(4096))
    journal.with_name("journal.sqlite-wal").unlink()
    os.kill(stopped_master.pid, signal.SIGKILL)
    wait_for(lambda: observe(platform, JOB).metrics.phase.is_final, 60, "the end of the job")
    found = observe(platform, JOB)
    assert found.metrics.phase is Phase.FAILED and found.reachable
    assert found.failure == found.metrics.reason
    assert "exit code 2" in found.failure and "the journal cannot be opened: file is not a database" in found.failure
    master = pod_of_master(platform, JOB)
    assert master is not None and master.restarts == 1

    kept = Path(platform.work_uri) / "logs" / f"{JOB}-master.log"
    assert str(kept) in failure_report(platform, JOB)
    kept.unlink()
    stop(platform, JOB, "seen")
    assert platform.launcher.pods(JOB) == []
    assert "master_started" in kept.read_text() and "file is not a database" in kept.read_text()


def test_a_master_that_crashes_repeatedly_has_a_reason_and_a_log(
    platform: Platform, stopped_master: psutil.Process, journal: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # What can be opened by no program, without being damaged: another attempt may succeed.
    for file in journal.parent.glob("journal.sqlite*"):
        file.unlink()
    journal.mkdir()
    os.kill(stopped_master.pid, signal.SIGKILL)
    monkeypatch.setattr(launching, "_ANSWER_SECONDS", 1.0)

    def seen() -> Observation:
        return observe(platform, JOB, timeout_seconds=0.5)

    try:
        wait_for(lambda: "unable to open database file" in seen().metrics.reason, 60, "the reason")
        found = seen()
        assert not found.reachable and "restarted" in found.metrics.reason and "exit code 1" in found.metrics.reason
        master = pod_of_master(platform, JOB)
        assert master is not None and master.phase is PodPhase.RUNNING
        stop(platform, JOB, "enough")
        assert "unable to open" in (Path(platform.work_uri) / "logs" / f"{JOB}-master.log").read_text()
    finally:
        shutil.rmtree(journal, ignore_errors=True)


def test_a_master_that_does_not_answer_is_waited_for_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    launcher = FakeLauncher()
    name, size = f"{JOB}-master", PodSize(1.0, 2**30)
    launcher.submit(PodSpec(name=name, job=JOB, role=Role.MASTER, command=("python",), size=size))
    platform = Platform(launcher, LocalConfig(address="", token=""), "", str(tmp_path), tmp_path)  # type: ignore[arg-type]
    waits: list[tuple[str, float]] = []

    def ask(platform: Platform, pod: PodStatus, message: Any, answer: Any, *, timeout_seconds: float) -> None:
        waits.append((type(message).__name__, timeout_seconds))
        raise TransportError("no answer", retryable=True)

    monkeypatch.setattr(launching, "ask_pod", ask)
    assert stop(platform, JOB, "enough")
    later = ["GetStatus", "GetExplanation", "GetProfile", "FinishJob"]
    assert waits == [("StopJob", 10.0), *((message, 0.5) for message in later)]
    assert launcher.pods(JOB) == []
