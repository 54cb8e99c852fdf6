"""Compiled linear algebra of small matrices: least squares with coefficients ≥ 0, singular values, inverses.

A fit has a hundred rows and eight columns: LAPACK and scipy spend more time on each call than on the arithmetic.

Shape legend: R rows (equations), K coefficients, M = min(R, K).
"""

from __future__ import annotations

import numpy as np

from elastrec.platform.specs.numba_cache import kernels_of

_kernel = kernels_of(__file__)(error_model="numpy")
_DEPENDENT = 1e-14
"""A column with a smaller share of its length outside of the others' span counts as linearly dependent."""
_SWEEPS = 60
"""Most sweeps of rotations: few are needed, except for columns that floats cannot separate."""
_ORTHOGONAL = 1e-15
"""A product of two columns, relative to their lengths, below which a rotation adds only rounding errors."""


@_kernel
def triangle(rows_RK, targets_R):  # type: ignore[no-untyped-def]
    """Householder reflections: an upper triangle [M, K] and targets [M] with the same least-squares solutions."""
    count, columns = rows_RK.shape
    kept = min(count, columns)
    work, target = rows_RK.copy(), targets_R.copy()
    for k in range(kept):
        squares = 0.0
        for r in range(k, count):
            squares += work[r, k] * work[r, k]
        if squares == 0.0:
            continue
        length = -np.sqrt(squares) if work[k, k] > 0 else np.sqrt(squares)
        head = work[k, k] - length
        scale = -length * head
        work[k, k] = head
        for j in range(k + 1, columns + 1):
            product = 0.0
            for r in range(k, count):
                product += work[r, k] * (work[r, j] if j < columns else target[r])
            product /= scale
            for r in range(k, count):
                if j < columns:
                    work[r, j] -= product * work[r, k]
                else:
                    target[r] -= product * work[r, k]
        work[k, k] = length
        for r in range(k + 1, count):
            work[r, k] = 0.0
    return work[:kept], target[:kept]


@_kernel
def _solved(triangle_MK, targets_M, passive_K, count):  # type: ignore[no-untyped-def]
    """Least squares in the first `count` columns that `passive_K` lists, [count]; the last one's share outside of the
    others' span."""
    part, squares = np.empty((triangle_MK.shape[0], count)), 0.0
    for m in range(len(part)):
        for i in range(count):
            part[m, i] = triangle_MK[m, passive_K[i]]
        squares += part[m, count - 1] * part[m, count - 1]
    length = np.sqrt(squares)
    upper, target = triangle(part, targets_M)
    found = np.zeros(count)
    if upper.shape[0] < count:
        return found, 0.0
    outside = abs(upper[count - 1, count - 1]) / length if length > 0 else 0.0
    for i in range(count - 1, -1, -1):
        value = target[i]
        for j in range(i + 1, count):
            value -= upper[i, j] * found[j]
        found[i] = value / upper[i, i] if upper[i, i] != 0 else 0.0
    return found, outside


@_kernel
def non_negative(rows_RK, targets_R):  # type: ignore[no-untyped-def]
    """Coefficients ≥ 0 of least squares, [K], with columns scaled to length 1, because their sizes differ by 10^9.

    Lawson and Hanson, "Solving Least Squares Problems", 1974, §23.3, on the triangle that has the same solutions.
    """
    count, columns = rows_RK.shape
    length_K, scaled_RK = np.zeros(columns), np.zeros((count, columns))
    for k in range(columns):
        squares = 0.0
        for r in range(count):
            squares += rows_RK[r, k] * rows_RK[r, k]
        length_K[k] = np.sqrt(squares)
        for r in range(count if squares > 0 else 0):
            scaled_RK[r, k] = rows_RK[r, k] / length_K[k]
    small_MK, target_M = triangle(scaled_RK, targets_R)
    found_K, slope_K = np.zeros(columns), np.zeros(columns)
    passive_K, is_passive_K = np.empty(columns, np.int64), np.zeros(columns, np.bool_)
    count = 0
    for _ in range(30 * columns):
        for k in range(columns):
            slope_K[k] = 0.0
        for m in range(len(small_MK)):
            left = target_M[m]
            for k in range(columns):
                left -= small_MK[m, k] * found_K[k]
            for k in range(columns):
                slope_K[k] += small_MK[m, k] * left
        while True:
            best = -1
            for k in range(columns):
                if not is_passive_K[k] and slope_K[k] > 0 and (best < 0 or slope_K[k] > slope_K[best]):
                    best = k
            if best < 0 or count == small_MK.shape[0]:
                return _unscaled(found_K, length_K)
            passive_K[count] = best
            tried, outside = _solved(small_MK, target_M, passive_K, count + 1)
            if outside > _DEPENDENT and tried[count] > 0:
                break
            slope_K[best] = 0.0
        is_passive_K[best] = True
        count += 1
        while True:
            share = 2.0
            for i in range(count):
                if tried[i] <= 0:
                    now = found_K[passive_K[i]]
                    share = min(share, now / (now - tried[i]))
            if share > 1.0:
                break
            kept = 0
            for i in range(count):
                k = passive_K[i]
                value = found_K[k] + share * (tried[i] - found_K[k])
                # The coefficient that limits the share is 0, except for rounding.
                if value > 0 and not (tried[i] <= 0 and found_K[k] / (found_K[k] - tried[i]) <= share):
                    found_K[k] = value
                    passive_K[kept] = k
                    kept += 1
                else:
                    found_K[k] = 0.0
                    is_passive_K[k] = False
            count = kept
            if count == 0:
                break
            tried, outside = _solved(small_MK, target_M, passive_K, count)
        for i in range(count):
            found_K[passive_K[i]] = tried[i]
    return _unscaled(found_K, length_K)


