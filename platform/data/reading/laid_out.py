"""Memory that holds minibatches one behind the other, each in the form of an Arrow message.

A minibatch of many columns costs more to build array by array than its rows cost to copy; Arrow reads all columns of
a message at once, without a copy. The ids of a message lie feature after feature, as a KeyedJaggedTensor wants them,
so that `flat_ids` finds them without a copy too. Only scalar features: lists have no fixed place.

Legend of shapes: K batches, B rows of a batch, T labels and weights, I dense features, F sparse features.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from elastrec.platform.data.reading.encode import DENSE, LABEL


@dataclass(frozen=True)
class BatchForm:
    """Columns of trainer-ready batches: numbers of labels with weights and of dense features, names of scalar sparse
    ones."""

    targets: int
    dense: int
    sparse: tuple[str, ...]

    def schema(self) -> pa.Schema:
        """As `elastrec.platform.data.reading.encode` describes it."""
        fields = [pa.field(LABEL, pa.float32() if self.targets == 1 else pa.list_(pa.float32(), self.targets))]
        if self.dense:
            fields.append(pa.field(DENSE, pa.list_(pa.float32(), self.dense)))
        return pa.schema([*fields, *(pa.field(name, pa.int64()) for name in self.sparse)])


@dataclass(frozen=True)
class _Message:
    """Where things lie in the message of a batch; numbers are bytes from its begin.

    Attributes:
        head: what comes before the first column, the same for all batches of as many rows.
        between_ids: from one sparse feature to the next.
    """

    head: bytes
    size: int
    target: int
    dense: int
    ids: int
    between_ids: int


@functools.lru_cache(maxsize=64)
def _message(form: BatchForm, rows: int) -> _Message:
    """Asks Arrow itself, once for each number of rows."""
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
    steps = set(np.diff(ids).tolist()) or {8 * rows}
    assert len(steps) == 1, f"columns of {rows} ids lie unevenly: {ids}"
    return _Message(message.to_pybytes()[:target], message.size, target, dense, ids[0] if ids else target, steps.pop())


def _zeros(rows: int, width: int) -> pa.Array:
    return pa.FixedSizeListArray.from_arrays(pa.array(np.zeros(rows * width, np.float32)), width)


def _data(values: pa.Array) -> int:
    return int(values.buffers()[1].address)


class Run:
    """Room for `batches` minibatches of `rows` rows each.

    Attributes:
        target_KBT: float32 [K, B, T], to be filled, as the others.
        dense_KBI: float32 [K, B, I].
        ids_KFB: int64 [K, F, B].
    """

    def __init__(self, form: BatchForm, batches: int, rows: int) -> None:
        message = _message(form, rows)
        self.batches, self.rows = batches, rows
        self._form, self._message = form, message
        self._memory = np.empty((batches, message.size), np.uint8)
        self._memory[:, : len(message.head)] = np.frombuffer(message.head, np.uint8)
        self.target_KBT: NDArray[np.float32] = np.ndarray(
            (batches, rows, form.targets),
            np.float32,
            self._memory,
            message.target,
            (message.size, 4 * form.targets, 4),
        )
        self.dense_KBI: NDArray[np.float32] = np.ndarray(
            (batches, rows, form.dense), np.float32, self._memory, message.dense, (message.size, 4 * form.dense, 4)
        )
        self.ids_KFB: NDArray[np.int64] = np.ndarray(
            (batches, len(form.sparse), rows),
            np.int64,
            self._memory,
            message.ids,
            (message.size, message.between_ids, 8),
        )

    def record_batches(self) -> Iterator[pa.RecordBatch]:
        """The minibatches, as views of this memory: fill it before."""
        schema, size = self._form.schema(), self._message.size
        # Who reads a batch must not change what others see of the same memory.
        self._memory.flags.writeable = False
        memory = pa.py_buffer(self._memory)
        side_by_side = self._message.between_ids == 8 * self.rows
        for k in range(self.batches):
            batch = pa.ipc.read_record_batch(memory.slice(k * size, size), schema)
            if side_by_side:
                ids_L = self.ids_KFB[k].reshape(-1)
                ids_L.flags.writeable = False
                _remember(batch, ids_L)
            yield batch


# A record batch takes no attributes; asking each of its columns where it lies costs more than copying the ids.
_flat_ids: dict[int, tuple[weakref.ref[pa.RecordBatch], NDArray[np.int64]]] = {}


def _remember(batch: pa.RecordBatch, ids_L: NDArray[np.int64]) -> None:
    key = id(batch)
    # The entry goes while the batch goes, before another one can have its number.
    _flat_ids[key] = (weakref.ref(batch, lambda _: _flat_ids.pop(key, None)), ids_L)


def flat_ids(batch: pa.RecordBatch) -> NDArray[np.int64] | None:
    """int64 [F * B], feature after feature, read-only, without a copy; None unless a `Run` made this very batch."""
    found = _flat_ids.get(id(batch))
    return found[1] if found is not None and found[0]() is batch else None
