"""Triggers fire once, not too early, with all data for the task; a kill of the task stops the job only if it should."""

from __future__ import annotations

import asyncio
import functools
import importlib
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.jobs import triggerer_job_runner
from airflow.jobs.triggerer_job_runner import TriggerRunner
from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance
from airflow.triggers.base import TriggerEvent
from structlog.testing import capture_logs

from elastrec.operators import settings
from elastrec.operators.triggers import (
    ENDED,
    TIMED_OUT,
    EvaluatorTrigger,
    JobPhaseTrigger,
    JobTrigger,
    TrackingTrigger,
    base,
)
from elastrec.operators.triggers.base import ENDED_BY_A_PERSON
from elastrec.platform.jobs import EvaluatorState, Observation
from elastrec.platform.specs.errors import ClusterError, JobNotFoundError
from elastrec.platform.specs.metrics import Phase, TrainingMetrics

ARGUMENTS: dict[str, Any] = {
    "job_id": "clicks-1",
    "conn_id": "elastrec_default",
    "owner": "dag/run/task/1",
    "dag_id": "dag",
    "run_id": "run",
    "watched_task_id": "task",
    "try_number": 1,
    "poll_seconds": 0.01,
    "grace_seconds": 0.0,
}


def seen(phase: Phase, **fields: Any) -> Observation:
    failure = fields.pop("failure", "")
    return Observation(TrainingMetrics(job="clicks", phase=phase, **fields), failure)


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Lets the platform answer with these observations, the last one for ever; an exception is raised."""
    monkeypatch.setattr(JobTrigger, "_platform", lambda self: None)

    def prepare(*answers: Any, name: str = "observe") -> None:
        rest: Iterator[Any] = iter(answers)
        last = answers[-1]

        def answer(platform: Any, job_id: str) -> Any:
            nonlocal last
            last = next(rest, last)
            if isinstance(last, Exception):
                raise last
            return last

        monkeypatch.setattr(f"elastrec.platform.jobs.{name}", answer)

    return prepare


def first_event(trigger: JobTrigger) -> dict[str, str]:
    async def wait() -> TriggerEvent:
        async for event in trigger.run():
            return event
        raise AssertionError("the trigger ended without an event")

    payload: dict[str, str] = asyncio.run(asyncio.wait_for(wait(), 10)).payload
    return payload


def test_the_end_of_the_job_fires_with_everything_the_task_needs(script: Callable[..., None]) -> None:
    script(seen(Phase.STARTING), seen(Phase.TRAINING), seen(Phase.SUCCEEDED))
    event = first_event(JobPhaseTrigger(**ARGUMENTS))
    assert event == {"job_id": "clicks-1", "owner": "dag/run/task/1", "outcome": "succeeded", "reason": ""}


@pytest.mark.parametrize("left", [-3600.0, 0.2])
def test_a_wait_ends_at_the_tasks_deadline_also_when_it_began_before_the_triggerer(
    script: Callable[..., None], left: float
) -> None:
    script(seen(Phase.TRAINING))
    event = first_event(JobPhaseTrigger(**ARGUMENTS, deadline=time.time() + left, over_time="6 hours are over"))
    assert (event["outcome"], event["reason"]) == (TIMED_OUT, "6 hours are over")


def test_a_wait_ends_at_the_tasks_deadline_also_when_the_clock_is_set_back_meanwhile(
    script: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    script(seen(Phase.TRAINING))
    seconds = iter([1000.0, 940.0])
    monkeypatch.setattr(base, "time", SimpleNamespace(time=lambda: next(seconds), monotonic=time.monotonic))
    event = first_event(JobPhaseTrigger(**ARGUMENTS, deadline=1000.2, over_time="6 hours are over"))
    assert (event["outcome"], event["reason"]) == (TIMED_OUT, "6 hours are over")


def test_a_job_that_ends_in_time_is_not_timed_out(script: Callable[..., None]) -> None:
    script(seen(Phase.TRAINING), seen(Phase.SUCCEEDED))
    assert first_event(JobPhaseTrigger(**ARGUMENTS, deadline=time.time() + 60))["outcome"] == "succeeded"


@pytest.mark.parametrize(("phase", "outcome"), [(Phase.FAILED, "failed"), (Phase.STOPPED, "stopped")])
def test_a_failed_job_fires_with_its_reason(script: Callable[..., None], phase: Phase, outcome: str) -> None:
    script(seen(phase, failure="ZeroDivisionError"))
    event = first_event(JobPhaseTrigger(**ARGUMENTS))
    assert (event["outcome"], event["reason"]) == (outcome, "ZeroDivisionError")


def test_a_job_whose_master_the_cluster_has_ended_is_lost_at_once(script: Callable[..., None]) -> None:
    failed = Observation(TrainingMetrics(job="clicks", phase=Phase.FAILED), "the master failed: NodeLost", is_lost=True)
    script(failed)
    event = first_event(JobPhaseTrigger(**ARGUMENTS))
    assert (event["outcome"], event["reason"]) == ("lost", "the master failed: NodeLost")


def test_a_job_whose_master_has_ended_with_it_has_ended_at_once(script: Callable[..., None]) -> None:
    metrics = TrainingMetrics(job="clicks", phase=Phase.PENDING, reason="master Succeeded")
    script(Observation(metrics, reachable=False, has_ended=True))
    assert first_event(JobPhaseTrigger(**ARGUMENTS))["outcome"] == ENDED


def test_nothing_fires_before_the_grace_is_over(script: Callable[..., None]) -> None:
    script(seen(Phase.SUCCEEDED))
    begin = time.monotonic()
    first_event(JobPhaseTrigger(**{**ARGUMENTS, "grace_seconds": 0.3}))
    assert time.monotonic() - begin >= 0.3
    assert settings.FIRE_GRACE_SECONDS >= 6.0


def test_a_job_that_stays_unknown_is_lost_unlike_one_that_reappears(
    script: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settings, "LOST_AFTER_SECONDS", 0.05)
    gone = JobNotFoundError("job clicks-1: not in the cluster; it was stopped, finished or never launched")
    script(gone, seen(Phase.TRAINING), seen(Phase.SUCCEEDED))
    assert first_event(JobPhaseTrigger(**ARGUMENTS))["outcome"] == "succeeded"
    script(gone)
    assert first_event(JobPhaseTrigger(**ARGUMENTS))["outcome"] == "lost"


def test_a_cluster_that_never_answers_is_unreachable(
    script: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settings, "UNREACHABLE_AFTER_SECONDS", 0.05)
    script(ClusterError("connection refused"))
    assert first_event(JobPhaseTrigger(**ARGUMENTS))["outcome"] == "unreachable"


def test_the_evaluators_end_fires(script: Callable[..., None]) -> None:
    script((EvaluatorState.RUNNING, ""), (EvaluatorState.FAILED, "OOMKilled"), name="evaluator_state")
    event = first_event(EvaluatorTrigger(**ARGUMENTS))
    assert (event["outcome"], event["reason"]) == ("failed", "OOMKilled")


@pytest.mark.parametrize(("patience_seconds", "outcome"), [(10.0, "back"), (0.05, "away")])
def test_the_wait_for_mlflow_ends_with_its_return_or_with_the_patience(
    monkeypatch: pytest.MonkeyPatch, patience_seconds: float, outcome: str
) -> None:
    asked = []

    def answers(platform: Any) -> bool:
        asked.append(platform)
        return len(asked) > 20

    monkeypatch.setattr(JobTrigger, "_platform", lambda self: None)
    monkeypatch.setattr("elastrec.platform.jobs.tracking_answers", answers)
    event = first_event(TrackingTrigger(patience_seconds=patience_seconds, **ARGUMENTS))
    assert (event["job_id"], event["outcome"]) == ("clicks-1", outcome)


def test_the_wait_for_mlflow_goes_on_while_the_cluster_is_away_for_a_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def platform(trigger: JobTrigger) -> None:
        asked.append(trigger)
        if len(asked) < 3:
            raise ClusterError("no node agent runs in /agent")

    monkeypatch.setattr(JobTrigger, "_platform", platform)
    monkeypatch.setattr("elastrec.platform.jobs.tracking_answers", lambda platform: True)
    assert first_event(TrackingTrigger(patience_seconds=10.0, **ARGUMENTS))["outcome"] == "back"


def test_the_wait_for_mlflow_ends_with_a_cluster_that_stays_away(monkeypatch: pytest.MonkeyPatch) -> None:
    def platform(trigger: JobTrigger) -> None:
        raise ClusterError("no node agent runs in /agent")

    monkeypatch.setattr(JobTrigger, "_platform", platform)
    monkeypatch.setattr(settings, "UNREACHABLE_AFTER_SECONDS", 0.05)
    event = first_event(TrackingTrigger(patience_seconds=10.0, **ARGUMENTS))
    assert (event["outcome"], event["reason"]) == ("unreachable", "no node agent runs in /agent")


@pytest.mark.parametrize(
    "kind", [JobPhaseTrigger, EvaluatorTrigger, functools.partial(TrackingTrigger, patience_seconds=7.0)]
)
def test_a_trigger_is_rebuilt_from_its_serialised_form(kind: Callable[..., JobTrigger]) -> None:
    path, arguments = kind(**ARGUMENTS).serialize()
    module, _, name = path.rpartition(".")
    rebuilt: JobTrigger = getattr(importlib.import_module(module), name)(**arguments)
    assert type(rebuilt) is type(kind(**ARGUMENTS)) and rebuilt.serialize() == (path, arguments)


@pytest.fixture
def kills(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """Job and owner of each stop that was asked for."""
    stopped: list[tuple[str, str]] = []

    def stop(platform: Any, job_id: str, reason: str, owner: str) -> bool:
        stopped.append((job_id, owner))
        return True

    monkeypatch.setattr(JobTrigger, "_platform", lambda self: None)
    monkeypatch.setattr("elastrec.platform.jobs.stop", stop)
    return stopped


@pytest.fixture
def states(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The states that Airflow knows of the task instances of the run; an exception under "" is raised."""
    known: dict[str, Any] = {}

    def get_task_states(
        dag_id: str, map_index: int | None, task_ids: list[str], run_ids: list[str]
    ) -> dict[str, dict[str, Any]]:
        assert (dag_id, task_ids, run_ids) == ("dag", ["task"], ["run"])
        if "" in known:
            raise known[""]
        return {"run": dict(known)}

    monkeypatch.setattr(RuntimeTaskInstance, "get_task_states", staticmethod(get_task_states))
    return known


