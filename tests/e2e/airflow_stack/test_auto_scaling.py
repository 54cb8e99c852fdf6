"""The DAG `auto_scaling` in a complete private stack: a job that is too small grows during training and gets faster."""

from __future__ import annotations

import statistics
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pytest
import yaml
from mlflow import MlflowClient

from elastrec.platform import jobs
from elastrec.platform.data.generating.generator import GenerateReport
from elastrec.platform.history import metric_names as names
from elastrec.platform.history.decisions import Decisions
from elastrec.platform.jobs.scaling.masters import ask_profile
from elastrec.platform.specs.job import TrainingJob
from elastrec.platform.specs.metrics import Phase, Role, TrainingMetrics
from tests.e2e.airflow_stack.conftest import LEAST_STEPS
from tests.e2e.airflow_stack.waiting import finished, wait
from tests.e2e.conftest import job_content
from tools.stack.rest import AirflowClient
from tools.stack.services import ServiceStack, default_dags_folder

DAG = "auto_scaling"
MOST_ROUNDS = 3
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


def demo_spec() -> dict[str, Any]:
    """`spec` of the demo's job, without its data."""
    content = yaml.safe_load((default_dags_folder() / "jobs" / "demo.yaml").read_text())["spec"]
    return {name: section for name, section in content.items() if name != "data"}


def migrations(airflow: AirflowClient, run_id: str, job_id: str) -> list[dict[str, Any]]:
    """A round's tasks that change the job."""
    mapped = [task for task in instances(airflow, run_id) if task["task_id"] == "migrate" and task["map_index"] >= 0]
    return [task for task in mapped if (task["rendered_map_index"] or "").partition(":")[0] == job_id]


def rounds_up_to_a_plan(airflow: AirflowClient, job_id: str) -> tuple[list[str], str]:
    """Runs rounds until one has a plan for the job; the first two are triggered at the same time.

    A round ignores a job while one of its pods is being replaced, or if its master answers too late; then the next
    round decides. The DAG's schedule may have started a round before the first of them.

    Returns:
        The rounds that were triggered, and the one with the plan, which may be of the schedule.
    """
    triggered = [airflow.trigger(DAG, {}), airflow.trigger(DAG, {})]
    while True:
        assert {finished(airflow, DAG, run_id) for run_id in triggered} == {"success"}
        decided = [run_id for run_id in airflow.runs(DAG) if migrations(airflow, run_id, job_id)]
        if decided:
            return triggered, decided[0]
        logs = [airflow.log(DAG, run_id, "plan", 1) for run_id in triggered]
        assert len(triggered) < MOST_ROUNDS, f"no round decided about {job_id}:\n" + "\n".join(logs)
        triggered.append(airflow.trigger(DAG, {}))


def test_with_no_job_a_round_ends_at_its_first_task(airflow: AirflowClient) -> None:
    run_id = airflow.trigger(DAG, {})
    assert finished(airflow, DAG, run_id) == "success"
    assert {task["state"] for task in instances(airflow, run_id)} == {"skipped"}


def test_a_job_of_one_worker_grows_within_three_rounds_and_is_faster_and_no_row_is_trained_twice(
    stack: ServiceStack, airflow: AirflowClient, platform: jobs.Platform, click_log: GenerateReport
) -> None:
    """The job has the model, the pods and the limits of the demo.

    It is slow because of the CPU limit of its only worker, a fifth of a core. Four such workers and two servers fit on
    a machine of two cores, beside the stack.
    """
    demo = demo_spec()
    training = demo["training"] | {"batches_per_shard": 10, "epochs": 1000}
    content = job_content(click_log, **demo | {"training": training, "checkpoint": {"interval": "0s"}})
    most_workers = demo["scaling"]["maximum_workers"]
    job_id = jobs.job_id_for("small", "scaled")
    prepared = jobs.prepare(platform, TrainingJob.model_validate(content), job_id)
    launched = jobs.launch(platform, prepared, jobs.warm_start(platform, prepared))
    watched, history = Watched(platform, job_id), MlflowClient(stack.mlflow_url)
    try:
        wait(lambda: watched.last and is_profiled(platform, job_id), "enough steps to decide by")
        (first, second, *_), decided = rounds_up_to_a_plan(airflow, job_id)
        # One round at a time: the second began when the first one had ended.
        begun = [task["start_date"] for task in instances(airflow, second) if task["start_date"]]
        assert min(begun) >= max(task["end_date"] for task in instances(airflow, first) if task["end_date"])
        (shown,) = [task["rendered_map_index"] for task in migrations(airflow, decided, job_id)]
        output = airflow.xcom(DAG, decided, "migrate", map_index=0)
        assert output["migrated"] and output["pause_seconds"] is not None, output
        assert "→" in output["chosen"] and " candidate" in output["proposed"]
        assert f"; {output['chosen']}; migrated, pause " in shown, "the grid"
        slow = statistics.median(speeds(watched.seen, grown=False))
        wait(
            lambda: speeds(watched.seen, grown=True)[-WINDOWS:],
            f"{FASTER} times the {slow:,.0f} samples per second of one worker",
            lambda windows: len(windows) == WINDOWS and statistics.median(windows) > FASTER * slow,
        )
        changed = [point.value for point in history.get_metric_history(launched.run_id, names.SCALING_CHANGED)]
        plan = Decisions(stack.mlflow_url, "", "").decisions(launched.run_id)[0]
        assert 1 < working_workers(watched.seen[-1]) <= most_workers
        ledger = jobs.ledger(platform, job_id)
    finally:
        watched.stop()
        jobs.stop(platform, job_id, "the test has seen enough")
    assert changed[0] == 1.0 and len(changed) <= len(airflow.runs(DAG)), "rounds that decided about the job"
    assert plan.changed and plan.before.workers == 1 < plan.after.workers <= most_workers
    assert output["chosen"].startswith(f"1 → {plan.after.workers} workers"), "MLflow and the grid show one plan"
    pictures = {each.path for each in history.list_artifacts(launched.run_id, "figures")}
    assert {"figures/throughput.png", "figures/scaling_candidates.png"} <= pictures
    report = Path(history.download_artifacts(launched.run_id, "report.html")).read_text()
    assert "What could have been done" in report, "why the plan was made"
    assert {seen.phase for seen in watched.seen} == {Phase.TRAINING}, "training paused"
    assert sum(pod.role == Role.WORKER for pod in watched.seen[0].pods) == 1 and watched.seen[-1].generation == 0
    done = ledger.filter(pc.equal(ledger["outcome"], "done"))
    assert done.num_rows > 0 and sum(ledger["repeated"].to_pylist()) == 0
    assert len({*zip(*(done[name].to_pylist() for name in ("epoch", "shard")), strict=True)}) == done.num_rows
