"""A task of a job that a person ends stops what it has started."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowTaskTerminated, TaskDeferred

from tests.operators.steps import (
    LAUNCHED,
    OWNER,
    Platform,
    context,
    launch,
    offline,
    platform_fixture,  # noqa: F401
)


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
