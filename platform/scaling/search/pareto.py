"""Pareto fronts of two objectives, both to be minimised, and the area that a front dominates.

Shape legend: N points.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from elastrec.platform.scaling.model.columns import Floats

Rows = npt.NDArray[np.intp]


def front(first_N: Floats, second_N: Floats) -> Rows:
    """Rows that no other row dominates, by rising `first_N`; of equal rows only one."""
    order_N = np.lexsort((second_N, first_N))
    best_N = np.minimum.accumulate(second_N[order_N])
    better_N = np.concatenate([[True], second_N[order_N][1:] < best_N[:-1]])
    return order_N[better_N] if len(order_N) else order_N


def hypervolume(first_N: Floats, second_N: Floats, reference: tuple[float, float]) -> float:
    """Area that a set of points dominates, up to the reference point; points beyond it do not count."""
    inside = (first_N < reference[0]) & (second_N < reference[1])
    x, y = first_N[inside], second_N[inside]
    rows = front(x, y)
    x, y = x[rows], y[rows]
    heights = np.concatenate([[reference[1]], y[:-1]]) - y
    return float(np.sum((reference[0] - x) * heights))


def thin(first_N: Floats, second_N: Floats, most: int) -> Rows:
    """At most `most` rows of a front, spread evenly along it, always with its two ends.

    Args:
        first_N, second_N: a front by rising `first_N`.
    """
    if len(first_N) <= most:
        return np.arange(len(first_N))
    spans = [max(float(np.ptp(values)), 1e-300) for values in (first_N, second_N)]
    steps = np.abs(np.diff(first_N)) / spans[0] + np.abs(np.diff(second_N)) / spans[1]
    along_N = np.concatenate([[0.0], np.cumsum(steps)])
    wanted = np.linspace(0.0, along_N[-1], most)
    return np.unique(np.abs(along_N[None, :] - wanted[:, None]).argmin(axis=1))
