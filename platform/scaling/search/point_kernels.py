"""The compiled loops that list the points of a space: a grid, the neighbours of some points, the lines through one.

Shape legend: N points, 5 decisions, F fields (`columns.FIELDS`). A point's number is its position in its space in the
order of indexes, with the last decision changing fastest.
"""

from __future__ import annotations

import numpy as np

from elastrec.platform.specs.numba_cache import kernels_of

_kernel = kernels_of(__file__)(error_model="numpy")


@_kernel
def strides(length_5):  # type: ignore[no-untyped-def]
    """The stride of each index in a point's number."""
    found = np.ones(5, np.int64)
    for k in range(3, -1, -1):
        found[k] = found[k + 1] * length_5[k + 1]
    return found


@_kernel
def around(points_N5, length_5):  # type: ignore[no-untyped-def]
    """Numbers of points and of those one step away in one or in two decisions; with duplicates."""
    stride_5 = strides(length_5)
    found, count = np.empty(len(points_N5) * 51, np.int64), 0
    for n in range(len(points_N5)):
        number = 0
        for k in range(5):
            number += points_N5[n, k] * stride_5[k]
        found[count] = number
        count += 1
        for one in range(5):
            for step in (-1, 1):
                if not 0 <= points_N5[n, one] + step < length_5[one]:
                    continue
                near = number + step * stride_5[one]
                found[count] = near
                count += 1
                for other in range(one + 1, 5):
                    for more in (-1, 1):
                        if 0 <= points_N5[n, other] + more < length_5[other]:
                            found[count] = near + more * stride_5[other]
                            count += 1
    return found[:count]


@_kernel
def lines(start_5, length_5):  # type: ignore[no-untyped-def]
    """Numbers of the points that differ from one in at most one decision, decision by decision."""
    stride_5 = strides(length_5)
    number = 0
    for k in range(5):
        number += start_5[k] * stride_5[k]
    total = 0
    for k in range(5):
        total += length_5[k]
    found, count = np.empty(total, np.int64), 0
    for k in range(5):
        for index in range(length_5[k]):
            found[count] = number + (index - start_5[k]) * stride_5[k]
            count += 1
    return found


@_kernel
def single_steps(start_5, length_5):  # type: ignore[no-untyped-def]
    """Numbers of the points one or two steps up or down in one decision; memory, the last one, stays."""
    stride_5 = strides(length_5)
    number = 0
    for k in range(5):
        number += start_5[k] * stride_5[k]
    found, count = np.empty(16, np.int64), 0
    for k in range(4):
        for step in (-2, -1, 1, 2):
            if 0 <= start_5[k] + step < length_5[k]:
                found[count] = number + step * stride_5[k]
                count += 1
    return found[:count]


@_kernel
def product(rungs, count_5, length_5):  # type: ignore[no-untyped-def]
    """Numbers of the points whose indexes are all among the rungs of their decision, rising.

    Args:
        rungs: the indexes of every decision, one decision after the other; `count_5` of each.
    """
    stride_5 = strides(length_5)
    found, first = np.zeros(1, np.int64), 0
    for k in range(5):
        # Every product of the decisions before, with each rung of this one.
        longer, place = np.empty(len(found) * count_5[k], np.int64), 0
        for n in range(len(found)):
            for rung in range(first, first + count_5[k]):
                longer[place] = found[n] + rungs[rung] * stride_5[k]
                place += 1
        found, first = longer, first + count_5[k]
    return found


