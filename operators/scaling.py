"""Operators of `auto_scaling`: one task plans for all running jobs, one per job that is to change hands its plan over.

A plan travels in an XCom of its own, under its `plan_key`. A job that stays as it is has neither.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from elastrec.operators.base import ElastrecOperator, no_retry_for_bad_input

if TYPE_CHECKING:
    from airflow.sdk import Context


_NOTHING_TO_DECIDE = "no job trains that could be changed"


def plan_key(number: int, job_id: str) -> str:
    """XCom key of a round's plan by its place: a job may have a second one, which its master is known to refuse."""
    return f"plan-{number}-{job_id}"


class PlanRoundOperator(ElastrecOperator):
    """One round over all running jobs. Output: the XCom keys of the plans that change a job, first things first.

    The settings file is read anew in every round, so that a change of it counts from the next one.

    Args:
        settings_file: see `platform.specs.scaling.ScalingSettings`.
    """

    template_fields: Sequence[str] = (*ElastrecOperator.template_fields, "settings_file")

    def __init__(self, *, settings_file: str | Path, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.settings_file = str(settings_file)

    def execute(self, context: Context) -> list[str]:
        """Logs what becomes of every job, and why; skips what follows when no job is to change."""
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
        changing = [plan for plan in decided.plans if plan.changes]
        keys = [plan_key(number, plan.job_id) for number, plan in enumerate(changing)]
        for key, plan in zip(keys, changing, strict=True):
            context["ti"].xcom_push(key=key, value=msgspec.to_builtins(plan))
        if not keys:
            # Airflow's own line says no more than that the task is skipped.
            why = "every job stays as it is" if decided.plans else _NOTHING_TO_DECIDE
            self.log.info("the round ends here: %s", why)
            raise AirflowSkipException(why)
        return keys


class ApplyPlanOperator(ElastrecOperator):
    """Hands one plan to its job's master and writes the decision into the job's MLflow run. Output: `Applied`.

    Args:
        plan: one element of PlanRoundOperator's output.
        planned_by: id of its task, in this DAG.
    """

    template_fields: Sequence[str] = (*ElastrecOperator.template_fields, "plan")

    def __init__(self, *, plan: str, planned_by: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.plan = plan
        self.planned_by = planned_by

    def execute(self, context: Context) -> dict[str, Any]:
        """A plan that the master refuses, or that is stale, is said so and changes nothing."""
        from elastrec.operators.links import push_link
        from elastrec.platform.jobs.scaling import rounds as scaling
        from elastrec.platform.jobs.scaling import story as scaling_story
        from elastrec.platform.scaling.types import Plan

        plan = msgspec.convert(context["ti"].xcom_pull(task_ids=self.planned_by, key=self.plan), Plan)
        context["map_index_name"] = plan.job_id  # type: ignore[typeddict-unknown-key]
        applied = scaling.apply(self.platform, plan)
        push_link(context, scaling_story.log_decision(self.platform, plan, applied))
        if applied.changed:
            self.log.info("%s: %s → %s", applied.job_id, applied.before, applied.after)
        else:
            self.log.info("%s stays: %s", applied.job_id, applied.reason)
        found: dict[str, Any] = msgspec.to_builtins(applied)
        return found
