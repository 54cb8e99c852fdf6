"""One round over the jobs of several teams: first their entitlements, then idle capacity (see `quota`).

The policy makes the choices; this module only divides the capacity of each choice. Without shares, there is one choice
over all free capacity.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import msgspec

from elastrec.platform.scaling.across_jobs.quota import Holder, Reclaimed, Shares, reclaim
from elastrec.platform.scaling.amounts import Resources
from elastrec.platform.scaling.policy import Round, ScalingPolicy, View, propose_safely, select_safely
from elastrec.platform.scaling.types import JobProfile, Plan, Proposal


@dataclass(frozen=True)
class Standing:
    """The holdings of jobs and teams in one round.

    Attributes:
        holders: jobs that can lose workers, with or without a plan in this round.
        waiting: by team, pods that wait for capacity.
    """

    shares: Shares
    holders: Sequence[Holder] = ()
    waiting: Mapping[str, Sequence[Resources]] = field(default_factory=dict)


def view_of(team: str, view: View, shares: Shares) -> View:
    """The limit of a job's candidates: the free capacity or its team's unused entitlement, whichever is more."""
    free, claim = view.capacity.free, shares.claim(team)
    room = Resources(max(free.cores, claim.cores), max(free.memory_bytes, claim.memory_bytes))
    return replace(view, capacity=msgspec.structs.replace(view.capacity, free=room))


def decide_shared(policy: ScalingPolicy, jobs: Sequence[JobProfile], view: View, standing: Standing) -> Round:
    """Both steps for all jobs in this process; for the command line."""
    answers = [(job, *propose_safely(policy, job, view_of(job.team, view, standing.shares))) for job in jobs]
    problems = {job.job_id: problem for job, _, problem in answers if problem}
    proposals = [proposal for _, proposal, _ in answers if proposal is not None]
    return select_shared(policy, jobs, proposals, view, standing, problems)


def select_shared(
    policy: ScalingPolicy,
    jobs: Sequence[JobProfile],
    proposals: Sequence[Proposal],
    view: View,
    standing: Standing,
    problems: Mapping[str, str],
) -> Round:
    """The three rules of `quota` in their order; jobs that lose workers come first in the round."""
    selection = _Selection(policy, jobs, proposals, view, standing.shares, problems)
    wishes = {team: [*standing.waiting.get(team, ()), *selection.unmet(team)] for team in selection.teams}
    reclaimed = reclaim(standing.holders, standing.shares, {**standing.waiting, **wishes})
    selection.add_reclaimed(reclaimed)
    # Requests within an entitlement that are not yet granted are reserved.
    selection.keep_free(reclaimed.rightful.values())
    together = selection.rest()
    short = [selection.grow_if_short(team, together) for team in selection.teams]
    # If no team chose first, the choice over all jobs was made already.
    return selection.rest() if any(short) else together


class _Selection:
    """The state of a round while it is computed."""

    def __init__(
        self,
        policy: ScalingPolicy,
        jobs: Sequence[JobProfile],
        proposals: Sequence[Proposal],
        view: View,
        shares: Shares,
        problems: Mapping[str, str],
    ) -> None:
        self._policy, self._jobs, self._view, self._shares = policy, list(jobs), view, shares
        self._proposals, self._problems = tuple(proposals), dict(problems)
        self._plans: list[Plan] = []
        self._free = _least(view.capacity.free, shares.free)
        priority: dict[str, float] = {}
        for job in jobs:
            priority[job.team] = max(job.priority, priority.get(job.team, 0.0))
        entitled = [team for team in priority if shares.entitled.get(team, 0.0) > 0]
        self.teams = sorted(entitled, key=lambda team: (-priority[team], team))
        """Teams with running jobs and a share, the highest priority first."""

    def _select(self, jobs: Sequence[JobProfile], free: Resources, problems: dict[str, str]) -> Round:
        known = {job.job_id for job in jobs}
        capacity = msgspec.structs.replace(self._view.capacity, free=free)
        mine = [proposal for proposal in self._proposals if proposal.job_id in known]
        return select_safely(self._policy, jobs, mine, replace(self._view, capacity=capacity), problems)

    def _of(self, team: str) -> list[JobProfile]:
        return [job for job in self._jobs if job.team == team]

    def unmet(self, team: str) -> list[Resources]:
        """Workers that the policy would add to a team's jobs within its claim, if enough capacity were free."""
        wanted, missing = self._select(self._of(team), self._shares.claim(team), {}), list[Resources]()
        free = self._free
        for plan in wanted.plans:
            more = plan.allocation.workers - plan.before.workers
            needs = plan.allocation.resources - plan.before.resources
            if more > 0 and not needs.fits(free):
                missing += [Resources(needs.cores / more, needs.memory_bytes / more)] * more
            elif more > 0:
                free = free - needs
        return missing

    def add_reclaimed(self, reclaimed: Reclaimed) -> None:
        self._add(reclaimed.plans)
        # Reclaimed capacity is reserved for the team that requested it, and granted in the next round, when it is free.

    def keep_free(self, amounts: Iterable[Resources]) -> None:
        for amount in amounts:
            self._free = self._free - amount

    def grow_if_short(self, team: str, together: Round) -> bool:
        """Rule 2: a team that gets less than its entitlement from one choice over all jobs chooses first.

        Returns:
            Whether it did.
        """
        mine = self._of(team)
        found = self._select(mine, _least(self._free, self._shares.claim(team)), {})
        if self._growth(mine, found) <= self._growth(mine, together) + 1e-6:
            return False
        plans = [plan for plan in found.plans if plan.changes]
        self.keep_free(plan.allocation.resources - plan.before.resources for plan in plans)
        self._add(plans)
        return True

    def _growth(self, jobs: Sequence[JobProfile], found: Round) -> float:
        known = {job.job_id for job in jobs}
        plans = [plan for plan in found.plans if plan.job_id in known]
        return self._shares.dominant(
            sum((plan.allocation.resources - plan.before.resources for plan in plans), Resources())
        )

    def rest(self) -> Round:
        """Rule 3: all jobs without a plan compete for the remaining capacity."""
        found = self._select(self._jobs, self._free, dict(self._problems))
        return Round((*self._plans, *found.plans), found.problems, self._proposals)

    def _add(self, plans: Sequence[Plan]) -> None:
        self._plans += plans
        decided = {plan.job_id for plan in plans}
        self._jobs = [job for job in self._jobs if job.job_id not in decided]


def _least(one: Resources, other: Resources) -> Resources:
    return Resources(min(one.cores, other.cores), min(one.memory_bytes, other.memory_bytes))
