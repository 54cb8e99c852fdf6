"""`daily_retraining` in a whole private stack: real scheduler, triggerer, MLflow, node agent and pods."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from typing import Any
from urllib.parse import quote

import psutil
import pytest
import yaml
from mlflow import MlflowClient
from playwright.sync_api import expect

from elastrec.operators.rest import AirflowApiError, AirflowClient
from elastrec.operators.services import ServiceStack, answers
from elastrec.operators.settings import DAG_ID
from elastrec.platform.clusters.protocol import Cluster, PodStatus
from elastrec.platform.data.generator import GenerateReport
from elastrec.platform.specs.metrics import Role
from tests.e2e.airflow_stack.browser import (
    has_chromium,
    open_dag,
    open_mlflow_from_task,
    shown_artifact,
    shown_metric,
    trigger_by_form,
)
from tests.e2e.airflow_stack.waiting import finished, wait
from tests.e2e.conftest import job_content

STOPPED_SECONDS = 35.0


def job(log: GenerateReport, name: str, **changes: Any) -> dict[str, Any]:
    """One worker and one server: as few processes as a job can have."""
    resources = {"worker": {"memory": "2Gi"}, "parameter_server": {"memory": "1Gi"}, "evaluator": {"memory": "3Gi"}}
    return {**job_content(log, **{"resources": resources, **changes}), "metadata": {"name": name}}


def slow_job(log: GenerateReport, name: str) -> dict[str, Any]:
    """Long enough to be disturbed: many epochs over a small log."""
    training = {"batch_size": 256, "batches_per_shard": 20, "seed": 1, "epochs": 1000}
    return job(log, name, training=training)


def task_state(airflow: AirflowClient, run_id: str, task_id: str) -> str:
    return str(airflow.tasks(DAG_ID, run_id).get(task_id, {}).get("state") or "")


def logs(airflow: AirflowClient, run_id: str, task_id: str) -> str:
    tries = int(airflow.tasks(DAG_ID, run_id)[task_id]["try_number"])
    return "\n".join(airflow.log(DAG_ID, run_id, task_id, number) for number in range(1, tries + 1))


def master(cluster: Cluster, job_id: str) -> PodStatus | None:
    return next((pod for pod in cluster.list(job_id) if pod.role is Role.MASTER), None)


def trained(airflow: AirflowClient, cluster: Cluster, run_id: str) -> str:
    """The id of a run's job as soon as its workers run and its task waits deferred."""

    def ready() -> str:
        prepared = airflow.xcom(DAG_ID, run_id, "prepare_data")
        if not prepared or task_state(airflow, run_id, "offline_phase") != "deferred":
            return ""
        workers = [pod for pod in cluster.list(prepared["job_id"]) if pod.role is Role.WORKER]
        return str(prepared["job_id"]) if workers else ""

    return str(wait(ready, 120, f"the training of {run_id}"))


@pytest.fixture(scope="module")
def good_run(
    stack: ServiceStack,
    airflow: AirflowClient,
    click_log: GenerateReport,
    tmp_path_factory: pytest.TempPathFactory,
) -> str:
    """A run of the DAG that has succeeded; where there is a browser, its form has started it."""
    file = tmp_path_factory.mktemp("job") / "good.yaml"
    file.write_text(yaml.safe_dump(job(click_log, "good")))
    run_id = trigger_by_form(stack, file) if has_chromium() else airflow.trigger(DAG_ID, {"job_file": str(file)})
    assert finished(airflow, DAG_ID, run_id) == "success", logs(airflow, run_id, "offline_phase")
    return run_id


