"""The compiled loops of the throughput model: steps of many allocations, and fits of their logarithms.

Imported only to fit a model, because the import of numba takes a quarter of a second.

Shape legend: R rows (equations), K coefficients, S starts, N allocations, F fields (`columns.FIELDS`).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from elastrec.platform.scaling.model import linear_kernels
from elastrec.platform.scaling.model.linear_kernels import non_negative, singular_values
from elastrec.platform.specs.numba_cache import kernels_of

_kernel = kernels_of(__file__, linear_kernels.__file__)(error_model="numpy")
_ROUNDS = 200
"""Most steps of a fit."""
_LEAST_SHARE = 1e-4
"""A step is halved until it improves the loss, at most down to this share."""
_CONVERGED = 1e-12
"""Relative improvement of the loss below which a fit ends."""
_RANKED = 1e-6
"""Singular values below this share of the largest are treated as 0, because measurements have noise."""
_LEAST_GUESS = 1e-6
"""A prediction is at least this share of the measurement."""
_TINY = float(np.finfo(np.float64).tiny)


class Constants(NamedTuple):
    """The constants of `ModelShape`, and whether requests have a cost of their own (0 or 1)."""

    batch_size: float
    dense_bytes: float
    embedding_dimension: float
    network_bytes_per_second: float
    by_request: float


class Fitted(NamedTuple):
    """Coefficients in the order of `step_form.COLUMNS`, and q of `step_form`."""

    gradient: float
    update: float
    synchronise: float
    embedding: float
    fan_in: float
    fan_out: float
    fixed: float
    overlap: float


@_kernel
def _row(table_FN, n, constants):  # type: ignore[no-untyped-def]
    """The factors of the coefficients for one allocation; that of `fixed` is 1."""
    workers, servers, worker_cores, server_cores = table_FN[0, n], table_FN[1, n], table_FN[2, n], table_FN[3, n]
    return (
        constants.batch_size / worker_cores,  # eq. 2
        workers / (servers * server_cores),  # eq. 3
        (constants.dense_bytes / servers) / (constants.network_bytes_per_second / workers),  # eq. 4
        constants.batch_size * constants.embedding_dimension / servers,  # eq. 5
        constants.by_request * workers / server_cores,
        constants.by_request * servers / worker_cores,
    )


@_kernel
def rows(table_FN, constants):  # type: ignore[no-untyped-def]
    """`_row` of N allocations, [N, K]."""
    found_NK = np.empty((table_FN.shape[1], 7))
    for n in range(table_FN.shape[1]):
        row = _row(table_FN, n, constants)
        for k in range(6):
            found_NK[n, k] = row[k]
        found_NK[n, 6] = 1.0
    return found_NK


@_kernel
def step_seconds(table_FN, n, constants, fitted):  # type: ignore[no-untyped-def]
    """T_iter of one allocation."""
    row = _row(table_FN, n, constants)
    own = row[0] * fitted.gradient + row[5] * fitted.fan_out + fitted.fixed
    servers = (
        row[1] * fitted.update + row[2] * fitted.synchronise + row[3] * fitted.embedding + row[4] * fitted.fan_in
    )  # fmt: skip
    return together(own, servers, fitted.overlap)


@_kernel
def together(own, servers, overlap):  # type: ignore[no-untyped-def]
    """`step_form.together` of two numbers."""
    if overlap == 1.0:
        return own + servers
    longer = max(own, servers, _TINY)
    return longer * ((own / longer) ** overlap + (servers / longer) ** overlap) ** (1.0 / overlap)


@_kernel
def all_seconds(table_FN, constants, fitted):  # type: ignore[no-untyped-def]
    """T_iter of N allocations, [N]."""
    found_N = np.empty(table_FN.shape[1])
    for n in range(len(found_N)):
        found_N[n] = step_seconds(table_FN, n, constants, fitted)
    return found_N


@_kernel
def _slope(table_FN, n, constants, fitted):  # type: ignore[no-untyped-def]
    """Derivatives of the logarithm of one allocation's T_iter by each coefficient."""
    row = _row(table_FN, n, constants)
    own = row[0] * fitted.gradient + row[5] * fitted.fan_out + fitted.fixed
    servers = (
        row[1] * fitted.update + row[2] * fitted.synchronise + row[3] * fitted.embedding + row[4] * fitted.fan_in
    )  # fmt: skip
    seconds = together(own, servers, fitted.overlap)
    of_own = of_servers = 1.0 / seconds
    if fitted.overlap != 1.0:
        of_own *= (own / seconds) ** (fitted.overlap - 1.0)
        of_servers *= (servers / seconds) ** (fitted.overlap - 1.0)
    return (
        row[0] * of_own, row[1] * of_servers, row[2] * of_servers, row[3] * of_servers, row[4] * of_servers,
        row[5] * of_own, of_own,
    )  # fmt: skip


