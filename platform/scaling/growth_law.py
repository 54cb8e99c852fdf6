"""The law of a table's growth, compiled or not (`memory`). Shape legend: P points, T tables.

Each function is compiled by numba as a whole, and calls no other functions of this package.
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


def samples_to(table_T7, deviations, base, share, safe, now, last_fresh):  # type: ignore[no-untyped-def]
    """Samples until the fullest server exceeds `safe` bytes, for the high end of the band, the likely value and the low
    end: by doubling, then by dividing in 64 parts five times. Curves rise, so that bisection finds the first one above.

    Args:
        table_T7: exponent, its error, scatter, last samples, last rows, bytes per row and cap of `memory.Growth`.
        deviations: of the band; `base`, `share`: a server's bytes besides rows, and its share of all rows.
        now: samples trained; from `last_fresh` on no new ids come.

    Returns:
        Three numbers; infinity where 2^60 × as many samples are not enough.
    """
    found_3 = [np.inf, np.inf, np.inf]
    for curve in range(3):
        low, high, unit = now, now, max(now, 1.0)
        for division in range(6):
            # The upper end of an interval always exceeds `safe`, because it was chosen so.
            first, last = (0, 61) if division == 0 else (1, 64)
            while first < last:
                middle = (first + last) // 2
                samples = low + (high - low) * (middle / 64.0)
                if division == 0:
                    samples = unit * 2.0**middle if middle else now
                total, fresh = 0.0, min(samples, last_fresh)
                for t in range(len(table_T7)):
                    exponent, error, scatter, last_samples, last_rows, row_bytes, cap = table_T7[t]
                    ahead = np.log(max(fresh, last_samples) / last_samples)
                    deviation = np.sqrt(error**2 * ahead**2 + scatter**2 * min(ahead, 1.0))
                    power = min(max(exponent * ahead + (1 - curve) * deviations * deviation, 0.0), ahead)
                    total += row_bytes * min(last_rows * np.exp(power), max(cap, last_rows))
                if base + share * total > safe:
                    last = middle
                else:
                    first = middle + 1
            if division == 0 and not 0 < first < 61:
                high = now if first == 0 else np.inf
                break
            if division == 0:
                low, high = unit * 2.0 ** (first - 1) if first > 1 else now, unit * 2.0**first
            else:
                low, high = low + (high - low) * ((first - 1) / 64.0), low + (high - low) * (first / 64.0)
        found_3[curve] = high - now
    return found_3[0], found_3[1], found_3[2]
