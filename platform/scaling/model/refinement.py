"""Whether a job's steps are more than the paper's sum: each form is fitted, and the one best supported is taken.

A refined form always fits what was measured at least as well. Whether it is worth its unknowns says the Bayesian
information criterion (Schwarz 1978): C·ln(mean squared log error) + k·ln(C), with k the unknowns that the sum does not
have. Pure.

Shape legend: R rows (equations), C of them measured steps and first among the rows, K coefficients.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from elastrec.platform.scaling.model.columns import Floats
from elastrec.platform.scaling.model.least_squares import fit_curve, fit_relative
from elastrec.platform.scaling.model.step_form import SERVERS, Form

LEAST_CONFIGURATIONS = 10
"""Fewer cannot distinguish forms of up to eight unknowns."""
FORMS = tuple(Form(overlap, by_request) for overlap in (1.0, 1.5, 2.0, 3.0, 8.0) for by_request in (False, True))
"""The paper's sum first. At q = 8 a step is as long as its longer part: pods that are held by quotas spend theirs in
bursts, and the side that runs out first sets the pace for all."""
_LEAST_SQUARE = 1e-6
"""Mean squared log error below which forms are equally good: a thousandth of a step."""


@dataclass(frozen=True)
class Equations:
    """Rows over `step_form.COLUMNS`, measured seconds, and the weight of each squared log error."""

    rows_RK: Floats
    seconds_R: Floats
    weights_R: Floats

    @cached_property
    def summed_K(self) -> Floats:
        """The coefficients of the plain sum, where the fits of all forms of these rows begin."""
        return fit_relative(self.rows_RK, self.seconds_R, self.weights_R)


@dataclass(frozen=True)
class Fitted:
    """A form with its coefficients, shape (K,), and what they were fitted to."""

    form: Form
    theta_K: Floats
    equations: Equations


def solve(form: Form, equations: Equations) -> Fitted:
    """The coefficients of least RMSLE of one form."""
    rows_RK, seconds_R, weights_R = equations.rows_RK, equations.seconds_R, equations.weights_R
    summed_K = equations.summed_K
    if form.overlap == 1.0:
        return Fitted(form, summed_K, equations)
    # Where one part is nothing, its derivative is too: the other start has some of everything.
    size_K = rows_RK.max(axis=0)
    little_K = np.where(size_K > 0, 0.1 * np.median(seconds_R) / np.where(size_K > 0, size_K, 1.0), 0.0)
    starts = [summed_K, np.where(summed_K > 0, summed_K, little_K)]
    if np.array_equal(starts[0], starts[1]):
        del starts[1]
    found = [fit_curve(rows_RK, seconds_R, weights_R, [start_K], SERVERS, form.overlap) for start_K in starts]
    return Fitted(form, min(found, key=lambda theta_K: _squares(form, equations, theta_K)), equations)


def _squares(form: Form, equations: Equations, theta_K: Floats, steps: int | None = None) -> float:
    seconds_R = np.maximum(form.seconds(equations.rows_RK, theta_K), 1e-6 * equations.seconds_R)
    return float(np.sum((equations.weights_R * np.log(seconds_R / equations.seconds_R) ** 2)[:steps]))


def criterion(fitted: Fitted, steps: int) -> float:
    """How little the first `steps` rows support a form: the smaller, the better."""
    mean = max(_squares(fitted.form, fitted.equations, fitted.theta_K, steps) / steps, _LEAST_SQUARE)
    return steps * math.log(mean) + fitted.form.unknowns * math.log(steps)


def choose(equations_of: Callable[[Form], Equations], steps: int, good_enough: float) -> Fitted:
    """The form that is supported best; never one that describes the steps worse than the sum.

    Args:
        equations_of: of one form, whose overlap makes no difference to them; the first `steps` rows are the measured
            steps.
        good_enough: a sum whose typical log error is not above this is not looked behind.
    """
    known = {FORMS[0].by_request: equations_of(FORMS[0])}
    best = solve(FORMS[0], known[FORMS[0].by_request])
    limit = _squares(best.form, best.equations, best.theta_K, steps)
    if limit <= steps * good_enough**2:
        return best
    best_score = criterion(best, steps)
    for form in FORMS[1:]:
        if form.by_request not in known:
            known[form.by_request] = equations_of(form)
        fitted = solve(form, known[form.by_request])
        score = criterion(fitted, steps)
        if score < best_score and _squares(form, fitted.equations, fitted.theta_K, steps) <= limit:
            best, best_score = fitted, score
    return best
