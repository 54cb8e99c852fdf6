"""What `optimus` and `elastic-scheduler` share: a fixed number of pods more or fewer per round, by marginal gain."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from elastrec.platform.scaling.across_jobs.selection import STAY, Choice
from elastrec.platform.scaling.amounts import Allocation, Change
from elastrec.platform.scaling.explain import plans_of
from elastrec.platform.scaling.model.columns import Columns
from elastrec.platform.scaling.model.throughput import fit_job
from elastrec.platform.scaling.policy import View
from elastrec.platform.scaling.search.candidates import stay
from elastrec.platform.scaling.search.objectives import Situation
from elastrec.platform.scaling.types import CandidateKind, JobProfile, Plan, Proposal


def step_of(now: Allocation, change: Change, by: int) -> Allocation:
    """The allocation with a changed number of workers or servers; sizes stay."""
    field = "workers" if change is Change.WORKERS else "parameter_servers"
    return msgspec.structs.replace(now, **{field: max(1, getattr(now, field) + by)})


def steps_of(job: JobProfile, view: View, changes: Sequence[Change], step: int) -> Proposal:
    """Candidates one step away. Adding must shorten the rest of the job; removing must not slow it.

    Raises:
        ScalingError: the model cannot be fitted.
    """
    situation = Situation(job, fit_job(job), view.prices, view.overheads, view.rules)
    bounds = {Change.WORKERS: job.limits.workers, Change.SERVERS: job.limits.parameter_servers}
    near = {
        moved
        for change in changes
        for by in (step, -step)
        if change in job.movable and (moved := step_of(job.allocation, change, by)) != job.allocation
        if bounds[change][0]
        <= (moved.workers if change is Change.WORKERS else moved.parameter_servers)
        <= bounds[change][1]
    }
    candidates = [stay(situation)]
    if near:
        # Sets are unordered.
        outcomes = situation.outcomes(Columns.of(sorted(near, key=str)))
        for row in np.flatnonzero(outcomes.gain > 0):
            kind = CandidateKind.GROW if outcomes.cost_per_hour[row] > 0 else CandidateKind.SAVE
            candidates.append(outcomes.candidate(int(row), kind))
    return Proposal.of(job, candidates, situation.model.notes)


def by_marginal_gain(policy: str, proposals: Sequence[Proposal], view: View) -> Sequence[Plan]:
    """The steps that save; then, within the capacity, the step that shortens its job most per added core."""
    chosen, free, value = [STAY] * len(proposals), view.capacity.free, 0.0
    steps = []
    for j, proposal in enumerate(proposals):
        for c, each in enumerate(proposal.candidates):
            if each.kind is CandidateKind.SAVE:
                steps.append((0, -each.gain, j, c))
            elif each.kind is CandidateKind.GROW:
                # Seconds saved: Φ/Ψ − Φ/(Ψ + gain), per core added (Optimus, eq. 9).
                now, after = proposal.samples_per_second, proposal.samples_per_second + each.gain
                saved = proposal.remaining_samples * (1.0 / now - 1.0 / after) * proposal.priority
                steps.append((1, -saved / max(each.needs.cores, 1e-9), j, c))
    for rank, worth, j, c in sorted(steps):
        candidate = proposals[j].candidates[c]
        if chosen[j] == STAY and candidate.needs.fits(free):
            chosen[j], free = c, free - candidate.needs
            value -= worth if rank else 0.0
    choice = Choice(tuple(chosen), value, free)
    return plans_of(policy, proposals, choice, view.capacity.free, view.weights)
