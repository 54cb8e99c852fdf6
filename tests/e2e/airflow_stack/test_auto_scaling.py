"""The DAG `auto_scaling` in a whole private stack: a job that is too small grows while it trains, and gets faster."""

from __future__ import annotations

import statistics
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pytest
from mlflow import MlflowClient

from elastrec.platform import jobs
from elastrec.platform.data.generating.generator import GenerateReport
from elastrec.platform.history import metric_names as names
from elastrec.platform.jobs.scaling.masters import ask_profile
from elastrec.platform.specs.job import TrainingJob
from elastrec.platform.specs.metrics import Phase, Role, TrainingMetrics
from tests.e2e.airflow_stack.conftest import LEAST_STEPS
from tests.e2e.airflow_stack.waiting import finished, wait
from tests.e2e.conftest import job_content
from tools.stack.rest import AirflowClient
from tools.stack.services import ServiceStack

DAG = "auto_scaling"
BATCH = 256
MOST_WORKERS, MOST_ROUNDS = 4, 3
FASTER, WINDOWS = 1.2, 3
"""By which factor a job that has grown must be faster, in the median of so many windows of its metrics."""
pytestmark = [pytest.mark.services, pytest.mark.timeout(1800)]


@pytest.fixture(scope="module", autouse=True)
def scheduled(airflow: AirflowClient) -> Iterator[None]:
    airflow.unpause(DAG)
    yield
    # Its schedule must not scale the jobs of other tests.
    airflow.pause(DAG)


@pytest.fixture(scope="module")
def platform(stack: ServiceStack) -> jobs.Platform:
    return jobs.Platform.connect(stack.cluster_config(), stack.mlflow_url, str(stack.home / "work"))


class Watched:
    """What a job said of itself, several times a second, from its first trained sample to its last."""

    def __init__(self, platform: jobs.Platform, job_id: str) -> None:
        self.seen: list[TrainingMetrics] = []
        self._platform, self._job_id = platform, job_id
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        while not self._stopped.wait(0.25):
            metrics = jobs.observe(self._platform, self._job_id).metrics
            if metrics.samples_trained:
                self.seen.append(metrics)

    @property
    def last(self) -> TrainingMetrics | None:
        return self.seen[-1] if self.seen else None

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join()


