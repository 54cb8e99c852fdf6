"""Whether a job's steps are more than the paper's sum: each form is fitted, and the one that predicts best is taken.

"Predicts" is leave-one-configuration-out, within the measurements that the fit is given: a refined form always fits
what was measured at least as well, so that only what was left out of the fit can tell. Pure.

Shape legend: R rows (equations), C of them measured steps and first among the rows, K coefficients.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from elastrec.platform.scaling.columns import Floats
from elastrec.platform.scaling.least_squares import fit_curve, fit_relative
from elastrec.platform.scaling.step_form import Form

LEAST_CONFIGURATIONS = 10
"""Fewer cannot tell forms of up to eight unknowns apart."""
MARGIN = 0.05
"""A refinement has to bring the left-out error down by this share, or it may be noise that it explains."""
FORMS = tuple(Form(overlap, by_request) for overlap in (1.0, 1.5, 2.0, 3.0) for by_request in (False, True))
"""The paper's sum first. Beyond q = 3 the shorter part is already less than a thirtieth of the step when it is half as
long as the other."""


@dataclass(frozen=True)
class Equations:
    """Rows over `step_form.COLUMNS`, measured seconds, and the weight of each squared log error."""

    rows_RK: Floats
    seconds_R: Floats
    weights_R: Floats

    def __add__(self, other: Equations) -> Equations:
        return Equations(
            np.concatenate([self.rows_RK, other.rows_RK]),
            np.concatenate([self.seconds_R, other.seconds_R]),
            np.concatenate([self.weights_R, other.weights_R]),
        )


@dataclass(frozen=True)
class Fitted:
    """A form with its coefficients, shape (K,), and what they were fitted to."""

    form: Form
    theta_K: Floats
    equations: Equations


def solve(form: Form, equations: Equations) -> Fitted:
    """The coefficients of least RMSLE of one form."""
    rows_RK, seconds_R, weights_R = equations.rows_RK, equations.seconds_R, equations.weights_R
    summed_K = fit_relative(rows_RK, seconds_R, weights_R)
    if form.overlap == 1.0:
        return Fitted(form, summed_K, equations)
    # Where one part is nothing, its derivative is too: the other start has some of everything.
    size_K = rows_RK.max(axis=0)
    little_K = np.where(size_K > 0, 0.1 * np.median(seconds_R) / np.where(size_K > 0, size_K, 1.0), 0.0)
    starts = [summed_K, np.where(summed_K > 0, summed_K, little_K)]
    found = [
        fit_curve(lambda theta_K: form.slopes(rows_RK, theta_K), seconds_R, weights_R, [start_K]) for start_K in starts
    ]
    return Fitted(form, min(found, key=lambda theta_K: _squares(form, equations, theta_K)), equations)


def _errors(form: Form, equations: Equations, theta_K: Floats) -> Floats:
    seconds_R = np.maximum(form.seconds(equations.rows_RK, theta_K), 1e-6 * equations.seconds_R)
    return np.asarray(np.log(seconds_R / equations.seconds_R))


def _squares(form: Form, equations: Equations, theta_K: Floats, steps: int | None = None) -> float:
    return float(np.sum((equations.weights_R * _errors(form, equations, theta_K) ** 2)[:steps]))


def left_out_error(fitted: Fitted, steps: int) -> float:
    """Root mean square of the log errors of the first `steps` rows, each predicted from all other rows.

    The linear model's identity, at the solution: e_i / (1 − h_i) with h_i the weight that a row has in its own
    prediction. One fit instead of one per configuration.
    """
    form, theta_K, equations = fitted.form, fitted.theta_K, fitted.equations
    seconds_R, slopes_RK = form.slopes(equations.rows_RK, theta_K)
    used_K = theta_K > 0
    relative_RK = slopes_RK[:, used_K] / seconds_R[:, None]
    weighted_RK = relative_RK * equations.weights_R[:, None]
    inverse_KK = np.linalg.pinv(relative_RK.T @ weighted_RK, rcond=1e-12, hermitian=True)
    own_C = np.einsum("ck,kl,cl->c", relative_RK[:steps], inverse_KK, weighted_RK[:steps])
    errors_C = _errors(form, equations, theta_K)[:steps]
    # A row that decides its own prediction alone cannot be predicted from the others.
    return float(np.sqrt(np.mean((errors_C / np.maximum(1.0 - own_C, 0.05)) ** 2)))


def choose(equations_of: Callable[[Form], Equations], steps: int, good_enough: float) -> Fitted:
    """The form that predicts best, a refined one by the margin; never one that describes the steps worse than the sum.

    Args:
        equations_of: of one form; the first `steps` rows are the measured steps.
        good_enough: a sum whose left-out error is not above this is not looked behind.
    """
    best = solve(FORMS[0], equations_of(FORMS[0]))
    best_score = left_out_error(best, steps)
    if best_score <= good_enough:
        return best
    limit = _squares(best.form, best.equations, best.theta_K, steps)
    for form in FORMS[1:]:
        fitted = solve(form, equations_of(form))
        score = left_out_error(fitted, steps) * (1.0 + MARGIN) ** form.refinements
        if score < best_score and _squares(form, fitted.equations, fitted.theta_K, steps) <= limit:
            best, best_score = fitted, score
    return best
