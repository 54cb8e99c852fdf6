"""The process of an Airflow task that changes the servers of a job is killed during the change."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from elastrec.platform.jobs.watching.masters import live_master
from elastrec.platform.specs.metrics import Role
from elastrec.platform.transport.messages.observer import GetStatus, ShapeOutcome, ShapeRequest, Status
from tests.faults.campaign.job import EPOCHS, ROWS
from tests.faults.campaign.site import Site, site_at
from tests.faults.live.jobs import PATIENCE_SECONDS, SERVERS, LiveJob, live_job
from tests.processes import pod_processes, wait_for

pytestmark = pytest.mark.services


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with site_at(tmp_path / "home") as here:
        yield here


@contextlib.contextmanager
def task(site: Site, job: LiveJob, number: int) -> Iterator[subprocess.Popen[str]]:
    """The process of this try of a task that asks for one server more."""
    reached = {
        "agent_state": str(site.home / "agent"),
        "tracking_uri": "http://127.0.0.1:1",
        "work_uri": str(site.home),
    }
    variables = {
        **os.environ,
        "AIRFLOW_HOME": str(site.home / "airflow"),
        "AIRFLOW_CONN_ELASTREC_DEFAULT": json.dumps({"conn_type": "elastrec", "extra": reached}),
    }
    command = [sys.executable, "-m", "tests.faults.live.scaling_task", job.job_id, str(SERVERS + 1), str(number)]
    root = Path(__file__).parents[3]
    process = subprocess.Popen(command, env=variables, cwd=root, stdout=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def output_of(process: subprocess.Popen[str]) -> dict[str, Any]:
    said, _ = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 0, said
    output: dict[str, Any] = json.loads(said.splitlines()[-1])
    return output


def requests(job: LiveJob) -> list[ShapeRequest]:
    with live_master(job.platform, job.job_id) as master:
        assert master is not None
        return list(master.call(GetStatus(), Status).shape_requests)


def test_a_task_killed_while_servers_change_is_found_again_by_its_next_tries_and_the_job_changes_once(
    site: Site,
) -> None:
    with live_job(site, "scaled") as job:
        wait_for(job.has_workers(2), PATIENCE_SECONDS, "two workers that train")
        with task(site, job, 1) as first:
            # The server that is to come stands still: the change cannot end meanwhile.
            (new,) = wait_for(lambda: pod_processes(job.job_id, f"ps-{SERVERS}", site.home), PATIENCE_SECONDS, "it")
            new.suspend()
            (asked,) = requests(job)
            first.kill()
            assert first.wait(PATIENCE_SECONDS) == -signal.SIGKILL
        with task(site, job, 2) as second:
            new.resume()
            output = output_of(second)
        assert (output["request_id"], output["outcome"], output["migrated"]) == (asked.request_id, "done", True)
        assert output["pause_seconds"] is not None and len(job.pods(Role.PARAMETER_SERVER)) == SERVERS + 1
        with task(site, job, 3) as third:
            assert output_of(third) == output
        (ended,) = requests(job)
        assert ended.request_id == asked.request_id and ended.outcome is ShapeOutcome.DONE
        metrics = job.train_to_the_end()
        assert metrics.generation == 0 and metrics.samples_trained == metrics.samples_total == EPOCHS * ROWS
        accounts, story = job.accounts()
    assert not accounts.problems and (accounts.lost, accounts.repeated) == (0, 0)
    assert [migration.outcome for migration in story.migrations] == ["done"]
