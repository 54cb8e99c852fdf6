"""Scaling policies as plug-ins: their interface, their registration, and the protection of jobs from their errors.

A policy is any class with a `name` and the two methods of `ScalingPolicy`, registered in a package's metadata:

    [project.entry-points."elastrec.scaling_policies"]
    my-policy = "my_package.scaling:MyPolicy"

or in a file of its own, named as `my_policy.py:MyPolicy`. `MyPolicy()` is called without arguments.
`policies/static.py` is the shortest example.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from typing import Any, Protocol, runtime_checkable

from elastrec.platform.scaling.across_jobs.selection import Weights
from elastrec.platform.scaling.amounts import Capacity, PriceList, Resources
from elastrec.platform.scaling.executors.strategy import StrategySettings
from elastrec.platform.scaling.restraint import permitted
from elastrec.platform.scaling.search.front import SearchSettings
from elastrec.platform.scaling.search.objectives import Rules
from elastrec.platform.scaling.types import JobProfile, Overheads, Plan, Proposal
from elastrec.platform.specs.errors import ScalingError
from elastrec.platform.specs.scaling import names_a_file
from elastrec.platform.specs.text.policy_file import load_policy_file

GROUP = "elastrec.scaling_policies"


@dataclass(frozen=True)
class View:
    """The cluster's capacity and the operator's settings, as a policy gets them."""

    capacity: Capacity
    prices: PriceList
    overheads: Overheads = field(default_factory=Overheads)
    rules: Rules = field(default_factory=Rules)
    weights: Weights = field(default_factory=Weights)
    search: SearchSettings = field(default_factory=SearchSettings)
    strategy: StrategySettings = field(default_factory=StrategySettings)


@runtime_checkable
class ScalingPolicy(Protocol):
    """Two pure functions: equal arguments give equal results. No clock, no cluster, no state between rounds."""

    name: str

    def propose(self, job: JobProfile, view: View) -> Proposal:
        """The candidates of one job; the first one is to stay. Called once per job, in any order or process.

        Raises:
            ScalingError: no prediction is possible; the job keeps its allocation, and the reason is shown.
        """
        ...

    def select(self, proposals: Sequence[Proposal], view: View) -> Sequence[Plan]:
        """At most one plan per job, all together within `view.capacity`, plans that save first."""
        ...


@dataclass(frozen=True)
class Round:
    """One decision about all jobs.

    Attributes:
        plans: one per job, in the order in which they are to be applied; jobs that stay are among them.
        problems: errors of a policy, by job id; "" stands for all jobs.
    """

    plans: tuple[Plan, ...]
    problems: dict[str, str]
    proposals: tuple[Proposal, ...] = ()


def policy_names() -> tuple[str, ...]:
    """Every registered policy."""
    return tuple(sorted({each.name for each in entry_points(group=GROUP)}))


def load_policy(name: str) -> ScalingPolicy:
    """A registered policy by its name, or the one in a file by `FILE.py:CLASS`.

    Raises:
        ScalingError: there is none of this name, or it cannot be imported, or it is no policy.
    """
    if names_a_file(name):
        return _require_policy(load_policy_file(name), name)
    for each in entry_points(group=GROUP):
        if each.name == name:
            try:
                policy = each.load()()
            except Exception as error:  # a plug-in may fail in any way
                raise ScalingError(
                    f"policy {name} ({each.value}) cannot be loaded: {type(error).__name__}: {error}; "
                    "fix its package or choose another policy"
                ) from error
            return _require_policy(policy, f"{name} ({each.value})")
    raise ScalingError(
        f"policy: {name} is not allowed; allowed: {', '.join(policy_names())}, or FILE.py:CLASS; register it as {GROUP}"
    )


def _require_policy(policy: Any, source: str) -> ScalingPolicy:
    if not isinstance(policy, ScalingPolicy):
        missing = [member for member in ("name", "propose", "select") if not hasattr(policy, member)]
        raise ScalingError(
            f"policy {source}: {type(policy).__name__} has no {', '.join(missing)}; allowed: a class with a name, "
            "propose and select; see elastrec.platform.scaling.policy"
        )
    return policy


def keep(job: JobProfile, policy: str, reason: str) -> Plan:
    """The plan of a job that stays as it is."""
    return Plan(job_id=job.job_id, policy=policy, before=job.allocation, allocation=job.allocation, reason=reason)


def propose_safely(policy: ScalingPolicy, job: JobProfile, view: View) -> tuple[Proposal | None, str]:
    """(proposal, "") or (None, error): the result of one job's mapped task."""
    try:
        proposal = policy.propose(job, view)
        _require_proposal(proposal, job)
        proposal = permitted(proposal, job, policy.name, view.strategy)
    except ScalingError as error:
        return None, str(error)
    except Exception as error:  # a policy is foreign code
        return None, f"policy {policy.name} failed for {job.job_id}: {type(error).__name__}: {error}"
    return proposal, ""


