"""The compiled loops that judge plans: their outcomes, whether they fit and obey the rules, and what they teach.

numpy makes one pass per operation, and most of its time is overhead; here one pass computes each plan.

Shape legend: N points, F fields (`columns.FIELDS`).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from elastrec.platform.scaling.model import kernels as model_kernels
from elastrec.platform.scaling.model.kernels import step_seconds, variance, variance_of_change
from elastrec.platform.specs.numba_cache import kernels_of

_kernel = kernels_of(__file__, model_kernels.__file__)(error_model="numpy")
_GIBIBYTE = float(2**30)

SPEED, GAIN, OVERHEAD, COST, MORE_CORES, MORE_BYTES, AGAINST_RULES = range(7)
"""Rows of what `outcomes` returns; see `objectives.Outcomes`."""


class Present(NamedTuple):
    """The present job, prices of pods, and the rules' requirements of a change.

    Attributes:
        speed: Ψ now.
        pause: seconds of training that a change of servers costs; `worker_start`, `server_start`: until new ones train;
            `copy`: of rows to other servers, after that.
        worker_start_work, server_start_work: core-seconds of a new one until then.
        least_change: as a logarithm; `grow_efficiency`, `save_efficiency`: of `Rules`.
        least_kept: the share by which Ψ may change at most for the worse; at most 0.
        least_error, trusted_error: of a prediction: its smallest assumed error, and the largest one with which it is
            trusted.
        remaining: samples; `payback`: seconds in which a change has to pay for itself, unless the job ends earlier.
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
    pause: float
    worker_start: float
    server_start: float
    copy: float
    worker_start_work: float
    server_start_work: float
    least_change: float
    grow_efficiency: float
    save_efficiency: float
    least_kept: float
    least_error: float
    trusted_error: float
    remaining: float
    payback: float


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
def now_of(present):  # type: ignore[no-untyped-def]
    """The job's present allocation as a table, [F, 1]."""
    now_F1 = np.empty((6, 1))
    now_F1[0, 0], now_F1[1, 0] = present.workers, present.parameter_servers
    now_F1[2, 0], now_F1[3, 0] = present.worker_cores, present.parameter_server_cores
    now_F1[4, 0], now_F1[5, 0] = present.worker_memory_bytes, present.parameter_server_memory_bytes
    return now_F1


@_kernel
def held(table_FN, n, present):  # type: ignore[no-untyped-def]
    """Cores, bytes and price per hour of all pods of one plan."""
    cores = table_FN[0, n] * table_FN[2, n] + table_FN[1, n] * table_FN[3, n]
    memory = table_FN[0, n] * table_FN[4, n] + table_FN[1, n] * table_FN[5, n]
    return cores, memory, present.core_hour * cores + present.gibibyte_hour * memory / _GIBIBYTE


@_kernel
def price_against(price, price_now):  # type: ignore[no-untyped-def]
    """The price, or the present one where they differ by rounding: a cost of 1e-18 would give a huge efficiency
    (eq. 11)."""
    return price_now if abs(price - price_now) < 1e-9 * price_now else price


@_kernel
def speed_of(table_FN, n, constants, fitted):  # type: ignore[no-untyped-def]
    """Ψ of one plan."""
    return table_FN[0, n] * constants.batch_size / step_seconds(table_FN, n, constants, fitted)


@_kernel
def overhead_of(table_FN, n, speed, cores_now, present):  # type: ignore[no-untyped-def]
    """The overhead of one plan, and the share of its horizon that passes before its pods train."""
    now = present
    workers, servers, worker_cores, server_cores = table_FN[0, n], table_FN[1, n], table_FN[2, n], table_FN[3, n]
    worker_bytes, server_bytes = table_FN[4, n], table_FN[5, n]
    # Pods whose size only falls are resized in place, so that none starts.
    larger_workers = worker_cores > now.worker_cores or worker_bytes > now.worker_memory_bytes
    larger_servers = server_cores > now.parameter_server_cores or server_bytes > now.parameter_server_memory_bytes
    new_workers = workers if larger_workers else max(workers - now.workers, 0.0)
    new_servers = servers if larger_servers else max(servers - now.parameter_servers, 0.0)
    hands_over = larger_servers or servers != now.parameter_servers
    start = now.worker_start if new_workers > 0.0 else 0.0
    if hands_over:
        start = max(start, (now.server_start if new_servers > 0.0 else 0.0) + now.copy)
    # Workers come and go without a pause. New servers, and a pause, are needed to undo a wrong saving.
    smaller_servers = server_cores < now.parameter_server_cores or server_bytes < now.parameter_server_memory_bytes
    pause = now.pause if hands_over or smaller_servers else 0.0
    # Seconds in which the job's present cores would do the work of the starts.
    starting = (new_workers * now.worker_start_work + new_servers * now.server_start_work) / cores_now
    # A plan that makes the job faster also ends it earlier: it has less time to pay for itself.
    horizon = min(now.remaining / max(speed, now.speed), now.payback)
    late = _share(start, horizon)
    # Unlike a pause, the starts of a plan may cost more than the rest of the training.
    lost = _share(pause, horizon) + starting / max(horizon, 1e-9)
    return now.speed * lost + max(speed - now.speed, 0.0) * late, late


@_kernel
def against_rules(gain, late, price, price_now, present):  # type: ignore[no-untyped-def]
    """The gain, as a share of Ψ now, that one plan lacks; at least `least_lacking`."""
    dearer = np.log(price / price_now)
    # A plan saves from the time when its pods train. It must keep its own share of Ψ, and the share for all savings
    # together.
    saved = dearer * (1.0 - late)
    kept = np.expm1(present.save_efficiency * saved) if saved <= -present.least_change else np.inf
    rise = np.expm1(max(present.grow_efficiency * dearer, present.least_change))
    return min(rise, max(kept, present.least_kept)) - gain / present.speed


