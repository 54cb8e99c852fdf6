"""Small, cheap steps of a job whose model does not know enough: the one that teaches most per currency goes first.

A young job has seen one configuration; its measurements determine one number of five. A neighbouring allocation whose
prediction is uncertain determines more. Shape legend: N allocations.
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
"""Exploring candidates of a job. Chosen: one is taken at most, and there may be no room for the first."""
_LEAST_COST = 0.05
"""Of the job's price, added to what a step costs to find out. Chosen: the noise of a measured step; below it, cheaper
steps are not better ones, and a free one would be worth any little that it teaches."""


def _fastest_measured(job: JobProfile) -> float:
    """Ψ of the best configuration that the job has had; 0 when nothing usable was measured."""
    steps = [(each.allocation.workers, each.iteration_seconds) for each in job.observations]
    return max((workers * job.shape.batch_size / step for workers, step in steps if is_positive(step)), default=0.0)


def _promise(situation: Situation, capacity: Capacity, looked_at: Outcomes) -> float:
    """By how large a share of Ψ the best plan that is doubted now would be within the rules in the next round.

    Below 0 there is none: no plan would be made then if its prediction were to be trusted.
    """
    doubted = looked_at.columns.take(allowed_rows(situation, capacity, looked_at, doubted=True))
    if not len(doubted):
        return -1.0
    return -float(situation.next_round.outcomes(doubted).against_rules.min())


def explore(situation: Situation, capacity: Capacity, space: Space, looked_at: Outcomes) -> list[Candidate]:
    """At most MOST neighbours with an uncertain prediction, most learning per cost first; none when all is known.

    A step may not be predicted to slow the job by more than `max_slowdown` against the fastest that was measured, so
    going down is explored only where it is believed to be nearly free, and steps down do not add up. A model is not
    asked for more than a plan could use: a plan that is doubted now must be within the rules in the next round, in what
    is left of the job then, and with what the step itself has cost. What was learnt may undo a step in the next round:
    by then it has to have paid for its pause and its start.

    Args:
        looked_at: outcomes of points all over the space.
    """
    steps, rules, model = space.single_steps, situation.rules, situation.model
    outcomes = situation.outcomes(steps.columns, payback_seconds=0.0)
    fastest = max(situation.reference, _fastest_measured(situation.job))
    # Growth of the log determinant of the model's information, in nats: 0 where the model is sure already.
    teaches = kernels().teaches(
        steps.columns.table_FN, outcomes.found_7N, room_of(situation.job, capacity), *model.terms, model.covariance_KK,
        LEAST_ERROR, 0.5 * rules.trusted_error, (1.0 - rules.max_slowdown) * fastest,
    )  # fmt: skip
    later = situation.next_round.horizon_seconds if teaches.any() else 0.0
    if later <= 0:
        return []
    price = situation.prices.per_hour(situation.job.allocation.resources)
    # What it costs to find out: the dearer pods, and the work lost while they start.
    cost = np.maximum(outcomes.cost_per_hour, 0.0) / price + outcomes.overhead / situation.samples_per_second
    worth = teaches / (cost + _LEAST_COST)
    # What is lost until the next round, as a share of the time in which a plan can make up for it.
    lost = np.maximum(-outcomes.gain, 0.0) / situation.samples_per_second
    lost *= situation.job.until_next_change_seconds / later
    worth = np.where(lost <= _promise(situation, capacity, looked_at), worth, 0.0)
    rows = np.argsort(-worth, kind="stable")[:MOST]
    return [outcomes.candidate(int(row), CandidateKind.EXPLORE) for row in rows if worth[row] > 0]
