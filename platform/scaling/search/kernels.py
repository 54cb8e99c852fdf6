"""The compiled loops of the search: outcomes of plans, allowed plans, and their front.

A job's search computes a thousand plans, some of them several times. numpy makes one pass per operation, and most of
its time is overhead; here one pass computes each plan.

Shape legend: N points, 5 decisions, F fields (`columns.FIELDS`).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from elastrec.platform.scaling.model import kernels as model_kernels
from elastrec.platform.scaling.model.kernels import step_seconds, variance, variance_of_change
from elastrec.platform.scaling.search import point_kernels
from elastrec.platform.scaling.search.point_kernels import around, order_of, rising, unfold
from elastrec.platform.specs.numba_cache import kernels_of

_kernel = kernels_of(__file__, model_kernels.__file__, point_kernels.__file__)(error_model="numpy")
_GIBIBYTE = float(2**30)

SPEED, GAIN, OVERHEAD, COST, MORE_CORES, MORE_BYTES, AGAINST_RULES = range(7)
"""Rows of what `outcomes` returns; see `objectives.Outcomes`."""


class Present(NamedTuple):
    """The present job, prices of pods, and the rules' requirements of a change.

    Attributes:
        speed, remaining: Ψ now, and samples.
        payback: seconds in which a change has to pay for itself, unless the job ends earlier.
        pause: seconds of training that a change of servers costs; `worker_start`, `server_start`: until new ones train.
        worker_start_work, server_start_work: core-seconds of a new one until then.
        least_change: as a logarithm; `grow_efficiency`, `save_efficiency`: of `Rules`.
        least_kept: the share by which Ψ may change at most for the worse; at most 0.
        least_error, trusted_error: of a prediction: its smallest assumed error, and the largest one with which it is
            trusted.
    """

    workers: float
    parameter_servers: float
    worker_cores: float
    parameter_server_cores: float
    worker_memory_bytes: float
    parameter_server_memory_bytes: float
    core_hour: float
    gibibyte_hour: float
    speed: float
    remaining: float
    payback: float
    pause: float
    worker_start: float
    server_start: float
    worker_start_work: float
    server_start_work: float
    least_change: float
    grow_efficiency: float
    save_efficiency: float
    least_kept: float
    least_error: float
    trusted_error: float


class Room(NamedTuple):
    """The limits of plans.

    Attributes:
        free_cores, free_bytes: in addition to the job's; at least 0.
        cores, memory_bytes: of the whole job at present.
        largest_cores, largest_bytes: of a pod; infinity where there is no limit.
        server_bytes, rows_bytes: needs of each server before its first row, and of all rows together; both 0 where
            plans do not change the servers' memory.
        worker_bytes: need of a worker; 0 where plans do not change its memory.
        servers, present_bytes: the present number of servers, and the memory of each.
    """

    free_cores: float
    free_bytes: float
    cores: float
    memory_bytes: float
    largest_cores: float
    largest_bytes: float
    server_bytes: float
    rows_bytes: float
    worker_bytes: float
    servers: float
    present_bytes: float


@_kernel
def outcomes(table_FN, constants, fitted, present):  # type: ignore[no-untyped-def]
    """RC, TG and the rules for N allocations, [7, N]; the formulas are those of `objectives`."""
    now = present
    cores_now = now.workers * now.worker_cores + now.parameter_servers * now.parameter_server_cores
    bytes_now = (
        now.workers * now.worker_memory_bytes + now.parameter_servers * now.parameter_server_memory_bytes
    )  # fmt: skip
    price_now = now.core_hour * cores_now + now.gibibyte_hour * bytes_now / _GIBIBYTE
    count = table_FN.shape[1]
    found_7N = np.empty((7, count))
    for n in range(count):
        workers, servers, worker_cores, server_cores = table_FN[0, n], table_FN[1, n], table_FN[2, n], table_FN[3, n]
        worker_bytes, server_bytes = table_FN[4, n], table_FN[5, n]
        cores = workers * worker_cores + servers * server_cores
        memory = workers * worker_bytes + servers * server_bytes
        price = now.core_hour * cores + now.gibibyte_hour * memory / _GIBIBYTE
        if abs(price - price_now) < 1e-9 * price_now:
            # Sums of prices are inexact, and a cost of 1e-18 would give a huge efficiency (eq. 11).
            price = price_now
        dearer = np.log(price / price_now)
        other_workers = worker_cores != now.worker_cores or worker_bytes != now.worker_memory_bytes
        other_servers = (
            servers != now.parameter_servers
            or server_cores != now.parameter_server_cores
            or server_bytes != now.parameter_server_memory_bytes
        )
        # Workers come and go without a pause.
        pause = now.pause if other_servers else 0.0
        start = now.worker_start if workers > now.workers or other_workers else 0.0
        if other_servers:
            start = max(start, now.server_start)
        # Pods whose size only falls are resized in place, so that none starts.
        larger_workers = worker_cores > now.worker_cores or worker_bytes > now.worker_memory_bytes
        larger_servers = server_cores > now.parameter_server_cores or server_bytes > now.parameter_server_memory_bytes
        new_workers = workers if larger_workers else max(workers - now.workers, 0.0)
        new_servers = servers if larger_servers else max(servers - now.parameter_servers, 0.0)
        # Seconds in which the job's present cores would do the work of the starts.
        starting = (new_workers * now.worker_start_work + new_servers * now.server_start_work) / cores_now
        speed = workers * constants.batch_size / step_seconds(table_FN, n, constants, fitted)
        difference = speed - now.speed
        # A plan that makes the job faster also ends it earlier: it has less time to pay for itself.
        horizon = min(now.remaining / max(speed, now.speed), now.payback)
        late = _share(start, horizon)
        # Unlike a pause, the starts of a plan may cost more than the rest of the training.
        lost = _share(pause, horizon) + starting / max(horizon, 1e-9)
        overhead = now.speed * lost + max(difference, 0.0) * late
        gain = difference - overhead
        # A plan saves from the time when its pods train. It must keep its own share of Ψ, and the share for all savings
        # together.
        saved = dearer * (1.0 - late)
        kept = np.expm1(now.save_efficiency * saved) if saved <= -now.least_change else np.inf
        rise = np.expm1(max(now.grow_efficiency * dearer, now.least_change))
        found_7N[SPEED, n] = speed
        found_7N[GAIN, n] = gain
        found_7N[OVERHEAD, n] = overhead
        found_7N[COST, n] = price - price_now
        found_7N[MORE_CORES, n] = cores - cores_now
        found_7N[MORE_BYTES, n] = memory - bytes_now
        found_7N[AGAINST_RULES, n] = min(rise, max(kept, now.least_kept)) - gain / now.speed
    return found_7N


@_kernel
def _share(seconds, horizon):  # type: ignore[no-untyped-def]
    """Share of the horizon, at most 1; 1 for a horizon of 0, because no change pays in a job that ends at once."""
    return seconds / max(horizon, 1e-9) if horizon > seconds else 1.0


@_kernel
def _excess(table_FN, found_7N, n, room):  # type: ignore[no-untyped-def]
    """The amounts by which one plan exceeds capacity or memory, as shares; ≤ 0 where it fits."""
    servers, worker_cores, server_cores = table_FN[1, n], table_FN[2, n], table_FN[3, n]
    worker_bytes, server_bytes = table_FN[4, n], table_FN[5, n]
    short = -1.0
    if room.server_bytes + room.rows_bytes > 0:
        # Servers get smaller at once, before new ones that take rows from them have started.
        holders = min(servers, room.servers) if server_bytes < room.present_bytes else servers
        short = 1.0 - server_bytes / np.ceil(room.server_bytes + room.rows_bytes / holders)
    if room.worker_bytes > 0:
        short = max(short, 1.0 - worker_bytes / room.worker_bytes)
    too_large = max(
        max(worker_cores, server_cores) / room.largest_cores, max(worker_bytes, server_bytes) / room.largest_bytes
    )
    return (
        (found_7N[MORE_CORES, n] - room.free_cores - 1e-3) / room.cores,
        (found_7N[MORE_BYTES, n] - room.free_bytes - 1.0) / room.memory_bytes,
        short,
        too_large - (1.0 + 1e-9),
    )


@_kernel
def excess(table_FN, found_7N, room):  # type: ignore[no-untyped-def]
    """`_excess` of N plans, [N, 4]."""
    found_N4 = np.empty((table_FN.shape[1], 4))
    for n in range(len(found_N4)):
        each = _excess(table_FN, found_7N, n, room)
        for k in range(4):
            found_N4[n, k] = each[k]
    return found_N4


@_kernel
def _doubt(table_FN, found_7N, n, now_F1, constants, fitted, covariance_KK, present):  # type: ignore[no-untyped-def]
    """The amount by which a plan's prediction is too uncertain; ≤ 0 where it is trusted (`objectives`)."""
    now, kept = present, found_7N[GAIN, n] / present.speed - present.least_kept
    all_else_stays = (
        table_FN[1, n] == now.parameter_servers
        and table_FN[2, n] == now.worker_cores
        and table_FN[3, n] == now.parameter_server_cores
    )
    if all_else_stays and table_FN[0, n] > now.workers:
        return -np.inf
    error = variance(table_FN, n, constants, fitted, covariance_KK) + now.least_error * now.least_error
    doubt = np.sqrt(error) - now.trusted_error
    if table_FN[0, n] < now.workers and found_7N[COST, n] <= 0:
        if all_else_stays and table_FN[0, n] / now.workers - 1.0 >= now.least_kept:
            return -np.inf
        error = np.sqrt(variance_of_change(table_FN, n, now_F1, constants, fitted, covariance_KK))
        doubt = max(doubt, error - kept)
    return doubt


