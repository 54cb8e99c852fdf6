"""Jobs of real processes on a cluster without memory volumes: servers fail in pods that own the memory."""

from __future__ import annotations

import re
from collections.abc import Iterator

import psutil
import pytest

from elastrec.platform.clusters.nodes import limits_enforced
from elastrec.platform.clusters.owned_memory import OWNER_BYTES
from elastrec.platform.specs.metrics import Role
from tests.cluster_without_volumes import site_without_volumes
from tests.faults.campaign.injury import kinds_that_work, starve
from tests.faults.campaign.job import EPOCHS, ROWS
from tests.faults.campaign.plan import Kind
from tests.faults.campaign.site import Site
from tests.faults.live.jobs import PATIENCE_SECONDS, LiveJob, live_job
from tests.processes import pod_processes, wait_for

pytestmark = pytest.mark.services

MEMORY = 64 * 2**20


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with site_without_volumes(tmp_path_factory.mktemp("owned") / "home") as here:
        yield here


def server_process(job: LiveJob) -> psutil.Process:
    """The server's own: not its pod's first one, nor the one that brings parts to the store."""
    processes = pod_processes(job.job_id, "ps-0", job.site.home)
    (found,) = (each for each in processes if each.cmdline()[1:] == ["-m", "elastrec.trainers.parameter_server"])
    return found


def log_of(job: LiveJob, pod: str) -> str:
    return "\n".join(job.platform.launcher.logs(pod))


def test_a_server_that_is_killed_in_its_pod_is_restored_from_the_memory_of_the_pod(site: Site) -> None:
    with live_job(site, "owned", interval="1s", memory=MEMORY) as job:
        wait_for(job.has_workers(2), PATIENCE_SECONDS, "two workers that train")
        pods = job.pods(Role.PARAMETER_SERVER)
        server = min(pods)
        wait_for(lambda: job.metrics().checkpoint, PATIENCE_SECONDS, "a record")
        server_process(job).kill()
        wait_for(lambda: job.metrics().generation == 1, PATIENCE_SECONDS, "the rollback")
        wait_for(job.has_workers(2), PATIENCE_SECONDS, "two workers that train again")
        # The same pods: the cluster was asked for nothing.
        assert {name: pod.uid for name, pod in job.pods(Role.PARAMETER_SERVER).items()} == {
            name: pod.uid for name, pod in pods.items()
        }
        # Of a rollback, and not of the start: a worker may train for a moment before it has heard of the loss.
        wait_for(
            lambda: all("bytes_from_memory=" in log_of(job, name) for name in pods),
            PATIENCE_SECONDS,
            "servers that have restored the record",
        )
        logs = {name: log_of(job, name) for name in pods}
        metrics = job.train_to_the_end()
        accounts, story = job.accounts()
    assert "event=server_started_again killed_by=SIGKILL crashes_in_a_row=1" in logs[server]
    for name, log in logs.items():
        *_, restored = re.findall(r"bytes_from_memory=(\d+)", log)
        assert int(restored) > 0, (name, log)
    assert any(entry.what == f"restarted the process of {server}" for entry in story.timeline)
    assert metrics.shards_done == metrics.shards_total and metrics.samples_total == EPOCHS * ROWS
    assert not accounts.problems and accounts.lost == 0


def test_a_server_that_is_killed_for_memory_ends_its_pod_whose_successor_has_twice_as_much(site: Site) -> None:
    if Kind.OUT_OF_MEMORY not in kinds_that_work(limits_enforced(site.platform.launcher.nodes())):
        pytest.skip("an agent's memory limits have their own tests")
    with live_job(site, "owned-doubled", interval="1s", memory=MEMORY) as job:
        wait_for(job.has_workers(2), PATIENCE_SECONDS, "two workers that train")
        wait_for(lambda: job.metrics().checkpoint, PATIENCE_SECONDS, "a record")
        pods = job.pods(Role.PARAMETER_SERVER)
        killed = min(pods)
        beside = MEMORY + OWNER_BYTES
        asked = pods[killed].size.memory_bytes - beside
        starve(server_process(job))
        wait_for(lambda: killed not in job.pods(Role.PARAMETER_SERVER), PATIENCE_SECONDS, "the kill")
        wait_for(
            lambda: job.sizes_of_servers() == [2 * asked + beside] * 2,
            PATIENCE_SECONDS,
            "two servers with twice as much",
        )
        metrics = job.train_to_the_end()
        accounts, _ = job.accounts()
    assert not accounts.problems and accounts.lost == 0 and metrics.shards_done == metrics.shards_total
