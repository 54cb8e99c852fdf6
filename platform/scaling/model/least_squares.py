"""Non-negative least squares for times: of absolute errors (plain) and of relative ones (RMSLE).

Shape legend: R rows (equations), K columns (coefficients).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from elastrec.platform.scaling.model.columns import Floats, kernels, linear_kernels


def log_errors(rows_RK: Floats, targets_R: Floats, coefficients_K: Floats) -> Floats:
    """log of predicted over measured, shape (R,); a prediction is at least a millionth of the measurement."""
    return np.log(np.maximum(rows_RK @ coefficients_K, 1e-6 * targets_R) / targets_R)


def rmsle(rows_RK: Floats, targets_R: Floats, coefficients_K: Floats) -> float:
    """Root mean squared logarithmic error; 0.05 is about 5 %. Free of units: nothing is added to the logarithm."""
    return float(np.sqrt(np.mean(log_errors(rows_RK, targets_R, coefficients_K) ** 2)))


def fit_plain(rows_RK: Floats, targets_R: Floats) -> Floats:
    """The paper's way: NNLS of the times themselves, so that the slowest configuration decides. Shape (K,)."""
    found_K: Floats = linear_kernels().non_negative(rows_RK, targets_R)
    return found_K


def fit_relative(rows_RK: Floats, targets_R: Floats, weights_R: Floats) -> Floats:
    """Coefficients ≥ 0 of least RMSLE: Gauss–Newton steps on the log residuals, each one an NNLS. Shape (K,).

    Around θ0: log Aθ ≈ log Aθ0 + (Aθ − Aθ0) / Aθ0, so rows are divided by their own prediction. A step is shortened
    until it improves the loss, and the start is the better of the plain and the reweighted solution, so that the result
    is never worse in RMSLE than `fit_plain`.

    Args:
        rows_RK: features, ≥ 0.
        targets_R: measured seconds, > 0.
        weights_R: ≥ 0, of the squared log errors.
    """
    found_K: Floats = kernels().least_relative(rows_RK, targets_R, weights_R)
    return found_K


def fit_curve(
    rows_RK: Floats,
    targets_R: Floats,
    weights_R: Floats,
    starts: Sequence[Floats],
    servers: slice = slice(0, 0),
    overlap: float = 1.0,
) -> Floats:
    """The same for steps of a form of `step_form`; never worse than the best of the starts.

    Seconds are homogeneous in the coefficients: their derivatives at θ0 times θ0 are the seconds, so that derivatives
    replace the rows.

    Args:
        servers: columns of a worker's waits for servers.
        overlap: q; 1: the sum, whatever `servers` are.
    """
    found_K: Floats = kernels().least_log_errors(
        rows_RK, targets_R, weights_R, np.stack(starts), servers.start, servers.stop, overlap
    )
    return found_K
