"""Each operator alone: its calls of the platform, its output, and its failures."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
from airflow.sdk import DAG, Asset, AssetAlias
from airflow.sdk.exceptions import AirflowException, AirflowFailException, AirflowTaskTerminated, TaskDeferred
from airflow.sdk.execution_time.context import OutletEventAccessors
from structlog.testing import capture_logs

from elastrec.operators.base import ElastrecOperator, run_tags
from elastrec.operators.doubt import Doubt
from elastrec.operators.links import RUN_URL_KEY
from elastrec.operators.params import training_params
from elastrec.operators.publishing import EvaluateAndGateOperator, FinishJobOperator, RegisterModelOperator
from elastrec.operators.training import (
    LaunchJobOperator,
    OfflinePhaseOperator,
    PrepareDataOperator,
    WarmStartOperator,
)
from elastrec.operators.triggers import ENDED, TIMED_OUT, EvaluatorTrigger, JobPhaseTrigger, TrackingTrigger
from elastrec.platform.jobs import Registered, job_id_for
from elastrec.platform.specs.errors import (
    ChampionChangedError,
    ClusterError,
    FieldProblem,
    JobFailedError,
    OtherJobError,
    SpecError,
)
from elastrec.platform.specs.metrics import Phase, TrainingMetrics
from tests.operators.steps import (
    ALLOCATED_JOB,
    ALLOCATION,
    DECISION,
    JUDGED_JOB,
    LAUNCHED,
    LAUNCHED_JOB,
    PREPARED,
    TRAINED_JOB,
    Platform,
    context,
    plain,
)
from tools.stack.services import default_dags_folder

JOBS = default_dags_folder() / "jobs"
OWNER = "daily_retraining/scheduled__2026-01-03/task"


@pytest.fixture
def platform(monkeypatch: pytest.MonkeyPatch) -> Platform:
    made = Platform()
    monkeypatch.setattr(ElastrecOperator, "platform", property(lambda self: made))
    names = (
        "observe",
        "result_of",
        "launch",
        "finish",
        "stop",
        "failure_report",
        "job_page",
        "tracking_answers",
        "with_run",
    )
    for name in (
        *names,
        "publish_patience_seconds",
        "away_message",
        "is_trained",
        "finish_job",
        "take_over",
        "remove_unsuccessful",
    ):
        monkeypatch.setattr(f"elastrec.platform.jobs.{name}", getattr(made, name))
    return made


def launch() -> LaunchJobOperator:
    return LaunchJobOperator(task_id="task", allocation=plain(ALLOCATED_JOB))


def offline(*, deferrable: bool = True, **fields: Any) -> OfflinePhaseOperator:
    return OfflinePhaseOperator(task_id="task", launched=plain(LAUNCHED_JOB), deferrable=deferrable, **fields)


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


def test_the_offline_phase_takes_the_job_over_and_defers(platform: Platform) -> None:
    platform.phase = Phase.TRAINING
    with pytest.raises(TaskDeferred) as deferred:
        offline().execute(context(try_number=3))
    assert platform.calls == [f"launch as {OWNER}/3"]
    trigger = deferred.value.trigger
    assert isinstance(trigger, JobPhaseTrigger)
    assert (trigger.job_id, trigger.owner, trigger.watched_task_id) == ("clicks-1", f"{OWNER}/3", "task")
    assert deferred.value.method_name == "resume"


def test_a_job_that_is_launched_again_by_the_offline_phase_links_its_new_run(
    platform: Platform, monkeypatch: pytest.MonkeyPatch
) -> None:
    again = msgspec.structs.replace(LAUNCHED, run_id="new", run_url="http://mlflow/new")
    monkeypatch.setattr("elastrec.platform.jobs.launch", lambda *values, **named: again)
    found = context(try_number=2)
    with pytest.raises(TaskDeferred):
        offline().execute(found)
    assert found["ti"].pushed == {RUN_URL_KEY: "http://mlflow/new"}


def test_the_tries_of_mapped_siblings_own_their_jobs_under_different_names(platform: Platform) -> None:
    owners = []
    for map_index in (0, 1):
        with pytest.raises(TaskDeferred) as deferred:
            offline().execute(context(map_index=map_index))
        trigger = deferred.value.trigger
        assert isinstance(trigger, JobPhaseTrigger) and (trigger.map_index, trigger.try_number) == (map_index, 1)
        owners.append(trigger.owner)
    assert owners == [f"{OWNER}[0]/1", f"{OWNER}[1]/1"]


def test_a_first_try_reports_a_job_that_has_already_failed_instead_of_starting_it_again(platform: Platform) -> None:
    platform.phase = Phase.FAILED
    with pytest.raises(TaskDeferred):
        offline().execute(context(try_number=1))
    assert "finish" not in platform.calls


def test_a_cleared_offline_phase_starts_a_failed_job_again(platform: Platform) -> None:
    platform.phase = Phase.FAILED
    with pytest.raises(TaskDeferred):
        offline().execute(context(try_number=2))
    assert platform.calls == ["finish", f"launch as {OWNER}/2"]


def event(outcome: str, reason: str = "") -> dict[str, str]:
    return {"job_id": "clicks-1", "owner": "me", "outcome": outcome, "reason": reason}


def test_success_hands_on_the_metrics_and_the_job(platform: Platform) -> None:
    platform.phase = Phase.SUCCEEDED
    found = offline().resume(context(), event("succeeded"))
    assert found["auc"] == 0.75 and found["launched"] == plain(LAUNCHED_JOB)


def test_a_job_that_ended_while_airflow_was_down_hands_on_the_result_in_its_store(platform: Platform) -> None:
    # Its master has ended meanwhile, so that only its pod is left.
    platform.phase = Phase.PENDING
    platform.left = TrainingMetrics(job="clicks-1", phase=Phase.SUCCEEDED, samples_trained=10, auc=0.5)
    for outcome in (ENDED, "succeeded"):
        found = offline().resume(context(), event(outcome))
        assert (found["phase"], found["samples_trained"], found["auc"]) == ("Succeeded", 10, 0.5)


def test_a_loss_that_is_nan_is_handed_on_in_json_without_nan(platform: Platform) -> None:
    platform.phase = Phase.PENDING
    platform.left = TrainingMetrics(job="clicks-1", phase=Phase.SUCCEEDED, losses={"rank": float("nan")})
    found = offline().resume(context(), event("succeeded"))
    assert json.dumps(found["losses"], allow_nan=False) == '{"rank": "NaN"}'


def test_a_job_that_failed_while_airflow_was_down_fails_with_the_reason_in_its_store(platform: Platform) -> None:
    platform.phase = Phase.PENDING
    platform.left = TrainingMetrics(job="clicks-1", phase=Phase.FAILED, reason="bug")
    with pytest.raises(AirflowFailException, match="clicks-1 failed: bug"):
        offline().resume(context(), event(ENDED))


def test_a_job_that_ended_without_leaving_a_result_is_removed_so_that_the_next_try_launches_it(
    platform: Platform,
) -> None:
    platform.phase = Phase.PENDING
    with pytest.raises(AirflowException, match="the next try attaches to it or launches it again"):
        offline().resume(context(), event(ENDED))
    assert platform.calls == ["finish"]
    with pytest.raises(TaskDeferred):
        offline().execute(context(try_number=2))
    assert platform.calls == ["finish", f"launch as {OWNER}/2"]


def test_a_success_whose_metrics_cannot_be_read_is_tried_again(platform: Platform) -> None:
    platform.phase = Phase.PENDING
    with pytest.raises(AirflowException, match="clicks-1 is pending") as failed:
        offline().resume(context(), event("succeeded"))
    assert not isinstance(failed.value, AirflowFailException)


def test_a_task_that_does_not_defer_waits_in_its_own_process(
    platform: Platform, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(JobPhaseTrigger, "_platform", lambda self: platform)
    platform.phase = Phase.SUCCEEDED
    assert offline(deferrable=False).execute(context())["auc"] == 0.75


def test_a_wait_has_no_limit_but_the_tasks_own(platform: Platform) -> None:
    platform.phase = Phase.TRAINING
    for limit, deadline in ((None, None), (timedelta(hours=3), datetime(2026, 1, 3, 5, tzinfo=UTC).timestamp())):
        with pytest.raises(TaskDeferred) as deferred:
            offline(execution_timeout=limit).execute(context())
        trigger = deferred.value.trigger
        assert isinstance(trigger, JobPhaseTrigger)
        assert (trigger.deadline, deferred.value.timeout) == (deadline, None)


def test_a_job_that_outlasts_the_tasks_limit_is_stopped_and_not_tried_again(platform: Platform) -> None:
    reason = "its task has run for longer than its execution_timeout of 3:00:00"
    with pytest.raises(AirflowFailException, match=r"was stopped: .* 3:00:00"):
        offline().resume(context(), event(TIMED_OUT, reason))
    assert platform.calls == ["stop as me"]


def test_a_task_that_waits_in_its_own_process_has_the_same_time_limit(
    platform: Platform, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(JobPhaseTrigger, "_platform", lambda self: platform)
    platform.phase = Phase.TRAINING
    begin = datetime.now(UTC) - timedelta(hours=3)
    with pytest.raises(AirflowFailException, match=r"3:00:00"):
        offline(deferrable=False, execution_timeout=timedelta(hours=3)).execute(context(start_date=begin))
    assert platform.calls[-1] == f"stop as {OWNER}/1"


def test_a_users_bug_fails_the_task_immediately_with_its_traceback_in_the_log(
    platform: Platform,
) -> None:
    with capture_logs() as lines, pytest.raises(AirflowFailException, match="clicks-1 failed: bug"):
        offline().resume(context(), event("failed", "bug"))
    assert "ZeroDivisionError: division by zero" in [line["event"] for line in lines if line["log_level"] == "error"]


@pytest.mark.parametrize("outcome", list(Doubt))
def test_a_lost_job_is_tried_again(platform: Platform, outcome: str) -> None:
    with pytest.raises(AirflowException) as failed:
        offline().resume(context(), event(outcome))
    assert not isinstance(failed.value, AirflowFailException)


def test_a_kill_stops_the_job_as_its_owner_and_does_nothing_without_a_job(platform: Platform) -> None:
    operator = offline()
    operator.on_kill()
    assert platform.calls == []
    operator = offline()
    with pytest.raises(TaskDeferred):
        operator.execute(context())
    operator.on_kill()
    assert platform.calls[-1] == f"stop as {OWNER}/1"


def test_a_kill_of_a_launch_stops_a_job_that_an_earlier_try_still_owns(
    platform: Platform, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kill comes before the launch has taken the job over; that of a later try is not stopped."""
    for owner, tried in ((2, [3, 2]), (3, [3]), (4, [3, 2, 1])):
        asked: list[str] = []

        def stop(*values: Any, owner: str, of_job: str = f"{OWNER}/{owner}", asked: list[str] = asked) -> bool:
            asked.append(owner)
            return owner == of_job

        monkeypatch.setattr("elastrec.platform.jobs.stop", stop)
        platform.launch_error = KeyboardInterrupt()
        operator = launch()
        with pytest.raises(KeyboardInterrupt):
            operator.execute(context(try_number=3))
        operator.on_kill()
        assert asked == [f"{OWNER}/{number}" for number in tried]