@_kernel
def _spread(slope, covariance_KK):  # type: ignore[no-untyped-def]
    total = 0.0
    for i in range(7):
        part = 0.0
        for j in range(7):
            part += covariance_KK[i, j] * slope[j]
        total += slope[i] * part
    return max(total, 0.0)


@_kernel
def variance(table_FN, n, constants, fitted, covariance_KK):  # type: ignore[no-untyped-def]
    """Variance of the logarithm of one allocation's T_iter, from the covariance of the coefficients."""
    return _spread(_slope(table_FN, n, constants, fitted), covariance_KK)


@_kernel
def variance_of_change(table_FN, n, other_F1, constants, fitted, covariance_KK):  # type: ignore[no-untyped-def]
    """Variance of the logarithm of the ratio of two allocations' T_iter: 0 where both are equal."""
    one, other = _slope(table_FN, n, constants, fitted), _slope(other_F1, 0, constants, fitted)
    difference = (
        one[0] - other[0], one[1] - other[1], one[2] - other[2], one[3] - other[3], one[4] - other[4],
        one[5] - other[5], one[6] - other[6],
    )  # fmt: skip
    return _spread(difference, covariance_KK)


@_kernel
def all_variances(table_FN, constants, fitted, covariance_KK):  # type: ignore[no-untyped-def]
    """`variance` of N allocations, [N]."""
    found_N = np.empty(table_FN.shape[1])
    for n in range(len(found_N)):
        found_N[n] = variance(table_FN, n, constants, fitted, covariance_KK)
    return found_N


@_kernel
def step_and_slopes(rows_RK, theta_K, servers_from, servers_to, overlap, slopes_RK):  # type: ignore[no-untyped-def]
    """Seconds of `step_form`, [R], and their derivatives by the coefficients, written to `slopes_RK`.

    Args:
        servers_from, servers_to: the columns of a worker's waits for servers.
        overlap: q; 1: the sum.
    """
    count, columns = rows_RK.shape
    seconds_R = np.empty(count)
    for r in range(count):
        own, servers = 0.0, 0.0
        for k in range(columns):
            if servers_from <= k < servers_to:
                servers += rows_RK[r, k] * theta_K[k]
            else:
                own += rows_RK[r, k] * theta_K[k]
        if overlap == 1.0:
            seconds_R[r] = own + servers
            for k in range(columns):
                slopes_RK[r, k] = rows_RK[r, k]
            continue
        seconds = seconds_R[r] = together(own, servers, overlap)
        of_own, of_servers = (own / seconds) ** (overlap - 1.0), (servers / seconds) ** (overlap - 1.0)
        for k in range(columns):
            slopes_RK[r, k] = rows_RK[r, k] * (of_servers if servers_from <= k < servers_to else of_own)
    return seconds_R


@_kernel
def _loss(seconds_R, targets_R, weights_R):  # type: ignore[no-untyped-def]
    """Σ weight · log²(predicted over measured); predictions are raised to `_LEAST_GUESS` of the measurement."""
    total = 0.0
    for r in range(len(targets_R)):
        seconds_R[r] = max(seconds_R[r], _LEAST_GUESS * targets_R[r])
        error = np.log(seconds_R[r] / targets_R[r])
        total += weights_R[r] * error * error
    return total


