"""Small, cheap steps of a job whose model is uncertain: the one with most information per cost comes first.

A young job has measurements of one configuration, which determine one of five numbers. A neighbouring allocation with
an uncertain prediction determines more. Shape legend: N allocations.
"""

from __future__ import annotations

import math

from elastrec.platform.scaling.amounts import Capacity, is_positive
from elastrec.platform.scaling.model.columns import Columns
from elastrec.platform.scaling.search.front import room_of
from elastrec.platform.scaling.search.objectives import Outcomes, Situation, front_kernels
from elastrec.platform.scaling.search.space import Space
from elastrec.platform.scaling.types import Candidate, CandidateKind, JobProfile

MOST = 3
"""Exploring candidates of a job. Chosen: at most one is applied, and the first ones may not fit."""
_LEAST_COST = 0.05
"""Share of the job's price that is added to the cost of a step. Chosen: the noise of a measured step; differences below
it do not matter, and a step without cost would have an infinite value."""
_KNOWN_ERROR = 0.25
"""Share of `trusted_error` up to which a prediction teaches nothing more. Chosen: a prediction is then as exact as two
short measurements of one configuration are equal."""
_LEAST_USE = 18.0
"""Seconds of training that the knowledge of a step must be worth. Chosen: 0.5 % of an hour."""


def _fastest_measured(job: JobProfile) -> float:
    """Ψ of the job's best configuration; 0 without usable measurements."""
    steps = [(each.allocation.workers, each.iteration_seconds) for each in job.observations]
    return max((workers * job.shape.batch_size / step for workers, step in steps if is_positive(step)), default=0.0)


def explore(situation: Situation, capacity: Capacity, space: Space, doubted: Columns) -> list[Candidate]:
    """At most MOST neighbours with an uncertain prediction, most information per cost first; none if all are known.

    A step may slow the job by at most `max_slowdown` against the fastest measurement, by prediction. So smaller sizes
    are explored only if their loss is small, and such losses do not add up. A step is tried only if its result is of
    use, in the remaining time of the job in the next round and with the costs of the step then: an untrusted plan would
    satisfy the rules, or the step itself adds resources, with a trusted prediction that may be wrong enough to change
    the decision about it. The value of that knowledge is E[max(x, 0)] − max(E[x], 0), where x is the amount by which
    the step exceeds the rules, as a share of Ψ, normally distributed with the error of its prediction (the expected
    improvement of Jones, Schonlau and Welch, "Efficient global optimization of expensive black-box functions", 1998).
    Without it, a job whose model was fitted to a few sizes near each other, and predicts too little of others, would
    stay as it is. Because the next round may undo the step, its pause and its start must pay within one round.

    Args:
        doubted: plans all over the space that fit and obey the rules, but have an untrusted prediction.
    """
    model, rules, job = situation.model, situation.rules, situation.job
    constants, fitted = model.terms
    fastest = max(situation.reference, _fastest_measured(job))
    window_seconds = float(job.until_next_change_seconds)
    present, later = situation.present(0.0), situation.present(rules.payback_seconds, after_seconds=window_seconds)
    # With one measured size or a prior, the errors of other predictions are those of assumptions. With a prior, such
    # steps cost 8 per cent more core-hours for equal completion times (on seeds of `CHOSEN_ON`).
    has_own_errors = model.configurations > 1 and job.prior is None
    least_use = _LEAST_USE if has_own_errors else math.inf
    table_FE, found_7E, errors_E = front_kernels().exploring(
        space.start_5, space.values, space.lengths, float(space.worker_memory_bytes), tuple(room_of(job, capacity)),
        tuple(constants), tuple(fitted), model.covariance_KK, tuple(present), tuple(later), doubted.table_FN,
        _KNOWN_ERROR * rules.trusted_error, (1.0 - rules.max_slowdown) * fastest, window_seconds, _LEAST_COST,
        least_use, MOST,
    )  # fmt: skip
    outcomes = Outcomes(Columns(table_FE), model, found_7E, present, errors_E)
    return [outcomes.candidate(row, CandidateKind.EXPLORE) for row in range(len(outcomes.columns))]
