"""A job that was measured while other processes used the cores of its worker gets the same plan as an undisturbed one.

Both train at the same time, so that the tests beside them disturb both.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from elastrec.platform import jobs
from elastrec.platform.data.generating.generator import GenerateReport
from elastrec.platform.jobs.scaling import rounds as scaling
from elastrec.platform.jobs.scaling.masters import ask_profile
from elastrec.platform.scaling.types import Proposal
from elastrec.platform.specs.job import TrainingJob
from elastrec.platform.specs.metrics import PERIOD_SECONDS, SHIFT
from elastrec.platform.specs.scaling import ScalingSettings
from elastrec.platform.transport.messages.profile import Measured
from tests.e2e.conftest import job_content
from tests.processes import pod_processes, private_platform, wait_for

pytestmark = pytest.mark.services

SETTINGS = ScalingSettings(least_steps=20)
BUSY_PROCESSES, MOST_WORKERS = 7, 4
NEAR = 1.3
"""Factor between two equal jobs on a machine that runs other tests."""
_BUSY = "import sys\nopen(sys.argv[1], 'w').write('0')\nprint(flush=True)\nwhile True: pass"


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("interference")


@pytest.fixture(scope="module")
def platform(home: Path) -> Iterator[jobs.Platform]:
    with private_platform(home, cores=4.0) as platform:
        yield platform


def launch(platform: jobs.Platform, log: GenerateReport, name: str) -> str:
    content = job_content(
        log,
        training={"batch_size": 256, "batches_per_shard": 20, "seed": 1, "epochs": 1000},
        resources={
            "master": {"cores": 0.2, "memory": "512Mi"},
            "worker": {"count": 1, "cores": 0.25, "memory": "2Gi"},
            "parameter_server": {"count": 1, "cores": 0.2, "memory": "1Gi"},
        },
        checkpoint={"interval": "0s"},
        scaling={"maximum_workers": MOST_WORKERS},
    )
    content["metadata"] = {"name": name}
    prepared = jobs.prepare(platform, TrainingJob.model_validate(content), jobs.job_id_for(name, "1"))
    jobs.launch(platform, prepared, jobs.warm_start(platform, prepared))
    return prepared.job_id


def cpu_group(pid: int) -> Path:
    """The `cgroup.procs` of the group whose CPU limit holds for a process."""
    for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if "cpu" in controllers.split(",") or not controllers:
            file = Path("/sys/fs/cgroup", "cpu" if controllers else "", path.lstrip("/"), "cgroup.procs")
            if path != "/" and file.exists():
                return file
    raise AssertionError(f"process {pid} has no limit of CPU")


@contextlib.contextmanager
def busy_processes(pid: int) -> Iterator[None]:
    """Processes that share the cores of a pod with its process."""
    command = [sys.executable, "-c", _BUSY, str(cpu_group(pid))]
    started = [subprocess.Popen(command, stdout=subprocess.PIPE) for _ in range(BUSY_PROCESSES)]
    try:
        for process in started:
            assert process.stdout is not None
            process.stdout.readline()
        yield
    finally:
        for process in started:
            process.kill()
            process.communicate()


def measured(platform: jobs.Platform, job_id: str) -> Measured | None:
    """The steps of the job's only size."""
    profile = ask_profile(platform, job_id)
    return profile.measured[0] if profile is not None and profile.measured else None


def step_seconds(platform: jobs.Platform, job_id: str) -> float:
    found = measured(platform, job_id)
    assert found is not None and found.steps
    return found.worker_seconds / found.steps


def worked(platform: jobs.Platform, job_id: str, seconds: float) -> bool:
    """Whether the job was measured for so long."""
    found = measured(platform, job_id)
    return found is not None and found.worker_seconds > seconds


def test_a_job_that_was_measured_under_interference_recovers(
    platform: jobs.Platform, home: Path, click_log: GenerateReport
) -> None:
    disturbed, twin = (launch(platform, click_log, name) for name in ("disturbed", "twin"))
    try:
        for job_id in (disturbed, twin):
            wait_for(lambda job_id=job_id: worked(platform, job_id, 0.0), 240, f"steps of {job_id}")
        (worker,) = pod_processes(disturbed, "worker", home)
        with busy_processes(worker.pid):
            wait_for(lambda: worked(platform, disturbed, 1.5 * PERIOD_SECONDS), 120, "measurements of slow steps")
            slow, usual = (step_seconds(platform, job_id) for job_id in (disturbed, twin))
            assert slow > NEAR * SHIFT * usual, "the processes did not disturb"
        wait_for(
            lambda: step_seconds(platform, disturbed) < NEAR * step_seconds(platform, twin), 4 * PERIOD_SECONDS,
            "the disturbed steps do not count any more",
        )  # fmt: skip
        decided, left_alone = scaling.plan(platform, SETTINGS)
        assert not left_alone
        proposals: dict[str, Proposal] = {each.job_id: each for each in decided.proposals}
        speeds = [proposals[job_id].samples_per_second for job_id in (disturbed, twin)]
        assert max(speeds) < NEAR * min(speeds), "the fitted models"
        plans = {each.job_id: each for each in decided.plans}
        sizes = [plans[job_id].allocation.workers for job_id in (disturbed, twin)]
        assert 1 < sizes[0] == sizes[1] <= MOST_WORKERS
        assert scaling.apply(platform, plans[disturbed]).changed
    finally:
        for job_id in (disturbed, twin):
            jobs.stop(platform, job_id, "the test has seen enough")
