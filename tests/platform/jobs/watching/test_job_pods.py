"""The pods of a job on a real node agent: the evaluator is a separate job, and ends with it."""

from __future__ import annotations

from pathlib import Path

import pytest

from elastrec.platform.clusters.local import LocalCluster
from elastrec.platform.clusters.pods import PodPhase, PodSize, PodSpec, PodStatus
from elastrec.platform.jobs import EvaluatorState, Platform, evaluator_state, jobs, pods_of_job
from elastrec.platform.jobs.watching.job_pods import remove_job
from elastrec.platform.jobs.watching.masters import pod_of_master
from elastrec.platform.master.pods.launch import evaluator_job, pod_name
from elastrec.platform.specs.metrics import Role
from elastrec.platform.transport.messages.export import EXIT_HISTORY
from tests.processes import wait_for

pytestmark = pytest.mark.services

JOB = "clicks-1"
LONG = "import time; time.sleep(600)"


@pytest.fixture
def platform(small_cluster: LocalCluster, tmp_path: Path) -> Platform:
    return Platform.connect(small_cluster.config, "", str(tmp_path / "work"))


def pod(role: Role, program: str = LONG) -> PodSpec:
    job = evaluator_job(JOB) if role is Role.EVALUATOR else JOB
    return PodSpec(
        name=pod_name(JOB, role), job=job, role=role, command=("python", "-c", program), size=PodSize(0.25, 2**26),
        grace_seconds=0.0,
    )  # fmt: skip


def ended(platform: Platform, status: PodStatus) -> None:
    wait_for(
        lambda: (now := platform.launcher.find(status.job)) and now.phase.is_final, 20, f"the end of {status.name}"
    )


def test_an_evaluator_is_not_listed_as_a_job(platform: Platform) -> None:
    evaluator = platform.launcher.submit(pod(Role.EVALUATOR))
    assert [first.uid for first in platform.launcher.jobs()] == [evaluator.uid]
    assert jobs(platform) == [] and pod_of_master(platform, evaluator_job(JOB)) is None
    assert [found.uid for found in pods_of_job(platform, JOB)] == [evaluator.uid]


def test_an_evaluator_outlives_the_masters_pod_and_ends_with_its_job(
    platform: Platform, small_cluster: LocalCluster
) -> None:
    master, worker = platform.launcher.submit(pod(Role.MASTER)), small_cluster.create(pod(Role.WORKER))
    evaluator = platform.launcher.submit(pod(Role.EVALUATOR))
    assert platform.launcher.remove(JOB) == [master.name, worker.name]
    assert evaluator_state(platform, JOB)[0] is EvaluatorState.RUNNING
    assert remove_job(platform, JOB) == [evaluator.name]
    assert platform.launcher.pods() == []
    assert evaluator_state(platform, JOB) == (EvaluatorState.LOST, "the evaluator pod is gone")


def test_an_evaluator_that_lost_mlflow_is_replaced(platform: Platform) -> None:
    first = platform.launcher.submit(pod(Role.EVALUATOR, f"print('away'); raise SystemExit({EXIT_HISTORY})"))
    ended(platform, first)
    state, words = evaluator_state(platform, JOB)
    assert state is EvaluatorState.WITHOUT_HISTORY and "away" in words
    second = platform.launcher.submit(pod(Role.EVALUATOR))
    assert second.uid != first.uid and second.phase is not PodPhase.FAILED
    assert platform.launcher.submit(pod(Role.EVALUATOR)).uid == second.uid
    assert evaluator_state(platform, JOB)[0] is EvaluatorState.RUNNING


def test_the_log_of_a_master_that_failed_is_kept_when_its_job_is_removed(platform: Platform) -> None:
    master = platform.launcher.submit(pod(Role.MASTER, "print('last word'); raise SystemExit(1)"))
    ended(platform, master)
    assert remove_job(platform, JOB) == [master.name]
    assert "last word" in (Path(platform.work_uri) / "logs" / f"{master.name}.log").read_text()
