"""The compiled loops around a fit: its equations, and the precision of its coefficients.

A fit has some dozens of rows. In numpy, the overhead of each operation exceeds the arithmetic.

Shape legend: C configurations, R rows (equations), K coefficients (`step_form.COLUMNS`), F fields (`columns.FIELDS`).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from elastrec.platform.scaling.model import kernels as model_kernels
from elastrec.platform.scaling.model import linear_kernels
from elastrec.platform.scaling.model.kernels import (
    Constants,
    Fitted,
    least_relative,
    rank_and_condition,
    rows,
    step_and_slopes,
    step_seconds,
)
from elastrec.platform.scaling.model.linear_kernels import pseudo_inverse
from elastrec.platform.specs.numba_cache import kernels_of

_kernel = kernels_of(__file__, model_kernels.__file__, linear_kernels.__file__)(error_model="numpy")
_NO_INFORMATION = 1e-12
"""Share of the largest eigenvalue of the information below which one counts as 0."""
_LEAST_SECONDS = 1e-300
"""Shortest time of a step, so that logarithms and shares of it are finite."""


class Limits(NamedTuple):
    """The constants of `throughput` for a fit; see there."""

    condition: float
    tie_break: float
    compute_weight: float
    least_error: float
    period_error: float
    prior_error: float
    fading_seconds: float


@_kernel
def around(table_FC):  # type: ignore[no-untyped-def]
    """The measured allocations, then copies in which one count or size is multiplied by 1/4 or by 4: [F, 9C]."""
    fields, count = table_FC.shape
    found = np.empty((fields, 9 * count))
    for block in range(9):
        for f in range(fields):
            factor = 1.0
            if block and f == (block - 1) // 2:
                factor = 4.0 if block % 2 == 0 else 0.25
            for c in range(count):
                found[f, block * count + c] = factor * table_FC[f, c]
    return found


@_kernel
def assumed(table_FC, constants, seconds, shares):  # type: ignore[no-untyped-def]
    """The sum whose parts have these shares of the first configuration's step; the rest is fixed.

    Args:
        shares: of gradient, update, synchronise and embedding; 0 for a part that depends on nothing.
    """
    row = rows(table_FC[:, :1], constants)[0]
    left = 1.0
    found = np.zeros(4)
    for k in range(4):
        if row[k] > 0:
            found[k] = shares[k] * seconds / row[k]
            left -= shares[k]
    return Fitted(found[0], found[1], found[2], found[3], 0.0, 0.0, seconds * left, 1.0)


@_kernel
def equations(  # type: ignore[no-untyped-def]
    table_FC, constants, seconds_C, compute_C, measured_C, compute_weight, prior_constants, prior, prior_weight
):  # fmt: skip
    """Rows [R, K], seconds [R] and weights [R] of a fit: of the configurations, of their measured compute parts, and,
    if a prior has weight, of allocations around them.

    With compute parts, β is in two columns. A prior determines, in its own form, only the shape: the level of a similar
    job depends on the nodes, so that one factor comes from the measurements.

    Args:
        compute_C: NaN where no part was measured.
        measured_C: weights of the configurations, 1 in the mean.
        prior_weight: of all rows of the prior together.
    """
    count = len(seconds_C)
    parts = 0
    for c in range(count):
        parts += np.isfinite(compute_C[c])
    columns, others = 8 if parts else 7, 9 * count if prior_weight > 0 else 0
    total = count + parts + others
    rows_RK, seconds_R, weights_R = np.ones((total, columns)), np.empty(total), np.ones(total)
    measured_CK, place = rows(table_FC, constants), count
    for c in range(count):
        seconds_R[c], weights_R[c] = seconds_C[c], measured_C[c]
        for k in range(7):
            rows_RK[c, k] = measured_CK[c, k]
        if np.isfinite(compute_C[c]):
            seconds_R[place], weights_R[place] = compute_C[c], compute_weight * measured_C[c]
            for k in range(8):
                rows_RK[place, k] = measured_CK[c, k] if k == 0 or k == 6 else 0.0
            place += 1
    if others:
        table_FN = around(table_FC)
        around_NK, level = rows(table_FN, constants), 0.0
        for c in range(count):
            level += measured_C[c] * np.log(seconds_C[c] / step_seconds(table_FC, c, prior_constants, prior))
        level = np.exp(level / count)
        for n in range(others):
            seconds_R[place + n] = level * step_seconds(table_FN, n, prior_constants, prior)
            weights_R[place + n] = prior_weight / others
            for k in range(7):
                rows_RK[place + n, k] = around_NK[n, k]
    return rows_RK, seconds_R, weights_R


@_kernel
def summed(  # type: ignore[no-untyped-def]
    table_FC, constants, seconds_C, compute_C, measured_C, compute_weight, prior_constants, prior, has_prior, shares,
    prior_weight,
):  # fmt: skip
    """`equations`, and the coefficients of the plain sum that meet them best.

    Args:
        constants, prior_constants, prior: plain tuples, which numba recognises much faster than named ones.
        has_prior: without one, it is `assumed` from the shares.
    """
    constants, prior_constants, prior = Constants(*constants), Constants(*prior_constants), Fitted(*prior)
    if not has_prior:
        prior_constants, prior = constants, assumed(table_FC, constants, seconds_C[0], shares)
    rows_RK, seconds_R, weights_R = equations(
        table_FC, constants, seconds_C, compute_C, measured_C, compute_weight, prior_constants, prior, prior_weight
    )  # fmt: skip
    return rows_RK, seconds_R, weights_R, least_relative(rows_RK, seconds_R, weights_R)


@_kernel
def knowledge(  # type: ignore[no-untyped-def]
    rows_RK, seconds_R, weights_R, theta_K, steps, doubted, servers_from, servers_to, overlap, unknowns, least_error,
    prior_error,
):  # fmt: skip
    """The weighted root mean squared log error of the measured steps, and the precision of the coefficients, [K, K]:
    Σ x·xᵀ/σ² over relative rows of the measurements and, as one configuration of `prior_error`, of the assumptions.

    Args:
        weights_R: those of measured rows are 1 in the mean.
        steps: number of measured rows, which come first; rows from `doubted` on are assumed.
        unknowns: their number in the fit.
    """
    own_RK = rows_RK[:, : len(theta_K)]
    slopes_RK = np.empty(own_RK.shape)
    found_R = step_and_slopes(own_RK, theta_K, servers_from, servers_to, overlap, slopes_RK)
    squares = 0.0
    for r in range(steps):
        error = np.log(max(found_R[r], _LEAST_SECONDS) / seconds_R[r])
        squares += weights_R[r] * error * error
    error = np.sqrt(squares / steps)
    sigma = max(least_error, error * np.sqrt(steps / max(1, steps - unknowns)))
    information_KK, assumptions = np.zeros((len(theta_K), len(theta_K))), len(seconds_R) - doubted
    relative_K = np.empty(len(theta_K))
    for r in range(len(seconds_R)):
        if steps <= r < doubted:
            continue
        seconds = found_R[r] if r < steps else seconds_R[r]
        weight = weights_R[r] / sigma**2 if r < steps else 1.0 / (assumptions * prior_error**2)
        for k in range(len(theta_K)):
            relative_K[k] = slopes_RK[r, k] / seconds
        for i in range(len(theta_K)):
            weighted = weight * relative_K[i]
            for j in range(len(theta_K)):
                information_KK[i, j] += weighted * relative_K[j]
    return error, information_KK


@_kernel
def known(  # type: ignore[no-untyped-def]
    rows_RK, seconds_R, weights_R, split_K, compute_C, servers_from, servers_to, overlap, unknowns, least_error,
    prior_error,
):  # fmt: skip
    """The coefficients with one β, the error of the measured steps, and the covariance of the coefficients, [K, K]
    (`knowledge`).

    Args:
        split_K: coefficients of the fit; with compute parts, β is in the last two.
    """
    theta_K = split_K[:7].copy()
    for k in range(7, len(split_K)):
        theta_K[6] += split_K[k]
    steps, parts = len(compute_C), 0
    for c in range(steps):
        parts += np.isfinite(compute_C[c])
    error, information_KK = knowledge(
        rows_RK, seconds_R, weights_R, theta_K, steps, steps + parts, servers_from, servers_to, overlap, unknowns,
        least_error, prior_error,
    )  # fmt: skip
    return theta_K, error, pseudo_inverse(information_KK, _NO_INFORMATION)


@_kernel
def weights(measured_seconds_C, limits):  # type: ignore[no-untyped-def]
    """Weights of the configurations in a fit, [C], 1 in the mean: inversely proportional to the variance of their mean
    steps, which falls with the number of periods in which they were measured. Shorter measurements have the variance of
    one period, because what disturbs them lasts as long. Masters reduce the number of older steps, which limits the
    periods to about five and the ratio of two weights to about 2.3.
    """
    found_C, total = np.empty(len(measured_seconds_C)), 0.0
    for c in range(len(found_C)):
        periods = max(measured_seconds_C[c] / limits.fading_seconds, 1.0)
        found_C[c] = 1.0 / (limits.least_error**2 + limits.period_error**2 / periods)
        total += found_C[c]
    return found_C / (total / len(found_C))


@_kernel
def plain_fit(  # type: ignore[no-untyped-def]
    table_FC, constants, seconds_C, compute_C, measured_seconds_C, prior_constants, prior, has_prior, shares,
    prior_weight, may_refine, servers_from, servers_to, limits,
):  # fmt: skip
    """A fit of the paper's sum as a whole, in one call, because a call from Python costs as much as much of it.

    Args:
        constants, prior_constants, prior: as of `summed`; limits: `Limits`, likewise as a plain tuple.
        prior_weight: of the prior's rows together, if it is above what only breaks ties.
        may_refine: there are configurations enough for other forms.

    Returns:
        Rank, number of columns and condition (`rank_and_condition`), the weight of the prior, that of compute parts,
        weights of the configurations [C], `summed`, and `known`.
    """
    limits = Limits(*limits)
    rank, columns, condition = rank_and_condition(table_FC, constants, seconds_C)
    identified = rank == columns and condition <= limits.condition
    if not identified:
        prior_weight = max(prior_weight, limits.tie_break)
    # If steps determine all coefficients, the compute part only determines how β is split.
    compute_weight = limits.tie_break if may_refine and identified else limits.compute_weight
    measured_C = weights(measured_seconds_C, limits)
    rows_RK, seconds_R, weights_R, summed_K = summed(
        table_FC, constants, seconds_C, compute_C, measured_C, compute_weight, prior_constants, prior, has_prior,
        shares, prior_weight,
    )  # fmt: skip
    theta_K, error, covariance_KK = known(
        rows_RK, seconds_R, weights_R, summed_K, compute_C, servers_from, servers_to, 1.0, columns,
        limits.least_error, limits.prior_error,
    )  # fmt: skip
    return (
        (rank, columns, condition, prior_weight, compute_weight),
        measured_C,
        (rows_RK, seconds_R, weights_R, summed_K),
        (theta_K, error, covariance_KK),
    )
