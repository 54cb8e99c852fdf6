"""The operators of auto_scaling, one after the other, on fake jobs."""

from __future__ import annotations

import asyncio
import re
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from airflow.sdk.exceptions import (
    AirflowFailException,
    AirflowSkipException,
    AirflowTaskTerminated,
    AirflowTaskTimeout,
    TaskDeferred,
)

from elastrec.operators import settings
from elastrec.operators.base import ElastrecOperator
from elastrec.operators.links import MIGRATION_URL_KEY, RUN_URL_KEY
from elastrec.operators.scaling import MigratePodsOperator, PlanRoundOperator, ScaleJobOperator
from elastrec.operators.triggers import JobTrigger, ShapeTrigger
from elastrec.operators.values import ChangedJob
from elastrec.platform.jobs.scaling import asking
from elastrec.platform.jobs.scaling import rounds as scaling
from elastrec.platform.jobs.scaling import story as scaling_story
from elastrec.platform.jobs.scaling.rounds import Applied
from elastrec.platform.jobs.watching.past import NothingLeftError
from elastrec.platform.scaling.amounts import Allocation, Resources
from elastrec.platform.scaling.job_profile import NotNow
from elastrec.platform.scaling.policy import Round
from elastrec.platform.scaling.types import Candidate, CandidateKind, Considered, Plan
from elastrec.platform.specs.metrics import Role
from elastrec.platform.specs.shape import PlacesChange
from elastrec.platform.transport.messages.job import Done as Message
from elastrec.platform.transport.messages.observer import PodMove, ShapeAnswer, ShapeOutcome, ShapeRequest
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
def answers(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    answers: dict[str, Any] = {"plans": (GROWS, STAYS), "problems": {}}
    monkeypatch.setattr(ElastrecOperator, "platform", property(lambda self: None))
    monkeypatch.setattr(
        scaling, "plan", lambda platform, settings: (Round(answers["plans"], answers["problems"]), [LEFT_ALONE])
    )
    return answers


def planned(ran: dict[str, Any]) -> list[str]:
    return PlanRoundOperator(task_id="plan", settings_file=SETTINGS).execute(ran)


def test_each_plan_is_one_mapped_task_and_unchanged_jobs_have_none() -> None:
    ran = context()
    (key,) = planned(ran)
    assert ran["ti"].pushed.keys() == {key, "reasons"}
    assert msgspec.convert(msgspec.json.decode(msgspec.json.encode(ran["ti"].pushed[key])), Plan) == GROWS


def test_two_plans_for_one_job_do_not_take_each_others_place(answers: dict[str, Any]) -> None:
    memory = msgspec.structs.replace(GROWS, policy="memory-forecast")
    answers["plans"] = (memory, GROWS)
    ran = context()
    first, second = planned(ran)
    assert [ran["ti"].pushed[key]["policy"] for key in (first, second)] == ["memory-forecast", "three-stage"]


def test_the_log_shows_the_decision_about_every_job_with_its_reason(
    answers: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    answers["problems"] = {"rests-1": "no usable observation"}
    planned(context())
    log = capsys.readouterr().out
    for said in (
        "new-1 is left alone: 3 steps", "clicks-1: +70 % samples/s", "rests-1: stays: no plan pays",
        "rests-1: no usable observation",
    ):  # fmt: skip
        assert said in log


@pytest.mark.parametrize(("plans", "why"), [((), "no job trains"), ((STAYS,), "every job stays as it is")])
def test_a_round_without_changes_ends_immediately(answers: dict[str, Any], plans: Any, why: str) -> None:
    answers["plans"] = plans
    with pytest.raises(AirflowSkipException, match=why):
        planned(context())


def test_a_round_leaves_the_reason_of_every_decision_also_if_no_job_is_changed(answers: dict[str, Any]) -> None:
    answers["plans"], answers["problems"] = (STAYS,), {"odd-1": "no usable observation"}
    ran = context()
    with pytest.raises(AirflowSkipException):
        planned(ran)
    assert ran["ti"].pushed == {
        "reasons": {
            "new-1": "left alone: 3 steps", "rests-1": "stays: no plan pays", "odd-1": "no usable observation"
        }
    }  # fmt: skip


def test_a_wrong_settings_file_fails_without_a_retry(tmp_path: Path) -> None:
    (tmp_path / "wrong.yaml").write_text("max_slowdown: 2\n")
    with pytest.raises(AirflowFailException, match="max_slowdown"):
        PlanRoundOperator(task_id="plan", settings_file=tmp_path / "wrong.yaml").execute(context())


class Master:
    """What the master of a job answers, and what it was asked."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *requests: ShapeRequest) -> None:
        self.asked, self.cancelled, self.logged = list[Any](), list[str](), list[tuple[bool, str]]()
        self.frees_plan = list[bool]()
        self.answer = Applied(
            job_id="clicks-1", changed=True, before="a", after="b", reason="more", request_id="shape-2"
        )
        rest = list(requests)
        monkeypatch.setattr(scaling, "apply", lambda platform, plan: (self.asked.append(plan), self.answer)[1])
        monkeypatch.setattr(
            asking, "look_at_request", lambda *of: (rest.pop(0) if len(rest) > 1 else rest[0], "copying")
        )
        monkeypatch.setattr(asking, "pause_of", lambda *of: 0.25)
        monkeypatch.setattr(asking, "ask_for_shape", self._ask)
        monkeypatch.setattr(
            asking,
            "cancel_request",
            self._cancel,
        )
        monkeypatch.setattr(scaling_story, "log_decision", self._log)
        monkeypatch.setattr(JobTrigger, "_platform", lambda trigger: None)
        monkeypatch.setattr(settings, "POLL_SECONDS", 0.01)

    def _ask(self, platform: Any, job_id: str, change: Any, **more: Any) -> ShapeAnswer:
        self.asked.append((change, more))
        plans = list(dict.fromkeys(each["plan_id"] for _, each in self.asked))
        return ShapeAnswer(request_id=f"shape-{2 + plans.index(more['plan_id'])}")  # one for each plan

    def _cancel(self, platform: Any, job: str, request_id: str, *, frees_plan: bool) -> Message:
        self.cancelled.append(request_id)
        self.frees_plan.append(frees_plan)
        return Message()

    def _log(self, platform: Any, plan: Plan, *, is_changed: bool, reason: str) -> str:
        self.logged.append((is_changed, reason))
        return f"http://mlflow/{plan.job_id}"


def request(outcome: ShapeOutcome, reason: str = "") -> ShapeRequest:
    return ShapeRequest(request_id="shape-2", wanted="workers 2", outcome=outcome, reason=reason)


def migrate(ran: dict[str, Any], **arguments: Any) -> Any:
    (key,) = planned(ran)
    ran["ti"].task_id = "migrate"
    task = MigratePodsOperator(task_id="migrate", plan=key, planned_by="plan", deferrable=False, **arguments)
    return task.execute(ran)


def test_a_plan_is_requested_and_awaited_and_the_grid_shows_its_outcome(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    master = Master(monkeypatch, request(ShapeOutcome.OPEN), request(ShapeOutcome.DONE))
    ran = context()
    output = migrate(ran)
    assert master.asked == [GROWS] and master.logged == [(True, GROWS.reason)]
    assert output == {
        "job_id": "clicks-1", "request_id": "shape-2", "proposed": "by three-stage", "chosen": "1 → 2 workers",
        "migrated": True, "outcome": "done", "reason": "", "pause_seconds": 0.25,
    }  # fmt: skip
    assert ran["ti"].pushed[RUN_URL_KEY] == "http://mlflow/clicks-1"
    assert ran["ti"].pushed[MIGRATION_URL_KEY].endswith("/jobs/clicks-1?connection=elastrec_default#migrations")
    assert ran["map_index_name"] == "clicks-1: proposed by three-stage; 1 → 2 workers; migrated, pause 0.25 s"


def test_a_change_of_a_job_that_has_ended_since_is_done_with_an_unknown_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    Master(monkeypatch, request(ShapeOutcome.DONE))

    def over(*of: Any) -> float:
        raise NothingLeftError("job clicks-1: it is not in the cluster, and nothing of it was left in the store")

    monkeypatch.setattr(asking, "pause_of", over)
    ran = context()
    output = migrate(ran)
    assert (output["migrated"], output["outcome"], output["pause_seconds"]) == (True, "done", None)
    assert ran["map_index_name"] == "clicks-1: proposed by three-stage; 1 → 2 workers; migrated"


def test_the_grid_shows_the_sizes_that_were_proposed_and_chosen(
    answers: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    Master(monkeypatch, request(ShapeOutcome.DONE))
    smaller = msgspec.structs.replace(GROWS.before, worker_memory_bytes=2**30, parameter_server_cores=0.5)
    answers["plans"] = (msgspec.structs.replace(GROWS, allocation=smaller, considered=considered(smaller)),)
    ran = context()
    output = migrate(ran)
    assert output["chosen"] == "1 → 0.5 cores per server, 2 → 1 GiB per worker"
    assert output["proposed"] == f"2 candidates: 1 → 2 workers, {output['chosen']}"
    assert ran["map_index_name"] == (
        f"clicks-1: proposed {output['proposed']}; {output['chosen']}; migrated, pause 0.25 s"
    )  # fmt: skip


def considered(*others: Allocation) -> tuple[Considered, ...]:
    """To stay, another worker, which would bring most, and others."""
    found = []
    for place, each in enumerate((GROWS.before, GROWS.allocation, *others)):
        candidate = Candidate(
            allocation=each, kind=CandidateKind.GROW, samples_per_second=1.0, gain=-float(place), overhead=0.0,
            cost_per_hour=0.0, needs=Resources(),
        )  # fmt: skip
        found.append(Considered(candidate=candidate, weight=1.0, value=None, chosen=False, why=""))
    return tuple(found)


def test_each_part_of_a_name_that_is_too_long_for_airflow_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    Master(monkeypatch, request(ShapeOutcome.REFUSED, "no room " * 50))
    ran = context()
    migrate(ran)
    name = ran["map_index_name"]
    assert len(name) == 250 and name.startswith("clicks-1: proposed by three-stage; 1 → 2 workers; refused: no room")
    changed = ChangedJob(
        job_id="clicks-1", proposed="4 → 5 workers, " * 40, chosen="4 → 5 workers, " * 40, migrated=True,
        outcome="done", pause_seconds=0.25,
    )  # fmt: skip
    assert changed.words(250).endswith("…; migrated, pause 0.25 s")
    changed = msgspec.structs.replace(changed, chosen="4 → 5 workers")
    assert changed.words(250).endswith("…; 4 → 5 workers; migrated, pause 0.25 s") and len(changed.words(250)) == 250


def test_a_plan_that_its_master_refuses_changes_nothing_and_fails_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    master = Master(monkeypatch, request(ShapeOutcome.OPEN))
    master.answer = Applied(job_id="clicks-1", changed=False, before="a", after="b", reason="not yet possible live")
    output = migrate(context())
    assert (output["migrated"], output["outcome"], output["pause_seconds"]) == (False, "refused", None)
    assert master.logged == [(False, "not yet possible live")]


@pytest.mark.parametrize("outcome", [ShapeOutcome.REFUSED, ShapeOutcome.TIMED_OUT, ShapeOutcome.CANCELLED])
def test_an_accepted_plan_that_was_not_reached_does_not_count_as_a_change(
    monkeypatch: pytest.MonkeyPatch, outcome: ShapeOutcome
) -> None:
    master = Master(monkeypatch, request(outcome, "no node has room"))
    output = migrate(context())
    assert (output["migrated"], output["outcome"], output["pause_seconds"]) == (False, outcome.value, None)
    assert master.logged == [(False, f"{outcome.value}: no node has room")]


def test_rows_that_cannot_be_copied_fail_the_task_and_are_in_the_jobs_run(monkeypatch: pytest.MonkeyPatch) -> None:
    words = "j-ps-2 cannot copy its buckets: other code"
    master = Master(monkeypatch, request(ShapeOutcome.OPEN), request(ShapeOutcome.FAILED, words))
    with pytest.raises(AirflowFailException, match=f"failed: {words}"):
        migrate(context())
    assert master.logged == [(False, f"failed: {words}")]
    Master(monkeypatch, request(ShapeOutcome.OPEN), request(ShapeOutcome.FAILED, words))
    with pytest.raises(AirflowFailException, match=f"failed: {words}"):
        scale(context(), parameter_servers=3)


@pytest.mark.parametrize(
    ("kept", "words"),
    [
        (None, "the plan plan-0-clicks-1 of the task plan is not there any more; was that task cleared?"),
        ({"job_id": "clicks-1"}, "the plan plan-0-clicks-1 of the task plan is not one of this version"),
    ],
    ids=["of a task that was cleared", "of another version"],
)
def test_a_plan_that_is_no_longer_usable_is_named_and_the_job_is_not_asked(
    monkeypatch: pytest.MonkeyPatch, kept: Any, words: str
) -> None:
    master = Master(monkeypatch, request(ShapeOutcome.OPEN))
    ran = context()
    task = MigratePodsOperator(task_id="migrate", plan=planned(ran)[0], planned_by="plan", deferrable=False)
    ran["ti"].pushed[task.plan] = kept
    with pytest.raises(AirflowFailException, match=re.escape(words)):
        task.execute(ran)
    assert master.asked == []


def test_a_slow_migration_is_left_to_its_master(monkeypatch: pytest.MonkeyPatch) -> None:
    master = Master(monkeypatch, request(ShapeOutcome.OPEN))
    output = migrate(context(), patience=timedelta(0))
    assert (output["migrated"], output["outcome"], output["reason"]) == (False, "open", "copying")
    assert master.logged == [(True, GROWS.reason)] and master.cancelled == []


def test_an_ended_task_cancels_its_request(monkeypatch: pytest.MonkeyPatch) -> None:
    master = Master(monkeypatch, request(ShapeOutcome.OPEN))
    ran = context()
    (key,) = planned(ran)
    task = MigratePodsOperator(task_id="migrate", plan=key, planned_by="plan", deferrable=True)
    with pytest.raises(TaskDeferred) as deferred:
        task.execute(ran)
    trigger = deferred.value.trigger
    assert isinstance(trigger, ShapeTrigger) and trigger.request_id == "shape-2"
    path, arguments = trigger.serialize()
    assert path == "elastrec.operators.triggers.ShapeTrigger"
    restarted = ShapeTrigger(**arguments)

    async def end() -> None:
        await restarted.on_kill()
        await restarted.cleanup()

    asyncio.run(end())
    task.on_kill()
    assert master.cancelled == ["shape-2", "shape-2"], "by the triggerer, and by the task itself"
    assert all(master.frees_plan), "another try asks anew"


def scale_task() -> ScaleJobOperator:
    return ScaleJobOperator(task_id="scale", job_id="clicks-1", workers=2, deferrable=True)


def migrate_task(ran: dict[str, Any]) -> MigratePodsOperator:
    return MigratePodsOperator(task_id="migrate", plan=planned(ran)[0], planned_by="plan", deferrable=True)


@pytest.mark.parametrize("is_plan", [False, True], ids=["scale", "migrate"])
def test_a_task_that_is_ended_while_it_asks_leaves_no_request(monkeypatch: pytest.MonkeyPatch, is_plan: bool) -> None:
    master, ran = Master(monkeypatch, request(ShapeOutcome.OPEN)), context()
    task = migrate_task(ran) if is_plan else scale_task()
    module, name = (scaling, "apply") if is_plan else (asking, "ask_for_shape")
    ask = getattr(module, name)

    def asked(*values: Any, **fields: Any) -> Any:
        task.on_kill()  # as Airflow's signal handler does, after which the task goes on
        assert master.cancelled == [], "the master has not answered yet"
        return ask(*values, **fields)

    monkeypatch.setattr(module, name, asked)
    with pytest.raises(AirflowTaskTerminated):
        task.execute(ran)
    assert (master.cancelled, master.frees_plan) == (["shape-2"], [True])


@pytest.mark.parametrize("is_accepted", [False, True], ids=["not-accepted", "accepted"])
@pytest.mark.parametrize("is_plan", [False, True], ids=["scale", "migrate"])
def test_a_task_whose_time_is_over_while_it_asks_leaves_no_request(
    monkeypatch: pytest.MonkeyPatch, is_plan: bool, is_accepted: bool
) -> None:
    master, ran = Master(monkeypatch, request(ShapeOutcome.OPEN)), context()
    task = migrate_task(ran) if is_plan else scale_task()
    module, name = (scaling, "apply") if is_plan else (asking, "ask_for_shape")
    ask = getattr(module, name)

    def asked(*values: Any, **fields: Any) -> Any:
        if is_accepted:
            ask(*values, **fields)
        monkeypatch.setattr(module, name, ask)
        raise AirflowTaskTimeout  # as Airflow's handler of SIGALRM does

    monkeypatch.setattr(module, name, asked)
    with pytest.raises(AirflowTaskTimeout):
        task.execute(ran)
    task.on_kill()
    assert (master.cancelled, master.frees_plan) == (["shape-2"], [True])
    assert len(master.asked) == 1 + is_accepted


@pytest.mark.parametrize("is_plan", [False, True], ids=["scale", "migrate"])
def test_a_task_that_has_been_ended_makes_no_request(monkeypatch: pytest.MonkeyPatch, is_plan: bool) -> None:
    master, ran = Master(monkeypatch, request(ShapeOutcome.OPEN)), context()
    task = migrate_task(ran) if is_plan else scale_task()
    task.on_kill()
    with pytest.raises(AirflowTaskTerminated):
        task.execute(ran)
    assert (master.asked, master.cancelled) == ([], [])


def test_a_task_beyond_its_time_limit_cancels_its_request_and_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    master = Master(monkeypatch, request(ShapeOutcome.OPEN))
    with pytest.raises(AirflowFailException, match="its request was cancelled"):
        migrate(context(), execution_timeout=timedelta(seconds=1))
    assert (master.cancelled, master.frees_plan) == (["shape-2"], [True])


def scale(ran: dict[str, Any], **arguments: Any) -> Any:
    return ScaleJobOperator(task_id="scale", job_id="clicks-1", deferrable=False, **arguments).execute(ran)


def test_a_dag_scales_a_job(monkeypatch: pytest.MonkeyPatch) -> None:
    master = Master(monkeypatch, request(ShapeOutcome.DONE))
    output = scale(context(), workers="2", worker_cores="500m", parameter_server_memory="2Gi")
    assert output["migrated"] and output["chosen"] == "2 workers, 0.5 cores per worker, 2Gi of memory per server"
    ((change, _),) = master.asked
    assert change[Role.WORKER] == PlacesChange(count=2, cores=0.5)
    assert change[Role.PARAMETER_SERVER] == PlacesChange(memory_bytes=2**31)


def test_every_try_of_a_task_asks_for_the_same_plan_and_a_cleared_task_for_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    master = Master(monkeypatch, request(ShapeOutcome.DONE))
    tries = [
        {"try_number": 1},
        {"try_number": 2},
        {"try_number": 3, "max_tries": 5},  # cleared after its second try
        {"map_index": 0},
        {"map_index": 1},
        {"run_id": "scheduled__2026-01-04"},
        {"task_id": "less"},
        {"dag_id": "another"},
    ]
    for fields in tries:
        scale(context(**fields), workers=2)
    first, second, *others = [more["plan_id"] for _, more in master.asked]
    assert first == second != "" and len({first, *others}) == len(tries) - 1


def test_a_dag_moves_pods_to_other_nodes_within_its_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    master = Master(monkeypatch, request(ShapeOutcome.DONE))
    output = scale(context(), moves="clicks-1-ps-0, clicks-1-ps-1", other_node=True, timeout=timedelta(minutes=5))
    assert output["chosen"] == "clicks-1-ps-0 moved to another node, clicks-1-ps-1 moved to another node"
    ((_, more),) = master.asked
    assert more["moves"] == [PodMove(pod=f"clicks-1-ps-{number}", leaves_node=True) for number in (0, 1)]
    assert more["timeout_seconds"] == 300.0 and more["asked_by"] == "Airflow: adhoc_airflow/scale"


def test_a_change_that_the_cluster_refuses_fails_the_task_without_a_retry(monkeypatch: pytest.MonkeyPatch) -> None:
    Master(monkeypatch, request(ShapeOutcome.OPEN), request(ShapeOutcome.REFUSED, "no node has room"))
    with pytest.raises(AirflowFailException, match="clicks-1: 200 workers; refused: no node has room"):
        scale(context(), workers=200)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({}, "at least one of them"),
        ({"workers": "many"}, "workers: 'many' is not allowed; allowed: a whole number"),
        ({"workers": 2.5}, "workers: 2.5 is not allowed; allowed: a whole number"),
        ({"parameter_servers": True}, "parameter_servers: True is not allowed; allowed: a whole number"),
        ({"worker_cores": "half"}, "worker_cores: 'half' is not allowed; allowed: a number of cores such as"),
        ({"worker_memory": "2GB"}, "worker_memory"),
        ({"workers": 2, "other_node": True}, "other_node: True is not allowed; allowed: only with moves"),
    ],
)
def test_wrong_arguments_fail_before_any_request(
    monkeypatch: pytest.MonkeyPatch, wrong: dict[str, Any], words: str
) -> None:
    master = Master(monkeypatch, request(ShapeOutcome.OPEN))
    with pytest.raises(AirflowFailException, match=words):
        scale(context(), **wrong)
    assert master.asked == []
