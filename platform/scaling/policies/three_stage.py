"""DLRover-RM §4.3, stage 2, with elastrec's rules: fitted model, Pareto front, weighted choice across jobs."""

from __future__ import annotations

from collections.abc import Sequence

from elastrec.platform.scaling.across_jobs.selection import Knapsack, choose
from elastrec.platform.scaling.across_jobs.selection import exact as exact_knapsack
from elastrec.platform.scaling.across_jobs.selection import greedy as greedy_knapsack
from elastrec.platform.scaling.explain import plans_of
from elastrec.platform.scaling.model.throughput import fit_job
from elastrec.platform.scaling.policy import View
from elastrec.platform.scaling.search.candidates import propose
from elastrec.platform.scaling.search.objectives import Situation
from elastrec.platform.scaling.types import JobProfile, Plan, Proposal


class ThreeStage:
    """Fit, candidates, weighted greedy. The default policy."""

    def __init__(self, name: str = "three-stage", knapsack: Knapsack = greedy_knapsack) -> None:
        self.name = name
        self._knapsack = knapsack

    def propose(self, job: JobProfile, view: View) -> Proposal:
        """The job's Pareto front by its fitted model, and steps that would improve the model."""
        situation = Situation(job, fit_job(job), view.prices, view.overheads, view.rules)
        return propose(situation, view.capacity, view.search)

    def select(self, proposals: Sequence[Proposal], view: View) -> Sequence[Plan]:
        """Savings, then the knapsack of eq. 12, then exploring."""
        choice = choose(proposals, view.capacity.free, self._knapsack, view.weights)
        return plans_of(self.name, proposals, choice, view.capacity.free, view.weights)


def exact() -> ThreeStage:
    """The same with the exact choice: seconds instead of milliseconds, for small clusters and for comparison."""
    return ThreeStage("three-stage-exact", exact_knapsack)
