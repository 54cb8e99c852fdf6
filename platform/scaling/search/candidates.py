"""One job's candidates: stay, what its Pareto front offers, and steps that teach the model something (§4.3)."""

from __future__ import annotations

from elastrec.platform.scaling.amounts import Capacity, Resources
from elastrec.platform.scaling.search.exploration import explore
from elastrec.platform.scaling.search.front import Front, SearchSettings, pareto_front, take
from elastrec.platform.scaling.search.objectives import Situation
from elastrec.platform.scaling.search.pareto import thin
from elastrec.platform.scaling.search.space import space_of
from elastrec.platform.scaling.types import Candidate, CandidateKind, Proposal


def stay(situation: Situation) -> Candidate:
    """The candidate that every job has: nothing changes, costs or gains."""
    now = situation.now
    return Candidate(
        allocation=situation.job.allocation,
        kind=CandidateKind.STAY,
        samples_per_second=float(now.samples_per_second[0]),
        gain=0.0,
        overhead=0.0,
        cost_per_hour=0.0,
        needs=Resources(),
        relative_error=float(now.relative_error[0]),
    )


def propose(situation: Situation, capacity: Capacity, settings: SearchSettings | None = None) -> Proposal:
    """What one job could do, `stay` first; pure and seeded, so that one mapped task per job may compute it.

    Plans whose prediction is not to be trusted (`Rules.trusted_error`) are not proposed for their gain; what would
    make them trustworthy is (`explore`). A model that is not identified is said so in the notes.
    """
    job, model, settings = situation.job, situation.model, settings or SearchSettings()
    space = space_of(job, capacity)
    found = pareto_front(situation, capacity, space, settings)
    chosen = take(
        found.outcomes, thin(found.outcomes.cost_per_hour, -found.outcomes.gain, settings.most)
    )  # fmt: skip
    candidates = [stay(situation)]
    for row in range(len(chosen.columns)):
        kind = CandidateKind.SAVE if chosen.cost_per_hour[row] <= 0 else CandidateKind.GROW
        candidates.append(chosen.candidate(row, kind))
    candidates += explore(situation, capacity, space, found.looked_at)
    return Proposal.of(job, candidates, (_trust(situation), _looked_at(found, space.size), *model.notes))


def _trust(situation: Situation) -> str:
    model = situation.model
    known = "identified" if model.identified else f"rank {model.rank} of {model.columns}"
    return (
        f"throughput model: RMSLE {model.rmsle:.3g} over {model.configurations} configurations, {known}, "
        f"condition {model.condition:.3g}"
    )


def _looked_at(found: Front, size: int) -> str:
    how = "all" if found.exhaustive else "a search of"
    return f"{how} {size} plans: {len(found.points)} on the Pareto front of those with a prediction to be trusted"
