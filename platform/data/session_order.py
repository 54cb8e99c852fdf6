"""The order in which clustered rows are trained: sessions shuffled, each one's rows side by side in order of time.

A shuffle of single rows would spread a session over many batches, and nothing would repeat within one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from elastrec.platform.data.batches import BatchSource, Minibatch
from elastrec.platform.data.deduplicated_batch import deduplicate_batch
from elastrec.platform.data.sorting import session_starts
from elastrec.platform.transport.job_messages import Shard


def session_order(sessions: pa.Array | pa.ChunkedArray, order: NDArray[np.int64]) -> NDArray[np.int64]:
    """A permutation int64 [N] of clustered rows that moves whole sessions, to where `order` puts their first rows.

    Args:
        sessions: the session of each row, equal ones side by side; a row without one is a session of its own.
        order: a permutation of the rows, as a shuffle of single rows would have it.
    """
    begins = np.flatnonzero(session_starts(sessions))
    lengths = np.diff(np.append(begins, len(order)))
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    moved = np.argsort(place[begins])
    ends = np.cumsum(lengths[moved])
    return np.arange(len(order)) + np.repeat(begins[moved] - (ends - lengths[moved]), lengths[moved])


class DeduplicatingSource:
    """A batch source whose minibatches have some feature groups in their deduplicated form.

    Args:
        source: gives plain minibatches.
        groups: features that share an inverse lookup; none leaves batches as they are.
    """

    def __init__(self, source: BatchSource, groups: Sequence[Sequence[str]]) -> None:
        self._source = source
        self._groups = groups

    def batches(self, shard: Shard) -> Iterator[Minibatch]:
        """See `BatchSource`.

        Raises:
            DataError: a group names a column that the batches do not have.
        """
        for minibatch in self._source.batches(shard):
            yield Minibatch(deduplicate_batch(minibatch.batch, self._groups), minibatch.shard, minibatch.end_offset)

    def close(self) -> None:
        self._source.close()
