"""RowStage: what becomes of a job's rows between their files and the windows that shuffle them.

A stage encodes pieces into columns of single ids, lists and numbers; windows move these and know nothing else of them.
A stage that puts columns of its own into a window (numbers of distinct rows, say) replaces them in each minibatch that
comes out.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from elastrec.platform.data.features.plan import Reading
from elastrec.platform.data.reading.encode import EncodedRows, RowEncoder
from elastrec.platform.data.reading.raw import RawRows
from elastrec.platform.specs.data import TrainingData


class ShardRows(Protocol):
    """The rows of one shard on their way through a stage; several shards may be read in turns."""

    def encode(self, piece: RawRows) -> EncodedRows:
        """Columns of the rows of a piece; pieces come in the order of their window.

        Raises:
            DataError: a column is missing, or of a type that can never be right.
        """
        ...

    def end_window(self, order_N: NDArray[np.int64] | None) -> NDArray[np.int64] | None:
        """The order of a window's rows, once all of its pieces are encoded.

        Args:
            order_N: as a shuffle of single rows has it; None: as they come.
        """
        ...

    def finish(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """What the trainer gets for a minibatch that a window gave; minibatches come in their order."""
        ...


class RowStage(Protocol):
    """How the rows of one job are encoded."""

    @property
    def readings(self) -> Collection[Reading]:
        """The columns that are needed, each in the ways in which it is read."""
        ...

    @property
    def extra_columns(self) -> Sequence[str]:
        """Columns that are needed besides."""
        ...

    @property
    def kept_columns(self) -> frozenset[str]:
        """See `RawReader`."""
        ...

    def start(self) -> ShardRows:
        """Begins with a shard."""
        ...


class PlainRows:
    """Every row is encoded for itself, and minibatches are what windows give. Has no state: it is its own ShardRows."""

    extra_columns: Sequence[str] = ()
    kept_columns: frozenset[str] = frozenset()

    def __init__(self, data: TrainingData, hash_sizes: Mapping[str, int] | None = None) -> None:
        self._encoder = RowEncoder(data, hash_sizes)
        self.readings = self._encoder.readings

    def start(self) -> PlainRows:
        """Itself."""
        return self

    def encode(self, piece: RawRows) -> EncodedRows:
        """See `ShardRows`."""
        return self._encoder.encode(piece.table)

    def end_window(self, order_N: NDArray[np.int64] | None) -> NDArray[np.int64] | None:
        """The order of the shuffle."""
        return order_N

    def finish(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The batch."""
        return batch
