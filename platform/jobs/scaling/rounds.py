"""A round of scaling: reads profiles from masters, makes plans, and sends the plans to the masters.

`platform.scaling` makes the decision and knows neither clusters nor masters. A plan is one request to the job's master,
for workers and parameter servers together, which the master may refuse.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable, Mapping, Sequence

import msgspec
import structlog

from elastrec.platform.jobs.scaling.asking import request_of_plan
from elastrec.platform.jobs.scaling.learned import Learned, learned
from elastrec.platform.jobs.scaling.masters import ask_profiles, largest_bytes_of, masters_of
from elastrec.platform.jobs.scaling.profiles import holders_of, profile_of
from elastrec.platform.jobs.scaling.standing import room_of, standing_of
from elastrec.platform.jobs.surroundings import Platform
from elastrec.platform.jobs.watching.masters import live_master
from elastrec.platform.master.scaling.memory_seen import memory_seen
from elastrec.platform.master.scaling.requests import request_of
from elastrec.platform.scaling import amounts
from elastrec.platform.scaling.across_jobs.one_change import describe, one_change
from elastrec.platform.scaling.across_jobs.selection import Weights
from elastrec.platform.scaling.across_jobs.shared_round import decide_shared
from elastrec.platform.scaling.executors.strategy import StrategySettings
from elastrec.platform.scaling.job_profile import NotNow
from elastrec.platform.scaling.memory_outlook import curve_of
from elastrec.platform.scaling.policy import Round, View, load_policy
from elastrec.platform.scaling.search.objectives import Rules
from elastrec.platform.scaling.types import JobProfile, MemoryCurve, Overheads, Plan
from elastrec.platform.specs.errors import JobNotFoundError
from elastrec.platform.specs.metrics import Phase
from elastrec.platform.specs.scaling import ScalingSettings
from elastrec.platform.specs.text.loading import job_from_json
from elastrec.platform.transport.messages.observer import ShapeAnswer
from elastrec.platform.transport.messages.profile import Profile

log = structlog.get_logger(__name__)
_CALL_SECONDS = 15.0


class Applied(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a plan.

    Attributes:
        changed: whether the master has begun to change the job; `request_id`: its request, whose outcome is in the
            job's status.
        reason: why the plan was made, or why the master refused it.
    """

    job_id: str
    changed: bool
    before: str
    after: str
    reason: str
    request_id: str = ""


def view(capacity: amounts.Capacity, settings: ScalingSettings, overheads: Overheads) -> View:
    """The view of the cluster for policies."""
    prices = amounts.PriceList(core_hour=settings.prices.core_hour, gibibyte_hour=settings.prices.gibibyte_hour)
    return View(
        capacity=capacity,
        prices=prices,
        overheads=overheads,
        rules=Rules(
            max_slowdown=settings.max_slowdown,
            grow_efficiency=settings.grow_efficiency,
            save_efficiency=settings.save_efficiency,
            payback_seconds=settings.payback,
        ),
        weights=Weights(rho=settings.rho),
        strategy=StrategySettings(cool_down_seconds=settings.cool_down, reversal_seconds=settings.no_reversal),
    )


