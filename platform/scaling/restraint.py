"""Restrictions of a job's plans: enough memory for its rows, a pause after a change, no reversal.

They apply to every policy: forbidden candidates are removed from a proposal before the choice, so that the choice does
not use the capacity that they would free.
"""

from __future__ import annotations

import math

import msgspec

from elastrec.platform.scaling.amounts import Allocation, Resources
from elastrec.platform.scaling.executors.strategy import Done, StrategySettings, Urgency, Wish, objection
from elastrec.platform.scaling.types import EXPLORING, Candidate, CandidateKind, JobProfile, Proposal
from elastrec.platform.specs.text.some import counted

URGENCY = {
    CandidateKind.GROW: Urgency.REMOVE_BOTTLENECK,
    CandidateKind.SAVE: Urgency.SAVE,
    CandidateKind.EXPLORE: Urgency.EXPLORE,
    CandidateKind.STAY: Urgency.EXPLORE,
}
UNLIMITED = Resources(float("inf"), float("inf"))
"""The free capacity is divided among all jobs later."""
_WORDS = {
    "workers": "workers",
    "parameter_servers": "parameter servers",
    "worker_cores": "cores per worker",
    "parameter_server_cores": "cores per parameter server",
    "worker_memory_bytes": "memory per worker",
    "parameter_server_memory_bytes": "memory per parameter server",
}


def moves_of(before: Allocation, after: Allocation) -> dict[str, tuple[float, float]]:
    """The differences, by the names that users read."""
    return {
        words: (float(one), float(other))
        for name, words in _WORDS.items()
        if (one := getattr(before, name)) != (other := getattr(after, name))
    }


def past_of(job: JobProfile, within_seconds: float = math.inf) -> tuple[Done, ...]:
    """The job's latest changes, less than so many seconds ago."""
    return tuple(
        Done(
            strategy=each.asked_by or "somebody", moves=moves_of(each.before, each.after), seconds_ago=each.seconds_ago,
            is_trial=each.asked_by == EXPLORING,
        )
        for each in job.changes
        if each.seconds_ago < within_seconds and each.before != each.after
    )  # fmt: skip


def permitted(proposal: Proposal, job: JobProfile, policy: str, settings: StrategySettings) -> Proposal:
    """The proposal without the forbidden candidates; its notes contain the reasons."""
    if len(proposal.candidates) == 1:
        return proposal
    longest = max(settings.cool_down_seconds, settings.reversal_seconds)
    past = past_of(job, longest)
    kept, reasons = list(proposal.candidates[:1]), dict[str, int]()

    def too_soon(candidate: Candidate) -> str:
        wish = Wish(
            strategy=policy, moves=moves_of(job.allocation, candidate.allocation), urgency=URGENCY[candidate.kind],
            needs=candidate.needs, reason="",
        )  # fmt: skip
        return objection(wish, past, UNLIMITED, settings)

    for each in proposal.candidates[1:]:
        why = job.lacks_memory(each.allocation) or (too_soon(each) if past else "")
        if why:
            reasons[why] = reasons.get(why, 0) + 1
        else:
            kept.append(each)
    if not reasons:
        return proposal
    left_out = tuple(f"{counted(count, 'candidate')} left out: {why}" for why, count in reasons.items())
    return msgspec.structs.replace(proposal, candidates=tuple(kept), notes=(*proposal.notes, *left_out))
