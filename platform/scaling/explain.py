"""The explanation of a plan: every candidate of a job, its numbers, and why it was or was not chosen."""

from __future__ import annotations

from collections.abc import Sequence

from elastrec.platform.scaling.across_jobs.selection import STAY, Choice, Weights, value_of
from elastrec.platform.scaling.amounts import Resources
from elastrec.platform.scaling.types import Candidate, CandidateKind, Considered, Plan, Proposal


def plans_of(
    policy: str, proposals: Sequence[Proposal], choice: Choice, free: Resources, weights: Weights
) -> tuple[Plan, ...]:
    """Plans with their explanation: those that save first, then those that cost, then those that stay.

    Args:
        free: the capacity before the choice.
    """
    plans = [
        _plan(policy, proposal, chosen, free, choice.left, weights)
        for proposal, chosen in zip(proposals, choice.chosen, strict=True)
    ]
    return tuple(sorted(plans, key=_order))


def _order(plan: Plan) -> tuple[int, float]:
    if plan.predicted is None or not plan.changes:
        return (2, 0.0)
    return (0 if plan.predicted.kind is CandidateKind.SAVE else 1, plan.predicted.cost_per_hour)


def _plan(
    policy: str, proposal: Proposal, chosen: int, free: Resources, left: Resources, weights: Weights
) -> Plan:  # fmt: skip
    picked = proposal.candidates[chosen]
    considered = []
    for index, each in enumerate(proposal.candidates):
        own, value = value_of(each, proposal, weights)
        why = _why_chosen(each, proposal) if index == chosen else _why_not(each, picked, value, free, left)
        considered.append(Considered(candidate=each, weight=own, value=value, chosen=index == chosen, why=why))
    return Plan(
        job_id=proposal.job_id,
        policy=policy,
        before=proposal.allocation,
        allocation=picked.allocation,
        reason=considered[chosen].why if chosen != STAY else _why_stay(considered, proposal),
        predicted=picked,
        considered=tuple(considered),
    )


def _share(part: float, whole: float) -> str:
    return f"{100 * part / whole:+.3g} %" if whole else "+0 %"


def _why_chosen(candidate: Candidate, proposal: Proposal) -> str:
    speed = _share(candidate.gain, proposal.samples_per_second)
    if candidate.kind is CandidateKind.SAVE:
        return f"saves {-candidate.cost_per_hour:.4g}/h at {speed} samples/s: taken first, it frees what others want"
    if candidate.kind is CandidateKind.EXPLORE:
        return (
            f"explores: its prediction is uncertain by {100 * candidate.relative_error:.3g} %, so measuring it teaches "
            f"the model; {candidate.cost_per_hour:+.4g}/h"
        )
    if candidate.kind is CandidateKind.GROW:
        return f"{speed} samples/s, overhead taken off, for {candidate.cost_per_hour:+.4g}/h: best use of what is free"
    return "stays: nothing better was open to it"


def _why_not(candidate: Candidate, picked: Candidate, value: float | None, free: Resources, left: Resources) -> str:
    if candidate.kind is CandidateKind.STAY:
        return "a better candidate was chosen"
    room = left + picked.needs
    if not candidate.needs.fits(room):
        short = candidate.needs - room
        cause = "the cluster" if not candidate.needs.fits(free) else "what others were given"
        lacking = [f"{short.cores:.4g} cores"] if short.cores > 1e-3 else []
        lacking += [f"{short.memory_bytes / 2**30:.4g} GiB"] if short.memory_bytes > 1 else []
        return f"does not fit: {' and '.join(lacking)} more than {cause} left room for"
    if picked.kind is CandidateKind.SAVE:
        return "a plan that saves goes first; this one may follow in a later round"
    if candidate.kind is CandidateKind.EXPLORE:
        return "another candidate of the job brings more now"
    if value is not None and picked.cost_per_hour > 0:
        return "its gain per cost, weighted, is below the chosen one's"
    return "its resources bring more in other jobs"


def _why_stay(considered: Sequence[Considered], proposal: Proposal) -> str:
    if len(considered) == 1:
        return "stays: no plan remains that pays or saves enough; " + "; ".join(proposal.notes)
    best = max(considered[1:], key=lambda each: each.candidate.gain)
    return f"stays: {len(considered) - 1} candidates, none taken; the fastest: {best.why}"


def rows(plan: Plan) -> list[dict[str, str | float | bool | None]]:
    """The explanation as a table, most expensive first: for MLflow (`log_table`), the terminal and JSON."""
    ordered = sorted(plan.considered, key=lambda each: -each.candidate.cost_per_hour)
    return [
        {
            "allocation": str(each.candidate.allocation),
            "kind": each.candidate.kind.value,
            "samples_per_second": each.candidate.samples_per_second,
            "relative_error": each.candidate.relative_error,
            "gain": each.candidate.gain,
            "overhead": each.candidate.overhead,
            "cost_per_hour": each.candidate.cost_per_hour,
            "weight": each.weight,
            "value": each.value,
            "chosen": each.chosen,
            "why": each.why,
        }
        for each in ordered
    ]
