"""A master that cannot start again: a real one on a real node agent, its journal damaged while it does not run."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path

import psutil
import pytest

from elastrec.platform.clusters.pods import PodPhase
from elastrec.platform.jobs import Platform, failure_report, observe, stop
from elastrec.platform.jobs.masters import pod_of_master
from elastrec.platform.specs.metrics import Phase
from tests.platform.jobs.conftest import JOB
from tests.processes import pod_processes, wait_for


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


def test_a_master_that_its_node_restarts_again_and_again_says_why_and_leaves_its_log(
    platform: Platform, stopped_master: psutil.Process, journal: Path
) -> None:
    # What can be opened by no program, without being damaged: another attempt may succeed.
    for file in journal.parent.glob("journal.sqlite*"):
        file.unlink()
    journal.mkdir()
    os.kill(stopped_master.pid, signal.SIGKILL)
    try:
        wait_for(lambda: "unable to open database file" in observe(platform, JOB).metrics.reason, 60, "the reason")
        found = observe(platform, JOB)
        assert not found.reachable and "restarted" in found.metrics.reason and "exit code 1" in found.metrics.reason
        master = pod_of_master(platform, JOB)
        assert master is not None and master.phase is PodPhase.RUNNING
        stop(platform, JOB, "enough")
        assert "unable to open" in (Path(platform.work_uri) / "logs" / f"{JOB}-master.log").read_text()
    finally:
        shutil.rmtree(journal, ignore_errors=True)
