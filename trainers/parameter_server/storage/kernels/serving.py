"""Kernels of whole requests: they order the ids, then process stripe by stripe under its lock, free stripes first.

A request is one call of compiled code, unless memory must be provided.
"""

from __future__ import annotations

import numpy as np

from elastrec.trainers.parameter_server.storage.handle import (
    candidates_of,
    guarded_of,
    rows_of,
    settings_of,
    tombstones_of,
)
from elastrec.trainers.parameter_server.storage.kernels import access
from elastrec.trainers.parameter_server.storage.kernels.access import create_rows, find_all, order_request
from elastrec.trainers.parameter_server.storage.kernels.arrays import COUNT
from elastrec.trainers.parameter_server.storage.kernels.compiling import kernel
from elastrec.trainers.parameter_server.storage.kernels.locks import lock_next, unlock
from elastrec.trainers.parameter_server.storage.rules import apply_rules

DONE, CREATE, APPLY, DROPPED = 0, 1, 2, 3
"""Why a push stopped: `create_rows` needs memory, `apply_rules` needs slabs, or a bucket was dropped."""
DROPS, MOST_ROWS = 0, 1  # columns of Guarded.counters
LEFT, HELD, STAGE, POSITION = 0, 1, 2, 3  # columns of `state` of `push_request`
ALL = -1
"""For state[LEFT]: all stripes with ids are left."""


@kernel
def _stripes_of(request):  # type: ignore[no-untyped-def]
    """The stripes of the request's ids, as bits."""
    stripes = 0
    for stripe in range(request.starts.shape[0] - 1):
        if request.starts[stripe] != request.starts[stripe + 1]:
            stripes |= 1 << stripe
    return stripes


@kernel
def _owns(owned, request, stripe):  # type: ignore[no-untyped-def]
    """Whether the store owns the buckets of all of a stripe's ids."""
    for k in range(request.starts[stripe], request.starts[stripe + 1]):
        if not owned[request.buckets[request.order[k]]]:
            return False
    return True


@kernel
def _count_rows(pool):  # type: ignore[no-untyped-def]
    rows = 0
    for bucket in range(pool.buckets.shape[0]):
        rows += pool.buckets[bucket, COUNT]
    return rows


@kernel
def order_ids(handle, counts, ids, request, named, scratch):  # type: ignore[no-untyped-def]
    """See `access.order_request`."""
    guarded = guarded_of(handle)
    return order_request(
        counts, ids, settings_of(handle).salts, guarded.owned, guarded.stripe_of, guarded.load, request, named, scratch
    )


@kernel
def pull_request(  # type: ignore[no-untyped-def]
    handle, counts, ids, request, zero_if_absent, places, by_stripe, out, named, scratch
):
    """Orders the ids of a request and copies the values of their rows into `out`; see `access.pull`.

    Args:
        by_stripe: [S, 2] int64, out: see Lookup.
        named: see `access.order_request`.
        scratch: [2, LOOKUP_BATCH] int64.

    Returns 0, or the number of ids known to be in buckets of other servers; `out` is then incomplete.
    """
    rows, settings, guarded = rows_of(handle), settings_of(handle), guarded_of(handle)
    drops = guarded.counters[DROPS]
    foreign = order_request(
        counts, ids, settings.salts, guarded.owned, guarded.stripe_of, guarded.load, request, named, scratch[0]
    )
    if foreign:
        return foreign
    left = _stripes_of(request)
    while left:
        stripe = lock_next(guarded.locks, left)
        if guarded.counters[DROPS] != drops and not _owns(guarded.owned, request, stripe):
            unlock(guarded.locks, stripe)
            return 1
        by_stripe[stripe, 0] = access.pull(
            rows.pool, rows.hash_index, settings, request, stripe, zero_if_absent, places, out, scratch
        )
        by_stripe[stripe, 1] = guarded.moves[stripe]
        unlock(guarded.locks, stripe)
        left &= ~(1 << stripe)
    return 0


@kernel
def push_request(  # type: ignore[no-untyped-def]
    handle,
    request,
    drops,
    places,
    by_stripe,
    sightings,
    now_seconds,
    rate_scale,
    gradients,
    offsets,
    scratch,
    state,
    report,
):
    """Creates the absent rows of a request and applies gradients [U, D]; see `create_rows` and `apply_rules`.

    Args:
        drops, places, by_stripe: see Lookup.
        offsets, scratch: [AHEAD] and [2, LOOKUP_BATCH] int64.
        state: [4] int64, in and out: the stripes that are left, as bits (first: ALL); the stripe whose lock is held
            (-1: none); CREATE or APPLY; the position in the stripe's order.

    Returns DONE; or why it stopped, while the lock of stripe state[HELD] is held. Called again, it continues there.
    """
    rows, settings, guarded = rows_of(handle), settings_of(handle), guarded_of(handle)
    if state[LEFT] == ALL:
        state[LEFT] = _stripes_of(request)
    while state[LEFT]:
        stripe = state[HELD]
        if stripe < 0:
            stripe = lock_next(guarded.locks, state[LEFT])
            state[HELD], state[STAGE], state[POSITION] = stripe, CREATE, request.starts[stripe]
            report[:] = 0
            if guarded.counters[DROPS] != drops and not _owns(guarded.owned, request, stripe):
                return DROPPED
            if by_stripe[stripe, 1] != guarded.moves[stripe]:
                by_stripe[stripe, 0] = find_all(rows.pool, rows.hash_index, request, stripe, places, scratch)
                by_stripe[stripe, 1] = guarded.moves[stripe]
        if state[STAGE] == CREATE:
            if by_stripe[stripe, 0]:
                room = guarded.counters[MOST_ROWS] - _count_rows(rows.pool)
                create_rows(
                    rows, candidates_of(handle), tombstones_of(handle), settings, guarded.marks, request, stripe,
                    sightings, now_seconds, room, guarded.entries, places, report,
                )  # fmt: skip
                if report[0] != access.DONE:
                    return CREATE
                # With admission, some ids still have no row.
                by_stripe[stripe, 0] -= report[3]
            state[STAGE] = APPLY
        end = request.starts[stripe + 1]
        state[POSITION] = apply_rules(
            rows, settings, guarded.marks, request, stripe, places, gradients, np.uint32(now_seconds),
            rate_scale, state[POSITION], offsets,
        )  # fmt: skip
        if state[POSITION] < end:
            return APPLY
        unlock(guarded.locks, stripe)
        state[LEFT] &= ~(1 << stripe)
        state[HELD] = -1
    return DONE
