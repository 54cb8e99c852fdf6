"""Optimus (Peng et al., EuroSys 2018) as DLRover-RM §6 compares with it: one worker or one server per round."""

from __future__ import annotations

from collections.abc import Sequence

from elastrec.platform.scaling.amounts import Change
from elastrec.platform.scaling.policies.fixed_step import by_marginal_gain, steps_of
from elastrec.platform.scaling.policy import View
from elastrec.platform.scaling.types import JobProfile, Plan, Proposal


class Optimus:
    """Marginal gain, fixed step, workers and servers."""

    name = "optimus"

    def __init__(self, step: int = 1) -> None:
        self._step = step

    def propose(self, job: JobProfile, view: View) -> Proposal:
        """One step more or fewer of workers or of servers."""
        return steps_of(job, view, (Change.WORKERS, Change.SERVERS), self._step)

    def select(self, proposals: Sequence[Proposal], view: View) -> Sequence[Plan]:
        """The largest marginal gains that fit."""
        return by_marginal_gain(self.name, proposals, view)
