"""Optimus (Peng et al., EuroSys 2018, §4.1) with complete rounds: pods are added as long as they pay.

The paper's allocation starts all jobs at one worker and one server in every round and adds one pod at a time to the job
with the largest marginal gain until nothing is left or nothing gains. Here jobs train already: a round starts from what
each job has, and is otherwise the same. Marginal gains are those of the speed alone, as in the paper: the pause of a
change is the same for one server and for eight, so that it is compared with the gain of all pods together, not of the
first one. `optimus` is the variant that DLRover-RM §6 compares with, one pod per round.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

import numpy as np

from elastrec.platform.scaling.across_jobs.selection import STAY, Choice
from elastrec.platform.scaling.amounts import Allocation, Change
from elastrec.platform.scaling.explain import plans_of
from elastrec.platform.scaling.model.columns import Columns
from elastrec.platform.scaling.model.throughput import fit_job
from elastrec.platform.scaling.policies.fixed_step import step_of
from elastrec.platform.scaling.policy import View
from elastrec.platform.scaling.search.candidates import stay
from elastrec.platform.scaling.search.objectives import Situation
from elastrec.platform.scaling.types import Candidate, CandidateKind, JobProfile, Plan, Proposal

MOST_STEPS = 64
"""Pods that one job may gain in a round (chosen: more than any job of the benchmarks can have)."""
LEAST_RISE = 1e-3
"""Least relative gain of speed for which a pod is added (chosen: far below the noise)."""


class GreedyOptimus:
    """Marginal gain per core, pods one at a time, until none pays. Never takes a pod, never changes a pod's size."""

    name = "optimus-greedy"

    def propose(self, job: JobProfile, view: View) -> Proposal:
        """To stay, and every point of the job's own greedy path: each has one worker or one server more.

        Raises:
            ScalingError: the model cannot be fitted.
        """
        situation = Situation(job, fit_job(job), view.prices, view.overheads, view.rules)
        path = [stay(situation)]
        while len(path) <= MOST_STEPS and (step := _best_step(situation, view, path[-1])) is not None:
            path.append(step)
        return Proposal.of(job, path, situation.model.notes)

    def select(self, proposals: Sequence[Proposal], view: View) -> Sequence[Plan]:
        """One step at a time, for the job whose step saves the most time per core; a step that does not fit ends its
        job's growth in this round. In the end, a job whose growth does not pay for its pause stays as it is."""
        chosen, free, value = [STAY] * len(proposals), view.capacity.free, 0.0
        steps = [_next_step(j, proposal, STAY) for j, proposal in enumerate(proposals) if len(proposal.candidates) > 1]
        heapq.heapify(steps)
        while steps:
            negative, j = heapq.heappop(steps)
            path = proposals[j].candidates
            needs = path[chosen[j] + 1].needs - path[chosen[j]].needs
            if not needs.fits(free):
                continue
            free, value = free - needs, value - negative
            chosen[j] += 1
            if chosen[j] + 1 < len(path):
                heapq.heappush(steps, _next_step(j, proposals[j], chosen[j]))
        for j, c in enumerate(chosen):
            if proposals[j].candidates[c].gain <= 0:
                free, chosen[j] = free + proposals[j].candidates[c].needs, STAY
        choice = Choice(tuple(chosen), value, free)
        return plans_of(self.name, proposals, choice, view.capacity.free, view.weights)


def _best_step(situation: Situation, view: View, at: Candidate) -> Candidate | None:
    """The pod that adds most samples per second per core and fits into the free capacity; None where none pays."""
    job = situation.job
    near = [
        moved
        for change, most in ((Change.WORKERS, job.limits.workers[1]), (Change.SERVERS, job.limits.parameter_servers[1]))
        if change in job.movable and _count(moved := step_of(at.allocation, change, 1), change) <= most
        if (moved.resources - job.allocation.resources).fits(view.capacity.free)
    ]
    if not near:
        return None
    outcomes = situation.outcomes(Columns.of(near))
    more_N = outcomes.samples_per_second - at.samples_per_second
    per_core_N = more_N / (outcomes.more_cores - at.needs.cores)
    best = int(np.argmax(per_core_N))
    if more_N[best] <= LEAST_RISE * situation.samples_per_second:
        return None
    return outcomes.candidate(best, CandidateKind.GROW)


def _count(allocation: Allocation, change: Change) -> int:
    return allocation.workers if change is Change.WORKERS else allocation.parameter_servers


def _next_step(j: int, proposal: Proposal, at: int) -> tuple[float, int]:
    """(− seconds saved per core by the step after point `at`, j): the smallest in the heap is the best (Optimus, eq.
    9)."""
    now, then = proposal.candidates[at], proposal.candidates[at + 1]
    before, after = now.samples_per_second, then.samples_per_second
    saved = proposal.remaining_samples * (1.0 / before - 1.0 / after) * proposal.priority
    return -saved / (then.needs.cores - now.needs.cores), j