def instances(airflow: AirflowClient, run_id: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = airflow.call("GET", f"/dags/{DAG}/dagRuns/{run_id}/taskInstances")["task_instances"]
    return found


def working_pods(metrics: TrainingMetrics) -> int:
    """Workers that have trained, and parameter servers that are up."""
    servers = sum(pod.role == Role.PARAMETER_SERVER and pod.state == "Running" for pod in metrics.pods)
    return working_workers(metrics) + servers


def working_workers(metrics: TrainingMetrics) -> int:
    """Workers that have trained."""
    return sum(pod.role == Role.WORKER and pod.samples > 0 for pod in metrics.pods)


def speeds(seen: list[TrainingMetrics], *, grown: bool) -> list[float]:
    """Samples per second of every window with one pod of each role, or with more."""
    found = [each.samples_per_second for each in seen if (working_pods(each) > 2) == grown]
    # The job is looked at several times in each window.
    return [speed for speed in dict.fromkeys(found) if speed > 0]


def is_profiled(platform: jobs.Platform, job_id: str) -> bool:
    profile = ask_profile(platform, job_id)
    if profile is None or not profile.is_settled:
        return False
    return any(
        each.configuration == profile.configuration and each.steps_ever >= LEAST_STEPS for each in profile.measured
    )


def rounds_that_decide_about(airflow: AirflowClient, job_id: str) -> tuple[str, str]:
    """Two rounds triggered at once, the first of which had a plan for the job.

    A round leaves a job alone while a pod of it is being replaced or its master is slow to answer; the next decides.
    """
    logs = []
    for _ in range(3):
        first, second = airflow.trigger(DAG, {}), airflow.trigger(DAG, {})
        assert finished(airflow, DAG, first) == finished(airflow, DAG, second) == "success"
        mapped = [task for task in instances(airflow, first) if task["task_id"] == "migrate"]
        if [task["rendered_map_index"].partition(":")[0] for task in mapped] == [job_id]:
            return first, second
        logs.append(airflow.log(DAG, first, "plan", 1))
    raise AssertionError(f"no round decided about {job_id}:\n" + "\n".join(logs))


def test_with_no_job_a_round_ends_at_its_first_task(airflow: AirflowClient) -> None:
    run_id = airflow.trigger(DAG, {})
    assert finished(airflow, DAG, run_id) == "success"
    assert {task["state"] for task in instances(airflow, run_id)} == {"skipped"}


def test_a_job_of_one_worker_grows_within_three_rounds_and_is_faster_and_no_row_is_trained_twice(
    stack: ServiceStack, airflow: AirflowClient, platform: jobs.Platform, click_log: GenerateReport
) -> None:
    # All of its workers together are within what a machine of two cores has beside the stack.
    small = {"count": 1, "cores": 0.2, "memory": "2Gi"}
    content = job_content(
        click_log,
        training={"batch_size": BATCH, "batches_per_shard": 20, "seed": 1, "epochs": 1000},
        resources={"worker": small, "parameter_server": {"count": 1, "cores": 0.5, "memory": "1Gi"}},
        checkpoint={"interval": "0s"},
        scaling={"maximum_workers": MOST_WORKERS, "maximum_parameter_servers": 2},
    )
    job_id = jobs.job_id_for("small", "scaled")
    prepared = jobs.prepare(platform, TrainingJob.model_validate(content), job_id)
    launched = jobs.launch(platform, prepared, jobs.warm_start(platform, prepared))
    watched, history = Watched(platform, job_id), MlflowClient(stack.mlflow_url)
    try:
        wait(lambda: watched.last and is_profiled(platform, job_id), "enough steps to decide by")
        first, second = rounds_that_decide_about(airflow, job_id)
        # One round at a time: the second began when the first one had ended.
        begun = [task["start_date"] for task in instances(airflow, second) if task["start_date"]]
        assert min(begun) >= max(task["end_date"] for task in instances(airflow, first))
        output = airflow.xcom(DAG, first, "migrate", map_index=0)
        assert output["migrated"] and output["pause_seconds"] is not None, output
        assert "→" in output["chosen"] and " candidate" in output["proposed"]
        slow = statistics.median(speeds(watched.seen, grown=False))
        wait(
            lambda: speeds(watched.seen, grown=True)[-WINDOWS:],
            f"{FASTER} times the {slow:,.0f} samples per second of one worker",
            lambda windows: len(windows) == WINDOWS and statistics.median(windows) > FASTER * slow,
        )
        changed = [point.value for point in history.get_metric_history(launched.run_id, names.SCALING_CHANGED)]
        assert 1 < working_workers(watched.seen[-1]) <= MOST_WORKERS
        ledger = jobs.ledger(platform, job_id)
    finally:
        watched.stop()
        jobs.stop(platform, job_id, "the test has seen enough")
    assert changed[0] == 1.0 and len(changed) <= MOST_ROUNDS, "rounds that decided about the job"
    pictures = {each.path for each in history.list_artifacts(launched.run_id, "figures")}
    assert {"figures/throughput.png", "figures/scaling_candidates.png"} <= pictures
    report = Path(history.download_artifacts(launched.run_id, "report.html")).read_text()
    assert "What could have been done" in report, "why the plan was made"
    assert {seen.phase for seen in watched.seen} == {Phase.TRAINING}, "training paused"
    assert sum(pod.role == Role.WORKER for pod in watched.seen[0].pods) == 1 and watched.seen[-1].generation == 0
    done = ledger.filter(pc.equal(ledger["outcome"], "done"))
    assert done.num_rows > 0 and sum(ledger["repeated"].to_pylist()) == 0
    assert len({*zip(*(done[name].to_pylist() for name in ("epoch", "shard")), strict=True)}) == done.num_rows
