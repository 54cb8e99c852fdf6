"""ShardReader: a shard's rows as trainer-ready batches, in an order that depends only on the seed.

Memory is bounded by a window of WINDOW_ROWS rows. A shard that fits into one window is shuffled as a whole; a larger
one has its windows shuffled, and the rows inside each. A position counts rows of the shuffled shard, bad rows included,
so that `offset` resumes exactly where another reader stopped.

Between their files and the windows, rows pass a `RowStage`. It encodes pieces into columns of single ids, lists and
numbers, which windows move without any other knowledge of them. Columns that a stage adds to a window, such as numbers
of distinct rows, it replaces in each minibatch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from elastrec.platform.data.deduplicating.deduplicated_rows import DeduplicatedRows, DeduplicatedShard
from elastrec.platform.data.entries import DataManifest
from elastrec.platform.data.files import errors_naming
from elastrec.platform.data.reading.bad_rows import BadRowLedger
from elastrec.platform.data.reading.batches import Minibatch
from elastrec.platform.data.reading.encode import EncodedRows, RowEncoder
from elastrec.platform.data.reading.raw import RawReader, RawRows
from elastrec.platform.data.reading.window import WindowBatch, minibatches_of
from elastrec.platform.specs.data import TrainingData
from elastrec.platform.specs.errors import DataError

WINDOW_ROWS = 262_144


class ShardReader:
    """Reads shards of one manifest. Not for several threads at once.

    Args:
        data: the columns; see `elastrec.platform.data.reading.encode` for the form of a batch.
        manifest: of the same data.
        hash_sizes: per embedding table, ids are taken modulo this.
        groups: of sparse features that come in their deduplicated form, see `DeduplicatedRows`; none: all are plain.

    Raises:
        SpecError: a feature's name is reserved, or `hash_sizes` names an unknown table.
        DataError: the user's transform cannot be imported, or a group is not allowed.
    """

    def __init__(
        self,
        data: TrainingData,
        manifest: DataManifest,
        *,
        hash_sizes: Mapping[str, int] | None = None,
        groups: Sequence[Sequence[str]] = (),
    ) -> None:
        self.data = data
        self.manifest = manifest
        self.groups = tuple(tuple(group) for group in groups)
        self._stage: RowStage = (
            DeduplicatedRows(data, self.groups, hash_sizes) if groups else PlainRows(data, hash_sizes)
        )
        self._raw = RawReader(
            data, manifest, self._stage.readings, extra=self._stage.extra_columns, keep=self._stage.kept_columns
        )
        self._ledger = BadRowLedger(data.bad_rows)

    @property
    def skipped_rows(self) -> int:
        """Different bad rows left out so far by this reader."""
        return self._ledger.rows

    def read(
        self, start: int, length: int, *, seed: int, shuffle: bool, offset: int = 0, batch_size: int
    ) -> Iterator[pa.RecordBatch]:
        """The batches of `minibatches` that have rows."""
        for minibatch in self.minibatches(
            start, length, seed=seed, shuffle=shuffle, offset=offset, batch_size=batch_size
        ):
            if minibatch.batch.num_rows:
                yield minibatch.batch

    def minibatches(
        self, start: int, length: int, *, seed: int, shuffle: bool, offset: int = 0, batch_size: int
    ) -> Iterator[Minibatch]:
        """Batches of `batch_size` rows; smaller if bad rows were skipped, and at the end of the shard.

        A batch whose rows are all bad has no rows, so that its position is not lost.

        Args:
            start, length: the shard's rows in the manifest.
            seed: of the shuffle.
            offset: number of positions of the (shuffled) shard to skip, because they were trained before.

        Raises:
            DataError: a bad row (or one too many, with `skip`), or a file that cannot be read.
        """
        if not 0 <= offset <= length:
            raise DataError(f"offset: {offset} is not allowed; allowed: 0 to the shard's length {length}")
        if batch_size < 1:
            raise DataError(f"batch_size: {batch_size} is not allowed; allowed: 1 and above")
        shard = self._stage.start()
        parts: list[WindowBatch] = []
        waiting, position, passed = 0, offset, 0
        for first, count, rng in _windows(length, seed if shuffle else None):
            begin, passed = max(0, offset - passed), passed + count
            if passed <= offset:
                continue
            pieces = self._encoded(shard, start + first, count)
            order = shard.end_window(None if rng is None else rng.permutation(count))
            window = minibatches_of(pieces, begin, order, _cuts(count - begin, waiting, batch_size))
            del pieces  # the next window is read while this one's minibatches are in use
            for part in window:
                parts.append(part)
                waiting += part.positions
                if waiting == batch_size or position + waiting == length:
                    position += waiting
                    yield _minibatch(shard, parts, position, ends_split=position == length)
                    parts, waiting = [], 0

    def read_raw(self, start: int, length: int) -> Iterator[pa.Table]:
        """The raw rows in file order, with the columns of the job, before any user's transform."""
        for piece in self._raw.read(start, length, transformed=False):
            yield piece.table

    def close(self) -> None:
        """Closes the open file and drops cached rows."""
        self._raw.close()

    def _encoded(self, shard: ShardRows, start: int, count: int) -> list[EncodedRows]:
        """The rows of one window, bad ones judged."""
        pieces = []
        for piece in self._raw.read(start, count, by_group=bool(self.groups)):
            with errors_naming(piece.file.uri):
                rows = shard.encode(piece)
            self._ledger.judge(piece, rows)
            pieces.append(rows)
        return pieces


