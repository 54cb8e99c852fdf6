"""The operators of auto_scaling, one after the other, on jobs that are told and not run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

from elastrec.operators.base import ElastrecOperator
from elastrec.operators.links import RUN_URL_KEY
from elastrec.operators.scaling import ApplyPlanOperator, PlanRoundOperator
from elastrec.platform.jobs.scaling import rounds as scaling
from elastrec.platform.jobs.scaling import story as scaling_story
from elastrec.platform.jobs.scaling.profiles import NotNow
from elastrec.platform.jobs.scaling.rounds import Applied
from elastrec.platform.scaling.policy import Round
from elastrec.platform.scaling.types import Plan
from tests.operators.steps import context
from tests.platform.scaling.jobs import allocation
from tools.stack.services import default_dags_folder

SETTINGS = default_dags_folder() / "scaling.yaml"
GROWS = Plan(
    job_id="clicks-1", policy="three-stage", before=allocation(1), allocation=allocation(2), reason="+70 % samples/s",
    shape_version=3, expires_unix_seconds=2e9,
)  # fmt: skip
STAYS = msgspec.structs.replace(GROWS, job_id="rests-1", allocation=allocation(1), reason="stays: no plan pays")
LEFT_ALONE = NotNow("new-1", "3 steps")


@pytest.fixture(autouse=True)
def told(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    answers: dict[str, Any] = {"plans": (GROWS, STAYS), "problems": {}}
    monkeypatch.setattr(ElastrecOperator, "platform", property(lambda self: None))
    monkeypatch.setattr(
        scaling, "plan", lambda platform, settings: (Round(answers["plans"], answers["problems"]), [LEFT_ALONE])
    )
    return answers


def planned(ran: dict[str, Any]) -> list[str]:
    return PlanRoundOperator(task_id="plan", settings_file=SETTINGS).execute(ran)


def test_each_plan_travels_by_itself_and_a_job_that_stays_costs_nothing() -> None:
    ran = context()
    (key,) = planned(ran)
    assert ran["ti"].pushed.keys() == {key}
    assert msgspec.convert(msgspec.json.decode(msgspec.json.encode(ran["ti"].pushed[key])), Plan) == GROWS


def test_two_plans_for_one_job_do_not_take_each_others_place(told: dict[str, Any]) -> None:
    memory = msgspec.structs.replace(GROWS, policy="memory-forecast")
    told["plans"] = (memory, GROWS)
    ran = context()
    first, second = planned(ran)
    assert [ran["ti"].pushed[key]["policy"] for key in (first, second)] == ["memory-forecast", "three-stage"]


def test_the_log_says_what_becomes_of_every_job_and_why(
    told: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    told["problems"] = {"rests-1": "no usable observation"}
    planned(context())
    log = capsys.readouterr().out
    for said in (
        "new-1 is left alone: 3 steps", "clicks-1: +70 % samples/s", "rests-1: stays: no plan pays",
        "rests-1: no usable observation",
    ):  # fmt: skip
        assert said in log


@pytest.mark.parametrize(("plans", "why"), [((), "no job trains"), ((STAYS,), "every job stays as it is")])
def test_with_nothing_to_change_the_round_ends_at_once(told: dict[str, Any], plans: Any, why: str) -> None:
    told["plans"] = plans
    with pytest.raises(AirflowSkipException, match=why):
        planned(context())


def test_a_wrong_settings_file_fails_without_a_retry(tmp_path: Path) -> None:
    (tmp_path / "wrong.yaml").write_text("max_slowdown: 2\n")
    with pytest.raises(AirflowFailException, match="max_slowdown"):
        PlanRoundOperator(task_id="plan", settings_file=tmp_path / "wrong.yaml").execute(context())


def test_applying_takes_its_own_plan_links_to_the_run_and_hands_on_what_became_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    applied = Applied(job_id="clicks-1", changed=False, before="a", after="b", reason="not yet possible live")
    given = list[Plan]()
    monkeypatch.setattr(scaling, "apply", lambda platform, plan: (given.append(plan), applied)[1])
    monkeypatch.setattr(scaling_story, "log_decision", lambda platform, plan, done: f"http://mlflow/{plan.job_id}")
    ran = context()
    (key,) = planned(ran)
    output = ApplyPlanOperator(task_id="apply", plan=key, planned_by="plan").execute(ran)
    assert given == [GROWS] and output["reason"] == "not yet possible live"
    assert ran["ti"].pushed[RUN_URL_KEY] == "http://mlflow/clicks-1"
    assert ran["map_index_name"] == "clicks-1"