@pytest.mark.parametrize("is_created", [False, True])
@pytest.mark.parametrize("make", [launch, offline], ids=["launch", "offline phase"])
def test_a_kill_during_a_launch_interrupts_it_and_stops_a_job_that_it_has_just_created(
    platform: Platform, monkeypatch: pytest.MonkeyPatch, make: Callable[[], Any], is_created: bool
) -> None:
    jobs, operator = set[str](), make()

    def launching(*values: Any, **fields: Any) -> Any:
        try:
            operator.on_kill()  # as Airflow's signal handler does, after which the task goes on
        finally:
            if is_created:
                jobs.add(f"{OWNER}/1")
        jobs.add("a job that nobody stops")
        return LAUNCHED

    def stop(*values: Any, owner: str) -> bool:
        is_there = owner in jobs
        jobs.discard(owner)
        return is_there

    monkeypatch.setattr("elastrec.platform.jobs.launch", launching)
    monkeypatch.setattr("elastrec.platform.jobs.stop", stop)
    with pytest.raises(AirflowTaskTerminated):
        operator.execute(context())
    assert jobs == set()


@pytest.mark.parametrize("make", [launch, offline], ids=["launch", "offline phase"])
def test_a_task_that_is_ended_before_its_launch_launches_nothing(
    platform: Platform, monkeypatch: pytest.MonkeyPatch, make: Callable[[], Any]
) -> None:
    """The kill comes while a failed job of an earlier try is removed, which takes some requests to the cluster."""
    operator = make()

    def remove(*values: Any) -> bool:
        operator.on_kill()  # as Airflow's signal handler does, after which the task goes on
        return False

    monkeypatch.setattr("elastrec.platform.jobs.remove_unsuccessful", remove)
    with pytest.raises(AirflowTaskTerminated):
        operator.execute(context(try_number=2))
    assert not [call for call in platform.calls if call.startswith("launch")]


