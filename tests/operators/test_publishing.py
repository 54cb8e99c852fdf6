"""Operators that evaluate, register and finish: their calls of the platform, their output, and their failures."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from airflow.sdk import Asset, AssetAlias
from airflow.sdk.exceptions import AirflowException, AirflowFailException, AirflowTaskTerminated, TaskDeferred
from airflow.sdk.execution_time.context import OutletEventAccessors

from elastrec.operators.links import RUN_URL_KEY
from elastrec.operators.publishing import EvaluateAndGateOperator, FinishJobOperator, RegisterModelOperator
from elastrec.operators.triggers import EvaluatorTrigger, TrackingTrigger
from elastrec.platform.jobs import Registered
from elastrec.platform.specs.errors import ChampionChangedError, JobFailedError
from elastrec.platform.specs.metrics import Phase
from tests.operators.steps import (
    DECISION,
    JUDGED_JOB,
    LAUNCHED,
    LAUNCHED_JOB,
    OWNER,
    PREPARED,
    TRAINED_JOB,
    Platform,
    context,
    event,
    plain,
    platform_fixture,  # noqa: F401
)


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
