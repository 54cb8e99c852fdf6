"""Two teams on one small cluster with real pods: borrowed cores are returned in one round, at the cost of about a
batch.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from elastrec.platform import jobs
from elastrec.platform.clusters.pods import PodPhase, PodStatus
from elastrec.platform.data.generating.generator import GenerateReport
from elastrec.platform.jobs.scaling import rounds as scaling
from elastrec.platform.scaling.across_jobs.quota import POLICY
from elastrec.platform.specs.job import TrainingJob
from elastrec.platform.specs.metrics import Phase, Role, TrainingMetrics
from elastrec.platform.specs.scaling import ScalingSettings, Team
from tests.e2e.conftest import job_content
from tests.processes import private_platform, wait_for

pytestmark = pytest.mark.services

SETTINGS = ScalingSettings(teams={"ads": Team(share=0.6)}, least_steps=20)
BATCH, CORES = 256, 2.2


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[jobs.Platform]:
    with private_platform(tmp_path_factory.mktemp("shares"), cores=CORES) as platform:
        yield platform


def launch(platform: jobs.Platform, log: GenerateReport, team: str, workers: int) -> str:
    content = job_content(
        log,
        training={"batch_size": BATCH, "batches_per_shard": 20, "seed": 1, "epochs": 1000},
        resources={
            "master": {"cores": 0.2, "memory": "512Mi"},
            "worker": {"count": workers, "cores": 0.5, "memory": "2Gi"},
            "parameter_server": {"count": 1, "cores": 0.25, "memory": "1Gi"},
        },
        checkpoint={"interval": "0s"},
    )
    content["metadata"] = {"name": team, "team": team}
    prepared = jobs.prepare(platform, TrainingJob.model_validate(content), jobs.job_id_for(team, "1"))
    jobs.launch(platform, prepared, jobs.warm_start(platform, prepared))
    return prepared.job_id


def now(platform: jobs.Platform, job_id: str) -> TrainingMetrics:
    return jobs.observe(platform, job_id).metrics


def workers_of(platform: jobs.Platform, job_id: str) -> list[PodStatus]:
    return [pod for pod in platform.launcher.pods(job_id) if pod.role is Role.WORKER]


def running(platform: jobs.Platform, job_id: str) -> bool:
    return any(pod.phase is PodPhase.RUNNING for pod in workers_of(platform, job_id))


def training_workers(platform: jobs.Platform, job_id: str) -> int:
    return sum(pod.role is Role.WORKER and pod.samples > 20 * BATCH for pod in now(platform, job_id).pods)


def test_an_owner_gets_its_share_back_within_one_round_and_the_borrower_trains_on(
    platform: jobs.Platform, click_log: GenerateReport
) -> None:
    borrower = launch(platform, click_log, "guest", workers=2)
    wait_for(
        lambda: len(workers_of(platform, borrower)) == 2,
        240,
        "the borrower's pods, which have the room now",
    )
    owner = launch(platform, click_log, "ads", workers=1)
    try:
        wait_for(lambda: training_workers(platform, borrower) == 2, 240, "two workers of the borrower")
        wait_for(lambda: now(platform, owner).reason.count("Unschedulable"), 240, "a pod that waits for room")
        decided, _ = scaling.plan(platform, SETTINGS)
        given = [plan for plan in decided.plans if plan.policy == POLICY]
        assert [(plan.job_id, plan.before.workers, plan.allocation.workers) for plan in given] == [(borrower, 2, 1)]
        assert "ads asks for" in given[0].reason
        assert scaling.apply(platform, given[0]).changed
        wait_for(
            lambda: running(platform, owner) and len(workers_of(platform, borrower)) == 1,
            240,
            "the owner's worker",
        )
        after = now(platform, borrower)
        assert (after.phase, after.generation) == (Phase.TRAINING, 0)
        wait_for(
            lambda: now(platform, borrower).samples_trained > after.samples_trained,
            240,
            "the borrower's next step",
        )
        again, _ = scaling.plan(platform, SETTINGS)
        assert not [plan for plan in again.plans if plan.policy == POLICY], "it gives back once"
        repeated = sum(jobs.ledger(platform, borrower)["repeated"].to_pylist())
        assert repeated <= 2 * BATCH, "more than the batches in flight were trained twice"
    finally:
        for job_id in (owner, borrower):
            jobs.stop(platform, job_id, "the test has seen enough")
