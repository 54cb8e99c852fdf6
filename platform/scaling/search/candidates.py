"""One job's candidates: to stay, the plans of its Pareto front, and steps that improve the model (§4.3)."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from elastrec.platform.scaling.amounts import Capacity, Resources
from elastrec.platform.scaling.model.columns import features
from elastrec.platform.scaling.search.exploration import explore
from elastrec.platform.scaling.search.front import Front, SearchSettings, pareto_front
from elastrec.platform.scaling.search.objectives import Situation
from elastrec.platform.scaling.search.pareto import thin
from elastrec.platform.scaling.search.space import Space, space_of
from elastrec.platform.scaling.types import Candidate, CandidateKind, ModelShape, Proposal

_NUMBERS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
_DEFAULTS = SearchSettings()
_SIZES_COMPARED = 200
"""Points all over the space at which parts of a step are compared, to report which cannot be distinguished."""
_SAME = 1e-6
"""Parts of a step whose difference over all sizes is smaller count as one."""


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
    prediction are proposed (`explore`). The notes describe the quality of predictions and missing measurements.
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
    return Proposal.of(job, candidates, (_trust(situation, space), _looked_at(found, space.size), *model.notes))


def sizes_needed(situation: Situation, space: Space) -> int:
    """The number of different sizes that must be measured before all others can be predicted.

    The number of the parts of a step (eq. 2–5 and the fixed part) that differ within the allowed changes: with workers
    alone two, one part that grows with their number and one that does not.
    """
    # The time of a step does not depend on memory: any value is correct.
    return _parts_that_differ((*space.ladders[:-1], (1.0,)), situation.model.shape)


@lru_cache(maxsize=1024)
def _parts_that_differ(ladders: tuple[tuple[float, ...], ...], shape: ModelShape) -> int:
    space = Space(ladders, (0,) * len(ladders), 1)
    columns = space.points(space.spread(_SIZES_COMPARED)).columns
    rows_NK = np.column_stack([features(shape, columns), np.ones(len(columns))])
    lengths_K = np.linalg.norm(rows_NK, axis=0)
    return int(np.linalg.matrix_rank(rows_NK[:, lengths_K > 0] / lengths_K[lengths_K > 0], tol=_SAME))


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


def _looked_at(found: Front, size: int) -> str:
    how = "all" if found.exhaustive else "a search of"
    return f"{how} {size} plans: {len(found.points)} on the Pareto front of those with a prediction to be trusted"