def test_a_triggered_run_trains_evaluates_registers_and_leaves_no_pod(
    stack: ServiceStack, airflow: AirflowClient, cluster: Cluster, click_log: GenerateReport, good_run: str
) -> None:
    run_id = good_run
    metrics = airflow.xcom(DAG_ID, run_id, "offline_phase")
    assert metrics["samples_trained"] == metrics["samples_total"] == sum(day.rows for day in click_log.days[:-1])
    assert metrics["evaluated"] and metrics["auc"] > 0.55
    registered = airflow.xcom(DAG_ID, run_id, "register")
    client = MlflowClient(stack.mlflow_url)
    assert client.get_model_version_by_alias("good", "champion").version == registered["version"]
    launched = airflow.xcom(DAG_ID, run_id, "launch")
    assert client.get_run(launched["run_id"]).info.status == "FINISHED"
    for task_id in ("launch", "offline_phase", "evaluate_and_gate", "register", "finish"):
        assert airflow.xcom(DAG_ID, run_id, task_id, "mlflow_run_url") == launched["run_url"]
    for task_id in ("prepare_data", "warm_start"):
        assert quote(launched["job_id"]) in airflow.xcom(DAG_ID, run_id, task_id, "mlflow_run_url")
    assert "samples/s" in logs(airflow, run_id, "offline_phase")
    assert cluster.list() == []


@pytest.mark.browser
def test_who_starts_a_run_by_the_form_finds_the_models_metrics_behind_the_link(
    stack: ServiceStack, airflow: AirflowClient, good_run: str
) -> None:
    if not has_chromium():
        pytest.skip("left out: there is no Chromium on this machine (apt-get install chromium)")
    conf = airflow.call("GET", f"/dags/{DAG_ID}/dagRuns/{quote(good_run, safe='')}")["conf"]
    assert set(conf) >= {"job_file", "job", "overrides", "start_from"}, "the form sends all of its fields"
    metrics = airflow.xcom(DAG_ID, good_run, "offline_phase")
    with open_dag(stack) as page:
        run = open_mlflow_from_task(stack, page, good_run, "offline_phase")
        expect(run.get_by_text("Finished").first).to_be_visible()
        assert airflow.xcom(DAG_ID, good_run, "launch")["run_id"] in run.url
        assert shown_metric(run, "evaluation/auc") == pytest.approx(metrics["auc"])
        assert shown_metric(run, "evaluation/normalized_entropy") == pytest.approx(metrics["normalized_entropy"])
        assert 0 < shown_metric(run, "total/goodput") <= 1
        story = shown_artifact(run, "explanation.txt")
        assert f"succeeded after {metrics['samples_trained']:,} samples" in story


@contextlib.contextmanager
def stopped(stack: ServiceStack, names: Sequence[str]) -> Iterator[None]:
    """SIGSTOP for services and all that they started; they go on afterwards as if nothing had happened."""
    processes = [psutil.Process(stack.services[name].process.pid) for name in names]
    processes += [child for process in processes for child in process.children(recursive=True)]
    for process in processes:
        process.suspend()
    try:
        yield
    finally:
        for process in processes:
            process.resume()


@pytest.mark.timeout(600)
def test_stopped_and_killed_services_of_airflow_and_a_cleared_task_attach_to_the_same_job(
    stack: ServiceStack, airflow: AirflowClient, cluster: Cluster, click_log: GenerateReport
) -> None:
    run_id = airflow.trigger(DAG_ID, {"job": slow_job(click_log, "disturbed")})
    job_id = trained(airflow, cluster, run_id)
    before = master(cluster, job_id)
    assert before is not None
    wait(lambda: "samples/s" in first_try(airflow, run_id), 60, "the triggerer to watch the job")
    # `core` and `execution` are the api-servers, for people and for tasks.
    killed = ("triggerer", "scheduler", "core", "execution")
    with stopped(stack, killed):
        # Longer than Airflow waits for the life sign of a service.
        time.sleep(STOPPED_SECONDS)
    said = first_try(airflow, run_id)
    wait(lambda: len(first_try(airflow, run_id)) > len(said), 60, "the triggerer to go on watching")
    assert first_try(airflow, run_id).count("starting") == 1
    for name in killed:
        stack.kill(name)
    for name in killed:
        stack.start_airflow(name)
    wait(lambda: answers(f"{stack.airflow_url}/api/v2/monitor/health"), 120, "the api-server")
    wait(lambda: first_try(airflow, run_id).count("starting") == 2, 90, "the new triggerer to do so")
    airflow.clear(DAG_ID, run_id, ["offline_phase"])
    # A triggerer that is asked for the first time loads all of Airflow's API: half a minute on a busy machine.
    wait(lambda: "left running" in first_try(airflow, run_id), 150, "the first trigger to be told of the clear")
    wait(lambda: attempts(airflow, run_id) == 2, 90, "the second try")
    wait(lambda: task_state(airflow, run_id, "offline_phase") == "deferred", 90, "the second try to wait")
    after = master(cluster, job_id)
    assert after is not None
    assert (after.uid, after.restarts) == (before.uid, before.restarts)
    assert {pod.job for pod in cluster.list()} == {job_id}

    airflow.set_task_state(DAG_ID, run_id, "offline_phase", "failed")
    wait(lambda: cluster.list() == [], 60, "the end of the pods of a task that was marked failed")
    assert finished(airflow, DAG_ID, run_id) == "failed"


