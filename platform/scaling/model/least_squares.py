"""Non-negative least squares for times: of absolute errors (plain) and of relative ones (RMSLE).

Shape legend: R rows (equations), K columns (coefficients).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from scipy.optimize import nnls

from elastrec.platform.scaling.model.columns import Floats

_ROUNDS = 200


def _scaled(rows_RK: Floats, targets_R: Floats) -> Floats:
    """NNLS with columns brought to length 1: the columns' sizes differ by 10^9."""
    length_K = np.sqrt(np.einsum("rk,rk->k", rows_RK, rows_RK))
    used = np.flatnonzero(length_K)
    result_K = np.zeros(rows_RK.shape[1])
    if len(used):
        scaled_RK = rows_RK[:, used] / length_K[used]
        result_K[used] = nnls(scaled_RK, targets_R, maxiter=1000)[0] / length_K[used]
    return result_K


def log_errors(rows_RK: Floats, targets_R: Floats, coefficients_K: Floats) -> Floats:
    """log of predicted over measured, shape (R,); a prediction of 0 counts as a millionth of the measurement."""
    return np.log(np.maximum(rows_RK @ coefficients_K, 1e-6 * targets_R) / targets_R)


def rmsle(rows_RK: Floats, targets_R: Floats, coefficients_K: Floats) -> float:
    """Root mean squared logarithmic error; 0.05 is about 5 %. Free of units: nothing is added to the logarithm."""
    return float(np.sqrt(np.mean(log_errors(rows_RK, targets_R, coefficients_K) ** 2)))


def fit_plain(rows_RK: Floats, targets_R: Floats) -> Floats:
    """The paper's way: NNLS of the times themselves, so that the slowest configuration decides. Shape (K,)."""
    return _scaled(rows_RK, targets_R)


Curve = Callable[[Floats], tuple[Floats, Floats]]
"""Seconds of shape (R,) by coefficients of shape (K,), and their derivatives of shape (R, K), all ≥ 0; homogeneous."""


def fit_relative(rows_RK: Floats, targets_R: Floats, weights_R: Floats) -> Floats:
    """Coefficients ≥ 0 of least RMSLE: Gauss–Newton steps on the log residuals, each one an NNLS. Shape (K,).

    Around θ0: log Aθ ≈ log Aθ0 + (Aθ − Aθ0) / Aθ0, so rows are divided by their own prediction. A step is shortened
    until it improves, and the start is the best of the plain and of the reweighted solution: the result is never
    worse in RMSLE than `fit_plain`.

    Args:
        rows_RK: features, ≥ 0.
        targets_R: measured seconds, > 0.
        weights_R: ≥ 0, of the squared log errors.
    """
    root_R = np.sqrt(weights_R)
    starts = [_scaled(rows_RK, targets_R), _scaled(rows_RK * (root_R / targets_R)[:, None], root_R)]
    return fit_curve(lambda theta_K: (rows_RK @ theta_K, rows_RK), targets_R, weights_R, starts)


def fit_curve(curve: Curve, targets_R: Floats, weights_R: Floats, starts: Sequence[Floats]) -> Floats:
    """The same for seconds that are no sum of the coefficients' shares; never worse than the best of the starts.

    Homogeneous means that a curve's derivatives at θ0 times θ0 are its seconds, so that they stand in for the rows.
    """
    root_R, least_R = np.sqrt(weights_R), 1e-6 * targets_R

    def looked_at(theta_K: Floats) -> tuple[float, Floats, Floats, Floats]:
        """Loss, coefficients, seconds and slopes."""
        seconds_R, slopes_RK = curve(theta_K)
        guess_R = np.maximum(seconds_R, least_R)
        log_R = np.log(guess_R / targets_R)
        return float(weights_R @ (log_R * log_R)), theta_K, guess_R, slopes_RK

    best, best_K, guess_R, slopes_RK = min((looked_at(start) for start in starts), key=lambda each: each[0])
    for _ in range(_ROUNDS):
        step_R = root_R * (np.log(targets_R / guess_R) + 1.0)
        # A far-off row asks for a negative time; its most is zero.
        wanted_K = _scaled(slopes_RK * (root_R / guess_R)[:, None], np.maximum(step_R, 0.0))
        share = 1.0
        while share > 1e-4:
            # Between two points ≥ 0 all points are.
            trial, trial_K, guess_R, slopes_RK = looked_at(best_K + share * (wanted_K - best_K))
            if trial < best:
                break
            share *= 0.5
        else:
            return best_K
        converged = best - trial <= 1e-12 * max(best, 1e-30)
        best_K, best = trial_K, trial
        if converged:
            break
    return best_K
