"""The compiled search of one job: the front of its plans, and the steps that would improve its model.

Most of a thousand plans do not fit, or gain less than to stay, by bounds that take no logarithm: only the others are
judged in full. Entry points take plain tuples for the values of `Room`, `Constants`, `Fitted` and `Present`, because
numba needs ten times as long to recognise named ones.

Shape legend: N points, 5 decisions, F fields (`columns.FIELDS`), E steps that explore.
"""

from __future__ import annotations

import numpy as np

from elastrec.platform.scaling.model import kernels as model_kernels
from elastrec.platform.scaling.model.kernels import Constants, Fitted, variance, variance_of_change
from elastrec.platform.scaling.search import kernels, point_kernels
from elastrec.platform.scaling.search.kernels import (
    AGAINST_RULES,
    COST,
    GAIN,
    OVERHEAD,
    SPEED,
    Present,
    Room,
    against_rules,
    doubt_of,
    fits,
    held,
    least_lacking,
    now_of,
    outcomes,
    overhead_of,
    permitted,
    price_against,
    speed_of,
    teaches,
    value_of_information,
)
from elastrec.platform.scaling.search.point_kernels import (
    advance,
    around,
    first_point,
    order_of,
    rising,
    single_steps,
    unfold,
)
from elastrec.platform.specs.numba_cache import kernels_of

_kernel = kernels_of(__file__, kernels.__file__, model_kernels.__file__, point_kernels.__file__)(error_model="numpy")


@_kernel
def near(numbers, values, length_5, worker_memory_bytes, room, constants, fitted, present):  # type: ignore[no-untyped-def]
    """The points that fit and that the rules allow or that lack less than the present allocation; rising, each once.

    Args:
        numbers: rising; with duplicates.
    """
    found, count = np.empty(len(numbers), np.int64), 0
    cores_now, bytes_now, price_now = held(now_of(present), 0, present)
    stays = np.expm1(present.least_change)
    index_5, point_F1 = np.zeros(5, np.int64), first_point(values, length_5, worker_memory_bytes)
    at, speed = np.int64(0), -1.0
    for n in range(len(numbers)):
        if n and numbers[n] == at:
            continue
        moved = advance(index_5, numbers[n] - at, length_5, values, point_F1)
        at = numbers[n]
        cores, memory, price = held(point_F1, 0, present)
        more_cores, more_bytes = cores - cores_now, memory - bytes_now
        if more_cores - room.free_cores - 1e-3 > 0 or more_bytes - room.free_bytes - 1.0 > 0:
            # Not known for the plans with other memory alone.
            speed = -1.0 if moved < 4 else speed
            continue
        price = price_against(price, price_now)
        if moved < 4 or speed < 0:
            # A step does not depend on memory, the last decision.
            speed = speed_of(point_F1, 0, constants, fitted)
        bound = least_lacking(speed - present.speed, stays, price, price_now, present)
        if bound >= stays and bound > 0:
            continue
        overhead, late = overhead_of(point_F1, 0, speed, cores_now, present)
        gain = speed - present.speed - overhead
        bound = least_lacking(gain, stays, price, price_now, present)
        if bound >= stays and bound > 0:
            continue
        lacks = against_rules(gain, late, price, price_now, present)
        if (lacks < stays or lacks <= 0) and fits(point_F1, 0, more_cores, more_bytes, room):
            found[count] = at
            count += 1
    return found[:count]


@_kernel
def _lacking(table_FN, found_7N, constants, fitted, covariance_KK, present):  # type: ignore[no-untyped-def]
    """What each of some plans that fit lacks to be allowed, [N]: ≤ 0 where it is allowed."""
    lack_N, now_F1 = np.empty(table_FN.shape[1]), now_of(present)
    for n in range(len(lack_N)):
        lack_N[n] = found_7N[AGAINST_RULES, n]
        if lack_N[n] <= 0:
            doubt = doubt_of(table_FN, found_7N, n, now_F1, constants, fitted, covariance_KK, present)
            lack_N[n] = max(lack_N[n], doubt)
    return lack_N


@_kernel
def _best(found_7N, rows):  # type: ignore[no-untyped-def]
    """The rows that no other one dominates in cost and gain, by rising cost (`pareto.front`)."""
    cost = np.empty(len(rows))
    for i in range(len(rows)):
        cost[i] = found_7N[COST, rows[i]]
    order = order_of(cost)
    chosen, count, highest = np.empty(len(rows), np.int64), 0, -np.inf
    i = 0
    while i < len(order):
        # Of plans with the same cost, the one with the largest gain; of equal ones, the first.
        best = rows[order[i]]
        i += 1
        while i < len(order) and cost[order[i]] == cost[order[i - 1]]:
            row = rows[order[i]]
            if found_7N[GAIN, row] > found_7N[GAIN, best]:
                best = row
            i += 1
        if found_7N[GAIN, best] > highest:
            highest = found_7N[GAIN, best]
            chosen[count] = best
            count += 1
    return chosen[:count]


