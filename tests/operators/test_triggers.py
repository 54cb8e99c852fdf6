"""Triggers fire once, not too early, with all that the task needs; a kill stops the job only when it should."""

from __future__ import annotations

import asyncio
import functools
import importlib
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from airflow.triggers.base import TriggerEvent

from elastrec.operators import settings
from elastrec.operators.triggers import EvaluatorTrigger, JobPhaseTrigger, JobTrigger, TrackingTrigger
from elastrec.platform.jobs import EvaluatorState, Observation
from elastrec.platform.specs.errors import ClusterError
from elastrec.platform.specs.metrics import Phase, TrainingMetrics

ARGUMENTS: dict[str, Any] = {
    "job_id": "clicks-1",
    "conn_id": "elastrec_default",
    "owner": "dag/run/task/1",
    "dag_id": "dag",
    "run_id": "run",
    "watched_task_id": "task",
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


@pytest.mark.parametrize(("phase", "outcome"), [(Phase.FAILED, "failed"), (Phase.STOPPED, "stopped")])
def test_a_bad_end_fires_with_its_reason(script: Callable[..., None], phase: Phase, outcome: str) -> None:
    script(seen(phase, failure="ZeroDivisionError"))
    event = first_event(JobPhaseTrigger(**ARGUMENTS))
    assert (event["outcome"], event["reason"]) == (outcome, "ZeroDivisionError")


def test_nothing_fires_before_the_grace_is_over(script: Callable[..., None]) -> None:
    script(seen(Phase.SUCCEEDED))
    begin = time.monotonic()
    first_event(JobPhaseTrigger(**{**ARGUMENTS, "grace_seconds": 0.3}))
    assert time.monotonic() - begin >= 0.3
    assert settings.FIRE_GRACE_SECONDS >= 6.0


def test_a_job_that_stays_unknown_is_lost_but_one_that_comes_back_is_not(
    script: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settings, "LOST_AFTER_SECONDS", 0.05)
    gone = ClusterError("job clicks-1: not in the cluster; it was stopped, finished or never launched")
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
def test_the_wait_for_mlflow_fires_when_it_is_back_or_when_patience_is_over(
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


@pytest.mark.parametrize(
    "kind", [JobPhaseTrigger, EvaluatorTrigger, functools.partial(TrackingTrigger, patience_seconds=7.0)]
)
def test_a_trigger_is_rebuilt_from_what_it_serialises(kind: Callable[..., JobTrigger]) -> None:
    path, arguments = kind(**ARGUMENTS).serialize()
    module, _, name = path.rpartition(".")
    rebuilt: JobTrigger = getattr(importlib.import_module(module), name)(**arguments)
    assert type(rebuilt) is type(kind(**ARGUMENTS)) and rebuilt.serialize() == (path, arguments)


@pytest.mark.parametrize(
    ("state", "stops"),
    [("failed", True), ("success", True), (None, True), ("", False), ("queued", False), ("running", False)],
)
def test_only_a_task_that_was_ended_for_good_stops_its_job(
    monkeypatch: pytest.MonkeyPatch, state: str | None, stops: bool
) -> None:
    stopped = []

    async def task_state(self: JobTrigger) -> str | None:
        return state

    def stop(platform: Any, job_id: str, reason: str, owner: str) -> bool:
        stopped.append((job_id, owner))
        return True

    monkeypatch.setattr(JobTrigger, "_platform", lambda self: None)
    monkeypatch.setattr(JobTrigger, "_task_state", task_state)
    monkeypatch.setattr("elastrec.platform.jobs.stop", stop)
    asyncio.run(JobPhaseTrigger(**ARGUMENTS).on_kill())
    assert stopped == ([("clicks-1", "dag/run/task/1")] if stops else [])
