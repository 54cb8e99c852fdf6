"""Run: consecutive minibatches in one block of memory, each in the form of an Arrow message.

Building a minibatch of many columns array by array costs more than copying its rows; Arrow reads all columns of a
message at once, without a copy. The ids of a message are in the order of a KeyedJaggedTensor: feature by feature. Lists
have no fixed size and are added to a batch as separate arrays.

Legend of shapes: K batches, B rows of a batch, T labels and weights, I dense features, F sparse features of single ids.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from elastrec.platform.specs.data import DENSE_COLUMN, LABEL_COLUMN


@dataclass(frozen=True)
class BatchForm:
    """The columns of a batch with a fixed size: the number of labels and weights, the number of dense features, and the
    names of sparse features with single ids."""

    targets: int
    dense: int
    sparse: tuple[str, ...]

    def schema(self) -> pa.Schema:
        """As `elastrec.platform.data.reading.encode` describes it."""
        fields = [pa.field(LABEL_COLUMN, pa.float32() if self.targets == 1 else pa.list_(pa.float32(), self.targets))]
        if self.dense:
            fields.append(pa.field(DENSE_COLUMN, pa.list_(pa.float32(), self.dense)))
        return pa.schema([*fields, *(pa.field(name, pa.int64()) for name in self.sparse)])


@dataclass(frozen=True)
class _Message:
    """The layout of a batch's message: its size and the offsets of its columns, in bytes.

    Attributes:
        head: the bytes before the first column, equal for all batches with the same number of rows.
    """

    head: bytes
    size: int
    target: int
    dense: int
    ids: int


@functools.lru_cache(maxsize=64)
def _message(form: BatchForm, rows: int) -> _Message:
    """The layout that Arrow gives to a batch of so many rows."""
    several = form.targets > 1
    columns: list[pa.Array] = [_zeros(rows, form.targets) if several else pa.array(np.zeros(rows, np.float32))]
    if form.dense:
        columns.append(_zeros(rows, form.dense))
    columns += [pa.array(np.zeros(rows, np.int64))] * len(form.sparse)
    schema = form.schema()
    message = pa.RecordBatch.from_arrays(columns, schema=schema).serialize()
    batch = pa.ipc.read_record_batch(message, schema)
    target = _data(batch.column(0).values if several else batch.column(0)) - message.address
    dense = _data(batch.column(1).values) - message.address if form.dense else 0
    ids = [_data(column) - message.address for column in batch.columns[1 + bool(form.dense) :]]
    assert set(np.diff(ids).tolist()) <= {8 * rows}, f"columns of {rows} ids do not lie side by side: {ids}"
    return _Message(message.to_pybytes()[:target], message.size, target, dense, ids[0] if ids else target)


def _zeros(rows: int, width: int) -> pa.Array:
    return pa.FixedSizeListArray.from_arrays(pa.array(np.zeros(rows * width, np.float32)), width)


def _data(values: pa.Array) -> int:
    return int(values.buffers()[1].address)


class Run:
    """Memory for one or more minibatches of `rows` rows each; fill its arrays before `record_batches`.

    Attributes:
        target_KBT: float32 [K, B, T].
        dense_KBI: float32 [K, B, I].
        ids_KFB: int64 [K, F, B].
    """

    def __init__(self, form: BatchForm, batches: int, rows: int) -> None:
        message = _message(form, rows)
        self.batches, self.rows = batches, rows
        self._form, self._size = form, message.size
        self._memory = np.empty((batches, message.size), np.uint8)
        self._memory[:, : len(message.head)] = np.frombuffer(message.head, np.uint8)
        self.target_KBT = self._columns(np.float32, message.target, (rows, form.targets))
        self.dense_KBI = self._columns(np.float32, message.dense, (rows, form.dense))
        self.ids_KFB = self._columns(np.int64, message.ids, (len(form.sparse), rows))

    def _columns(self, dtype: type, offset: int, shape: tuple[int, int]) -> NDArray[Any]:
        item = np.dtype(dtype).itemsize
        strides = (self._size, item * shape[1], item)
        return np.ndarray((self.batches, *shape), dtype, self._memory, offset, strides)

    def record_batches(self) -> Iterator[tuple[pa.RecordBatch, NDArray[np.int64]]]:
        """The minibatches and the ids of each, [F, B], as read-only views of this memory."""
        schema = self._form.schema()
        # Several readers may share the memory of a batch.
        for array in (self._memory, self.ids_KFB):
            array.flags.writeable = False
        memory = pa.py_buffer(self._memory)
        for k in range(self.batches):
            yield pa.ipc.read_record_batch(memory.slice(k * self._size, self._size), schema), self.ids_KFB[k]