MINE = ("clicks-1", "dag/run/task/1")


@pytest.mark.parametrize(
    ("state", "stops"),
    [
        ("failed", True),
        ("success", True),
        ("a state of a later Airflow", True),
        (None, False),
        ("queued", False),
        ("running", False),
        ("deferred", False),
        ("up_for_retry", False),
    ],
)
def test_only_a_permanently_ended_task_stops_its_job(
    kills: list[tuple[str, str]], states: dict[str, Any], state: str | None, stops: bool
) -> None:
    states["task"] = state
    with capture_logs() as lines:
        asyncio.run(JobPhaseTrigger(**ARGUMENTS).on_kill())
    assert kills == ([MINE] if stops else [])
    (line,) = [line["event"] for line in lines]
    assert "try 1 of task task" in line and ("was stopped" if stops else "left running") in line


@pytest.mark.parametrize("states_known", [{}, {"other": None}, {"": RuntimeError("no API")}])
def test_an_unknown_state_leaves_the_decision_to_the_owner_of_the_job(
    kills: list[tuple[str, str]], states: dict[str, Any], states_known: dict[str, Any]
) -> None:
    states.update(states_known)
    asyncio.run(JobPhaseTrigger(**ARGUMENTS).on_kill())
    assert kills == [MINE]


@pytest.mark.parametrize(("states_of_both", "stops"), [(("failed", None), True), ((None, "failed"), False)])
def test_a_mapped_task_instance_is_judged_by_its_own_state(
    kills: list[tuple[str, str]], states: dict[str, Any], states_of_both: tuple[Any, Any], stops: bool
) -> None:
    states["task_3"], states["task_4"] = states_of_both
    asyncio.run(JobPhaseTrigger(**ARGUMENTS, map_index=3).on_kill())
    assert kills == ([MINE] if stops else [])


