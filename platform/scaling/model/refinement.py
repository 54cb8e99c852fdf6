"""The choice of the form of a job's steps: each form is fitted, and the best supported one is used.

A refined form always fits the measurements at least as well as the paper's sum. The Bayesian information criterion
(Schwarz 1978) decides whether it is worth its unknowns: C·ln(mean squared log error) + k·ln(C), with k the unknowns
that the sum does not have. Pure.

Shape legend: R rows (equations), C of them measured steps and first among the rows, K coefficients.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from elastrec.platform.scaling.model.columns import Floats
from elastrec.platform.scaling.model.least_squares import fit_curve
from elastrec.platform.scaling.model.step_form import SERVERS, Form

LEAST_CONFIGURATIONS = 10
"""Fewer cannot distinguish forms of up to eight unknowns."""
FORMS = tuple(Form(overlap, by_request) for overlap in (1.0, 1.5, 2.0, 3.0, 8.0) for by_request in (False, True))
"""The paper's sum first. At q = 8, a step is about as long as its longer part: pods spend their CPU quotas in bursts,
and the side whose quota ends first determines the time of the step."""
_LEAST_SQUARE = 1e-6
"""Mean squared log error below which forms count as equally good: a thousandth of a step."""


@dataclass(frozen=True)
class Equations:
    """Rows over `step_form.COLUMNS`, measured seconds, and the weight of each squared log error.

    Attributes:
        summed_K: the coefficients of the plain sum, where the fits of all forms of these rows begin.
    """

    rows_RK: Floats
    seconds_R: Floats
    weights_R: Floats
    summed_K: Floats


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
    # A part that is 0 has the derivative 0; in the other start, no part is 0.
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
    """The information criterion of a form on the first `steps` rows: the smaller, the better."""
    mean = max(_squares(fitted.form, fitted.equations, fitted.theta_K, steps) / steps, _LEAST_SQUARE)
    return steps * math.log(mean) + fitted.form.unknowns * math.log(steps)


def choose(equations_of: Callable[[Form], Equations], steps: int, good_enough: float) -> Fitted:
    """The best supported form; never one that fits the steps worse than the sum.

    Args:
        equations_of: the equations of one form, which do not depend on its overlap; the first `steps` rows are the
            measured steps.
        good_enough: if the typical log error of the sum is at most this, no other form is fitted.
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
