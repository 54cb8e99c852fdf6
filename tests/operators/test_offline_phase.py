"""The operator that waits for a job: its calls of the platform, its output, and its failures."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import msgspec
import pytest
from airflow.sdk.exceptions import AirflowException, AirflowFailException, TaskDeferred
from structlog.testing import capture_logs

from elastrec.operators.doubt import Doubt
from elastrec.operators.links import RUN_URL_KEY
from elastrec.operators.triggers import ENDED, TIMED_OUT, JobPhaseTrigger
from elastrec.platform.specs.metrics import Phase, TrainingMetrics
from tests.operators.steps import (
    LAUNCHED,
    LAUNCHED_JOB,
    OWNER,
    Platform,
    context,
    event,
    offline,
    plain,
    platform_fixture,  # noqa: F401
)


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
