"""minibatches_of: the rows of one window, shuffled and laid out as minibatches, whatever their columns are.

Each column is moved once, from where it was encoded to its rows' places in their minibatches: numbers and single ids
into memory in the form of Arrow messages (`Run`), lists into one array of which every minibatch has a slice. Bad rows
are left out on the way.

Legend of shapes: N rows of the window, Q rows of the minibatches to be made, B rows of one of them, F sparse features
of single ids.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from types import ModuleType
from typing import NamedTuple, TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from elastrec.platform.data.reading.batches import JaggedIds
from elastrec.platform.data.reading.encode import EncodedRows, arrow_ids
from elastrec.platform.data.reading.laid_out import BatchForm, Run

T = TypeVar("T", bound=np.generic)


class WindowBatch(NamedTuple):
    """Attributes:
    batch: trainer-ready rows.
    positions: rows of the window that they stand for, bad ones included.
    ids: of the batch; None where it has lists, or no row.
    """

    batch: pa.RecordBatch
    positions: int
    ids: JaggedIds | None


def minibatches_of(
    pieces: Sequence[EncodedRows], begin: int, order_N: NDArray[np.int64] | None, cuts: Sequence[int]
) -> Iterator[WindowBatch]:
    """The minibatches of one window, one after the other. The rows are moved at once, so that pieces may go.

    Args:
        pieces: its rows, at least one piece, all of the same columns and with labels.
        begin: places of the order to leave out.
        order_N: a permutation of the rows; None: as they come.
        cuts: positions of each minibatch; they add up to N - begin.
    """
    bad_N = np.concatenate([piece.bad_B for piece in pieces])
    order_Q = np.arange(begin, len(bad_N)) if order_N is None else order_N[begin:]
    rows = list(cuts)
    is_range = order_N is None
    if bad_N.any():
        good_Q = ~bad_N[order_Q]
        kept = np.concatenate(([0], np.cumsum(good_Q)))
        rows = np.diff(kept[np.cumsum([0, *cuts])]).tolist()
        order_Q, is_range = order_Q[good_Q], False
    columns = pieces[0].ids
    singles = tuple(name for name, column in columns.items() if column.offsets is None)
    targets = [piece.target_BT for piece in pieces if piece.target_BT is not None]
    form = BatchForm(targets[0].shape[1], pieces[0].dense_BI.shape[1], singles)
    runs = [Run(form, len(list(group)), count) for count, group in groupby(rows) if count]
    _place(_joined(targets), order_Q, [run.target_KBT for run in runs])
    _place(_joined([piece.dense_BI for piece in pieces]), order_Q, [run.dense_KBI for run in runs])
    place_Q = order_Q.astype(np.uint32)
    for f, name in enumerate(singles):
        id_N, first = _joined([piece.ids[name].values for piece in pieces]), 0
        for run in runs:
            end = first + run.batches * run.rows
            _kernels().spread(id_N, place_Q[first:end], run.ids_KFB[:, f])
            first = end
    lists: dict[str, pa.Array] = {}
    for name in columns:
        if name not in singles:
            whole = pa.concat_arrays([arrow_ids(piece.ids[name]) for piece in pieces])
            lists[name] = whole.slice(begin) if is_range else whole.take(pa.array(order_Q))
    return _handed_out(form, runs, lists, tuple(columns), list(zip(cuts, rows, strict=True)))


def _handed_out(
    form: BatchForm,
    runs: Sequence[Run],
    lists: Mapping[str, pa.Array],
    names: Sequence[str],
    counts: Sequence[tuple[int, int]],
) -> Iterator[WindowBatch]:
    """The minibatches of runs, each with so many positions and rows."""
    laid_out = (batch for run in runs for batch in run.record_batches())
    first = 0
    for positions, rows in counts:
        # Runs have rows; a minibatch whose rows are all bad is made by itself.
        batch, ids_FB = next(laid_out) if rows else (_empty(form), None)
        if lists:
            yield WindowBatch(_with_lists(batch, lists, names, first, rows), positions, None)
        else:
            yield WindowBatch(batch, positions, None if ids_FB is None else JaggedIds.single(form.sparse, ids_FB))
        first += rows


def _with_lists(
    batch: pa.RecordBatch, lists: Mapping[str, pa.Array], names: Sequence[str], first: int, count: int
) -> pa.RecordBatch:
    """The batch with its rows of the lists, sparse features in their order."""
    before = batch.num_columns - (len(names) - len(lists))
    for index, name in enumerate(names):
        if name in lists:
            batch = batch.add_column(before + index, name, lists[name].slice(first, count))
    return batch


def _empty(form: BatchForm) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([], schema=form.schema())


def _joined(parts: Sequence[NDArray[T]]) -> NDArray[T]:
    """Side by side: picked from the parts themselves, each row would wait for memory."""
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def _place(source_N: NDArray[T], order_Q: NDArray[np.int64], rooms: Sequence[NDArray[T]]) -> None:
    """Rows of one column to their places in the minibatches [K, B, ...]."""
    begin = 0
    for room_KB in rooms:
        for room_B in room_KB:
            end = begin + len(room_B)
            # Without a check of each index, which are a permutation's: half the time.
            np.take(source_N, order_Q[begin:end], axis=0, mode="clip", out=room_B)
            begin = end


@functools.cache
def _kernels() -> ModuleType:
    # Here, for numba takes half a second to load.
    from elastrec.platform.data.reading import kernels

    return kernels