@_kernel
def _now(present):  # type: ignore[no-untyped-def]
    """The job's present allocation as a table, [F, 1]."""
    now_F1 = np.empty((6, 1))
    now_F1[0, 0], now_F1[1, 0] = present.workers, present.parameter_servers
    now_F1[2, 0], now_F1[3, 0] = present.worker_cores, present.parameter_server_cores
    now_F1[4, 0], now_F1[5, 0] = present.worker_memory_bytes, present.parameter_server_memory_bytes
    return now_F1


@_kernel
def doubts(table_FN, found_7N, constants, fitted, covariance_KK, present):  # type: ignore[no-untyped-def]
    """`_doubt` of N plans, [N]."""
    found_N, now_F1 = np.empty(table_FN.shape[1]), _now(present)
    for n in range(len(found_N)):
        found_N[n] = _doubt(table_FN, found_7N, n, now_F1, constants, fitted, covariance_KK, present)
    return found_N


@_kernel
def permitted(table_FN, found_7N, room, constants, fitted, covariance_KK, present, doubted):  # type: ignore[no-untyped-def]
    """Rising numbers of the plans that fit and obey the rules: the trusted ones, or the others (`doubted`).

    Few plans obey the rules, so that fit and reliability are computed for these alone.
    """
    found, count, now_F1 = np.empty(table_FN.shape[1], np.int64), 0, _now(present)
    for n in range(len(found)):
        if not found_7N[AGAINST_RULES, n] <= 0:
            continue
        over_cores, over_bytes, short, too_large = _excess(table_FN, found_7N, n, room)
        if over_cores > 0 or over_bytes > 0 or short > 0 or too_large > 0:
            continue
        if (_doubt(table_FN, found_7N, n, now_F1, constants, fitted, covariance_KK, present) > 0) == doubted:
            found[count] = n
            count += 1
    return found[:count]


