"""Compiled loops of the reader: arrays in, arrays out; no files and no columns.

Loaded where a window is read and nowhere before: numba alone takes half a second.

Legend of shapes: P rows of a piece, N rows of a window, K minibatches, B rows of a minibatch, I dense features.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from elastrec.platform.specs.numba_cache import kernels_of

_kernel = kernels_of(Path(__file__))()


@_kernel
def look_up(counts_P, valid_P, table, empty, out_PI, i):  # type: ignore[no-untyped-def]
    """Writes `table[count]` to `out_PI[:, i]`, `empty` where the field is empty; False if a count was not in the table.

    Without a branch: whether a field is empty cannot be foreseen, and each wrong guess costs more than the loop.

    Args:
        counts_P: int32 or int64 [P].
        valid_P: int8 [P], 0 where the field is empty, else -1.
        table: float32 seen as int32 [a power of two].
        empty: float32 seen as int32.
        out_PI: float32 seen as int32 [P, I]; arbitrary for counts outside the table.
    """
    limit = np.int64(table.size - 1)
    outside = np.int64(0)
    for j in range(counts_P.size):
        valid = np.int32(valid_P[j])
        count = np.int64(counts_P[j]) & np.int64(valid)
        outside |= count & ~limit
        out_PI[j, i] = empty ^ ((empty ^ table[count & limit]) & valid)
    return outside == 0


@_kernel
def spread(source_N, order, out_KB):  # type: ignore[no-untyped-def]
    """Writes `source_N[order]` row by row into minibatches that lie apart.

    Args:
        source_N: [N], 8 bytes each.
        order: uint32 [K * B], below N. Unsigned, for a negative one would have to be looked for.
        out_KB: [K, B].
    """
    rows = out_KB.shape[1]
    for k in range(out_KB.shape[0]):
        order_B, out_B = order[k * rows : (k + 1) * rows], out_KB[k]
        for j in range(rows):
            out_B[j] = source_N[order_B[j]]


def load() -> None:
    """Loads or compiles every kernel for the arrays that windows give them."""
    table, valid_P = np.zeros(2, np.int32), np.full(1, -1, np.int8)
    for kind in (np.int32, np.int64):
        # Columns of a file are read-only.
        counts_P = np.zeros(1, kind)
        counts_P.flags.writeable = False
        look_up(counts_P, valid_P, table, np.int32(0), np.zeros((1, 1), np.int32), 0)
    # Rows of several minibatches lie apart, those of a single one do not.
    for batches in (1, 2):
        ids_KFB = np.zeros((batches, 2, 1), np.int64)
        spread(np.zeros(batches, np.int64), np.zeros(batches, np.uint32), ids_KFB[:, 0])
