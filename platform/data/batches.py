"""BatchSource: where a trainer's minibatches come from, and their columns as numpy arrays.

Legend of shapes: B batch, I dense features, F sparse features, L ids of all features of the batch.
"""

from __future__ import annotations

import contextlib
import functools
import queue
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from elastrec.platform.data.encode import DENSE, LABEL
from elastrec.platform.data.laid_out import flat_ids
from elastrec.platform.data.reader import ShardReader
from elastrec.platform.transport.job_messages import Shard

T = TypeVar("T")


@dataclass(frozen=True)
class Minibatch:
    """Trainer-ready rows of one shard.

    Attributes:
        batch: see `elastrec.platform.data.encode`; without rows when all of them were bad (acknowledge, do not train).
        end_offset: position in the shard after these rows; what a worker acknowledges once they are trained.
    """

    batch: pa.RecordBatch
    shard: Shard
    end_offset: int


class BatchSource(Protocol):
    """Gives a trainer the minibatches of its shards, in order."""

    def batches(self, shard: Shard) -> Iterator[Minibatch]:
        """Minibatches of one shard from `shard.offset` on; the last one's end_offset is `shard.length`."""
        ...

    def close(self) -> None:
        """Let go of files and connections."""
        ...


class InProcessSource:
    """Reads shards in the trainer's own process."""

    def __init__(self, reader: ShardReader, batch_size: int) -> None:
        self.reader = reader
        self._batch_size = batch_size

    def batches(self, shard: Shard) -> Iterator[Minibatch]:
        for batch, end_offset in self.reader.read_with_offsets(
            shard.start,
            shard.length,
            seed=shard.seed,
            shuffle=shard.shuffle,
            offset=shard.offset,
            batch_size=self._batch_size,
        ):
            yield Minibatch(batch, shard, end_offset)

    def close(self) -> None:
        self.reader.close()


class Prefetched(Generic[T]):
    """An iterator that a background thread keeps `depth` items ahead; errors appear where the item would have.

    Use as a context manager, or call `close`: it stops the thread after the item it is working on.

    Example:
        >>> with Prefetched(iter([1, 2, 3]), depth=2) as items:
        ...     list(items)
        [1, 2, 3]
    """

    def __init__(self, items: Iterable[T], depth: int = 4) -> None:
        self._queue: queue.Queue[tuple[T | None, BaseException | None]] = queue.Queue(max(1, depth))
        self._stopped = threading.Event()
        self._done = False
        self._thread = threading.Thread(target=self._run, args=(items,), name="prefetch", daemon=True)
        self._thread.start()

    def _run(self, items: Iterable[T]) -> None:
        try:
            for item in items:
                if not self._put((item, None)):
                    return
            self._put((None, StopIteration()))
        except BaseException as error:
            self._put((None, error))
        finally:
            close = getattr(items, "close", None)
            if self._stopped.is_set() and close is not None:
                close()

    def _put(self, entry: tuple[T | None, BaseException | None]) -> bool:
        while not self._stopped.is_set():
            try:
                self._queue.put(entry, timeout=0.1)
                return True
            except queue.Full:
                continue
        return False

    def __iter__(self) -> Prefetched[T]:
        return self

    def __next__(self) -> T:
        if self._done:
            raise StopIteration
        item, error = self._queue.get()
        if error is not None:
            self._done = True
            raise error
        return item  # type: ignore[return-value]

    def close(self) -> None:
        """Stop the thread and wait for it; idempotent."""
        self._stopped.set()
        self._done = True
        if self._thread is threading.current_thread():
            return
        self._thread.join()
        # Whoever still waits for an item in another thread is told that there will be none.
        with contextlib.suppress(queue.Full):
            self._queue.put_nowait((None, StopIteration()))

    def __enter__(self) -> Prefetched[T]:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def label_of(batch: pa.RecordBatch) -> NDArray[np.float32]:
    """label_B float32 [B], without a copy."""
    return np.asarray(batch.column(LABEL))


def dense_of(batch: pa.RecordBatch) -> NDArray[np.float32]:
    """dense_BI float32 [B, I], without a copy; [B, 0] when the job has no dense features."""
    index = batch.schema.get_field_index(DENSE)
    if index < 0:
        return np.empty((batch.num_rows, 0), np.float32)
    column = batch.column(index)
    rows, width, begin = len(column), column.type.list_size, column.offset
    # Its `flatten` would go through a compute function, which costs more than all the rest.
    return np.asarray(column.values)[begin * width : (begin + rows) * width].reshape(rows, width)


@dataclass(frozen=True)
class JaggedIds:
    """Ids of all sparse features, feature by feature, as a KeyedJaggedTensor holds them; not to be written to.

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


def ids_of(batch: pa.RecordBatch) -> JaggedIds:
    """The sparse features of a batch (all columns but label and dense)."""
    wanted, keys = _sparse_columns(tuple(batch.schema.names))
    rows, ids_L = batch.num_rows, flat_ids(batch)
    if ids_L is not None:
        return JaggedIds(keys, ids_L, _ones(len(keys), rows), True)
    sparse = batch.select(wanted)
    matrix_BF = _matrix(sparse)
    if matrix_BF is not None:
        return JaggedIds(keys, matrix_BF.T.reshape(-1), _ones(len(keys), rows), True)
    lengths_FB = np.ones((len(keys), rows), np.int32)
    values = []
    for f, column in enumerate(sparse.columns):
        if pa.types.is_list(column.type):
            lengths_FB[f] = np.diff(np.asarray(column.offsets))
            values.append(np.asarray(column.flatten()))
        else:
            values.append(np.asarray(column))
    return JaggedIds(keys, np.concatenate(values), lengths_FB, False)


@functools.lru_cache(maxsize=16)
def _sparse_columns(names: tuple[str, ...]) -> tuple[list[int], tuple[str, ...]]:
    """Positions and names of the sparse features among a batch's columns; they are the same batch after batch."""
    wanted = [index for index, name in enumerate(names) if name not in (LABEL, DENSE)]
    return wanted, tuple(names[index] for index in wanted)


@functools.lru_cache(maxsize=4)
def _ones(features: int, rows: int) -> NDArray[np.int32]:
    """Lengths int32 [F, B] of scalar features, read-only: shared by all minibatches of as many rows."""
    lengths_FB = np.ones((features, rows), np.int32)
    lengths_FB.flags.writeable = False
    return lengths_FB


def _matrix(sparse: pa.RecordBatch) -> NDArray[np.int64] | None:
    """Ids [B, F], column after column in memory; None when a feature is a list.

    One call for all columns: one for each costs more than the copy of a minibatch's ids.
    """
    if not sparse.num_columns or not sparse.num_rows:
        return None
    try:
        return np.asarray(sparse.to_tensor(row_major=False))
    except pa.ArrowTypeError:
        return None
