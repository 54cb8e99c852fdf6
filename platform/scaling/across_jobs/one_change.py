"""One change per job and round: the memory forecast, the quota and the plan across jobs each want something of a job.

`strategy.choose_strategy` decides by validate → sort → optimise. What cannot be done while a job runs loses by its
objection, and is put to the job's master all the same: its refusal is then in the job's history, ahead of the failure
that it was to prevent.
"""

from __future__ import annotations

from collections.abc import Sequence

from elastrec.platform.scaling.across_jobs.quota import POLICY as QUOTA
from elastrec.platform.scaling.amounts import Change, Resources
from elastrec.platform.scaling.executors.strategy import Urgency, Verdict, Wish, choose_strategy
from elastrec.platform.scaling.policy import Round
from elastrec.platform.scaling.types import CandidateKind, JobProfile, Plan

MEMORY = "memory-forecast"
"""Policy of the plans that a memory forecast asks for."""
_URGENCY = {
    CandidateKind.GROW: Urgency.REMOVE_BOTTLENECK,
    CandidateKind.SAVE: Urgency.SAVE,
    CandidateKind.EXPLORE: Urgency.EXPLORE,
    CandidateKind.STAY: Urgency.EXPLORE,
}
_UNLIMITED = Resources(float("inf"), float("inf"))


def one_change(decided: Round, jobs: Sequence[JobProfile]) -> tuple[Round, dict[str, Verdict]]:
    """The round with what memory forecasts ask for, and the verdict of each job in which strategies competed."""
    wished = {job.job_id: job for job in jobs if job.memory_wish is not None}
    plans, refused, verdicts = list[Plan](), list[Plan](), dict[str, Verdict]()
    for plan in decided.plans:
        job = wished.get(plan.job_id)
        if job is None or job.memory_wish is None:
            plans.append(plan)
            continue
        memory = Plan(
            job_id=job.job_id, policy=MEMORY, before=job.allocation, allocation=job.memory_wish.allocation,
            reason=job.memory_wish.reason,
        )  # fmt: skip
        # What is free was divided among the plans already; whether more memory can be had is the cluster's to say.
        verdict = choose_strategy([_of_memory(memory, job), _of_plan(plan)], (), _UNLIMITED)
        verdicts[job.job_id] = verdict
        if memory.changes <= job.movable:
            plans.append(memory if verdict.chosen is not None and verdict.chosen.strategy == MEMORY else plan)
        else:
            refused.append(memory)
            plans.append(plan)
    return Round((*refused, *plans), decided.problems, decided.proposals), verdicts


def _of_memory(plan: Plan, job: JobProfile) -> Wish:
    more_servers = Change.SERVERS in plan.changes
    field = "parameter_servers" if more_servers else "parameter_server_memory_bytes"
    fixed = sorted(plan.changes - job.movable)
    return Wish(
        strategy=MEMORY,
        target="parameter servers" if more_servers else "memory per parameter server",
        before=float(getattr(plan.before, field)),
        after=float(getattr(plan.allocation, field)),
        urgency=Urgency.PREVENT_FAILURE,
        needs=plan.allocation.resources - plan.before.resources,
        reason=plan.reason,
        objection=f"{', '.join(fixed)}: not yet possible live" if fixed else "",
    )


def _of_plan(plan: Plan) -> Wish:
    kind = plan.predicted.kind if plan.predicted is not None else CandidateKind.STAY
    return Wish(
        strategy=plan.policy,
        target="workers",
        before=float(plan.before.workers),
        after=float(plan.allocation.workers),
        urgency=Urgency.GIVE_BACK_RECLAIMED if plan.policy == QUOTA else _URGENCY[kind],
        needs=plan.allocation.resources - plan.before.resources,
        reason=plan.reason,
    )


def told(verdict: Verdict) -> str:
    """A verdict in one line, for the log."""
    others = "; ".join(f"not {wish.strategy}: {why}" for wish, why in verdict.left_out)
    return f"{verdict.reason}; {others}" if others else verdict.reason
