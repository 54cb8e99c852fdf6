"""The law of a table's growth, compiled or not (`memory.fit_growth`). Shape legend: P points.

The function is compiled by numba as a whole, and calls no other functions of this package.
"""

from __future__ import annotations

import numpy as np


def heaps_law(samples_P, rows_P):  # type: ignore[no-untyped-def]
    """Heaps' law by least squares in logarithms, later points weighing more: old ids say little about new ones.

    Points whose samples or rows are no number, infinite, zero or negative are left out.

    Returns:
        Whether samples rise, how many are distinct, then log k, the exponent, its standard deviation, the scatter of
        log rows around the curve, and the last point's samples and rows; zeros unless they rise and three are distinct.
    """
    usable = 0
    for p in range(len(samples_P)):
        usable += 0 < samples_P[p] < np.inf and 0 < rows_P[p] < np.inf
    if usable < len(samples_P):
        given_P, counted_P = samples_P, rows_P
        samples_P, rows_P, usable = np.empty(usable), np.empty(usable), 0
        for p in range(len(given_P)):
            if 0 < given_P[p] < np.inf and 0 < counted_P[p] < np.inf:
                samples_P[usable], rows_P[usable] = given_P[p], counted_P[p]
                usable += 1
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
        return is_rising, distinct, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0
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
    # Kish's effective sample size.
    effective = total**2 / weight_squares
    scatter = np.sqrt(squares / total * effective / max(effective - 2.0, 0.5))
    # Consecutive counts of one table have correlated errors, so that residuals understate the error of the slope: with
    # the lag-1 autocorrelation r, (1 + r) / (1 − r) points have the information of one.
    total, lagged = 0.0, 0.0
    for p in range(count):
        total += residual_P[p] ** 2
        if p:
            lagged += residual_P[p] * residual_P[p - 1]
    r = min(max(lagged / total, 0.0), 0.9) if total > 0 and count >= 4 else 0.0
    variance = scatter**2 / spread * (1.0 + r) / (1.0 - r)
    # In a bent curve, the exponent of the later half (at least three points) differs from that of all points.
    later = min(count // 2, count - 3)
    center, mean = float(np.mean(x_P[later:])), float(np.mean(y_P[later:]))
    spread, together = 0.0, 0.0
    for p in range(later, count):
        spread += (x_P[p] - center) ** 2
        together += (x_P[p] - center) * (y_P[p] - mean)
    change = together / max(spread, 1e-300) - slope
    return (
        is_rising, distinct, log_k, exponent, np.sqrt(variance + change * change), scatter, samples_P[count - 1],
        rows_P[count - 1],
    )  # fmt: skip
