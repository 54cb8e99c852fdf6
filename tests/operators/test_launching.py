"""Operators that prepare and launch a job: their calls of the platform, their output, and their failures."""

from __future__ import annotations

from typing import Any

import pytest
from airflow.sdk import DAG
from airflow.sdk.exceptions import AirflowFailException, TaskDeferred

from elastrec.operators.base import run_tags
from elastrec.operators.links import RUN_URL_KEY
from elastrec.operators.params import training_params
from elastrec.operators.training import PrepareDataOperator, WarmStartOperator
from elastrec.platform.jobs import job_id_for
from elastrec.platform.specs.errors import ClusterError, FieldProblem, OtherJobError, SpecError
from elastrec.platform.specs.metrics import Phase
from tests.operators.steps import (
    ALLOCATION,
    LAUNCHED,
    LAUNCHED_JOB,
    OWNER,
    PREPARED,
    Platform,
    context,
    launch,
    offline,
    plain,
    platform_fixture,  # noqa: F401
)
from tools.stack.services import default_dags_folder

JOBS = default_dags_folder() / "jobs"


def test_preparing_gives_one_job_id_per_logical_date(platform: Platform, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def prepare(where: Any, job: Any, job_id: str, interval: Any) -> Any:
        asked.append((job_id, [moment.day for moment in interval.moments()]))
        return PREPARED

    monkeypatch.setattr("elastrec.platform.jobs.prepare", prepare)
    for number in (1, 2):
        operator = PrepareDataOperator(task_id="task", jobs_folder=JOBS, job_file="demo.yaml")
        found = context(try_number=number)
        page = "http://mlflow/list/clicks-1"
        assert operator.execute(found) == plain(PREPARED) | {"page": page, "run_tags": run_tags(found)}
        assert found["ti"].pushed == {RUN_URL_KEY: page}
    job_id = job_id_for("demo-click", "daily_retraining/2026-01-03T02:00:00+00:00/task")
    assert asked == [(job_id, [1, 2, 3])] * 2


def test_two_jobs_of_one_name_in_one_run_are_two_jobs(platform: Platform, monkeypatch: pytest.MonkeyPatch) -> None:
    job_ids = set()
    monkeypatch.setattr(
        "elastrec.platform.jobs.prepare", lambda where, job, job_id, interval: job_ids.add(job_id) or PREPARED
    )
    for task in ({"task_id": "a.prepare_data"}, {"task_id": "b.prepare_data"}, {"map_index": 0}, {"map_index": 1}):
        PrepareDataOperator(task_id="task", jobs_folder=JOBS, job_file="demo.yaml").execute(context(**task))
    assert len(job_ids) == 4


def test_a_jobs_run_is_tagged_with_the_page_of_its_dag_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW__API__BASE_URL", "https://airflow.example/team/")
    run_id = "manual__2026-01-03T02:00:00+00:00"
    page = "https://airflow.example/team/dags/daily_retraining/runs/manual__2026-01-03T02%3A00%3A00%2B00%3A00"
    assert run_tags(context(run_id=run_id)) == {
        "airflow.dag_id": "daily_retraining",
        "airflow.run_id": run_id,
        "airflow.url": page,
    }


def test_a_bad_job_fails_without_a_retry_and_names_every_problem(platform: Platform) -> None:
    overrides = {"spec.training.batch_size": 0, "spec.training.epochs": 0}
    operator = PrepareDataOperator(task_id="task", jobs_folder=JOBS, job_file="demo.yaml", overrides=overrides)
    with pytest.raises(AirflowFailException, match=r"(?s)batch_size.*epochs"):
        operator.execute(context())


def test_a_mistyped_key_of_conf_fails_without_a_retry_before_anything_is_read(platform: Platform) -> None:
    with DAG(dag_id="form", schedule=None, params=training_params(JOBS)):
        operator = PrepareDataOperator(task_id="task", jobs_folder=JOBS, job_file="demo.yaml")
    with pytest.raises(AirflowFailException, match=r"conf\.jobfile.*did you mean 'job_file'"):
        operator.execute(context(conf={"jobfile": "mine.yaml"}))


@pytest.mark.parametrize(
    ("known", "shown"), [("http://mlflow/known", "http://mlflow/known"), ("", "http://mlflow/list/clicks-1")]
)
def test_warm_start_shows_the_page_that_was_found_before(
    platform: Platform, monkeypatch: pytest.MonkeyPatch, known: str, shown: str
) -> None:
    monkeypatch.setattr("elastrec.platform.jobs.warm_start", lambda where, prepared: ALLOCATION)
    found = context()
    operator = WarmStartOperator(task_id="task", prepared=plain(PREPARED) | {"page": known})
    assert operator.execute(found) == plain(ALLOCATION) | {"prepared": plain(PREPARED) | {"page": known}}
    assert found["ti"].pushed == {RUN_URL_KEY: shown}


def test_launching_owns_the_job_and_links_its_run_immediately(platform: Platform) -> None:
    found = context()
    assert launch().execute(found) == plain(LAUNCHED_JOB)
    assert platform.calls == [f"launch as {OWNER}/1"]
    assert found["ti"].pushed == {RUN_URL_KEY: LAUNCHED.run_url}


def test_a_jobs_run_leads_to_the_log_of_the_task_that_waits_for_it(platform: Platform) -> None:
    launched = launch().execute(context(task_id="launch"))
    assert platform.run_tags == {"airflow.log_url": context(task_id="launch")["ti"].log_url}
    # A run that is made later gets no log of a task that was over before.
    assert launched["prepared"]["run_tags"] == {}
    with pytest.raises(TaskDeferred):
        offline().execute(context(task_id="offline_phase", try_number=2))
    assert platform.run_tags["airflow.log_url"].endswith("/offline_phase?try_number=2")


def test_launching_attaches_to_a_job_that_runs(platform: Platform) -> None:
    platform.phase = Phase.TRAINING
    launch().execute(context(try_number=2))
    assert platform.calls == [f"launch as {OWNER}/2"]


@pytest.mark.parametrize("phase", [Phase.FAILED, Phase.STOPPED])
def test_launching_again_removes_a_job_that_ended_badly(platform: Platform, phase: Phase) -> None:
    platform.phase = phase
    launch().execute(context(try_number=2))
    assert platform.calls == ["finish", f"launch as {OWNER}/2"]


def test_a_failed_launch_leaves_nothing_behind(platform: Platform) -> None:
    platform.launch_error = SpecError([FieldProblem("spec.x", "1", "2")])
    with pytest.raises(AirflowFailException, match=r"spec\.x"):
        launch().execute(context())
    assert platform.calls[-1] == "stop as anybody"


@pytest.mark.parametrize("phase", [None, Phase.TRAINING])
def test_a_job_with_another_job_file_is_reported_without_a_retry_and_left_alone(
    platform: Platform, phase: Phase | None
) -> None:
    platform.phase = phase
    platform.launch_error = OtherJobError("job clicks-1 runs already, and with another job file")
    with pytest.raises(AirflowFailException, match="another job file"):
        launch().execute(context())
    assert platform.calls == [f"launch as {OWNER}/1"]


@pytest.mark.parametrize(("try_number", "stops"), [(2, False), (4, True)])
def test_a_running_job_is_stopped_only_when_the_last_try_could_not_attach(
    platform: Platform, try_number: int, stops: bool
) -> None:
    platform.phase = Phase.TRAINING
    platform.launch_error = ClusterError("its master is still Pending")
    with pytest.raises(ClusterError):
        launch().execute(context(try_number=try_number))
    assert ("stop as anybody" in platform.calls) == stops
