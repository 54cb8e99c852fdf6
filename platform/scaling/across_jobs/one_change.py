"""One change per job and round, although the memory forecast, the quota and the policy may each propose one.

`strategy.choose_strategy` decides by validate → sort → optimise. A change that is impossible while the job runs is
rejected, but is sent to the job's master all the same, so that the job's history contains the refusal before the
failure that the change should have prevented.
"""

from __future__ import annotations

from collections.abc import Sequence

from elastrec.platform.scaling.across_jobs.quota import POLICY as QUOTA
from elastrec.platform.scaling.executors.strategy import StrategySettings, Urgency, Verdict, Wish, choose_strategy
from elastrec.platform.scaling.job_profile import NotNow
from elastrec.platform.scaling.memory_watch import MEMORY, memory_plan
from elastrec.platform.scaling.policy import Round
from elastrec.platform.scaling.restraint import UNLIMITED, URGENCY, moves_of, past_of
from elastrec.platform.scaling.types import CandidateKind, JobProfile, Plan


def one_change(
    decided: Round, jobs: Sequence[JobProfile | NotNow], settings: StrategySettings | None = None
) -> tuple[Round, dict[str, Verdict]]:
    """The round with the changes that memory forecasts request, and the verdict for each job with several proposals.

    Plans that prevent a failure come first. A plan of the policy that brings the requested memory fulfils both. The
    forecast's request is used alone for a job without a plan of the policy.

    Args:
        jobs: those of the decision, and all others whose memory forecast requests a change, also if no other plan can
            be made of them now.
    """
    looked_at = [job.memory if isinstance(job, NotNow) else job for job in jobs]
    wished = {job.job_id: job for job in looked_at if job is not None and job.memory_wish is not None}
    urgent, plans, refused, verdicts = list[Plan](), list[Plan](), list[Plan](), dict[str, Verdict]()
    planned = {plan.job_id for plan in decided.plans}
    without = [(None, job) for job_id, job in wished.items() if job_id not in planned]
    for plan, job in (*((plan, wished.get(plan.job_id)) for plan in decided.plans), *without):
        kept = [] if plan is None else [plan]
        if job is None or (memory := memory_plan(job)) is None:
            plans += kept
            continue
        if plan is not None and plan.changes and _has_memory_of(plan, memory):
            plans.append(plan)
            continue
        # The free capacity is already divided among the plans; only the cluster knows whether more memory is available.
        wishes = [_of_memory(memory, job), *map(_of_plan, kept)]
        verdict = choose_strategy(wishes, past_of(job), UNLIMITED, settings)
        verdicts[job.job_id] = verdict
        if memory.changes <= job.movable:
            is_first = verdict.chosen is not None and verdict.chosen.strategy == MEMORY
            urgent += [memory] if is_first else []
            plans += [] if is_first else kept
        else:
            refused.append(memory)
            plans += kept
    return Round((*refused, *urgent, *plans), decided.problems, decided.proposals), verdicts


def _has_memory_of(plan: Plan, needed: Plan) -> bool:
    """Whether a plan gives enough memory to all servers together and to each of them."""
    ours, wanted = plan.allocation, needed.allocation
    return (
        ours.parameter_servers >= wanted.parameter_servers
        and ours.parameter_server_memory_bytes >= wanted.parameter_server_memory_bytes
    )


def _of_memory(plan: Plan, job: JobProfile) -> Wish:
    fixed = sorted(plan.changes - job.movable)
    return Wish(
        strategy=MEMORY,
        moves=moves_of(plan.before, plan.allocation),
        urgency=Urgency.PREVENT_FAILURE,
        needs=plan.allocation.resources - plan.before.resources,
        reason=plan.reason,
        objection=f"{', '.join(fixed)}: left to the job's master" if fixed else "",
    )


def _of_plan(plan: Plan) -> Wish:
    kind = plan.predicted.kind if plan.predicted is not None else CandidateKind.STAY
    return Wish(
        strategy=plan.policy,
        moves=moves_of(plan.before, plan.allocation),
        urgency=Urgency.GIVE_BACK_RECLAIMED if plan.policy == QUOTA else URGENCY[kind],
        needs=plan.allocation.resources - plan.before.resources,
        reason=plan.reason,
    )


def describe(verdict: Verdict) -> str:
    """A verdict in one line, for the log."""
    others = "; ".join(f"not {wish.strategy}: {why}" for wish, why in verdict.left_out)
    return f"{verdict.reason}; {others}" if others else verdict.reason