@_kernel
def least_lacking(gain, stays, price, price_now, present):  # type: ignore[no-untyped-def]
    """A lower bound of `against_rules` without its logarithm; also where `gain` is the largest that a plan may have.

    Args:
        stays: what the present allocation lacks.
    """
    return (present.least_kept if price < price_now else stays) - gain / present.speed


@_kernel
def outcomes(table_FN, constants, fitted, present):  # type: ignore[no-untyped-def]
    """RC, TG and the rules for N allocations, [7, N]; the formulas are those of `objectives`."""
    cores_now, bytes_now, price_now = held(now_of(present), 0, present)
    count = table_FN.shape[1]
    found_7N = np.empty((7, count))
    for n in range(count):
        cores, memory, price = held(table_FN, n, present)
        price = price_against(price, price_now)
        speed = speed_of(table_FN, n, constants, fitted)
        overhead, late = overhead_of(table_FN, n, speed, cores_now, present)
        gain = speed - present.speed - overhead
        found_7N[SPEED, n] = speed
        found_7N[GAIN, n] = gain
        found_7N[OVERHEAD, n] = overhead
        found_7N[COST, n] = price - price_now
        found_7N[MORE_CORES, n] = cores - cores_now
        found_7N[MORE_BYTES, n] = memory - bytes_now
        found_7N[AGAINST_RULES, n] = against_rules(gain, late, price, price_now, present)
    return found_7N


@_kernel
def _share(seconds, horizon):  # type: ignore[no-untyped-def]
    """Share of the horizon, at most 1; 1 for a horizon of 0, because no change pays in a job that ends at once."""
    return seconds / max(horizon, 1e-9) if horizon > seconds else 1.0


@_kernel
def excess_of(table_FN, n, more_cores, more_bytes, room):  # type: ignore[no-untyped-def]
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
        (more_cores - room.free_cores - 1e-3) / room.cores,
        (more_bytes - room.free_bytes - 1.0) / room.memory_bytes,
        short,
        too_large - (1.0 + 1e-9),
    )


@_kernel
def fits(table_FN, n, more_cores, more_bytes, room):  # type: ignore[no-untyped-def]
    """Whether one plan exceeds nothing."""
    over_cores, over_bytes, short, too_large = excess_of(table_FN, n, more_cores, more_bytes, room)
    return not (over_cores > 0 or over_bytes > 0 or short > 0 or too_large > 0)


@_kernel
def excess(table_FN, found_7N, room):  # type: ignore[no-untyped-def]
    """`excess_of` N plans, [N, 4]."""
    found_N4 = np.empty((table_FN.shape[1], 4))
    for n in range(len(found_N4)):
        each = excess_of(table_FN, n, found_7N[MORE_CORES, n], found_7N[MORE_BYTES, n], room)
        for k in range(4):
            found_N4[n, k] = each[k]
    return found_N4


@_kernel
def doubt_of(table_FN, found_7N, n, now_F1, constants, fitted, covariance_KK, present):  # type: ignore[no-untyped-def]
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
def doubts(table_FN, found_7N, constants, fitted, covariance_KK, present):  # type: ignore[no-untyped-def]
    """`doubt_of` N plans, [N]."""
    found_N, now_F1 = np.empty(table_FN.shape[1]), now_of(present)
    for n in range(len(found_N)):
        found_N[n] = doubt_of(table_FN, found_7N, n, now_F1, constants, fitted, covariance_KK, present)
    return found_N


@_kernel
def permitted(table_FN, found_7N, room, constants, fitted, covariance_KK, present, doubted):  # type: ignore[no-untyped-def]
    """Rising numbers of the plans that fit and obey the rules: the trusted ones, or the others (`doubted`).

    Few plans obey the rules, so that fit and reliability are computed for these alone.
    """
    found, count, now_F1 = np.empty(table_FN.shape[1], np.int64), 0, now_of(present)
    for n in range(len(found)):
        if not found_7N[AGAINST_RULES, n] <= 0:
            continue
        if not fits(table_FN, n, found_7N[MORE_CORES, n], found_7N[MORE_BYTES, n], room):
            continue
        if (doubt_of(table_FN, found_7N, n, now_F1, constants, fitted, covariance_KK, present) > 0) == doubted:
            found[count] = n
            count += 1
    return found[:count]


@_kernel
def value_of_information(mean, deviation):  # type: ignore[no-untyped-def]
    """The value of knowing a normally distributed x before taking it or 0: E[max(x, 0)] − max(E[x], 0)."""
    if not deviation > 0:
        return 0.0
    ratio = abs(mean) / deviation
    density = math.exp(-0.5 * ratio * ratio) / math.sqrt(2.0 * math.pi)
    return deviation * density - 0.5 * abs(mean) * math.erfc(ratio / math.sqrt(2.0))


@_kernel
def teaches(  # type: ignore[no-untyped-def]
    table_FN, found_7N, room, constants, fitted, covariance_KK, least_error, known_error, slowest
):  # fmt: skip
    """The amount by which a measurement of each plan would raise the log determinant of the model's information, [N]: 0
    where the plan is measured already, does not fit, or would be slower than `slowest`."""
    found_N = np.zeros(table_FN.shape[1])
    for n in range(len(found_N)):
        fits_in = fits(table_FN, n, found_7N[MORE_CORES, n], found_7N[MORE_BYTES, n], room)
        if not fits_in or found_7N[SPEED, n] < slowest:
            continue
        error = np.sqrt(variance(table_FN, n, constants, fitted, covariance_KK) + least_error * least_error)
        if error > known_error:
            found_N[n] = np.log1p((error / known_error) ** 2)
    return found_N