@_kernel
def _lacking(table_FN, found_7N, room, constants, fitted, covariance_KK, present):  # type: ignore[no-untyped-def]
    """Each plan's distance from being allowed, [N]: ≤ 0 where it is allowed, infinity where it does not fit."""
    lack_N, now_F1 = np.full(table_FN.shape[1], np.inf), _now(present)
    for n in range(len(lack_N)):
        over_cores, over_bytes, short, too_large = _excess(table_FN, found_7N, n, room)
        if over_cores > 0 or over_bytes > 0 or short > 0 or too_large > 0:
            continue
        lack_N[n] = found_7N[AGAINST_RULES, n]
        if lack_N[n] <= 0:
            doubt = _doubt(table_FN, found_7N, n, now_F1, constants, fitted, covariance_KK, present)
            lack_N[n] = max(lack_N[n], doubt)
    return lack_N


@_kernel
def teaches(  # type: ignore[no-untyped-def]
    table_FN, found_7N, room, constants, fitted, covariance_KK, least_error, known_error, slowest
):  # fmt: skip
    """The amount by which a measurement of each plan would raise the log determinant of the model's information, [N]: 0
    where the plan is measured already, does not fit, or would be slower than `slowest`."""
    found_N = np.zeros(table_FN.shape[1])
    for n in range(len(found_N)):
        over_cores, over_bytes, short, too_large = _excess(table_FN, found_7N, n, room)
        if over_cores > 0 or over_bytes > 0 or short > 0 or too_large > 0 or found_7N[SPEED, n] < slowest:
            continue
        error = np.sqrt(variance(table_FN, n, constants, fitted, covariance_KK) + least_error * least_error)
        if error > known_error:
            found_N[n] = np.log1p((error / known_error) ** 2)
    return found_N


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
def _led_to(  # type: ignore[no-untyped-def]
    indexes_N5, table_FN, found_7N, values, length_5, worker_memory_bytes, room, constants, fitted, covariance_KK,
    present,
):  # fmt: skip
    """The first allowed points among neighbours of points that are nearer to being allowed than the present allocation,
    their neighbours, and so on; none if no such chain leads to one. Each point is visited once.

    Returns:
        Indexes, table and outcomes of the points of the last step, some of which are allowed, or of no points.
    """
    stays = np.expm1(present.least_change)
    known = {np.int64(-1)}  # numba cannot infer the type of an empty set
    while len(indexes_N5):
        lack_N = _lacking(table_FN, found_7N, room, constants, fitted, covariance_KK, present)
        if (lack_N <= 0).any():
            break
        near, count = rising(around(_rows(indexes_N5, np.flatnonzero(lack_N < stays)), length_5)), 0
        for n in range(len(near)):
            if near[n] not in known:
                known.add(near[n])
                near[count] = near[n]
                count += 1
        indexes_N5, table_FN = unfold(near[:count], values, length_5, worker_memory_bytes)
        found_7N = outcomes(table_FN, constants, fitted, present)
    return indexes_N5, table_FN, found_7N


