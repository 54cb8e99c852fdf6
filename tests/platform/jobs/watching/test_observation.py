"""A master whose pod has failed: by its own program, or because the cluster has ended it."""

from __future__ import annotations

from pathlib import Path

import pytest

from elastrec.platform.clusters.local.config import LocalConfig
from elastrec.platform.clusters.pods import EndReason, PodSize, PodSpec
from elastrec.platform.jobs import Platform, observe
from elastrec.platform.specs.metrics import Phase, Role
from tests.platform.master.fakes import FakeCluster, FakeLauncher

JOB = "clicks-1"


@pytest.mark.parametrize(
    ("reason", "is_lost"),
    [
        (EndReason.NODE_LOST, True),
        (EndReason.EVICTED, True),
        (EndReason.BAD_INPUT, False),
        (EndReason.OUT_OF_MEMORY, False),
    ],
)
def test_a_job_is_lost_if_the_cluster_has_ended_its_master(reason: EndReason, is_lost: bool, tmp_path: Path) -> None:
    cluster = FakeCluster()
    config = LocalConfig(address="", token="token")
    platform = Platform(FakeLauncher(cluster), config, "", str(tmp_path), tmp_path)  # type: ignore[arg-type]
    cluster.create(PodSpec(name=f"{JOB}-master", job=JOB, role=Role.MASTER, command=("x",), size=PodSize(1, 1)))
    cluster.end(f"{JOB}-master", reason)
    found = observe(platform, JOB)
    assert found.metrics.phase is Phase.FAILED
    assert found.is_lost == is_lost and not found.has_ended


def test_a_master_that_has_ended_with_its_job_is_not_taken_for_one_that_is_silent(tmp_path: Path) -> None:
    cluster = FakeCluster()
    config = LocalConfig(address="", token="token")
    platform = Platform(FakeLauncher(cluster), config, "", str(tmp_path), tmp_path)  # type: ignore[arg-type]
    cluster.create(PodSpec(name=f"{JOB}-master", job=JOB, role=Role.MASTER, command=("x",), size=PodSize(1, 1)))
    assert not observe(platform, JOB).has_ended
    cluster.end(f"{JOB}-master", EndReason.COMPLETED, 0)
    assert observe(platform, JOB).has_ended
