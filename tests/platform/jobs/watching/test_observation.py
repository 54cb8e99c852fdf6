"""A master whose pod has failed: by its own program, or because the cluster has ended it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from elastrec.platform.clusters.local.config import LocalConfig
from elastrec.platform.clusters.pods import EndReason, PodSize, PodSpec
from elastrec.platform.jobs import Platform, jobs, observe
from elastrec.platform.jobs.watching import observation
from elastrec.platform.specs.errors import TransportError
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


LOG = [
    "timestamp=2026-01-01T00:00:00.000000Z level=info event=phase_changed job=clicks-1 before=Pending after=Starting",
    "timestamp=2026-01-01T00:00:05.000000Z level=info event=phase_changed job=clicks-1 before=Starting after=Training",
    "timestamp=2026-01-01T00:01:00.000000Z level=info event=record_committed job=clicks-1 record=r step=7",
    "  a line of a traceback",
]


def silent(cluster: FakeCluster, folder: Path, monkeypatch: pytest.MonkeyPatch, seconds: float = 0.0) -> Platform:
    """Masters that do not answer."""

    def ask(*_: Any, timeout_seconds: float) -> None:
        time.sleep(min(timeout_seconds, seconds))
        raise TransportError("no answer from 127.0.0.1:1 in 3 s", retryable=True)

    monkeypatch.setattr(observation, "ask_pod", ask)
    return Platform(FakeLauncher(cluster), LocalConfig(address="", token=""), "", str(folder), folder)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("lines", "known"),
    [
        (LOG, " (its last known phase is Training, the last entry of its log is of 2026-01-01T00:01:00.000000Z)"),
        (LOG[2:], " (the last entry of its log is of 2026-01-01T00:01:00.000000Z)"),
        ([], ""),
    ],
)
def test_the_phase_of_a_job_whose_master_does_not_answer_is_unknown_and_its_last_signs_are_named(
    lines: list[str], known: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = FakeCluster()
    platform = silent(cluster, tmp_path, monkeypatch)
    cluster.create(PodSpec(name=f"{JOB}-master", job=JOB, role=Role.MASTER, command=("x",), size=PodSize(1, 1)))

    def logs(name: str, **options: Any) -> Iterator[str]:
        return iter(lines)

    monkeypatch.setattr(cluster, "logs", logs)
    found = observe(platform, JOB)
    assert (found.metrics.phase, found.reachable) == (Phase.UNKNOWN, False)
    assert found.metrics.reason == f"the master does not answer{known}: no answer from 127.0.0.1:1 in 3 s"


def test_masters_that_do_not_answer_are_waited_for_side_by_side(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = FakeCluster()
    platform = silent(cluster, tmp_path, monkeypatch, seconds=5.0)
    names = [f"clicks-{number}" for number in range(8)]
    for job in names:
        cluster.create(PodSpec(name=f"{job}-master", job=job, role=Role.MASTER, command=("x",), size=PodSize(1, 1)))
    began = time.monotonic()
    assert [found.metrics.job for found in jobs(platform, timeout_seconds=0.5)] == names
    assert time.monotonic() - began < 8 * 0.5
