"""A real master on a node agent of its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from elastrec.platform.clusters.local import LocalCluster, start_agent, stop_agent
from elastrec.platform.jobs import Allocation, Platform, observe
from elastrec.platform.jobs.identity import new_job_secret
from elastrec.platform.master.pods.launch import master_pod
from tests.platform.master.fakes import job, launch
from tests.processes import wait_for
from tests.suite.migrated import migrated_once  # noqa: F401 (for all tests of the room)

JOB = "clicks-1"
ALLOCATION = Allocation(
    workers=2, parameter_servers=1, worker_cores=1, worker_memory_bytes=2**30, parameter_server_cores=1,
    parameter_server_memory_bytes=2**30, source="job file",
)  # fmt: skip


@pytest.fixture
def small_cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    """Too small for workers and servers: they stay pending, a master runs all the same. Its agent is in `agent`."""
    folder = tmp_path / "agent"
    yield start_agent(folder, cores=0.5, memory_bytes=2**29, limits="threads")
    stop_agent(folder)


@pytest.fixture
def platform_with_master(small_cluster: LocalCluster, tmp_path: Path) -> Platform:
    """With the master of job `clicks-1`, which runs."""
    platform = Platform.connect(small_cluster.config, "", str(tmp_path / "work"))
    resources = {"master": {"cores": 0.25, "memory": "256Mi"}, "virtual_buckets": 64}
    resources |= {role: {"count": 1, "cores": 0.5, "memory": "400Mi"} for role in ("worker", "parameter_server")}
    request = launch(str(tmp_path / "store"), job(resources=resources))
    secret = new_job_secret(platform, JOB)
    small_cluster.create(master_pod(request, platform.cluster_config, secret.token, secret.tls))
    wait_for(lambda: observe(platform, JOB).reachable, 60, "an answer of the master")
    return platform