def plan(platform: Platform, settings: ScalingSettings, job_ids: list[str] | None = None) -> tuple[Round, list[NotNow]]:
    """Makes the plans of one round over the running jobs without applying them. Masters are asked concurrently.

    Args:
        job_ids: default: all jobs that train. For each named job, a reason is returned if there is no decision.

    Raises:
        JobNotFoundError: a job of `job_ids` is not in the cluster.
        ClusterError: the cluster does not answer. (If a master does not answer, only its job is skipped.)
        ScalingError: there is no such policy.
    """
    policy = load_policy(settings.policy)
    masters = masters_of(platform)
    for job_id in job_ids or ():
        if job_id not in masters:
            raise JobNotFoundError(f"job {job_id}: not in the cluster; it was stopped, finished or never launched")
    asked = masters if job_ids is None else {job_id: masters[job_id] for job_id in job_ids}
    answers = ask_profiles(platform, asked, next_round_seconds=settings.round_interval)
    if job_ids is None:
        answers = {
            job_id: answer
            for job_id, answer in answers.items()
            if isinstance(answer, str) or answer.phase == Phase.TRAINING
        }
    known = learned(platform, settings) if answers else Learned()
    nodes, pods = platform.launcher.nodes(), platform.launcher.pods()
    largest = largest_bytes_of(nodes, pods, answers)
    found = [
        NotNow(job_id, answer) if isinstance(answer, str)
        else profile_of(job_id, answer, settings, known.past, largest[job_id])
        for job_id, answer in answers.items()
    ]  # fmt: skip
    profiles = [each for each in found if isinstance(each, JobProfile)]
    around = view(room_of(nodes), settings, known.overheads)
    decided = decide_shared(policy, profiles, around, standing_of(pods, nodes, settings, holders_of(found)))
    decided = with_forecasts(decided, found, around.strategy)
    planned = {each.job_id for each in decided.plans}
    curves = {plan.job_id: _curve(answers[plan.job_id]) for plan in decided.plans if plan.changes}
    return stamped(decided, found, curves, time.time() + settings.plan_lifetime), [
        each for each in found if isinstance(each, NotNow) and each.job_id not in planned
    ]


def _curve(answer: Profile | str) -> MemoryCurve | None:
    """The forecast of a job's memory by samples, for the picture of its plan."""
    if isinstance(answer, str):
        return None
    return curve_of(memory_seen(job_from_json(answer.job_json), answer, largest_bytes=0.0))


def stamped(
    decided: Round, profiles: Iterable[JobProfile | NotNow], curves: Mapping[str, MemoryCurve | None], expires: float
) -> Round:
    """The round, with an id, the version of the job's shape and an expiry time in each plan.

    Args:
        curves: forecasts of memory by job id.
        expires: Unix seconds.
    """
    versions = {each.job_id: each.shape_version for each in profiles}
    plans = tuple(
        msgspec.structs.replace(
            each,
            plan_id=f"plan-{uuid.uuid4().hex}",
            shape_version=versions[each.job_id],
            expires_unix_seconds=expires,
            memory=curves.get(each.job_id),
        )
        for each in decided.plans
    )
    return Round(plans, decided.problems, decided.proposals)


def with_forecasts(decided: Round, profiles: Sequence[JobProfile | NotNow], strategy: StrategySettings) -> Round:
    """The round, with the changes that memory forecasts require; the log has the reasons for their priority."""
    found, verdicts = one_change(decided, profiles, strategy)
    for job_id, verdict in verdicts.items():
        log.info("one_change", job_id=job_id, verdict=describe(verdict))
    return found


def apply(platform: Platform, wanted: Plan) -> Applied:
    """Sends a plan to the job's master, which refuses it if the wanted shape of the job has changed.

    A plan that is sent again, after a lost answer or by a retry of a task, is the same request, also if the plan has
    expired since the master accepted it.

    Raises:
        ClusterError: the master does not answer.
    """
    before, after = wanted.before, wanted.allocation

    def answer(*, changed: bool, reason: str, request_id: str = "") -> Applied:
        applied = Applied(
            job_id=wanted.job_id, changed=changed, before=str(before), after=str(after), reason=reason,
            request_id=request_id,
        )  # fmt: skip
        log.info("plan_applied" if changed else "plan_not_applied", **msgspec.structs.asdict(applied))
        return applied

    if not wanted.changes:
        return answer(changed=False, reason=wanted.reason)
    expires = wanted.expires_unix_seconds
    if expires is not None and (late := time.time() - expires) > 0:
        if wanted.plan_id and (known := request_of_plan(platform, wanted.job_id, wanted.plan_id)):
            return answer(changed=True, reason=wanted.reason, request_id=known)
        return answer(
            changed=False, reason=f"the plan is stale: its time was over {late:.0f} s ago (plan_lifetime); plan again"
        )
    with live_master(platform, wanted.job_id) as client:
        if client is None:
            return answer(changed=False, reason="the job is no longer in the cluster")
        done = client.call(request_of(wanted), ShapeAnswer, timeout_seconds=_CALL_SECONDS, remember=True)
    return answer(
        changed=done.accepted, reason=wanted.reason if done.accepted else done.reason, request_id=done.request_id
    )
