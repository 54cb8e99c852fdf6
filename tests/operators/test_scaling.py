"""The operators of auto_scaling, one after the other, on a job that is told and not run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

from elastrec.operators.base import ElastrecOperator
from elastrec.operators.links import RUN_URL_KEY
from elastrec.operators.scaling import (
    LEFT_ALONE,
    ApplyPlanOperator,
    ProposeOperator,
    RunningJobsOperator,
    SelectOperator,
)
from elastrec.platform.jobs.scaling import rounds as scaling
from elastrec.platform.jobs.scaling import story as scaling_story
from elastrec.platform.jobs.scaling.rounds import Applied, NotNow
from elastrec.platform.scaling.across_jobs.quota import Holder, Shares
from elastrec.platform.scaling.across_jobs.shared_round import Standing
from elastrec.platform.scaling.amounts import Allocation, Capacity, PriceList, Resources
from elastrec.platform.scaling.policy import View
from elastrec.platform.scaling.types import JobProfile, ModelShape, Observation, Plan
from tests.operators.steps import context
from tools.stack.services import default_dags_folder

CLUSTER = "the cluster"
SETTINGS = default_dags_folder() / "scaling.yaml"
ONE = Allocation(
    workers=1,
    parameter_servers=1,
    worker_cores=1.0,
    parameter_server_cores=1.0,
    worker_memory_bytes=2**30,
    parameter_server_memory_bytes=2**30,
)
PROFILE = JobProfile(
    job_id="clicks-1",
    shape=ModelShape(batch_size=512, dense_bytes=1_000_000, embedding_dimension=16),
    allocation=ONE,
    remaining_samples=1e9,
    observations=tuple(
        Observation(
            allocation=msgspec.structs.replace(ONE, workers=workers),
            iteration_seconds=0.1 + 0.001 * workers,
            compute_seconds=0.09,
            iterations=100,
        )
        for workers in (1, 2, 3)
    ),
)
VIEW = View(Capacity(free=Resources(16.0, 2.0**36)), PriceList(core_hour=0.04, gibibyte_hour=0.005))
TOTAL = Resources(20.0, 2.0**37)


@pytest.fixture(autouse=True)
def told(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    answers: dict[str, Any] = {"clicks-1": PROFILE, "new-1": NotNow("new-1", "3 steps")}
    monkeypatch.setattr(ElastrecOperator, "platform", property(lambda self: None))
    monkeypatch.setattr(scaling, "training_jobs", lambda platform: [job for job in answers if job != CLUSTER])
    monkeypatch.setattr(scaling, "profile", lambda platform, job_id, settings: answers[job_id])
    monkeypatch.setattr(scaling, "view", lambda platform, settings: VIEW)
    answers_of_the_cluster = {"shares": Shares(total=TOTAL, entitled={}, held={}), "waiting": {}}
    monkeypatch.setattr(
        "elastrec.platform.jobs.scaling.standing.standing",
        lambda platform, settings, holders=(): Standing(holders=holders, **answers_of_the_cluster),
    )
    answers[CLUSTER] = answers_of_the_cluster
    return answers


def select(proposed: list[Any], left_alone: list[Any] | None = None) -> SelectOperator:
    return SelectOperator(task_id="task", settings_file=SETTINGS, proposed=proposed, left_alone=left_alone)


def running() -> RunningJobsOperator:
    return RunningJobsOperator(task_id="task", settings_file=SETTINGS)


def test_a_round_measures_proposes_and_chooses_and_its_values_travel_as_json(told: dict[str, Any]) -> None:
    found = running().execute(context())
    assert [each["job_id"] for each in found] == ["clicks-1"]
    named = context()
    proposed = ProposeOperator(task_id="task", settings_file=SETTINGS, profile=found[0]).execute(named)
    assert named["map_index_name"] == "clicks-1" and proposed["problem"] == ""
    (plan,) = select([proposed]).execute(context())
    chosen = msgspec.convert(plan, Plan)
    assert chosen.job_id == "clicks-1" and chosen.before == ONE
    assert chosen.allocation.workers > 1
    assert chosen.allocation.resources.cores - ONE.resources.cores <= 16.0


def test_with_nothing_to_decide_the_round_ends_at_once(told: dict[str, Any]) -> None:
    del told["clicks-1"]
    with pytest.raises(AirflowSkipException):
        running().execute(context())


def test_a_job_that_cannot_be_decided_about_gives_back_what_another_team_owns(told: dict[str, Any]) -> None:
    del told["clicks-1"]
    borrower = Holder(job_id="new-1", team="search", allocation=msgspec.structs.replace(ONE, workers=9))
    told["new-1"] = NotNow("new-1", "3 steps", borrower)
    held = {"search": borrower.allocation.resources, "ads": Resources(10.0, 2.0**33)}
    told[CLUSTER] |= {"shares": Shares(total=TOTAL, entitled={"ads": 0.9}, held=held), "waiting": {}}
    told[CLUSTER]["waiting"] = {"ads": [Resources(2.0, 2.0**31)]}
    found = context()
    assert running().execute(found) == []
    (plan,) = select([], found["ti"].pushed[LEFT_ALONE]).execute(context())
    given = msgspec.convert(plan, Plan)
    assert (given.job_id, given.before.workers, given.allocation.workers) == ("new-1", 9, 7)


def test_a_wrong_settings_file_fails_without_a_retry(tmp_path: Path) -> None:
    (tmp_path / "wrong.yaml").write_text("max_slowdown: 2\n")
    with pytest.raises(AirflowFailException, match="max_slowdown"):
        RunningJobsOperator(task_id="task", settings_file=tmp_path / "wrong.yaml").execute(context())


def test_a_job_whose_model_cannot_be_fitted_keeps_its_plan_and_says_why() -> None:
    broken = msgspec.structs.replace(
        PROFILE, observations=(Observation(allocation=ONE, iteration_seconds=float("nan")),)
    )  # fmt: skip
    operator = ProposeOperator(task_id="task", settings_file=SETTINGS, profile=msgspec.to_builtins(broken))
    proposed = operator.execute(context())
    assert proposed["proposal"] is None and "clicks-1" in proposed["problem"]
    (plan,) = select([proposed]).execute(context())
    chosen = msgspec.convert(plan, Plan)
    assert not chosen.changes and proposed["problem"] in chosen.reason


def test_applying_links_to_the_run_and_hands_on_what_became_of_the_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    applied = Applied(job_id="clicks-1", changed=False, before="a", after="b", reason="not yet possible live")
    monkeypatch.setattr(scaling, "apply", lambda platform, plan: applied)
    monkeypatch.setattr(scaling_story, "log_decision", lambda platform, plan, done: f"http://mlflow/{plan.job_id}")
    plan = Plan(job_id="clicks-1", policy="static", before=ONE, allocation=ONE, reason="stays")
    found = context()
    output = ApplyPlanOperator(task_id="task", plan=msgspec.to_builtins(plan)).execute(found)
    assert output["reason"] == "not yet possible live"
    assert found["ti"].pushed == {RUN_URL_KEY: "http://mlflow/clicks-1"}
    assert found["map_index_name"] == "clicks-1"
