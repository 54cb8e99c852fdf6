"""`daily_retraining` in a complete private stack: real scheduler, triggerer, MLflow, node agent and pods."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psutil
import pytest
import yaml
from mlflow import MlflowClient
from playwright.sync_api import expect

from elastrec.checkpoints import list_records
from elastrec.operators.settings import DAG_ID, JOB_FILE_VARIABLE
from elastrec.platform.clusters.pods import PodStatus
from elastrec.platform.clusters.protocol import Launcher
from elastrec.platform.data.generating.generator import GenerateReport
from elastrec.platform.specs.metrics import Role
from tests.e2e.airflow_stack.browser import (
    has_chromium,
    open_dag,
    open_mlflow_from_task,
    open_training_jobs,
    shown_artifact,
    shown_metric,
    trigger_by_form,
)
from tests.e2e.airflow_stack.conftest import BARE_DAG
from tests.e2e.airflow_stack.waiting import finished, run_states, wait
from tests.e2e.conftest import job_content
from tools.stack.rest import AirflowApiError, AirflowClient
from tools.stack.services import ServiceStack, answers

STOPPED_SECONDS = 35.0
pytestmark = [pytest.mark.services, pytest.mark.timeout(1800)]


def job(log: GenerateReport, name: str, **changes: Any) -> dict[str, Any]:
    """One worker and one server: as few processes as a job can have."""
    resources = {"worker": {"memory": "2Gi"}, "parameter_server": {"memory": "1Gi"}, "evaluator": {"memory": "3Gi"}}
    return {**job_content(log, **{"resources": resources, **changes}), "metadata": {"name": name}}


def slow_job(log: GenerateReport, name: str) -> dict[str, Any]:
    """Long enough to be disturbed: many epochs over a small log."""
    training = {"batch_size": 256, "batches_per_shard": 20, "seed": 1, "epochs": 1000}
    return job(log, name, training=training)


def logs(airflow: AirflowClient, run_id: str, task_id: str) -> str:
    tries = int(airflow.tasks(DAG_ID, run_id)[task_id]["try_number"])
    return "\n".join(airflow.log(DAG_ID, run_id, task_id, number) for number in range(1, tries + 1))


def master(launcher: Launcher, job_id: str) -> PodStatus | None:
    return next((pod for pod in launcher.pods(job_id) if pod.role is Role.MASTER), None)


def trained(airflow: AirflowClient, launcher: Launcher, run_id: str, dag_id: str = DAG_ID) -> str:
    """The id of a run's job as soon as its workers run and its task waits deferred."""

    def observe() -> tuple[str, dict[str, str], list[str]]:
        prepared = airflow.xcom(dag_id, run_id, "prepare_data")
        job_id = str(prepared["job_id"]) if prepared else ""
        pods = [f"{pod.name} {pod.phase}" for pod in launcher.pods(job_id) if pod.role is Role.WORKER] if job_id else []
        return job_id, run_states(airflow, dag_id, run_id), pods

    def is_ready(seen: tuple[str, dict[str, str], list[str]]) -> bool:
        _, states, workers = seen
        assert states[run_id] not in ("success", "failed"), states
        return states.get("offline_phase", "").startswith("deferred") and bool(workers)

    return wait(observe, f"the training of {run_id}", is_ready)[0]


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
    stack: ServiceStack, airflow: AirflowClient, launcher: Launcher, click_log: GenerateReport, good_run: str
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
    assert launcher.pods() == []


