"""The compiled law of a table's growth (`memory.fit_growth`). Shape legend: P points."""

from __future__ import annotations

import numpy as np

from elastrec.platform.specs.numba_cache import kernels_of

_kernel = kernels_of(__file__)(error_model="numpy")


@_kernel
def heaps_law(samples_P, rows_P):  # type: ignore[no-untyped-def]
    """Heaps' law by least squares in logarithms, later points weighing more: old ids say little about new ones.

    Returns:
        Whether samples rise, how many are distinct, then log k, the exponent, its standard deviation, and the scatter
        of log rows around the curve; zeros unless they rise and three are distinct.
    """
    count = len(samples_P)
    is_rising, distinct = True, min(count, 1)
    for p in range(1, count):
        is_rising = is_rising and samples_P[p] >= samples_P[p - 1]
    for p in range(1, count):
        is_new = True
        for other in range(p if not is_rising else 0):
            is_new = is_new and samples_P[p] != samples_P[other]
        distinct += is_new and samples_P[p] != samples_P[p - 1]
    if distinct < 3 or not is_rising:
        return is_rising, distinct, 0.0, 0.0, 0.0, 0.0
    x_P, y_P, residual_P = np.empty(count), np.empty(count), np.empty(count)
    total, center, mean = 0.0, 0.0, 0.0
    for p in range(count):
        weight = samples_P[p] / samples_P[count - 1]
        x_P[p], y_P[p] = np.log(samples_P[p]), np.log(rows_P[p])
        total, center, mean = total + weight, center + weight * x_P[p], mean + weight * y_P[p]
    center, mean = center / total, mean / total
    spread, together = 0.0, 0.0
    for p in range(count):
        weight = samples_P[p] / samples_P[count - 1]
        spread += weight * (x_P[p] - center) ** 2
        together += weight * (x_P[p] - center) * (y_P[p] - mean)
    slope = together / spread
    exponent = min(max(slope, 0.0), 1.0)
    log_k = mean - exponent * center
    squares, weight_squares = 0.0, 0.0
    for p in range(count):
        weight = samples_P[p] / samples_P[count - 1]
        residual_P[p] = y_P[p] - (log_k + exponent * x_P[p])
        squares += weight * residual_P[p] ** 2
        weight_squares += weight * weight
    # Kish: points that weigh little count as fewer.
    effective = total**2 / weight_squares
    scatter = np.sqrt(squares / total * effective / max(effective - 2.0, 0.5))
    # Consecutive counts of one table share their errors, so that residuals understate the slope's.
    variance = scatter**2 / spread * _inflation(residual_P)
    # A curve that bends says itself how far its exponent may move: the later half, at least three points, against all.
    later = min(count // 2, count - 3)
    change = _slope(x_P[later:], y_P[later:]) - slope
    return is_rising, distinct, log_k, exponent, np.sqrt(variance + change * change), scatter


@_kernel
def _slope(x_P, y_P):  # type: ignore[no-untyped-def]
    """Of y over x, by least squares."""
    center, mean = 0.0, 0.0
    for p in range(len(x_P)):
        center += x_P[p] / len(x_P)
        mean += y_P[p] / len(x_P)
    spread, together = 0.0, 0.0
    for p in range(len(x_P)):
        spread += (x_P[p] - center) ** 2
        together += (x_P[p] - center) * (y_P[p] - mean)
    return together / max(spread, 1e-300)


@_kernel
def _inflation(residual_P):  # type: ignore[no-untyped-def]
    """(1 + r) / (1 − r) of the lag-1 autocorrelation r: how many points carry the news of one."""
    total, lagged = 0.0, 0.0
    for p in range(len(residual_P)):
        total += residual_P[p] ** 2
        if p:
            lagged += residual_P[p] * residual_P[p - 1]
    if total == 0 or len(residual_P) < 4:
        return 1.0
    r = min(max(lagged / total, 0.0), 0.9)
    return (1.0 + r) / (1.0 - r)