def test_a_stop_that_the_jobs_owner_refuses_is_logged(
    monkeypatch: pytest.MonkeyPatch, kills: list[tuple[str, str]], states: dict[str, Any]
) -> None:
    states["task"] = "failed"
    monkeypatch.setattr("elastrec.platform.jobs.stop", lambda *values, **names: False)
    with capture_logs() as lines:
        asyncio.run(JobPhaseTrigger(**ARGUMENTS).on_kill())
    assert [line["event"] for line in lines if "was not stopped" in line["event"]]


def test_stopping_a_job_is_retried_while_the_cluster_does_not_answer(
    monkeypatch: pytest.MonkeyPatch, kills: list[tuple[str, str]], states: dict[str, Any]
) -> None:
    states["task"] = "failed"
    answers = iter([ClusterError("connection refused"), ClusterError("connection refused"), True])

    def stop(*values: Any, **names: Any) -> bool:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr("elastrec.platform.jobs.stop", stop)
    with capture_logs() as lines:
        asyncio.run(JobPhaseTrigger(**ARGUMENTS).on_kill())
    assert "was stopped" in lines[-1]["event"]
    monkeypatch.setattr(settings, "KILL_SECONDS", 0.0)
    answers = iter([ClusterError("connection refused")])
    with capture_logs() as lines:
        asyncio.run(JobPhaseTrigger(**ARGUMENTS).on_kill())
    assert "nothing was decided" in lines[-1]["event"] and "elastrec stop clicks-1" in lines[-1]["event"]


