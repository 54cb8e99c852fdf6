"""The compiled loop of the reader: arrays in, arrays out; no files and no columns.

Imported at the first window, because numba alone takes half a second.

Legend of shapes: N rows of a window, K minibatches, B rows of a minibatch, F sparse features of single ids.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from elastrec.platform.specs.numba_cache import kernels_of

_kernel = kernels_of(Path(__file__))()


@_kernel
def spread(source_N, order, out_KB):  # type: ignore[no-untyped-def]
    """Writes `source_N[order]` row by row into minibatches that lie apart.

    Args:
        source_N: [N], 8 bytes each.
        order: uint32 [K * B], below N; unsigned, so that numba does not handle negative indexes.
        out_KB: [K, B].
    """
    rows = out_KB.shape[1]
    for k in range(out_KB.shape[0]):
        order_B, out_B = order[k * rows : (k + 1) * rows], out_KB[k]
        for j in range(rows):
            out_B[j] = source_N[order_B[j]]


def load() -> None:
    """Loads or compiles every kernel for all kinds of arrays of windows."""
    # Ids are in a file's memory, read-only, or results of a step; several minibatches are not contiguous, one is.
    for batches in (1, 2):
        ids_KFB = np.zeros((batches, 2, 1), np.int64)
        for is_writeable in (True, False):
            id_N = np.zeros(batches, np.int64)
            id_N.flags.writeable = is_writeable
            spread(id_N, np.zeros(batches, np.uint32), ids_KFB[:, 0])