class PlainRows:
    """The stage without deduplication: every row is encoded by itself. It keeps nothing of a shard and is its own
    `ShardRows`.

    Attributes:
        readings: the columns that are needed, each in the ways in which it is read.
        extra_columns: columns that are needed besides.
        kept_columns: see `RawReader`.
    """

    extra_columns: Sequence[str] = ()
    kept_columns: frozenset[str] = frozenset()

    def __init__(self, data: TrainingData, hash_sizes: Mapping[str, int] | None = None) -> None:
        self._encoder = RowEncoder(data, hash_sizes)
        self.readings = self._encoder.readings

    def start(self) -> PlainRows:
        """Begins a shard; several shards may be read in turns."""
        return self

    def encode(self, piece: RawRows) -> EncodedRows:
        """Columns of the rows of a piece; pieces come in the order of their window.

        Raises:
            DataError: a column is missing, or of a type that can never be right.
        """
        return self._encoder.encode(piece.table)

    def end_window(self, order_N: NDArray[np.int64] | None) -> NDArray[np.int64] | None:
        """The order of a window's rows, once all of its pieces are encoded.

        Args:
            order_N: of a shuffle of single rows; None: as they come.
        """
        return order_N

    def finish(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The trainer's form of a minibatch of a window; minibatches come in their order."""
        return batch


RowStage = PlainRows | DeduplicatedRows
ShardRows = PlainRows | DeduplicatedShard


def _minibatch(shard: ShardRows, parts: list[WindowBatch], end_offset: int, *, ends_split: bool) -> Minibatch:
    """One minibatch out of its parts from one or several windows."""
    if len(parts) > 1:
        batch = shard.finish(pa.concat_batches([part.batch for part in parts]))
        return Minibatch(batch, end_offset, ends_split)
    batch = shard.finish(parts[0].batch)
    # If the stage replaced the batch, its columns are others.
    ids = parts[0].ids if batch is parts[0].batch else None
    return Minibatch(batch, end_offset, ends_split, ids=ids)


def _windows(length: int, seed: int | None) -> Iterator[tuple[int, int, np.random.Generator | None]]:
    """(first row, rows, generator of the inner shuffle) in the order in which the windows are read."""
    starts = list(range(0, length, WINDOW_ROWS))
    order = np.arange(len(starts))
    if seed is not None and len(starts) > 1:
        order = np.random.default_rng(seed).permutation(len(starts))
    for index in order.tolist():
        rng = None if seed is None else np.random.default_rng([seed, index])
        yield starts[index], min(WINDOW_ROWS, length - starts[index]), rng


def _cuts(count: int, waiting: int, batch_size: int) -> list[int]:
    """Sizes of the parts of minibatches in a window of `count` rows.

    Args:
        waiting: rows of an incomplete minibatch before the window, which the first part completes; the last part may
            be incomplete again.
    """
    first = min(count, batch_size - waiting) if waiting else 0
    whole, last = divmod(count - first, batch_size)
    return [rows for rows in (first, *[batch_size] * whole, last) if rows]