def attempts(airflow: AirflowClient, run_id: str) -> int:
    return int(airflow.tasks(DAG_ID, run_id)["offline_phase"]["try_number"])


def first_try(airflow: AirflowClient, run_id: str) -> str:
    return airflow.log(DAG_ID, run_id, "offline_phase", 1)


def test_a_bug_in_the_users_model_fails_the_task_once_with_its_traceback_in_the_log(
    airflow: AirflowClient, cluster: Cluster, click_log: GenerateReport
) -> None:
    model = {"architecture": "broken_model:Broken", "embedding_dimension": 8, "options": {}}
    run_id = airflow.trigger(DAG_ID, {"job": job(click_log, "broken", model=model)})
    assert finished(airflow, DAG_ID, run_id) == "failed"
    said = logs(airflow, run_id, "offline_phase")
    assert "ZeroDivisionError: a bug in the user's model" in said
    assert "broken_model.py" in said
    tasks = airflow.tasks(DAG_ID, run_id)
    assert tasks["offline_phase"]["try_number"] == 1
    assert tasks["finish"]["state"] == "success"
    assert cluster.list() == []


def test_a_job_that_cannot_run_is_refused_before_anything_starts(
    airflow: AirflowClient, click_log: GenerateReport
) -> None:
    with pytest.raises(AirflowApiError, match="'modle' was unexpected"):
        airflow.trigger(DAG_ID, {"job": {"spec": {"modle": {}}}})
    overrides = {"spec.model.options": {"no_such_option": 1}, "spec.resources.worker.cores": 1000}
    run_id = airflow.trigger(DAG_ID, {"job": job(click_log, "refused"), "overrides": overrides})
    assert finished(airflow, DAG_ID, run_id) == "failed"
    assert "spec.resources.worker.cores" in logs(airflow, run_id, "prepare_data")
    tasks = airflow.tasks(DAG_ID, run_id)
    assert tasks["prepare_data"]["try_number"] == 1
    assert tasks["launch"]["state"] == "upstream_failed"


def test_a_new_day_of_the_click_log_starts_the_run_of_its_days_once(airflow: AirflowClient) -> None:
    airflow.unpause("click_log_arrived")
    asset = airflow.call("GET", "/assets?name_pattern=click_log")["assets"][0]["id"]
    for _ in range(2):
        airflow.call("POST", "/assets/events", {"asset_id": asset, "partition_key": "2026-01-03"})

    def runs() -> list[dict[str, Any]]:
        found = airflow.call("GET", f"/dags/{DAG_ID}/dagRuns?limit=100")["dag_runs"]
        return [run for run in found if run["logical_date"] and run["logical_date"].startswith("2026-01-04T02:00:00")]

    (run,) = wait(runs, 60, "the run of the new day")
    assert run["conf"]["interval_start"].startswith("2026-01-02")
    assert run["conf"]["interval_end"].startswith("2026-01-03")
    assert finished(airflow, DAG_ID, run["dag_run_id"]) == "failed", "there is no log of these days"
