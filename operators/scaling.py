"""Operators that change running jobs: `ScaleJobOperator` to sizes in a DAG, the others by rounds of scaling.

In a round, one task plans for all running jobs. For each job that is to change, a mapped task sends the plan to the
job's master and waits for the migration. Each plan has its own XCom, with the key `plan_key`. Jobs that are not changed
have neither a plan nor a task.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
from airflow.sdk import BaseOperatorLink
from airflow.sdk.exceptions import AirflowTaskTerminated, AirflowTaskTimeout

from elastrec.operators.base import (
    AirflowException,
    AirflowFailException,
    ElastrecOperator,
    WaitingOperator,
    give,
    no_retry_for_bad_input,
    owner_token,
    plan_id,
    watched,
)
from elastrec.operators.links import MigrationLink, MlflowRunLink, push_link, push_migration_link
from elastrec.operators.triggers import GONE, TIMED_OUT, ShapeTrigger
from elastrec.platform.specs.text import plain_words

if TYPE_CHECKING:
    from airflow.sdk import Context

    from elastrec.operators.values import ChangedJob
    from elastrec.platform.jobs.scaling.rounds import Applied
    from elastrec.platform.scaling.types import Plan
    from elastrec.platform.specs.metrics import Role
    from elastrec.platform.specs.shape import PlacesChange
    from elastrec.platform.transport.messages.observer import ShapeAnswer

Answer = TypeVar("Answer", bound="ShapeAnswer | Applied")
_ARGUMENTS = "the operator's arguments"
_LONGEST_NAME = 250
"""Maximum length of a mapped task's name, in characters: the size of the column in Airflow's database."""
_NOTHING_TO_DECIDE = "no job trains that could be changed"
REASONS_KEY = "reasons"
"""XCom key of a round's reasons by job id, also those of jobs that are not changed."""


def plan_key(number: int, job_id: str) -> str:
    """XCom key of a plan by its position in the round. (A job may have a second plan, which its master will refuse.)"""
    return f"plan-{number}-{job_id}"