@_kernel
def unfold(numbers, values, length_5, worker_memory_bytes):  # type: ignore[no-untyped-def]
    """Indexes [N, 5] and table [F, N] of points; of consecutive equal ones, only the first.

    Args:
        values: of every ladder, one after the other.
    """
    stride_5 = strides(length_5)
    first_5 = np.zeros(5, np.int64)
    for k in range(1, 5):
        first_5[k] = first_5[k - 1] + length_5[k - 1]
    count = 0
    for n in range(len(numbers)):
        if n == 0 or numbers[n] != numbers[n - 1]:
            count += 1
    indexes_N5, table_FN = np.empty((count, 5), np.int64), np.empty((6, count))
    row = 0
    for n in range(len(numbers)):
        if n and numbers[n] == numbers[n - 1]:
            continue
        left = numbers[n]
        for k in range(5):
            index = left // stride_5[k]
            left -= index * stride_5[k]
            indexes_N5[row, k] = index
            # The memory of a worker is not a decision; that of a server comes after it.
            table_FN[k if k < 4 else 5, row] = values[first_5[k] + index]
        table_FN[4, row] = worker_memory_bytes
        row += 1
    return indexes_N5, table_FN


@_kernel
def first_point(values, length_5, worker_memory_bytes):  # type: ignore[no-untyped-def]
    """The allocation of point 0, [F, 1]."""
    found_F1, first = np.empty((6, 1)), np.int64(0)
    found_F1[4, 0] = worker_memory_bytes
    for k in range(5):
        # The memory of a worker is not a decision; that of a server comes after it.
        found_F1[k if k < 4 else 5, 0] = values[first]
        first += length_5[k]
    return found_F1


@_kernel
def advance(index_5, ahead, length_5, values, point_F1):  # type: ignore[no-untyped-def]
    """Moves a point's indexes and its allocation ahead by so many numbers, and returns the first decision that changes.

    A step to one of the next numbers changes the last decisions, so that most divisions are saved.

    Args:
        index_5, point_F1: at first zeros, and `first_point`.
        ahead: ≥ 0.
    """
    k = 4
    index_5[4] += ahead
    while k > 0 and index_5[k] >= length_5[k]:
        carried = index_5[k] // length_5[k]
        index_5[k] -= carried * length_5[k]
        k -= 1
        index_5[k] += carried
    moved, first = k, np.int64(0)
    for j in range(5):
        if j >= moved:
            point_F1[j if j < 4 else 5, 0] = values[first + index_5[j]]
        first += length_5[j]
    return moved


@_kernel
def order_of(keys):  # type: ignore[no-untyped-def]
    """Indexes in the order of their keys; those of equal keys rise. (Merges of blocks of 1, 2, 4 …)"""
    count = len(keys)
    order, other = np.arange(count), np.empty(count, np.int64)
    width = 1
    while width < count:
        for first in range(0, count, 2 * width):
            middle, last = min(first + width, count), min(first + 2 * width, count)
            i, j = first, middle
            for place in range(first, last):
                if j == last or (i < middle and keys[order[i]] <= keys[order[j]]):
                    other[place] = order[i]
                    i += 1
                else:
                    other[place] = order[j]
                    j += 1
        order, other = other, order
        width *= 2
    return order


@_kernel
def rising(numbers):  # type: ignore[no-untyped-def]
    """The same numbers, rising."""
    keys, found = np.empty(len(numbers)), np.empty(len(numbers), np.int64)
    for n in range(len(numbers)):
        keys[n] = numbers[n]
    order = order_of(keys)
    for n in range(len(numbers)):
        found[n] = numbers[order[n]]
    return found


@_kernel
def _merged(one, other):  # type: ignore[no-untyped-def]
    """The rising numbers of two rising lists."""
    found, i, j = np.empty(len(one) + len(other), np.int64), 0, 0
    for n in range(len(found)):
        if j == len(other) or (i < len(one) and one[i] <= other[j]):
            found[n] = one[i]
            i += 1
        else:
            found[n] = other[j]
            j += 1
    return found


@_kernel
def grid(rungs, count_5, start_5, length_5):  # type: ignore[no-untyped-def]
    """Rising numbers of `product`, `lines` and `around` the start; with duplicates."""
    start_15 = np.empty((1, 5), np.int64)
    for k in range(5):
        start_15[0, k] = start_5[k]
    near = _merged(rising(around(start_15, length_5)), rising(lines(start_5, length_5)))
    return _merged(product(rungs, count_5, length_5), near)
