"""Kernels of whole requests: laid out, then stripe by stripe with its lock, those first that are free.

One crossing into compiled code per request, unless a bucket has to grow.
"""

from __future__ import annotations

import numpy as np

from elastrec.trainers.parameter_server.storage.handle import (
    guarded_of,
    rows_of,
    settings_of,
    tombs_of,
    waiting_of,
)
from elastrec.trainers.parameter_server.storage.kernels import access
from elastrec.trainers.parameter_server.storage.kernels.access import find_all, lay_out_request, make
from elastrec.trainers.parameter_server.storage.kernels.arrays import COUNT
from elastrec.trainers.parameter_server.storage.kernels.compiling import kernel
from elastrec.trainers.parameter_server.storage.kernels.locks import lock_next, unlock
from elastrec.trainers.parameter_server.storage.rules import apply_rules

DONE, MAKE, APPLY, DROPPED = 0, 1, 2, 3
"""What a push stopped for: `make` needs something, `apply_rules` needs slabs, a bucket is another server's by now."""
DROPS, MOST_ROWS = 0, 1
LEFT, HELD, STAGE, POSITION = 0, 1, 2, 3


@kernel
def _stripes_of(request):  # type: ignore[no-untyped-def]
    """Bits of the stripes that the request has ids in."""
    stripes = 0
    for stripe in range(request.starts.shape[0] - 1):
        if request.starts[stripe] != request.starts[stripe + 1]:
            stripes |= 1 << stripe
    return stripes


@kernel
def _owns(owned, request, stripe):  # type: ignore[no-untyped-def]
    for k in range(request.starts[stripe], request.starts[stripe + 1]):
        if not owned[request.buckets[request.order[k]]]:
            return False
    return True


@kernel
def _rows(pool):  # type: ignore[no-untyped-def]
    rows = 0
    for bucket in range(pool.buckets.shape[0]):
        rows += pool.buckets[bucket, COUNT]
    return rows


@kernel
def lay_out(handle, counts, request, scratch):  # type: ignore[no-untyped-def]
    """See lay_out_request."""
    guarded = guarded_of(handle)
    return lay_out_request(
        counts, request.ids, settings_of(handle).salts, guarded.owned, guarded.stripe_of, guarded.load, request, scratch
    )


@kernel
def pull_request(handle, counts, request, zero_if_absent, places, found, out, scratch):  # type: ignore[no-untyped-def]
    """Lays out a request and copies its rows into `out`; see `access.pull`.

    Args:
        found: [S, 2] int64, per stripe how many ids have no row, and its moves when it was looked up.
        scratch: [2, AT_ONCE] int64.

    Returns how many ids lie in buckets of other servers: then nothing was copied, or not all.
    """
    rows, settings, guarded = rows_of(handle), settings_of(handle), guarded_of(handle)
    drops = guarded.counters[DROPS]
    foreign = lay_out_request(
        counts, request.ids, settings.salts, guarded.owned, guarded.stripe_of, guarded.load, request, scratch[0]
    )
    if foreign:
        return foreign
    left = _stripes_of(request)
    while left:
        stripe = lock_next(guarded.locks, left)
        if guarded.counters[DROPS] != drops and not _owns(guarded.owned, request, stripe):
            unlock(guarded.locks, stripe)
            return 1
        found[stripe, 0] = access.pull(
            rows.pool, rows.slots, settings, request, stripe, zero_if_absent, places, out, scratch
        )
        found[stripe, 1] = guarded.moves[stripe]
        unlock(guarded.locks, stripe)
        left &= ~(1 << stripe)
    return 0


@kernel
def push_request(  # type: ignore[no-untyped-def]
    handle,
    request,
    drops,
    places,
    found,
    sightings,
    now_seconds,
    rate_scale,
    gradients,
    offsets,
    scratch,
    state,
    report,
):
    """Makes the rows of a request that are due, and applies gradients [U, D]; see `make` and `apply_rules`.

    Args:
        drops: of the store when the request was laid out.
        places, found: of a pull, or [U] and [S, 2] with moves of -1.
        offsets, scratch: [AHEAD] and [2, AT_ONCE] int64.
        state: [4] int64, stripes that are left (bits; at first all that the request has ids in), the one whose lock
            is held (-1), what it is at, and where.

    Returns DONE; or what it stopped for, with the lock of state[HELD]. Called again, it goes on there.
    """
    rows, settings, guarded = rows_of(handle), settings_of(handle), guarded_of(handle)
    while state[LEFT]:
        stripe = state[HELD]
        if stripe < 0:
            stripe = lock_next(guarded.locks, state[LEFT])
            state[HELD], state[STAGE], state[POSITION] = stripe, MAKE, request.starts[stripe]
            report[:] = 0
            if guarded.counters[DROPS] != drops and not _owns(guarded.owned, request, stripe):
                return DROPPED
            if found[stripe, 1] != guarded.moves[stripe]:
                found[stripe, 0] = find_all(rows.pool, rows.slots, request, stripe, places, scratch)
                found[stripe, 1] = guarded.moves[stripe]
        if state[STAGE] == MAKE:
            if found[stripe, 0]:
                room = guarded.counters[MOST_ROWS] - _rows(rows.pool)
                make(
                    rows, waiting_of(handle), tombs_of(handle), settings, guarded.marks, request, stripe, sightings,
                    now_seconds, room, guarded.usage, places, report,
                )  # fmt: skip
                if report[0] != access.DONE:
                    return MAKE
                # Only with admission there are ids that still have no row.
                found[stripe, 0] -= report[3]
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
