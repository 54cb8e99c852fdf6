"""Operators of `auto_scaling`: find running jobs, propose for each, choose across all, hand the plans over.

Values of `platform.scaling` travel between tasks as JSON objects; a mapped task carries its job's name.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from elastrec.operators.base import ElastrecOperator, no_retry_for_bad_input

if TYPE_CHECKING:
    from airflow.sdk import Context

    from elastrec.platform.scaling.types import JobProfile
    from elastrec.platform.specs.scaling import ScalingSettings


_NOTHING_TO_DECIDE = "no job trains that could be changed"
LEFT_ALONE = "left_alone"
"""XCom key of the jobs that are not decided about."""


class _ScalingOperator(ElastrecOperator):
    """Base: the settings file, read anew in every task so that a change of it counts from the next round.

    Args:
        settings_file: see `platform.specs.scaling.ScalingSettings`.
    """

    template_fields: Sequence[str] = (*ElastrecOperator.template_fields, "settings_file")

    def __init__(self, *, settings_file: str | Path, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.settings_file = str(settings_file)

    def _settings(self) -> ScalingSettings:
        from elastrec.platform.specs.scaling import load_scaling

        return load_scaling(Path(self.settings_file))


class RunningJobsOperator(_ScalingOperator):
    """Output: profiles of the jobs that can be decided about now; the others are in the log, each with its reason.

    What the others hold, and may have to give back, is pushed under LEFT_ALONE.
    """

    def execute(self, context: Context) -> list[dict[str, Any]]:
        """Skips the rest of the round when no job trains that could be changed."""
        from airflow.sdk.exceptions import AirflowSkipException

        from elastrec.platform.jobs.scaling import rounds as scaling
        from elastrec.platform.jobs.scaling.rounds import NotNow

        with no_retry_for_bad_input():
            settings = self._settings()
        found, others = [], []
        for job_id in scaling.training_jobs(self.platform):
            told = scaling.profile(self.platform, job_id, settings)
            if isinstance(told, NotNow):
                self.log.info("%s is left alone: %s", job_id, told.reason)
                others.append(told)
            else:
                self.log.info("%s: %s, %d observations", job_id, told.allocation, len(told.observations))
                found.append(msgspec.to_builtins(told))
        if not found and not any(other.holder for other in others):
            # Airflow's own line says no more than that the task is skipped.
            self.log.info("the round ends here: %s", _NOTHING_TO_DECIDE)
            raise AirflowSkipException(_NOTHING_TO_DECIDE)
        context["ti"].xcom_push(key=LEFT_ALONE, value=msgspec.to_builtins(others))
        return found


class ProposeOperator(_ScalingOperator):
    """One job's candidates. Output: `{"profile", "proposal" or None, "problem"}`.

    Args:
        profile: one element of RunningJobsOperator's output.
    """

    template_fields: Sequence[str] = (*ElastrecOperator.template_fields, "settings_file", "profile")

    def __init__(self, *, profile: Any, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.profile = profile

    def execute(self, context: Context) -> dict[str, Any]:
        """Fits the job's model and asks the policy; what goes wrong is told and costs only this job its plan."""
        from elastrec.platform.jobs.scaling import rounds as scaling
        from elastrec.platform.jobs.scaling.standing import standing
        from elastrec.platform.scaling.across_jobs.shared_round import view_of
        from elastrec.platform.scaling.policy import load_policy, propose_safely
        from elastrec.platform.scaling.types import JobProfile

        settings = self._settings()
        profile = msgspec.convert(self.profile, JobProfile)
        shares = standing(self.platform, settings).shares
        view = view_of(profile.team, scaling.view(self.platform, settings), shares)
        context["map_index_name"] = profile.job_id  # type: ignore[typeddict-unknown-key]
        proposal, problem = propose_safely(load_policy(settings.policy), profile, view)
        for line in (*(proposal.notes if proposal else ()), problem):
            if line:
                self.log.info(line)
        return {"profile": self.profile, "proposal": msgspec.to_builtins(proposal), "problem": problem}


class SelectOperator(_ScalingOperator):
    """The choice across all jobs. Output: one plan per job, in the order in which they are to be applied.

    Args:
        proposed: all outputs of ProposeOperator; None when there are none.
        left_alone: what RunningJobsOperator pushed under LEFT_ALONE.
    """

    template_fields: Sequence[str] = (*ElastrecOperator.template_fields, "settings_file", "proposed", "left_alone")

    def __init__(self, *, proposed: Any, left_alone: Any, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.proposed = proposed
        self.left_alone = left_alone

    def execute(self, context: Context) -> list[dict[str, Any]]:
        """Jobs without a sound plan stay as they are; jobs that must give workers back come first."""
        from elastrec.platform.jobs.scaling import rounds as scaling
        from elastrec.platform.jobs.scaling.rounds import NotNow
        from elastrec.platform.jobs.scaling.standing import standing
        from elastrec.platform.scaling.across_jobs.shared_round import select_shared
        from elastrec.platform.scaling.policy import load_policy
        from elastrec.platform.scaling.types import JobProfile, Proposal

        settings = self._settings()
        answers = list(self.proposed or ())
        others = [msgspec.convert(each, NotNow) for each in self.left_alone or ()]
        profiles: list[JobProfile] = [msgspec.convert(each["profile"], JobProfile) for each in answers]
        proposals = [msgspec.convert(each["proposal"], Proposal) for each in answers if each["proposal"]]
        problems = {
            profile.job_id: each["problem"] for profile, each in zip(profiles, answers, strict=True) if each["problem"]
        }
        known = standing(self.platform, settings, scaling.holders_of([*profiles, *others]))
        view = scaling.view(self.platform, settings)
        decided = scaling.with_forecasts(
            select_shared(load_policy(settings.policy), profiles, proposals, view, known, problems), profiles
        )
        for plan in decided.plans:
            self.log.info("%s: %s", plan.job_id, plan.reason)
        for job_id, problem in decided.problems.items():
            self.log.warning("%s: %s", job_id or "all jobs", problem)
        plans: list[dict[str, Any]] = msgspec.to_builtins(decided.plans)
        return plans


class ApplyPlanOperator(ElastrecOperator):
    """Hands one plan to its job's master and writes the decision into the job's MLflow run. Output: `Applied`.

    Args:
        plan: one element of SelectOperator's output.
    """

    template_fields: Sequence[str] = (
        *ElastrecOperator.template_fields,
        "plan",
    )

    def __init__(self, *, plan: Any, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.plan = plan

    def execute(self, context: Context) -> dict[str, Any]:
        """A plan that the master refuses, or that is stale, is said so and changes nothing."""
        from elastrec.operators.links import push_link
        from elastrec.platform.jobs.scaling import rounds as scaling
        from elastrec.platform.jobs.scaling import story as scaling_story
        from elastrec.platform.scaling.types import Plan

        plan = msgspec.convert(self.plan, Plan)
        context["map_index_name"] = plan.job_id  # type: ignore[typeddict-unknown-key]
        applied = scaling.apply(self.platform, plan)
        push_link(context, scaling_story.log_decision(self.platform, plan, applied))
        if applied.changed:
            self.log.info("%s: %s → %s", applied.job_id, applied.before, applied.after)
        else:
            self.log.info("%s stays: %s", applied.job_id, applied.reason)
        found: dict[str, Any] = msgspec.to_builtins(applied)
        return found
