"""Cells of many buckets taken in at once: what a restore and a migration do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from elastrec.trainers.parameter_server.hashing import splitmix64
from elastrec.trainers.parameter_server.storage.kernels.arrays import CELL_VERSION, ID, TABLE, VERSION, Request
from elastrec.trainers.parameter_server.storage.kernels.compiling import kernel

if TYPE_CHECKING:
    from elastrec.trainers.parameter_server.storage.store import Lookup, RowStore

Array = np.ndarray[Any, Any]

_S32 = np.uint64(32)
_TABLE_BITS = np.uint32(0xFFFF)


@kernel
def lay_out_cells(cells, salts, owned, stripe_of, expected, request, at):  # type: ignore[no-untyped-def]
    """Fills a request for the ids of cells [n, W], leaving out those in buckets that are not `owned` [V].

    Returns the number of the first cell whose bucket is not the `expected` [n] one; -1: there is none.

    Args:
        expected: [n] int32, negative: any.
        request: its `starts` are zero; at: [S] int64, scratch.
    """
    virtual_buckets = np.uint64(owned.shape[0])
    stripes = request.starts.shape[0] - 1
    for j in range(cells.shape[0]):
        key = np.uint64(cells[j, ID]) | (np.uint64(cells[j, ID + 1]) << _S32)
        table = cells[j, TABLE] & _TABLE_BITS
        row_hash = splitmix64(key ^ salts[table])
        bucket = np.int64(row_hash % virtual_buckets)
        if expected[j] >= 0 and expected[j] != bucket:
            return j
        request.ids[j] = np.int64(key)
        request.hashes[j] = row_hash
        request.buckets[j] = bucket
        request.tables[j] = table
        if owned[bucket]:
            request.starts[stripe_of[bucket] + 1] += 1
    for s in range(stripes):
        at[s] = request.starts[s]
        request.starts[s + 1] += at[s]
    for j in range(cells.shape[0]):
        bucket = np.int64(request.buckets[j])
        if owned[bucket]:
            stripe = stripe_of[bucket]
            request.order[at[stripe]] = j
            at[stripe] += 1
    return -1


class ForeignCellError(Exception):
    """A cell does not belong to the bucket that it was said to be of.

    Attributes:
        number: of the cell.
    """

    def __init__(self, number: int) -> None:
        super().__init__(f"cell {number} belongs to another bucket")
        self.number = number


def look_up_cells(store: RowStore, cells: Array, buckets: Array | None) -> Lookup:
    """A lookup of the ids of cells [n, W] in owned buckets.

    Args:
        buckets: [n] int32 where they must be; None: wherever they are.

    Raises:
        ForeignCellError: one of them is not there.
    """
    size, stripes = len(cells), len(store.moves)
    expected = np.full(size, -1, np.int32) if buckets is None else np.array(buckets, np.int32)
    request = Request(
        np.empty(size, np.int64), np.empty(size, np.uint64), np.empty(size, np.int32), np.empty(size, np.int32),
        np.empty(size, np.int32), np.zeros(stripes + 1, np.int64),
    )  # fmt: skip
    lookup = store.lookup_of(request)
    strange = lay_out_cells(
        cells, store.salts, store.owned, store.stripe_of, expected, request, np.empty(stripes, np.int64)
    )
    if strange >= 0:
        raise ForeignCellError(int(strange))
    return lookup


def load(store: RowStore, kind: int, cells: Array, buckets: Array | None, *, keep_versions: bool) -> Array:
    """Enters cells [n, W] uint32 of rows (kind 0) or candidates (1), those in owned buckets only.

    Returns how many of each bucket there were [V] int64.

    Args:
        buckets: see `look_up_cells`.
        keep_versions: else the rows are as old as their buckets: versions of other buckets say nothing.

    Raises:
        ForeignCellError: see `look_up_cells`; nothing was entered.
        ServerMemoryError: no room for more rows.
    """
    lookup = look_up_cells(store, cells, buckets)
    if not keep_versions:
        cells[:, CELL_VERSION] = store.marks[lookup.request.buckets, VERSION]
    store.enter(lookup, cells, kind=kind)
    request = lookup.request
    return np.bincount(request.buckets[request.order[: request.starts[-1]]], minlength=len(store.owned))


def unload(store: RowStore, cells: Array, buckets: Array | None) -> None:
    """Removes rows and candidates with the ids and tables of cells [n, 4], those in owned buckets only.

    Raises:
        ForeignCellError: see `look_up_cells`; nothing was removed.
    """
    store.remove(look_up_cells(store, cells, buckets))


def expect_rows(store: RowStore, buckets: Array, counts: Array) -> None:
    """Makes room in the index for so many rows more in each owned bucket [b], as growing to them would in many steps.

    Raises:
        ServerMemoryError: there is none.
    """
    for bucket, rows in zip(buckets.tolist(), counts.tolist(), strict=True):
        if store.owned[bucket] and rows:
            with store.locked(bucket):
                store.rows_memory.grow_for(bucket, rows, store.salts)
