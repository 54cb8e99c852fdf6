"""The columns of a minibatch as numpy arrays.

Legend of shapes: B batch, T labels and weights, I dense features, F sparse features, L ids of all features of the
batch.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from elastrec.platform.specs.data import DENSE_COLUMN, LABEL_COLUMN


def targets_of(batch: pa.RecordBatch) -> NDArray[np.float32]:
    """target_BT float32 [B, T], without a copy: labels, then the weight, in the order of `data.targets`."""
    column = batch.column(LABEL_COLUMN)
    return np.asarray(column).reshape(-1, 1) if pa.types.is_float32(column.type) else _rows_of(column)


def dense_of(batch: pa.RecordBatch) -> NDArray[np.float32]:
    """dense_BI float32 [B, I], without a copy; [B, 0] when the job has no dense features."""
    index = batch.schema.get_field_index(DENSE_COLUMN)
    if index < 0:
        return np.empty((batch.num_rows, 0), np.float32)
    return _rows_of(batch.column(index))


def _rows_of(column: pa.FixedSizeListArray) -> NDArray[np.float32]:
    """Lists of one length as rows, without a copy."""
    rows, width, begin = len(column), column.type.list_size, column.offset
    # Its `flatten` would go through a compute function, which costs more than all the rest.
    return np.asarray(column.values)[begin * width : (begin + rows) * width].reshape(rows, width)


@dataclass(frozen=True)
class JaggedIds:
    """Ids of all sparse features, feature by feature, as in a KeyedJaggedTensor; read-only.

    Attributes:
        keys: F feature names.
        values: int64 [L]; feature 0 of all rows first.
        lengths: int32 [F, B].
        scalar: every length is 1, so `values.reshape(F, B)` is a plain matrix.
    """

    keys: tuple[str, ...]
    values: NDArray[np.int64]
    lengths: NDArray[np.int32]
    scalar: bool

    @classmethod
    def single(cls, keys: tuple[str, ...], ids_FB: NDArray[np.int64]) -> JaggedIds:
        """Ids [F, B] of features with one id per row; adjacent ids are not copied."""
        return cls(keys, ids_FB.reshape(-1), _ones(*ids_FB.shape), True)


@dataclass(frozen=True)
class Minibatch:
    """Trainer-ready rows of one split.

    Attributes:
        batch: see `elastrec.platform.data.reading.encode`; without rows when all of them were bad (acknowledge, do not
            train).
        end_offset: rows of the split up to the end of these, bad ones included.
        ends_split: no rows follow.
        position: where to continue reading, in the form of the source; empty: `end_offset` is enough.
        ids: `ids_of(batch)`, if the reader already has them.
    """

    batch: pa.RecordBatch
    end_offset: int
    ends_split: bool
    position: bytes = b""
    ids: JaggedIds | None = field(default=None, compare=False, repr=False)


def ids_of(batch: pa.RecordBatch) -> JaggedIds:
    """The sparse features of a batch (all columns but label and dense)."""
    places, keys = _sparse_columns(tuple(batch.schema.names))
    rows = batch.num_rows
    sparse = batch.select(places)
    matrix_BF = _matrix(sparse)
    if matrix_BF is not None:
        return JaggedIds.single(keys, matrix_BF.T)
    lengths_FB = np.ones((len(keys), rows), np.int32)
    values = []
    for f, column in enumerate(sparse.columns):
        if pa.types.is_list(column.type):
            lengths_FB[f] = np.diff(np.asarray(column.offsets))
            values.append(np.asarray(column.flatten()))
        else:
            values.append(np.asarray(column))
    return JaggedIds(keys, np.concatenate(values), lengths_FB, False)


def sparse_names(batch: pa.RecordBatch) -> tuple[str, ...]:
    """Names of the sparse features of a batch, in the order of its columns."""
    return _sparse_columns(tuple(batch.schema.names))[1]


@functools.lru_cache(maxsize=16)
def _sparse_columns(names: tuple[str, ...]) -> tuple[list[int], tuple[str, ...]]:
    """Positions and names of the sparse features among a batch's columns; they are the same batch after batch."""
    places = [index for index, name in enumerate(names) if name not in (LABEL_COLUMN, DENSE_COLUMN)]
    return places, tuple(names[index] for index in places)


@functools.lru_cache(maxsize=4)
def _ones(features: int, rows: int) -> NDArray[np.int32]:
    """Lengths int32 [F, B] of scalar features, read-only: shared by all minibatches of as many rows."""
    lengths_FB = np.ones((features, rows), np.int32)
    lengths_FB.flags.writeable = False
    return lengths_FB


def _matrix(sparse: pa.RecordBatch) -> NDArray[np.int64] | None:
    """Ids [B, F], column after column in memory; None if a feature is a list.

    One call for all columns: a call for each column would cost more than the copy of a minibatch's ids.
    """
    if not sparse.num_columns or not sparse.num_rows:
        return None
    try:
        return np.asarray(sparse.to_tensor(row_major=False))
    except pa.ArrowTypeError:
        return None