@pytest.mark.browser
def test_a_run_started_by_the_form_links_to_the_models_metrics(
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
        assert 0 < shown_metric(run, "job/goodput") <= 1
        story = shown_artifact(run, "explanation.txt")
        assert f"succeeded after {metrics['samples_trained']:,} samples" in story


@pytest.mark.browser
def test_the_page_of_all_jobs_shows_the_run_and_its_events(
    stack: ServiceStack, airflow: AirflowClient, good_run: str
) -> None:
    if not has_chromium():
        pytest.skip("left out: there is no Chromium on this machine (apt-get install chromium)")
    job_id = airflow.xcom(DAG_ID, good_run, "launch")["job_id"]
    auc = airflow.xcom(DAG_ID, good_run, "evaluate_and_gate")["candidate"]["auc"]
    with open_dag(stack) as page:
        jobs = open_training_jobs(stack, page)
        line = jobs.locator("#recent tr", has_text=job_id)
        expect(line).to_contain_text("Succeeded")
        expect(line).to_contain_text(f"{auc:.4f}")
        expect(line.get_by_role("link", name="DAG run")).to_have_attribute("href", re.compile(f"/dags/{DAG_ID}/runs/"))
        log_url = line.get_by_role("link", name="Task's log").get_attribute("href")
        assert log_url is not None and f"/runs/{quote(good_run)}/tasks/offline_phase?try_number=1" in log_url
        line.get_by_role("link", name=job_id).click()
        expect(jobs.locator("#timeline")).to_contain_text("succeeded")
        expect(jobs.locator("#time")).to_contain_text("training")
        expect(jobs.get_by_role("img", name="Samples per second")).to_be_visible()
        page.goto(log_url)
        expect(page.get_by_text("watching job").first).to_be_visible()


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


def test_stopped_and_killed_services_of_airflow_and_a_cleared_task_attach_to_the_same_job(
    stack: ServiceStack, airflow: AirflowClient, launcher: Launcher, click_log: GenerateReport
) -> None:
    run_id = airflow.trigger(DAG_ID, {"job": slow_job(click_log, "disturbed")})
    job_id = trained(airflow, launcher, run_id)
    before = master(launcher, job_id)
    assert before is not None
    wait(lambda: first_try(airflow, run_id), "the triggerer to watch the job", lambda said: "samples/s" in said)
    # `core` and `execution` are the api-servers, for people and for tasks.
    killed = ("triggerer", "scheduler", "core", "execution")
    with stopped(stack, killed):
        # Longer than Airflow waits for the heartbeat of a service.
        time.sleep(STOPPED_SECONDS)
    before_stop = first_try(airflow, run_id)
    wait(
        lambda: first_try(airflow, run_id),
        "the triggerer to go on watching",
        lambda said: len(said) > len(before_stop),
    )
    assert first_try(airflow, run_id).count("starting") == 1
    for name in killed:
        stack.kill(name)
    for name in killed:
        stack.start_airflow(name)
    wait(lambda: answers(f"{stack.airflow_url}/api/v2/monitor/health"), "the api-server")
    wait(lambda: first_try(airflow, run_id), "the new triggerer to do so", lambda said: said.count("starting") == 2)
    airflow.clear(DAG_ID, run_id, ["offline_phase"])
    wait(
        lambda: first_try(airflow, run_id),
        "the first trigger's decision about the clear",
        lambda said: "left running" in said,
    )
    wait(
        lambda: run_states(airflow, DAG_ID, run_id),
        "the second try to wait",
        lambda states: states["offline_phase"] == "deferred (try 2)",
    )
    after = master(launcher, job_id)
    assert after is not None
    assert (after.uid, after.restarts) == (before.uid, before.restarts)
    assert {pod.job for pod in launcher.pods()} == {job_id}

    airflow.set_task_state(DAG_ID, run_id, "offline_phase", "failed")
    wait(launcher.pods, "the end of the pods of a task that was marked failed", lambda pods: not pods)
    assert finished(airflow, DAG_ID, run_id) == "failed"

    # Cleared once more, it does not begin anew. Airflow clears the set-up task with it, which launches the job.
    store = airflow.xcom(DAG_ID, run_id, "prepare_data")["training_job"]["spec"]["checkpoint"]["store"]
    (newest, _), *_ = list_records(store, "disturbed", job_id)
    airflow.clear(DAG_ID, run_id, ["offline_phase"])
    wait(
        lambda: logs(airflow, run_id, "launch"),
        "the launch to go on from the newest record",
        lambda said: f"continues from {newest} at " in said,
    )
    wait(
        lambda: run_states(airflow, DAG_ID, run_id),
        "the third try to wait",
        lambda states: states["offline_phase"] == "deferred (try 3)",
    )
    airflow.set_task_state(DAG_ID, run_id, "offline_phase", "failed")
    wait(launcher.pods, "the end of the pods", lambda pods: not pods)
    assert finished(airflow, DAG_ID, run_id) == "failed"


def test_marking_a_mapped_task_failed_stops_its_job_even_with_a_cold_triggerer(
    stack: ServiceStack, airflow: AirflowClient, launcher: Launcher, click_log: GenerateReport
) -> None:
    run_id = airflow.trigger(BARE_DAG, {"job": slow_job(click_log, "bare")})
    job_id = trained(airflow, launcher, run_id, BARE_DAG)

    def log() -> str:
        return airflow.log(BARE_DAG, run_id, "offline_phase", 1, map_index=0)

    wait(log, "the triggerer to watch the job", lambda said: "samples/s" in said)
    stack.kill("triggerer")
    stack.start_airflow("triggerer")
    wait(log, "the new triggerer to do so", lambda said: said.count("starting") == 2)
    assert {pod.job for pod in launcher.pods()} == {job_id}
    airflow.set_task_state(BARE_DAG, run_id, "offline_phase", "failed", map_index=0)
    wait(launcher.pods, "the end of the job's pods", lambda pods: not pods)
    wait(log, "the decision in the task's log", lambda said: f"job {job_id} was stopped" in said)


def first_try(airflow: AirflowClient, run_id: str) -> str:
    return airflow.log(DAG_ID, run_id, "offline_phase", 1)


def test_a_bug_in_the_users_model_fails_the_task_once_with_its_traceback_in_the_log(
    airflow: AirflowClient, launcher: Launcher, click_log: GenerateReport
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
    assert launcher.pods() == []


def test_a_job_that_cannot_run_is_refused_before_anything_starts(
    airflow: AirflowClient, click_log: GenerateReport
) -> None:
    with pytest.raises(AirflowApiError, match="'sepc' was unexpected"):
        airflow.trigger(DAG_ID, {"job": {"sepc": {"model": {}}}})
    overrides = {"spec.model.options": {"no_such_option": 1}, "spec.resources.worker.cores": 1000}
    run_id = airflow.trigger(DAG_ID, {"job": job(click_log, "refused"), "overrides": overrides})
    assert finished(airflow, DAG_ID, run_id) == "failed"
    assert "spec.resources.worker.cores" in logs(airflow, run_id, "prepare_data")
    tasks = airflow.tasks(DAG_ID, run_id)
    assert tasks["prepare_data"]["try_number"] == 1
    assert tasks["launch"]["state"] == "upstream_failed"


@pytest.fixture
def job_of_the_variable(airflow: AirflowClient, click_log: GenerateReport, tmp_path: Path) -> Iterator[None]:
    """The job file of runs that name none."""
    file = tmp_path / "arrived.yaml"
    file.write_text(yaml.safe_dump(job(click_log, "arrived")))
    airflow.call("POST", "/variables", {"key": JOB_FILE_VARIABLE, "value": str(file)})
    yield
    airflow.call("DELETE", f"/variables/{JOB_FILE_VARIABLE}")


@pytest.mark.usefixtures("job_of_the_variable")
def test_a_new_day_of_the_click_log_starts_one_run_with_the_job_file_of_the_variable(
    airflow: AirflowClient, click_log: GenerateReport
) -> None:
    airflow.unpause("click_log_arrived")
    asset = airflow.call("GET", "/assets?name_pattern=click_log")["assets"][0]["id"]
    for _ in range(2):
        airflow.call("POST", "/assets/events", {"asset_id": asset, "partition_key": "2026-01-03"})

    def runs() -> list[dict[str, Any]]:
        found = airflow.call("GET", f"/dags/{DAG_ID}/dagRuns?limit=100")["dag_runs"]
        return [run for run in found if run["logical_date"] and run["logical_date"].startswith("2026-01-04T02:00:00")]

    (run,) = wait(runs, "the run of the new day")
    assert run["conf"] == {"evaluation_day": "2026-01-03"}
    assert finished(airflow, DAG_ID, run["dag_run_id"]) == "success", logs(airflow, run["dag_run_id"], "offline_phase")
    trained = airflow.xcom(DAG_ID, run["dag_run_id"], "offline_phase")
    assert (trained["samples_trained"], trained["evaluation_samples"]) == tuple(day.rows for day in click_log.days[1:])


def test_a_run_without_a_job_or_with_an_unknown_key_fails_with_the_remedy(airflow: AirflowClient) -> None:
    for conf, words in (({}, JOB_FILE_VARIABLE), ({"jobfile": "mine.yaml"}, "did you mean 'job_file'")):
        run_id = airflow.trigger(DAG_ID, conf)
        assert finished(airflow, DAG_ID, run_id) == "failed"
        assert words in logs(airflow, run_id, "prepare_data")
        assert airflow.tasks(DAG_ID, run_id)["prepare_data"]["try_number"] == 1
