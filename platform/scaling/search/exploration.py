"""Small, cheap steps of a job whose model is uncertain: the one with most information per cost comes first.

A young job has measurements of one configuration, which determine one of five numbers. A neighbouring allocation with
an uncertain prediction determines more. Shape legend: N allocations.
"""

from __future__ import annotations

import numpy as np

from elastrec.platform.scaling.amounts import Capacity, is_positive
from elastrec.platform.scaling.model.throughput import LEAST_ERROR
from elastrec.platform.scaling.search.front import allowed_rows, room_of
from elastrec.platform.scaling.search.objectives import Outcomes, Situation, kernels
from elastrec.platform.scaling.search.space import Space
from elastrec.platform.scaling.types import Candidate, CandidateKind, JobProfile

MOST = 3
"""Exploring candidates of a job. Chosen: at most one is applied, and the first ones may not fit."""
_LEAST_COST = 0.05
"""Share of the job's price that is added to the cost of a step. Chosen: the noise of a measured step; differences below
it do not matter, and a step without cost would have an infinite value."""


def _fastest_measured(job: JobProfile) -> float:
    """Ψ of the job's best configuration; 0 without usable measurements."""
    steps = [(each.allocation.workers, each.iteration_seconds) for each in job.observations]
    return max((workers * job.shape.batch_size / step for workers, step in steps if is_positive(step)), default=0.0)


def _promise(situation: Situation, capacity: Capacity, looked_at: Outcomes) -> float:
    """The margin, as a share of Ψ, by which the best untrusted plan would satisfy the rules in the next round.

    Below 0: no plan would be made even if its prediction were trusted.
    """
    doubted = looked_at.columns.take(allowed_rows(situation, capacity, looked_at, doubted=True))
    if not len(doubted):
        return -1.0
    return -float(situation.next_round.outcomes(doubted).against_rules.min())


def explore(situation: Situation, capacity: Capacity, space: Space, looked_at: Outcomes) -> list[Candidate]:
    """At most MOST neighbours with an uncertain prediction, most information per cost first; none if all are known.

    A step may slow the job by at most `max_slowdown` against the fastest measurement, by prediction. So smaller sizes
    are explored only if their loss is small, and such losses do not add up. The model is explored only if a plan can
    use the result: an untrusted plan must satisfy the rules in the next round, in the remaining time of the job then,
    and with the costs of the step. Because the next round may undo the step, its pause and its start must pay within
    one round.

    Args:
        looked_at: the outcomes of points all over the space.
    """
    steps, rules, model = space.single_steps, situation.rules, situation.model
    outcomes = situation.outcomes(steps.columns, payback_seconds=0.0)
    fastest = max(situation.reference, _fastest_measured(situation.job))
    # Growth of the log determinant of the model's information, in nats: 0 where the model is certain.
    teaches = kernels().teaches(
        steps.columns.table_FN, outcomes.found_7N, room_of(situation.job, capacity), *model.terms, model.covariance_KK,
        LEAST_ERROR, 0.5 * rules.trusted_error, (1.0 - rules.max_slowdown) * fastest,
    )  # fmt: skip
    later = situation.next_round.horizon_seconds if teaches.any() else 0.0
    if later <= 0:
        return []
    price = situation.prices.per_hour(situation.job.allocation.resources)
    # The cost of the step: more expensive pods, and the work lost while they start.
    cost = np.maximum(outcomes.cost_per_hour, 0.0) / price + outcomes.overhead / situation.samples_per_second
    worth = teaches / (cost + _LEAST_COST)
    # The loss until the next round, as a share of the time in which a plan can compensate it.
    lost = np.maximum(-outcomes.gain, 0.0) / situation.samples_per_second
    lost *= situation.job.until_next_change_seconds / later
    worth = np.where(lost <= _promise(situation, capacity, looked_at), worth, 0.0)
    rows = np.argsort(-worth, kind="stable")[:MOST]
    return [outcomes.candidate(int(row), CandidateKind.EXPLORE) for row in rows if worth[row] > 0]