@_kernel
def _taken(values_XN, rows):  # type: ignore[no-untyped-def]
    found = np.empty((values_XN.shape[0], len(rows)))
    for x in range(values_XN.shape[0]):
        for i in range(len(rows)):
            found[x, i] = values_XN[x, rows[i]]
    return found


@_kernel
def _rows(indexes_N5, rows):  # type: ignore[no-untyped-def]
    found = np.empty((len(rows), 5), np.int64)
    for i in range(len(rows)):
        for k in range(5):
            found[i, k] = indexes_N5[rows[i], k]
    return found


@_kernel
def _are_equal(one_N5, other_N5):  # type: ignore[no-untyped-def]
    if len(one_N5) != len(other_N5):
        return False
    for i in range(len(one_N5)):
        for k in range(5):
            if one_N5[i, k] != other_N5[i, k]:
                return False
    return True


@_kernel
def _errors(table_FN, constants, fitted, covariance_KK, least_error):  # type: ignore[no-untyped-def]
    """`ThroughputModel.relative_error` of N plans, [N]."""
    found_N = np.empty(table_FN.shape[1])
    for n in range(len(found_N)):
        found_N[n] = np.sqrt(variance(table_FN, n, constants, fitted, covariance_KK) + least_error * least_error)
    return found_N


@_kernel
def _led_to(  # type: ignore[no-untyped-def]
    indexes_N5, table_FN, found_7N, values, length_5, worker_memory_bytes, room, constants, fitted, covariance_KK,
    present,
):  # fmt: skip
    """The first allowed points among neighbours of points that are nearer to being allowed than the present allocation,
    their neighbours, and so on; none if no such chain leads to one. Each point is visited once.

    Args:
        indexes_N5, table_FN, found_7N: of points that are `near`.

    Returns:
        Indexes, table and outcomes of the points of the last step, some of which are allowed, or of no points.
    """
    stays = np.expm1(present.least_change)
    known = {np.int64(-1)}  # numba cannot infer the type of an empty set
    while len(indexes_N5):
        lack_N = _lacking(table_FN, found_7N, constants, fitted, covariance_KK, present)
        if (lack_N <= 0).any():
            break
        tried, count = around(_rows(indexes_N5, np.flatnonzero(lack_N < stays)), length_5), 0
        for n in range(len(tried)):
            if tried[n] not in known:
                known.add(tried[n])
                tried[count] = tried[n]
                count += 1
        numbers = near(
            rising(tried[:count]), values, length_5, worker_memory_bytes, room, constants, fitted, present
        )  # fmt: skip
        indexes_N5, table_FN = unfold(numbers, values, length_5, worker_memory_bytes)
        found_7N = outcomes(table_FN, constants, fitted, present)
    return indexes_N5, table_FN, found_7N


@_kernel
def speeds(table_FC, constants, fitted, covariance_KK, least_error):  # type: ignore[no-untyped-def]
    """Ψ of the first allocation, its relative error, and the highest Ψ of all."""
    constants, fitted = Constants(*constants), Fitted(*fitted)
    now = speed_of(table_FC, 0, constants, fitted)
    highest = now
    for c in range(1, table_FC.shape[1]):
        highest = max(highest, speed_of(table_FC, c, constants, fitted))
    error = np.sqrt(variance(table_FC, 0, constants, fitted, covariance_KK) + least_error * least_error)
    return now, error, highest


@_kernel
def front_of(  # type: ignore[no-untyped-def]
    numbers, values, length_5, worker_memory_bytes, room, constants, fitted, covariance_KK, present, rounds,
):  # fmt: skip
    """The front of these points, then of its neighbours, until it stays the same; at most so many rounds.

    Where none of them is allowed, the front is that of the points to which a chain of neighbours leads (`_led_to`).

    Args:
        numbers: rising; with duplicates.

    Returns:
        The front's indexes, table, outcomes and relative errors; the table of the first points that fit and obey the
        rules, but whose prediction is not trusted.
    """
    room, constants, fitted, present = Room(*room), Constants(*constants), Fitted(*fitted), Present(*present)
    numbers = near(numbers, values, length_5, worker_memory_bytes, room, constants, fitted, present)
    near_N5, near_FN = unfold(numbers, values, length_5, worker_memory_bytes)
    near_7N = outcomes(near_FN, constants, fitted, present)
    doubted = permitted(near_FN, near_7N, room, constants, fitted, covariance_KK, present, True)
    doubted_FN = _taken(near_FN, doubted)
    rows = permitted(near_FN, near_7N, room, constants, fitted, covariance_KK, present, False)
    chosen = _best(near_7N, rows)
    if rounds and not len(chosen):
        near_N5, near_FN, near_7N = _led_to(
            near_N5, near_FN, near_7N, values, length_5, worker_memory_bytes, room, constants, fitted, covariance_KK,
            present,
        )  # fmt: skip
        chosen = _best(near_7N, permitted(near_FN, near_7N, room, constants, fitted, covariance_KK, present, False))
    points_N5, best_FN, best_7N = _rows(near_N5, chosen), _taken(near_FN, chosen), _taken(near_7N, chosen)
    for _ in range(rounds if len(chosen) else 0):
        numbers = near(
            rising(around(points_N5, length_5)), values, length_5, worker_memory_bytes, room, constants, fitted, present
        )  # fmt: skip
        tried_N5, tried_FN = unfold(numbers, values, length_5, worker_memory_bytes)
        tried_7N = outcomes(tried_FN, constants, fitted, present)
        rows = permitted(tried_FN, tried_7N, room, constants, fitted, covariance_KK, present, False)
        chosen = _best(tried_7N, rows)
        better_N5 = _rows(tried_N5, chosen)
        if _are_equal(better_N5, points_N5):
            break
        points_N5, best_FN, best_7N = better_N5, _taken(tried_FN, chosen), _taken(tried_7N, chosen)
    errors_N = _errors(best_FN, constants, fitted, covariance_KK, present.least_error)
    return points_N5, best_FN, best_7N, errors_N, doubted_FN


