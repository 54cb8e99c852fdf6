"""The baseline without scaling: a job keeps its first allocation. The shortest possible policy."""

from __future__ import annotations

from collections.abc import Sequence

from elastrec.platform.scaling.amounts import Resources
from elastrec.platform.scaling.policy import View
from elastrec.platform.scaling.types import Candidate, CandidateKind, JobProfile, Plan, Proposal


class Static:
    """Never changes anything."""

    name = "static"

    def propose(self, job: JobProfile, view: View) -> Proposal:
        """Only the candidate to stay; nothing is predicted."""
        stay = Candidate(
            allocation=job.allocation, kind=CandidateKind.STAY, samples_per_second=0.0, gain=0.0, overhead=0.0,
            cost_per_hour=0.0, needs=Resources(),
        )  # fmt: skip
        return Proposal.of(job, [stay])

    def select(self, proposals: Sequence[Proposal], view: View) -> Sequence[Plan]:
        """All jobs stay as they are."""
        return [
            Plan(
                job_id=each.job_id,
                policy=self.name,
                before=each.allocation,
                allocation=each.allocation,
                reason="static: jobs keep what they were started with",
            )
            for each in proposals
        ]