def running_trigger() -> tuple[TriggerRunner, asyncio.Task[None]]:
    """A triggerer's runner, and the trigger that it runs as its number 1; asked for within a loop."""
    runner = TriggerRunner()
    runner.triggers[1] = {"is_watcher": False, "name": "job", "events": 0}  # type: ignore[typeddict-item]
    task = asyncio.create_task(runner.run_trigger(1, JobPhaseTrigger(**ARGUMENTS)))
    runner.triggers[1]["task"] = task
    return runner, task


def test_a_kill_is_executed_although_airflow_cancels_the_trigger_again(
    monkeypatch: pytest.MonkeyPatch, kills: list[tuple[str, str]]
) -> None:
    observed, asked, gate = threading.Event(), threading.Event(), threading.Event()

    def observe(platform: Any, job_id: str) -> Observation:
        observed.set()
        return seen(Phase.TRAINING)

    def get_task_states(**names: Any) -> dict[str, dict[str, Any]]:
        if observed.is_set():
            asked.set()
            assert gate.wait(60)
        return {"run": {"task": "failed"}}

    monkeypatch.setattr("elastrec.platform.jobs.observe", observe)
    monkeypatch.setattr(RuntimeTaskInstance, "get_task_states", staticmethod(get_task_states))

    async def kill() -> None:
        runner, task = running_trigger()
        assert await asyncio.to_thread(observed.wait, 60)
        # The triggerer cancels the trigger at each exchange with its supervisor until it has ended.
        for _ in range(5):
            runner.to_cancel.append(1)
            await runner.cancel_triggers()
            assert await asyncio.to_thread(asked.wait, 60)
            for _ in range(20):
                await asyncio.sleep(0)
        assert not task.done() and kills == []
        gate.set()
        await asyncio.wait({task}, timeout=60)
        assert task.cancelled() and kills == [MINE]

    asyncio.run(kill())