@_kernel
def _values(table_FN, found_7N, constants, fitted, covariance_KK, present, later):  # type: ignore[no-untyped-def]
    """The value of knowing in the next round how much each of N steps exceeds the rules, as a share of Ψ, [N]; 0 of
    steps that do not add resources, and of those with an untrusted prediction."""
    later_7N, now_F1 = outcomes(table_FN, constants, fitted, later), now_of(present)
    value_N = np.zeros(table_FN.shape[1])
    for n in range(len(value_N)):
        error = np.sqrt(variance_of_change(table_FN, n, now_F1, constants, fitted, covariance_KK))
        if found_7N[COST, n] > 0 and error <= present.trusted_error:
            deviation = error * found_7N[SPEED, n] / present.speed
            value_N[n] = value_of_information(-later_7N[AGAINST_RULES, n], deviation)
    return value_N


@_kernel
def exploring(  # type: ignore[no-untyped-def]
    start_5, values, length_5, worker_memory_bytes, room, constants, fitted, covariance_KK, present, later, doubted_FN,
    known_error, slowest, window_seconds, least_cost, least_use, most,
):  # fmt: skip
    """Table [F, E], outcomes [7, E] and relative errors [E] of at most `most` single steps, most information per cost
    first (`exploration`).

    Args:
        start_5: indexes of the present allocation.
        present: with the payback time of one round; `later`: the job in the next round.
        doubted_FN: of plans that fit and obey the rules, but whose prediction is not trusted.
        known_error: of a prediction that teaches nothing more.
        slowest: Ψ below which a step is too slow.
        window_seconds: until the next round.
        least_cost: share of the job's price that is added to the cost of a step.
        least_use: least value of the knowledge of a step, in seconds of training, to be tried for its own sake.
    """
    room, constants, fitted = Room(*room), Constants(*constants), Fitted(*fitted)
    present, later = Present(*present), Present(*later)
    numbers = single_steps(start_5, length_5)
    _, table_FN = unfold(numbers, values, length_5, worker_memory_bytes)
    found_7N = outcomes(table_FN, constants, fitted, present)
    worth_N = teaches(
        table_FN, found_7N, room, constants, fitted, covariance_KK, present.least_error, known_error, slowest
    )  # fmt: skip
    rest_seconds = min(later.remaining / later.speed, later.payback)
    chosen, count = np.empty(most, np.int64), 0
    if worth_N.any() and rest_seconds > 0:
        # The margin, as a share of Ψ, by which the best doubted plan would satisfy the rules in the next round; below
        # 0, no plan would be made even if its prediction were trusted.
        promise = -1.0
        if doubted_FN.shape[1]:
            promise = -outcomes(doubted_FN, constants, fitted, later)[AGAINST_RULES].min()
        use_N = np.full(len(worth_N), promise)
        if least_use < np.inf:
            value_N = _values(table_FN, found_7N, constants, fitted, covariance_KK, present, later)
            use_N = np.maximum(use_N, value_N - least_use / rest_seconds)
        _, _, price = held(now_of(present), 0, present)
        for n in range(len(worth_N)):
            # The cost of the step: more expensive pods, and the work lost while they start.
            cost = max(found_7N[COST, n], 0.0) / price + found_7N[OVERHEAD, n] / present.speed
            # The loss until the next round, as a share of the time in which a plan can compensate it.
            lost = max(-found_7N[GAIN, n], 0.0) / present.speed * (window_seconds / rest_seconds)
            worth_N[n] = worth_N[n] / (cost + least_cost) if lost <= use_N[n] else 0.0
        order = order_of(-worth_N)
        while count < min(most, len(order)) and worth_N[order[count]] > 0:
            chosen[count] = order[count]
            count += 1
    best_FE = _taken(table_FN, chosen[:count])
    errors_E = _errors(best_FE, constants, fitted, covariance_KK, present.least_error)
    return best_FE, _taken(found_7N, chosen[:count]), errors_E
