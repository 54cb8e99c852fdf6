"""One job's candidates: to stay, the plans of its Pareto front, and steps that improve the model (§4.3)."""

from __future__ import annotations

from functools import cache

from elastrec.platform.scaling.amounts import Capacity, Resources
from elastrec.platform.scaling.model.columns import FIELDS
from elastrec.platform.scaling.search.exploration import explore
from elastrec.platform.scaling.search.front import Front, SearchSettings, pareto_front
from elastrec.platform.scaling.search.objectives import Situation
from elastrec.platform.scaling.search.pareto import thin
from elastrec.platform.scaling.search.space import Space, space_of
from elastrec.platform.scaling.types import Candidate, CandidateKind, Proposal
from elastrec.platform.specs.text.some import counted

_NUMBERS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
_DEFAULTS = SearchSettings()
_DECISIONS_OF = {
    "gradient": {"worker_cores"},
    "update": {"workers", "parameter_servers", "parameter_server_cores"},
    "synchronise": {"workers", "parameter_servers"},
    "embedding": {"parameter_servers"},
    "fixed": set[str](),
}
"""What each part of a step depends on (eq. 2–5)."""


def stay(situation: Situation) -> Candidate:
    """The candidate that every job has: nothing changes, costs or gains."""
    return Candidate(
        allocation=situation.job.allocation,
        kind=CandidateKind.STAY,
        samples_per_second=situation.samples_per_second,
        gain=0.0,
        overhead=0.0,
        cost_per_hour=0.0,
        needs=Resources(),
        relative_error=situation.relative_error,
    )


def propose(situation: Situation, capacity: Capacity, settings: SearchSettings | None = None) -> Proposal:
    """The candidates of one job, `stay` first; pure and seeded, so that one mapped task per job may compute it.

    Plans with an untrusted prediction (`objectives`) are not proposed for their gain; instead, steps that improve the
    prediction are proposed (`explore`). The notes describe the quality of predictions and missing measurements, and how
    many plans were examined and proposed.
    """
    job, model, settings = situation.job, situation.model, settings or _DEFAULTS
    space = space_of(job, capacity)
    found = pareto_front(situation, capacity, space, settings)
    chosen = found.outcomes
    if len(found.points) > settings.most:
        chosen = chosen.take(thin(chosen.cost_per_hour, -chosen.gain, settings.most))
    candidates = [stay(situation)]
    for row in range(len(chosen.columns)):
        kind = CandidateKind.SAVE if chosen.cost_per_hour[row] <= 0 else CandidateKind.GROW
        candidates.append(chosen.candidate(row, kind))
    candidates += explore(situation, capacity, space, found.doubted)
    return Proposal.of(
        job, candidates, (_trust(situation, space), _examined(found, len(chosen.columns), space.size), *model.notes)
    )


def sizes_needed(situation: Situation, space: Space) -> int:
    """The number of different sizes that must be measured before all others can be predicted.

    The number of the parts of a step (eq. 2–5 and the fixed part) that differ within the allowed changes: with workers
    alone two, one part that grows with their number and one that does not. A part is a product of powers of decisions,
    so that two parts are proportional where they depend on the same ones of those that may change.
    """
    movable = tuple(len(ladder) > 1 for ladder in space.ladders)
    return _parts_that_differ(movable, situation.model.shape.dense_bytes > 0)


@cache
def _parts_that_differ(movable: tuple[bool, ...], synchronises: bool) -> int:
    """`sizes_needed`, by the ladders with more than one value."""
    free = {name for name, is_movable in zip(FIELDS, movable, strict=False) if is_movable}
    parts = (of for part, of in _DECISIONS_OF.items() if part != "synchronise" or synchronises)
    return len({frozenset(decisions & free) for decisions in parts})


def _trust(situation: Situation, space: Space) -> str:
    model, needed = situation.model, sizes_needed(situation, space)
    count = model.configurations
    sizes = f"{_number(count)} size{'' if count == 1 else 's'} measured"
    if count < needed:
        return (
            f"{sizes}, {_number(needed)} are needed to predict what others would do: until then workers are added, "
            "which cannot slow the job, and small steps of everything else are tried"
        )
    if not model.identified:
        return f"{sizes}; sizes far from these are not trusted yet"
    return f"{sizes}, which the throughput model meets within {100.0 * model.rmsle:.2g} %"


def _number(count: int) -> str:
    return _NUMBERS[count] if count < len(_NUMBERS) else str(count)


def _examined(found: Front, proposed: int, size: int) -> str:
    """How many plans were examined, the present one among them, and why they are proposed or not."""
    plans = counted(size, "plan")
    head = f"{plans} examined" if found.exhaustive else f"{plans} searched in part"
    if proposed:
        front = len(found.points)
        which = str(proposed) if proposed == front else f"{proposed} of the {front} best"
        are = "is" if proposed == 1 else "are"
        best = "no other with a trusted prediction is both cheaper and faster"
        return f"{head}, {which} {are} proposed for gain or saving: {best}"
    doubted = len(found.doubted)
    would = f"{doubted} would pay, but the prediction is not trusted yet; " if doubted else ""
    others = "the others do" if doubted else "each does"
    return f"{head}, none is proposed for gain or saving: {would}{others} not fit, or not pay or save enough"
