"""Elastic Scheduler (Or et al., MLSys 2020) as DLRover-RM §6 compares with it: workers alone, a fixed step."""

from __future__ import annotations

from collections.abc import Sequence

from elastrec.platform.scaling.amounts import Change
from elastrec.platform.scaling.policies.fixed_step import by_marginal_gain, steps_of
from elastrec.platform.scaling.policy import View
from elastrec.platform.scaling.types import JobProfile, Plan, Proposal


class ElasticScheduler:
    """Marginal gain, fixed step, workers only."""

    name = "elastic-scheduler"

    def __init__(self, step: int = 1) -> None:
        self._step = step

    def propose(self, job: JobProfile, view: View) -> Proposal:
        """One step more or fewer workers."""
        return steps_of(job, view, (Change.WORKERS,), self._step)

    def select(self, proposals: Sequence[Proposal], view: View) -> Sequence[Plan]:
        """The largest marginal gains that fit."""
        return by_marginal_gain(self.name, proposals, view)
