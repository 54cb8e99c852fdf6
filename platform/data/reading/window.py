"""minibatches_of: shuffles the rows of one window and lays them out as minibatches.

Each column is copied once, from the encoded pieces to the minibatches: numbers and single ids into memory in the form
of Arrow messages (`Run`), lists into one array of which every minibatch has a slice. Bad rows are omitted.

Legend of shapes: N rows of the window, Q rows of its minibatches, B rows of one minibatch, K minibatches, F sparse
features of single ids.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import NamedTuple, TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from elastrec.platform.data.deduplicating.deduplication import offsets_of
from elastrec.platform.data.reading.batches import JaggedIds
from elastrec.platform.data.reading.encode import EncodedRows, arrow_ids
from elastrec.platform.data.reading.laid_out import BatchForm, Run

T = TypeVar("T", bound=np.generic)


class WindowBatch(NamedTuple):
    """A minibatch, or the part of one in this window.

    Attributes:
        batch: trainer-ready rows.
        positions: their number with bad rows included.
        ids: of the batch; None if it has lists, or no row.
    """

    batch: pa.RecordBatch
    positions: int
    ids: JaggedIds | None


def minibatches_of(
    pieces: Sequence[EncodedRows], begin: int, order_N: NDArray[np.int64] | None, cuts: Sequence[int]
) -> Iterator[WindowBatch]:
    """The minibatches of one window. Rows are copied by the call itself, not by the iteration.

    Args:
        pieces: at least one, all with the same columns and with labels.
        begin: number of rows of the order to skip.
        order_N: a permutation of the rows; None: the order of the pieces.
        cuts: positions of each minibatch; their sum is N - begin.
    """
    # Not at the top, because numba takes half a second.
    from elastrec.platform.data.reading import kernels

    bad_N = np.concatenate([piece.bad_B for piece in pieces])
    order_Q = np.arange(begin, len(bad_N)) if order_N is None else order_N[begin:]
    rows = list(cuts)
    is_range = order_N is None
    if bad_N.any():
        good_Q = ~bad_N[order_Q]
        kept = offsets_of(good_Q)
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
            kernels.spread(id_N, place_Q[first:end], run.ids_KFB[:, f])
            first = end
    lists: dict[str, pa.Array] = {}
    for name in columns:
        if name not in singles:
            whole = pa.concat_arrays([arrow_ids(piece.ids[name]) for piece in pieces])
            lists[name] = whole.slice(begin) if is_range else whole.take(pa.array(order_Q))
    return _minibatches(form, runs, lists, tuple(columns), list(zip(cuts, rows, strict=True)))


def _minibatches(
    form: BatchForm,
    runs: Sequence[Run],
    lists: Mapping[str, pa.Array],
    names: Sequence[str],
    counts: Sequence[tuple[int, int]],
) -> Iterator[WindowBatch]:
    """The minibatches of runs.

    Args:
        counts: positions and rows of each minibatch.
    """
    laid_out = (batch for run in runs for batch in run.record_batches())
    first = 0
    for positions, rows in counts:
        # Runs have no minibatches without rows.
        batch, ids_FB = next(laid_out) if rows else (pa.RecordBatch.from_pylist([], form.schema()), None)
        if lists:
            yield WindowBatch(_with_lists(batch, lists, names, first, rows), positions, None)
        else:
            yield WindowBatch(batch, positions, None if ids_FB is None else JaggedIds.single(form.sparse, ids_FB))
        first += rows


def _with_lists(
    batch: pa.RecordBatch, lists: Mapping[str, pa.Array], names: Sequence[str], first: int, count: int
) -> pa.RecordBatch:
    """The batch with its slices of the lists, sparse features in the order of `names`."""
    before = batch.num_columns - (len(names) - len(lists))
    for index, name in enumerate(names):
        if name in lists:
            batch = batch.add_column(before + index, name, lists[name].slice(first, count))
    return batch


def _joined(parts: Sequence[NDArray[T]]) -> NDArray[T]:
    """One array: random access to it is faster than to the parts."""
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def _place(source_N: NDArray[T], order_Q: NDArray[np.int64], columns: Sequence[NDArray[T]]) -> None:
    """Copies the rows of one column into the minibatches [K, B, ...] of runs."""
    begin = 0
    for column_KB in columns:
        for column_B in column_KB:
            end = begin + len(column_B)
            # The indexes of a permutation need no check, which would take as long as the copy.
            np.take(source_N, order_Q[begin:end], axis=0, mode="clip", out=column_B)
            begin = end