@_kernel
def least_log_errors(rows_RK, targets_R, weights_R, starts_SK, servers_from, servers_to, overlap):  # type: ignore[no-untyped-def]
    """Gauss–Newton steps from the best of the starts, each one an NNLS; see `least_squares.fit_curve`. Shape (K,)."""
    count, columns = rows_RK.shape
    best, best_K = np.inf, starts_SK[0]
    guess_R, slopes_RK = np.empty(count), np.empty((count, columns))
    for s in range(len(starts_SK)):
        tried_RK = np.empty((count, columns))
        seconds_R = step_and_slopes(rows_RK, starts_SK[s], servers_from, servers_to, overlap, tried_RK)
        loss = _loss(seconds_R, targets_R, weights_R)
        if s == 0 or loss < best:
            best, best_K, guess_R, slopes_RK = loss, starts_SK[s], seconds_R, tried_RK
    relative_RK, wanted_R, tried_RK = np.empty((count, columns)), np.empty(count), np.empty((count, columns))
    for _ in range(_ROUNDS):
        for r in range(count):
            root = np.sqrt(weights_R[r])
            # The linear approximation may give a negative time far away from its origin; it is cut at zero.
            wanted_R[r] = max(root * (np.log(targets_R[r] / guess_R[r]) + 1.0), 0.0)
            for k in range(columns):
                relative_RK[r, k] = slopes_RK[r, k] * (root / guess_R[r])
        wanted_K = non_negative(relative_RK, wanted_R)
        share, trial = 1.0, np.inf
        trial_K, seconds_R = np.empty(columns), guess_R
        while share > _LEAST_SHARE:
            # The points between two points ≥ 0 are ≥ 0, too.
            for k in range(columns):
                trial_K[k] = best_K[k] + share * (wanted_K[k] - best_K[k])
            seconds_R = step_and_slopes(rows_RK, trial_K, servers_from, servers_to, overlap, tried_RK)
            trial = _loss(seconds_R, targets_R, weights_R)
            if trial < best:
                break
            share *= 0.5
        if not trial < best:
            return best_K
        converged = best - trial <= _CONVERGED * max(best, 1e-30)
        best, best_K, guess_R = trial, trial_K, seconds_R
        slopes_RK, tried_RK = tried_RK, slopes_RK
        if converged:
            break
    return best_K


@_kernel
def least_relative(rows_RK, targets_R, weights_R):  # type: ignore[no-untyped-def]
    """`least_squares.fit_relative` of the sum, from the better of the plain and the reweighted solution."""
    count, columns = rows_RK.shape
    root_R, relative_RK = np.empty(count), np.empty((count, columns))
    for r in range(count):
        root_R[r] = np.sqrt(weights_R[r])
        for k in range(columns):
            relative_RK[r, k] = rows_RK[r, k] * (root_R[r] / targets_R[r])
    plain_K, reweighted_K = non_negative(rows_RK, targets_R), non_negative(relative_RK, root_R)
    starts_SK = np.empty((2, columns))
    for k in range(columns):
        starts_SK[0, k], starts_SK[1, k] = plain_K[k], reweighted_K[k]
    return least_log_errors(rows_RK, targets_R, weights_R, starts_SK, 0, 0, 1.0)


@_kernel
def rank_and_condition(table_FN, constants, seconds_R):  # type: ignore[no-untyped-def]
    """Rank, number of columns in use, and condition of the relative rows of R allocations, with columns of length 1."""
    rows_RK = rows(table_FN, Constants(*constants))
    count, columns = rows_RK.shape
    lengths_K, used = np.zeros(columns), 0
    for k in range(columns):
        squares = 0.0
        for r in range(count):
            squares += (rows_RK[r, k] / seconds_R[r]) ** 2
        lengths_K[k] = np.sqrt(squares)
        used += squares > 0
    relative_RK, place = np.empty((count, used)), 0
    for k in range(columns):
        if lengths_K[k] > 0:
            for r in range(count):
                relative_RK[r, place] = rows_RK[r, k] / seconds_R[r] / lengths_K[k]
            place += 1
    values = singular_values(relative_RK)
    rank = 0
    for value in values:
        rank += value > values[0] * _RANKED
    return rank, used, values[0] / values[used - 1] if rank == used else np.inf