@_kernel
def front_of(  # type: ignore[no-untyped-def]
    numbers, values, length_5, worker_memory_bytes, room, constants, fitted, covariance_KK, present, rounds,
):  # fmt: skip
    """The front of these points, then of its neighbours, until it stays the same; at most so many rounds.

    Where none of them is allowed, the front is that of the points to which a chain of neighbours leads (`_led_to`).

    Returns:
        Table and outcomes of the first points, the front's indexes, and table and outcomes of the front.
    """
    indexes_N5, table_FN = unfold(numbers, values, length_5, worker_memory_bytes)
    found_7N = outcomes(table_FN, constants, fitted, present)
    rows = permitted(table_FN, found_7N, room, constants, fitted, covariance_KK, present, False)
    chosen = _best(found_7N, rows)
    near_N5, near_FN, near_7N = indexes_N5, table_FN, found_7N
    if rounds and not len(chosen):
        near_N5, near_FN, near_7N = _led_to(
            indexes_N5, table_FN, found_7N, values, length_5, worker_memory_bytes, room, constants, fitted,
            covariance_KK, present,
        )  # fmt: skip
        chosen = _best(near_7N, permitted(near_FN, near_7N, room, constants, fitted, covariance_KK, present, False))
    points_N5, best_FN, best_7N = _rows(near_N5, chosen), _taken(near_FN, chosen), _taken(near_7N, chosen)
    for _ in range(rounds if len(chosen) else 0):
        tried_N5, tried_FN = unfold(rising(around(points_N5, length_5)), values, length_5, worker_memory_bytes)
        tried_7N = outcomes(tried_FN, constants, fitted, present)
        rows = permitted(tried_FN, tried_7N, room, constants, fitted, covariance_KK, present, False)
        chosen = _best(tried_7N, rows)
        better_N5 = _rows(tried_N5, chosen)
        if _are_equal(better_N5, points_N5):
            break
        points_N5, best_FN, best_7N = better_N5, _taken(tried_FN, chosen), _taken(tried_7N, chosen)
    return table_FN, found_7N, points_N5, best_FN, best_7N