def _require_proposal(proposal: object, job: JobProfile) -> None:
    if not isinstance(proposal, Proposal):
        raise ScalingError(f"the proposal for {job.job_id} is a {type(proposal).__name__}; allowed: a Proposal")
    if proposal.job_id != job.job_id or proposal.allocation != job.allocation:
        raise ScalingError(f"the proposal for {job.job_id} is about {proposal.job_id} with {proposal.allocation}")
    if not proposal.candidates or proposal.candidates[0].allocation != job.allocation:
        raise ScalingError(f"the proposal for {job.job_id}: its first candidate must be the allocation that it has")
    for each in proposal.candidates:
        for name in ("samples_per_second", "gain", "cost_per_hour", "overhead"):
            if not math.isfinite(getattr(each, name)):
                raise ScalingError(f"the proposal for {job.job_id}: {name} {getattr(each, name)}; allowed: a number")


def select_safely(
    policy: ScalingPolicy,
    jobs: Sequence[JobProfile],
    proposals: Sequence[Proposal],
    view: View,
    problems: dict[str, str] | None = None,
) -> Round:
    """The round of these proposals. Errors of a policy are reported, and affected jobs keep their allocation.

    Args:
        jobs: all running jobs, also those without a proposal.
        problems: by job id, from `propose_safely`.
    """
    problems = dict(problems or {})
    plans: dict[str, Plan] = {}
    if proposals:
        try:
            wanted = list(policy.select(proposals, view))
        except Exception as error:  # a policy is foreign code
            problems[""] = f"policy {policy.name} failed to select: {type(error).__name__}: {error}"
            wanted = []
        plans = _sound(policy, jobs, wanted, view, problems)
    order = {job_id: place for place, job_id in enumerate(plans)}
    for job in jobs:
        if job.job_id not in plans:
            why = problems.get(job.job_id) or problems.get("") or "the policy has no plan for it"
            plans[job.job_id] = keep(job, policy.name, f"keeps its plan: {why}")
    ordered = sorted(plans.values(), key=lambda plan: order.get(plan.job_id, len(order)))
    return Round(tuple(ordered), problems, tuple(proposals))


def _sound(
    policy: ScalingPolicy, jobs: Sequence[JobProfile], wanted: Sequence[object], view: View, problems: dict[str, str]
) -> dict[str, Plan]:
    """The plans that may be applied, in their order; errors of the others are added to `problems`."""
    known = {job.job_id: job for job in jobs}
    counts = Counter(each.job_id for each in wanted if isinstance(each, Plan))
    free, sound = view.capacity.free, dict[str, Plan]()
    for plan in wanted:
        if not isinstance(plan, Plan):
            problems[""] = f"policy {policy.name} returned a {type(plan).__name__}; allowed: Plan"
            continue
        job, name = known.get(plan.job_id), f"policy {policy.name}, plan for {plan.job_id}"
        if job is None:
            problems[plan.job_id] = f"{name}: no such job runs"
        elif counts[plan.job_id] > 1:
            problems[plan.job_id] = f"{name}: {counts[plan.job_id]} plans; allowed: one"
        elif plan.before != job.allocation:
            problems[plan.job_id] = f"{name}: made for {plan.before}, but the job has {job.allocation}"
        elif plan.allocation == job.allocation:
            # Most plans are to stay, which needs nothing.
            sound[plan.job_id] = plan
        elif not plan.changes <= job.movable:
            fixed = ", ".join(sorted(plan.changes - job.movable))
            problems[plan.job_id] = f"{name}: changes {fixed}, which this job cannot change while it runs"
        elif lacking := job.lacks_memory(plan.allocation):
            problems[plan.job_id] = f"{name}: {lacking}"
        elif not view.capacity.holds_pods_of(plan.allocation):
            problems[plan.job_id] = f"{name}: a pod of {plan.allocation} is larger than the largest node has room for"
        elif not (needs := plan.allocation.resources - job.allocation.resources).fits(free):
            problems[plan.job_id] = f"{name}: needs {_text(needs)} more, but {_text(free)} are free"
        elif broken := job.limits.broken_by(job.allocation, plan.allocation):
            problems[plan.job_id] = f"{name}: {broken}, the limits of the job"
        else:
            free, sound[plan.job_id] = free - needs, plan
    return sound


def _text(amount: Resources) -> str:
    return f"{amount.cores:.4g} cores and {amount.memory_bytes / 2**30:.4g} GiB"


def decide(policy: ScalingPolicy, jobs: Sequence[JobProfile], view: View) -> Round:
    """Both steps for all jobs in this process; for the simulator and the command line."""
    answers = [(job, *propose_safely(policy, job, view)) for job in jobs]
    problems = {job.job_id: problem for job, _, problem in answers if problem}
    proposals = [proposal for _, proposal, _ in answers if proposal is not None]
    return select_safely(policy, jobs, proposals, view, problems)