@_kernel
def _unscaled(found_K, length_K):  # type: ignore[no-untyped-def]
    for k in range(len(found_K)):
        found_K[k] = found_K[k] / length_K[k] if length_K[k] > 0 else 0.0
    return found_K


@_kernel
def singular_values(rows_RK):  # type: ignore[no-untyped-def]
    """Lengths to which rotations bring the columns when they are orthogonal (one-sided Jacobi), falling; [M].

    Of more columns than rows, some would only come to 0, after many rotations of rounding errors. A transposed matrix
    has the same singular values.
    """
    if rows_RK.shape[0] < rows_RK.shape[1]:
        rows_RK = rows_RK.T.copy()
    columns_MK, _ = triangle(rows_RK, np.zeros(rows_RK.shape[0]))
    count = columns_MK.shape[1]
    for _ in range(_SWEEPS):
        is_orthogonal = True
        for i in range(count):
            for j in range(i + 1, count):
                one, other, product = 0.0, 0.0, 0.0
                for m in range(columns_MK.shape[0]):
                    one += columns_MK[m, i] * columns_MK[m, i]
                    other += columns_MK[m, j] * columns_MK[m, j]
                    product += columns_MK[m, i] * columns_MK[m, j]
                if product == 0.0 or abs(product) <= _ORTHOGONAL * np.sqrt(one * other):
                    continue
                is_orthogonal = False
                cosine, sine = _rotation(one, other, product)
                for m in range(columns_MK.shape[0]):
                    x, y = columns_MK[m, i], columns_MK[m, j]
                    columns_MK[m, i], columns_MK[m, j] = cosine * x - sine * y, sine * x + cosine * y
        if is_orthogonal:
            break
    lengths_K = np.empty(count)
    for k in range(count):
        squares = 0.0
        for m in range(columns_MK.shape[0]):
            squares += columns_MK[m, k] * columns_MK[m, k]
        length, place = np.sqrt(squares), k
        while place > 0 and lengths_K[place - 1] < length:
            lengths_K[place] = lengths_K[place - 1]
            place -= 1
        lengths_K[place] = length
    return lengths_K


@_kernel
def _rotation(one, other, product):  # type: ignore[no-untyped-def]
    """Cosine and sine that bring `product`, off the diagonal of [[one, product], [product, other]], to 0."""
    slope = (other - one) / (2.0 * product)
    tangent = (1.0 if slope >= 0 else -1.0) / (abs(slope) + np.sqrt(1.0 + slope * slope))
    cosine = 1.0 / np.sqrt(1.0 + tangent * tangent)
    return cosine, tangent * cosine


@_kernel
def pseudo_inverse(symmetric_KK, least):  # type: ignore[no-untyped-def]
    """Of a symmetric matrix, by Jacobi rotations; eigenvalues up to `least` of the largest count as 0."""
    work, count = symmetric_KK.copy(), symmetric_KK.shape[0]
    vectors = np.zeros((count, count))
    for k in range(count):
        vectors[k, k] = 1.0
    for _ in range(_SWEEPS):
        is_diagonal = True
        for i in range(count):
            for j in range(i + 1, count):
                product = work[i, j]
                if product == 0.0 or abs(product) <= _ORTHOGONAL * np.sqrt(abs(work[i, i] * work[j, j])):
                    continue
                is_diagonal = False
                cosine, sine = _rotation(work[i, i], work[j, j], product)
                for k in range(count):
                    x, y = work[k, i], work[k, j]
                    work[k, i], work[k, j] = cosine * x - sine * y, sine * x + cosine * y
                for k in range(count):
                    x, y = work[i, k], work[j, k]
                    work[i, k], work[j, k] = cosine * x - sine * y, sine * x + cosine * y
                    x, y = vectors[k, i], vectors[k, j]
                    vectors[k, i], vectors[k, j] = cosine * x - sine * y, sine * x + cosine * y
        if is_diagonal:
            break
    highest = 0.0
    for k in range(count):
        highest = max(highest, abs(work[k, k]))
    found_KK = np.zeros((count, count))
    for k in range(count):
        if abs(work[k, k]) > least * highest:
            for i in range(count):
                for j in range(count):
                    found_KK[i, j] += vectors[i, k] * vectors[j, k] / work[k, k]
    return found_KK
