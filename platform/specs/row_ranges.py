"""The splits of a stream that is a data manifest: ranges of its rows. Pure: nothing is read here."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from elastrec.platform.specs.splits import RowRange, StreamPositions

_MASK = 2**64 - 1


class RowRanges(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The splits of a stream that is a data manifest: K = ⌈rows / rows per split⌉ of them in each epoch (AntDT §V-C).

    A split's number is epoch · K + place in the manifest. An epoch hands them out in a seeded order.

    Attributes:
        split_rows: rows of each split but the last one of an epoch.
    """

    rows: int
    split_rows: int
    epochs: int = 1
    shuffle: bool = False
    seed: int = 0

    @property
    def per_epoch(self) -> int:
        """K."""
        return -(-self.rows // self.split_rows)

    @property
    def total(self) -> int:
        """Splits of all epochs."""
        return self.per_epoch * self.epochs

    @property
    def total_rows(self) -> int:
        """Rows of all epochs."""
        return self.rows * self.epochs

    def number_at(self, cursor: int) -> int:
        """The number of the split that is handed out after `cursor` others."""
        epoch, place = divmod(cursor, self.per_epoch)
        index = int(shard_order(self.seed, epoch, self.per_epoch)[place]) if self.shuffle else place
        return epoch * self.per_epoch + index

    def begins_epoch(self, cursor: int) -> bool:
        """Whether the split after `cursor` others may be handed out only when none before it can be handed out
        again."""
        return cursor % self.per_epoch == 0

    def rows_of(self, number: int) -> int | None:
        """Rows of a split. (Other streams return None if the number is known only after reading.)"""
        return self._length(number)

    def _length(self, number: int) -> int:
        return min(self.split_rows, self.rows - number % self.per_epoch * self.split_rows)

    def lengths(self, number_A: NDArray[np.int64]) -> NDArray[np.int64]:
        """Rows of each of some splits."""
        return np.minimum(self.split_rows, self.rows - number_A % self.per_epoch * self.split_rows)

    def handed_out(self, cursor: int, number_A: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Which of some splits are among the first `cursor` ones."""
        epochs, place = divmod(cursor, self.per_epoch)
        epoch_A, index_A = np.divmod(number_A, self.per_epoch)
        handed_out_A = epoch_A < epochs
        if place:
            in_order_K = np.zeros(self.per_epoch, np.bool_)
            in_order_K[shard_order(self.seed, epochs, self.per_epoch)[:place] if self.shuffle else slice(place)] = True
            handed_out_A |= (epoch_A == epochs) & in_order_K[index_A]
        return handed_out_A

    def range(self, number: int) -> RowRange:
        """What a split is."""
        epoch, index = divmod(number, self.per_epoch)
        return RowRange(
            epoch=epoch,
            start=index * self.split_rows,
            length=self._length(number),
            seed=shard_seed(self.seed, epoch, index),
            shuffle=self.shuffle,
        )

    def covered_rows(self, positions: StreamPositions) -> int:
        """Rows that are trained at least once at some positions, of all epochs."""
        if not self.rows:
            return 0
        epochs, place = divmod(positions.cursor, self.per_epoch)
        covered = epochs * self.rows + (self._rows_before(epochs, place) if place else 0)
        return covered - sum(self._length(begun.number) - begun.offset for begun in positions.begun)

    def _rows_before(self, epoch: int, place: int) -> int:
        """Rows of the first `place` splits in the order of an epoch; only the last split is shorter than the others."""
        last = self.per_epoch - 1
        where = int(np.flatnonzero(shard_order(self.seed, epoch, self.per_epoch) == last)[0]) if self.shuffle else last
        return place * self.split_rows - (self.split_rows - self._length(last) if where < place else 0)


def shard_seed(seed: int, epoch: int, index: int) -> int:
    """A 63-bit seed of the shuffle inside a shard, from job seed, epoch and index alone (splitmix64 finaliser)."""
    z = (seed * 0x9E3779B97F4A7C15 + epoch * 0xBF58476D1CE4E5B9 + index + 1) & _MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return (z ^ (z >> 31)) >> 1


@lru_cache(maxsize=4)
def shard_order(seed: int, epoch: int, count: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    """The order in which a shuffled epoch hands its shards out."""
    return np.random.Generator(np.random.PCG64([seed, epoch])).permutation(count)