def evaluate() -> EvaluateAndGateOperator:
    return EvaluateAndGateOperator(task_id="task", trained=plain(TRAINED_JOB), deferrable=True)


def test_evaluation_starts_its_pod_and_defers(platform: Platform, monkeypatch: pytest.MonkeyPatch) -> None:
    started = []
    monkeypatch.setattr("elastrec.platform.jobs.start_evaluator", lambda *values: started.append(values[1:]))
    with pytest.raises(TaskDeferred) as deferred:
        evaluate().execute(context())
    assert started == [(PREPARED, LAUNCHED_JOB)]
    assert isinstance(deferred.value.trigger, EvaluatorTrigger)


def test_a_try_of_the_evaluation_owns_the_job_and_may_stop_it(
    platform: Platform, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("elastrec.platform.jobs.start_evaluator", lambda *values: None)
    for try_number in (1, 2):
        with pytest.raises(TaskDeferred) as deferred:
            evaluate().execute(context(try_number=try_number))
        assert platform.calls[-1] == f"take over as {OWNER}/{try_number}"
        assert isinstance(deferred.value.trigger, EvaluatorTrigger)
        assert deferred.value.trigger.owner == f"{OWNER}/{try_number}"


@pytest.mark.parametrize("is_created", [False, True])
def test_a_kill_while_the_evaluator_is_started_leaves_none(
    platform: Platform, monkeypatch: pytest.MonkeyPatch, is_created: bool
) -> None:
    evaluators, operator = set[str](), evaluate()

    def starting(*values: Any) -> None:
        try:
            operator.on_kill()  # as Airflow's signal handler does, after which the task goes on
        finally:
            if is_created:
                evaluators.add("just created")
        evaluators.add("created after the kill")

    monkeypatch.setattr("elastrec.platform.jobs.start_evaluator", starting)
    monkeypatch.setattr("elastrec.platform.jobs.stop", lambda *values, owner: evaluators.discard("just created"))
    with pytest.raises(AirflowTaskTerminated):
        operator.execute(context())
    assert evaluators == set()


def test_a_task_that_is_ended_before_its_evaluator_starts_none(
    platform: Platform, monkeypatch: pytest.MonkeyPatch
) -> None:
    started, operator = [], evaluate()
    monkeypatch.setattr("elastrec.platform.jobs.start_evaluator", lambda *values: started.append(values))
    operator.on_kill()
    with pytest.raises(AirflowTaskTerminated):
        operator.execute(context())
    assert started == []


def test_the_gates_decision_is_handed_on(platform: Platform, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("elastrec.platform.jobs.gate_decision", lambda *values: DECISION)
    assert evaluate().resume(context(), event("done")) == plain(JUDGED_JOB)


def test_a_model_is_compared_again_if_another_one_has_become_champion(
    platform: Platform, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*values: Any) -> None:
        raise ChampionChangedError("compared with version 1, and the champion is version 2 by now")

    monkeypatch.setattr("elastrec.platform.jobs.gate_decision", refuse)
    started: list[Any] = []
    monkeypatch.setattr("elastrec.platform.jobs.start_evaluator", lambda *values: started.append(values))
    with pytest.raises(TaskDeferred) as deferred:
        evaluate().resume(context(), event("done"))
    assert isinstance(deferred.value.trigger, EvaluatorTrigger) and len(started) == 1


def test_a_failed_evaluator_is_not_tried_again(platform: Platform, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*values: Any) -> None:
        raise JobFailedError("only one class of label")

    monkeypatch.setattr("elastrec.platform.jobs.gate_decision", refuse)
    with pytest.raises(AirflowFailException, match="evaluator"):
        evaluate().resume(context(), event("failed", "OOMKilled"))
    with pytest.raises(AirflowFailException, match="only one class"):
        evaluate().resume(context(), event("done"))


def test_an_evaluator_that_lost_mlflow_is_retried(platform: Platform) -> None:
    with pytest.raises(AirflowException, match="MLflow") as failed:
        evaluate().resume(context(), event("without history"))
    assert not isinstance(failed.value, AirflowFailException)


def test_an_evaluator_whose_node_was_lost_is_retried(platform: Platform) -> None:
    with pytest.raises(AirflowException, match=r"another one: --- clicks-1-evaluator: Failed NodeLost$") as failed:
        evaluate().resume(context(), event("lost", "--- clicks-1-evaluator: Failed NodeLost\nlast line"))
    assert not isinstance(failed.value, AirflowFailException)


def test_an_evaluator_with_an_error_that_may_not_occur_again_is_retried(platform: Platform) -> None:
    with pytest.raises(AirflowException, match=r"interrupted; .* another one: .* \(exit code 1\)$") as failed:
        evaluate().resume(context(), event("interrupted", "--- clicks-1-evaluator: Failed Error (exit code 1)\nfull"))
    assert not isinstance(failed.value, AirflowFailException)


def test_without_mlflow_publishing_waits_deferred_and_then_fails_without_another_try(
    platform: Platform, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = []
    monkeypatch.setattr("elastrec.platform.jobs.start_evaluator", lambda *values: started.append(values[1:]))
    platform.has_tracking = False
    with pytest.raises(TaskDeferred) as deferred:
        evaluate().execute(context())
    assert isinstance(deferred.value.trigger, TrackingTrigger) and not started
    assert deferred.value.method_name == "tracking_is_back"
    with pytest.raises(AirflowFailException, match=r"is trained\. When MLflow is back, clear this task"):
        evaluate().tracking_is_back(context(), event("away"))
    platform.has_tracking = True
    with pytest.raises(TaskDeferred):
        evaluate().tracking_is_back(context(), event("back"))
    assert started == [(PREPARED, LAUNCHED_JOB)]


def test_a_job_launched_without_mlflow_gets_its_run_and_its_link_when_it_is_published(
    platform: Platform, monkeypatch: pytest.MonkeyPatch
) -> None:
    registered = Registered(name="clicks", version="7", is_champion=True, model_uri="models:/m-1")
    monkeypatch.setattr("elastrec.platform.jobs.register", lambda *values: registered)
    without = msgspec.structs.replace(JUDGED_JOB, launched=msgspec.structs.replace(LAUNCHED_JOB, run_id="", run_url=""))
    found = context()
    RegisterModelOperator(task_id="task", decision=plain(without)).execute(found)
    assert found["ti"].pushed == {RUN_URL_KEY: LAUNCHED.run_url}


def test_registering_hands_on_the_version(platform: Platform, monkeypatch: pytest.MonkeyPatch) -> None:
    registered = Registered(name="clicks", version="7", is_champion=True, model_uri="models:/m-1")
    monkeypatch.setattr("elastrec.platform.jobs.register", lambda *values: registered)
    operator = RegisterModelOperator(task_id="task", decision=plain(JUDGED_JOB))
    assert operator.execute(context())["version"] == "7"


def test_a_registered_model_is_an_event_of_its_asset(platform: Platform, monkeypatch: pytest.MonkeyPatch) -> None:
    registered = Registered(name="clicks", version="7", is_champion=True, model_uri="models:/m-1")
    monkeypatch.setattr("elastrec.platform.jobs.register", lambda *values: registered)
    alias, asset = AssetAlias("models"), Asset("clicks_model")
    events = OutletEventAccessors()
    RegisterModelOperator(task_id="task", decision=plain(JUDGED_JOB), outlets=[alias, asset]).execute(
        context() | {"outlet_events": events}
    )
    about = {"name": "clicks", "version": "7", "is_champion": True, "model_uri": "models:/m-1"}
    assert events[asset].extra == about
    (made,) = events[alias].asset_alias_events
    assert made.dest_asset_key.name == "model/clicks" and made.extra == about


@pytest.mark.parametrize(
    ("phase", "calls"),
    [(Phase.SUCCEEDED, ["finish"]), (Phase.TRAINING, ["stop as anybody", "finish"]), (None, ["finish"])],
)
def test_finishing_removes_the_job_in_every_state(platform: Platform, phase: Phase | None, calls: list[str]) -> None:
    platform.phase = phase
    FinishJobOperator(task_id="task", launched=plain(LAUNCHED_JOB)).execute(context())
    assert platform.calls == calls


def test_finishing_waits_for_mlflow_after_the_job_is_removed_and_then_closes_its_run(platform: Platform) -> None:
    def finish() -> FinishJobOperator:
        return FinishJobOperator(task_id="task", launched=plain(LAUNCHED_JOB), deferrable=True)

    platform.phase, platform.has_tracking = Phase.SUCCEEDED, False
    with pytest.raises(TaskDeferred) as deferred:
        finish().execute(context())
    assert platform.calls == ["finish"] and platform.phase is None
    trigger = deferred.value.trigger
    assert isinstance(trigger, TrackingTrigger) and trigger.patience_seconds == 1800.0
    with pytest.raises(AirflowFailException, match=r"stays open.* clear this task"):
        getattr(finish(), deferred.value.method_name)(context(), event("away"))
    platform.has_tracking = True
    getattr(finish(), deferred.value.method_name)(context(), event("back"))
    assert platform.calls == ["finish", "finish"]