def test_a_kill_is_executed_although_airflow_is_cancelled_before_its_call(
    monkeypatch: pytest.MonkeyPatch, kills: list[tuple[str, str]], states: dict[str, Any]
) -> None:
    states["task"] = "failed"
    observed, gate = threading.Event(), threading.Event()

    def observe(platform: Any, job_id: str) -> Observation:
        observed.set()
        assert gate.wait(60)
        return seen(Phase.TRAINING)

    monkeypatch.setattr("elastrec.platform.jobs.observe", observe)

    async def kill() -> None:
        # One thread, which looks at the job: the line that Airflow writes before it calls `on_kill` waits for it.
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
        # That the trigger starts is logged by the same thread, before it looks at the job.
        runner, task = running_trigger()
        while not observed.is_set():
            await asyncio.sleep(0.01)
        for _ in range(2):
            runner.to_cancel.append(1)
            await runner.cancel_triggers()
            for _ in range(20):
                await asyncio.sleep(0)
        assert not task.done() and kills == []
        gate.set()
        await asyncio.wait({task}, timeout=60)
        assert task.cancelled() and kills == [MINE]

    asyncio.run(kill())


def test_a_trigger_whose_triggerer_shuts_down_leaves_the_job_alone(
    kills: list[tuple[str, str]], script: Callable[..., None], states: dict[str, Any]
) -> None:
    states["task"] = "failed"
    script(seen(Phase.TRAINING))

    async def shut_down() -> None:
        _, task = running_trigger()
        await asyncio.sleep(0.2)
        task.cancel()
        await asyncio.wait({task}, timeout=60)
        assert task.cancelled() and kills == []

    asyncio.run(shut_down())


def test_the_message_of_airflows_kill_is_known() -> None:
    assert triggerer_job_runner._USER_ACTION_CANCEL_MSG == ENDED_BY_A_PERSON


def test_airflow_is_queried_before_a_kill_without_waiting_for_the_answer(
    monkeypatch: pytest.MonkeyPatch, script: Callable[..., None]
) -> None:
    asked, gate = threading.Event(), threading.Event()

    def get_task_states(**names: Any) -> dict[str, dict[str, Any]]:
        asked.set()
        assert gate.wait(60)
        return {}

    def observe(platform: Any, job_id: str) -> Observation:
        assert asked.wait(60), "nobody asked Airflow for the task's state"
        return seen(Phase.SUCCEEDED)

    monkeypatch.setattr(RuntimeTaskInstance, "get_task_states", staticmethod(get_task_states))
    monkeypatch.setattr(JobTrigger, "_platform", lambda self: None)
    monkeypatch.setattr("elastrec.platform.jobs.observe", observe)

    async def watch() -> None:
        events = JobPhaseTrigger(**ARGUMENTS).run()
        event = await anext(aiter(events))
        assert event.payload["outcome"] == "succeeded"
        gate.set()

    asyncio.run(watch())


def silent(reason: str = "the master does not answer: deadline exceeded") -> Observation:
    return Observation(TrainingMetrics(job="clicks", phase=Phase.PENDING, reason=reason), reachable=False)


def test_a_silent_master_ends_the_wait_with_its_reason_and_is_logged(
    script: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settings, "SILENT_AFTER_SECONDS", 0.05)
    monkeypatch.setattr(settings, "PROGRESS_SECONDS", 0.0)
    script(seen(Phase.TRAINING), silent())
    with capture_logs() as lines:
        event = first_event(JobPhaseTrigger(**ARGUMENTS))
    assert (event["outcome"], event["reason"]) == ("silent", "the master does not answer: deadline exceeded")
    warnings = [line["event"] for line in lines if line["log_level"] == "warning"]
    assert warnings and "its master does not answer" in warnings[0] and "deadline exceeded" in warnings[0]


def test_a_master_that_answers_again_ends_the_doubt(
    script: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settings, "PROGRESS_SECONDS", 0.0)
    script(silent(), silent(), seen(Phase.TRAINING), seen(Phase.SUCCEEDED))
    with capture_logs() as lines:
        assert first_event(JobPhaseTrigger(**ARGUMENTS))["outcome"] == "succeeded"
    assert [line for line in lines if "observed again" in line["event"]]