class PlanRoundOperator(ElastrecOperator):
    """One round over all running jobs. Output: the XCom keys of the plans that change a job, most urgent first.

    A second XCom, `reasons`, has the reason of the decision about every job, by job id.

    The settings file is read again in every round, so that changes take effect in the next round.

    Args:
        settings_file: see `platform.specs.scaling.ScalingSettings`.
    """

    template_fields: Sequence[str] = (*ElastrecOperator.template_fields, "settings_file")

    def __init__(self, *, settings_file: str | Path, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.settings_file = str(settings_file)

    def execute(self, context: Context) -> list[str]:
        """Logs the decision about every job with the reason; skips the following tasks if no job is to change."""
        from airflow.sdk.exceptions import AirflowSkipException

        from elastrec.platform.jobs.scaling import rounds as scaling
        from elastrec.platform.specs.scaling import load_scaling

        with no_retry_for_bad_input():
            settings = load_scaling(Path(self.settings_file))
        decided, left_alone = scaling.plan(self.platform, settings)
        for other in left_alone:
            self.log.info("%s is left alone: %s", other.job_id, other.reason)
        for proposal in decided.proposals:
            for note in proposal.notes:
                self.log.info("%s: %s", proposal.job_id, note)
        for plan in decided.plans:
            self.log.info("%s: %s", plan.job_id, plan.reason)
        for job_id, problem in decided.problems.items():
            self.log.warning("%s: %s", job_id or "all jobs", problem)
        reasons = {other.job_id: f"left alone: {other.reason}" for other in left_alone}
        reasons |= {plan.job_id: plan.reason for plan in decided.plans}
        context["ti"].xcom_push(key=REASONS_KEY, value=reasons | decided.problems)
        changing = [plan for plan in decided.plans if plan.changes]
        keys = [plan_key(number, plan.job_id) for number, plan in enumerate(changing)]
        for key, plan in zip(keys, changing, strict=True):
            context["ti"].xcom_push(key=key, value=msgspec.to_builtins(plan))
        if not keys:
            # Airflow's own line contains no reason for skipping the task.
            why = "every job stays as it is" if decided.plans else _NOTHING_TO_DECIDE
            self.log.info("the round ends here: %s", why)
            raise AirflowSkipException(why)
        return keys


class _ChangingOperator(WaitingOperator):
    """Asks a job's master for another shape, waits until the job has it, and cancels the request if the task is ended.

    All tries make the same request: a retry waits for the request of the first try, even if the job has been changed
    since. If a user ends the task, or its `execution_timeout` is over, the master is asked to cancel the request, which
    is possible until the hand-over of rows begins. A try after that makes a new request.

    Args:
        patience: how long to wait; after that the task succeeds with `outcome` "open", and the master continues.
    """

    operator_extra_links: tuple[BaseOperatorLink, ...] = (MlflowRunLink(), MigrationLink())

    def __init__(self, *, patience: timedelta | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.patience = patience
        self._asked: tuple[str, str] | None = None
        self._ask_again: Callable[[], object] | None = None
        self._is_ended = False

    def _answer(self, job_id: str, ask: Callable[[], Answer]) -> Answer:
        """Asks the job's master.

        Airflow lets a task go on after `on_kill`, which cannot cancel a request without its answer.

        Raises:
            AirflowTaskTerminated: the task was ended before or meanwhile; no request of it is left.
            AirflowTaskTimeout: the task's `execution_timeout` was over meanwhile; Airflow calls `on_kill` next.
        """

        def ask_once() -> Answer:
            answer = ask()
            if answer.request_id:
                self._asked = job_id, answer.request_id
            return answer

        if not self._is_ended:
            try:
                answer = ask_once()
            except AirflowTaskTimeout:
                # The master may have accepted the request. Its id comes with the answer, which is the same again.
                self._ask_again = ask_once
                raise
            if not self._is_ended:
                return answer
        self._cancel()
        raise AirflowTaskTerminated("the task was ended while it asked for another shape of its job")

    def _wait(self, context: Context, job_id: str, request_id: str) -> Any:
        push_migration_link(context, self.elastrec_conn_id, job_id)
        patience = None if self.patience is None else self.patience.total_seconds()
        trigger = ShapeTrigger(
            **watched(self, context, job_id, owner_token(context)), request_id=request_id, patience_seconds=patience
        )
        return self.wait_for(trigger, context)

    def _cancelled_in_time(self, event: Mapping[str, str]) -> None:
        """Raises if the task has run for too long, or the job could not be observed to the end."""
        from elastrec.platform.jobs.scaling import asking
        from elastrec.platform.transport.messages.observer import ShapeOutcome

        job_id, outcome, reason = event["job_id"], event["outcome"], event["reason"]
        if outcome == TIMED_OUT:
            done = asking.cancel_request(self.platform, job_id, event["request_id"], frees_plan=True)
            words = "its request was cancelled" if done.accepted else f"its request stands: {done.reason}"
            raise AirflowFailException(f"job {job_id}: {reason}; {words}")
        if outcome not in {GONE, *(each.value for each in ShapeOutcome)}:
            raise AirflowException(f"job {job_id} is {outcome}: {reason}; the next try asks for the same request")

    def _changed(self, event: Mapping[str, str], proposed: str, chosen: str) -> ChangedJob:
        """The outcome of an accepted request."""
        from elastrec.operators.values import ChangedJob
        from elastrec.platform.transport.messages.observer import ShapeOutcome

        is_done = event["outcome"] == ShapeOutcome.DONE
        return ChangedJob(
            job_id=event["job_id"],
            request_id=event["request_id"],
            proposed=proposed,
            chosen=chosen,
            migrated=is_done,
            outcome=event["outcome"],
            reason=event["reason"],
            pause_seconds=self._pause(event["job_id"], event["request_id"]) if is_done else None,
        )

    def _pause(self, job_id: str, request_id: str) -> float | None:
        from elastrec.platform.jobs.scaling.asking import pause_of
        from elastrec.platform.specs.errors import CheckpointError

        try:
            return pause_of(self.platform, job_id, request_id)
        except CheckpointError as error:
            # The job has ended since then, and its story is in a store that its job file names.
            self.log.warning("the pause of job %s is unknown: %s", job_id, error)
            return None

    def _show(self, context: Context, changed: ChangedJob) -> dict[str, Any]:
        name_in_grid(context, changed)
        self.log.info(changed.words())
        return give(changed)

    def on_kill(self) -> None:
        """Cancels the request; while the task is deferred the trigger does it."""
        self._is_ended = True
        self._cancel()

    def _cancel(self) -> None:
        from elastrec.platform.jobs.scaling import asking

        again, self._ask_again = self._ask_again, None
        if again is not None:
            again()
        asked, self._asked = self._asked, None
        if asked is not None:
            done = asking.cancel_request(self.platform, *asked, frees_plan=True)
            self.log.info("%s: %s", plain_words.numbered(asked[1]), "cancelled" if done.accepted else done.reason)


def name_in_grid(context: Context, changed: ChangedJob) -> None:
    """The name of a mapped task in the grid (`map_index_template`)."""
    context["map_index_name"] = changed.words(_LONGEST_NAME)  # type: ignore[typeddict-unknown-key]


class ScaleJobOperator(_ChangingOperator):
    """Changes the number or the size of a running job's pods, or replaces pods, and waits for the change.

    Output: `ChangedJob`. The task fails without a retry if the master or the cluster refuses.

    Args:
        job_id: the job; a template.
        workers, parameter_servers: their number; None, or an empty text: no change.
        worker_cores, parameter_server_cores: of each pod, such as 0.5 or "500m"; worker_memory,
            parameter_server_memory: of each pod, such as "2Gi". All are templates.
        moves: names of pods that are to be replaced, as a list or as text with commas; a template.
        other_node: whether the new pods start on other nodes, for example because a node is slow.
        timeout: time after which the job's master gives the request up.
    """

    template_fields: Sequence[str] = (
        *ElastrecOperator.template_fields, "job_id", "workers", "parameter_servers", "worker_cores",
        "parameter_server_cores", "worker_memory", "parameter_server_memory", "moves",
    )  # fmt: skip

    def __init__(
        self,
        *,
        job_id: str,
        workers: int | str | None = None,
        parameter_servers: int | str | None = None,
        worker_cores: float | str | None = None,
        parameter_server_cores: float | str | None = None,
        worker_memory: str | None = None,
        parameter_server_memory: str | None = None,
        moves: Sequence[str] | str = (),
        other_node: bool = False,
        timeout: timedelta = timedelta(hours=1),
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.job_id = job_id
        self.workers, self.parameter_servers = workers, parameter_servers
        self.worker_cores, self.parameter_server_cores = worker_cores, parameter_server_cores
        self.worker_memory, self.parameter_server_memory = worker_memory, parameter_server_memory
        self.moves, self.other_node = moves, other_node
        self.timeout = timeout

    def execute(self, context: Context) -> Any:
        """Asks and waits."""
        from elastrec.platform.jobs.scaling import asking
        from elastrec.platform.specs.errors import FieldProblem, SpecError
        from elastrec.platform.specs.shape import named_fields
        from elastrec.platform.transport.messages.observer import PodMove

        with no_retry_for_bad_input():
            change = self._change()
            pods = self._moved_pods()
            if not named_fields(change) and not pods:
                problem = FieldProblem(
                    "workers, parameter_servers, …, moves", "nothing", "at least one of them",
                    "say what is to be changed",
                )  # fmt: skip
                raise SpecError([problem], _ARGUMENTS)
            if self.other_node and not pods:
                problem = FieldProblem("other_node", "True", "only with moves", "name the pods that leave their nodes")
                raise SpecError([problem], _ARGUMENTS)

        def ask() -> ShapeAnswer:
            return asking.ask_for_shape(
                self.platform,
                self.job_id,
                change,
                moves=[PodMove(pod=pod, leaves_node=self.other_node) for pod in pods],
                plan_id=plan_id(context),
                asked_by=f"Airflow: {self.dag_id}/{self.task_id}",
                timeout_seconds=self.timeout.total_seconds(),
            )

        answer = self._answer(self.job_id, ask)
        if answer.reason:
            raise AirflowFailException(f"job {self.job_id}: {answer.reason}")
        return self._wait(context, self.job_id, answer.request_id)

    def resume(self, context: Context, event: Mapping[str, str]) -> dict[str, Any]:
        """Called with the trigger's event."""
        self._cancelled_in_time(event)
        asked = self._words()
        changed = self._changed(event, asked, asked)
        output = self._show(context, changed)
        if not changed.migrated and not changed.is_open:
            raise AirflowFailException(changed.words())
        return output

    def _change(self) -> dict[Role, PlacesChange]:
        from elastrec.platform.specs.metrics import Role

        return {
            Role.WORKER: self._places("worker", self.workers),
            Role.PARAMETER_SERVER: self._places("parameter_server", self.parameter_servers),
        }

    def _words(self) -> str:
        words = plain_words.places(self._change())
        words += [f"{pod} moved{' to another node' if self.other_node else ''}" for pod in self._moved_pods()]
        return ", ".join(words)

    def _moved_pods(self) -> list[str]:
        names = self.moves.split(",") if isinstance(self.moves, str) else self.moves
        return [name.strip() for name in names if name.strip()]

    def _places(self, role: str, count: int | str | None) -> PlacesChange:
        from elastrec.platform.specs.shape import PlacesChange
        from elastrec.platform.specs.text.quantities import parse_bytes, parse_cores

        count_field = f"{role}s"
        return PlacesChange(
            count=_parsed(count_field, count, _whole),
            cores=_parsed(f"{role}_cores", getattr(self, f"{role}_cores"), parse_cores),
            memory_bytes=_parsed(f"{role}_memory", getattr(self, f"{role}_memory"), parse_bytes),
        )


class MigratePodsOperator(_ChangingOperator):
    """Sends one plan of a round to its job's master, waits for the migration, and writes both to the job's run.

    Output: `ChangedJob`. If the master refuses the plan, the plan is stale, or there is no room for its pods, the
    output contains the reason and nothing changes; the next round makes a new plan. The task fails if the servers
    cannot copy their rows (`ShapeOutcome.FAILED`), because this would fail again in every round until somebody fixes
    the cause.

    Args:
        plan: one element of PlanRoundOperator's output.
        planned_by: id of its task, in this DAG.
    """

    template_fields: Sequence[str] = (*ElastrecOperator.template_fields, "plan")

    def __init__(self, *, plan: str, planned_by: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.plan = plan
        self.planned_by = planned_by

    def execute(self, context: Context) -> Any:
        """Asks and waits."""
        from elastrec.platform.jobs.scaling import rounds as scaling

        plan = self._plan(context)
        applied = self._answer(plan.job_id, lambda: scaling.apply(self.platform, plan))
        if applied.changed:
            self.log.info("%s: %s → %s: %s", applied.job_id, applied.before, applied.after, applied.reason)
            return self._wait(context, plan.job_id, applied.request_id)
        return self._end(context, plan, _refused(plan, applied.reason))

    def resume(self, context: Context, event: Mapping[str, str]) -> dict[str, Any]:
        """Called with the trigger's event."""
        self._cancelled_in_time(event)
        from elastrec.platform.transport.messages.observer import ShapeOutcome

        plan = self._plan(context)
        changed = self._changed(event, _proposed(plan), _chosen(plan))
        output = self._end(context, plan, changed)
        if changed.outcome == ShapeOutcome.FAILED:
            raise AirflowFailException(changed.words())
        return output

    def _plan(self, context: Context) -> Plan:
        """Raises AirflowFailException: the plan is gone, or of another version; the next round makes a new one."""
        from elastrec.platform.scaling.types import Plan

        kept = context["ti"].xcom_pull(task_ids=self.planned_by, key=self.plan)
        if kept is None:
            raise AirflowFailException(
                f"the plan {self.plan} of the task {self.planned_by} is not there any more; was that task cleared? "
                "clear all tasks of the run, or wait for the next round, which makes a new plan"
            )
        try:
            return msgspec.convert(kept, Plan)
        except msgspec.ValidationError as error:
            raise AirflowFailException(
                f"the plan {self.plan} of the task {self.planned_by} is not one of this version ({error}); wait for "
                "the next round, which makes a new plan"
            ) from None

    def _end(self, context: Context, plan: Plan, changed: ChangedJob) -> dict[str, Any]:
        from elastrec.platform.jobs.scaling import story as scaling_story

        is_changed = changed.migrated or changed.is_open
        reason = plan.reason if is_changed else changed.reason
        if changed.request_id and not is_changed:
            reason = f"{changed.outcome}: {reason}"
        push_link(context, scaling_story.log_decision(self.platform, plan, is_changed=is_changed, reason=reason))
        return self._show(context, changed)


def _proposed(plan: Plan) -> str:
    from elastrec.platform.history.scaling_figures import proposed

    return proposed(plan)


def _chosen(plan: Plan) -> str:
    from elastrec.platform.history.scaling_figures import change

    return change(plan.before, plan.allocation)


def _refused(plan: Plan, reason: str) -> ChangedJob:
    from elastrec.operators.values import ChangedJob

    return ChangedJob(
        job_id=plan.job_id, proposed=_proposed(plan), chosen=_chosen(plan), migrated=False, outcome="refused",
        reason=reason,
    )  # fmt: skip


def _whole(value: Any) -> int:
    text = str(value).strip()
    if not re.fullmatch(r"[0-9]+(\.0+)?", text):
        raise ValueError("a whole number")
    return int(float(text))


def _parsed(field: str, value: Any, parse: Any) -> Any:
    """A number or an amount from a rendered template; None for None and empty texts.

    Raises:
        SpecError: the text is not a number or an amount.
    """
    from elastrec.platform.specs.text.quantities import parsed

    return None if value in (None, "", "None") else parsed(field, value, parse, _ARGUMENTS)
