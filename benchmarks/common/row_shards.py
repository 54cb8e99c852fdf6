"""Shards of plain rows, as leased by a master, for benchmarks without one."""

from __future__ import annotations

from collections.abc import Iterator

from elastrec.platform.specs.row_ranges import RowRanges
from elastrec.platform.specs.splits import TRAINING_STREAM, RowRange, Split
from elastrec.platform.transport.messages.job import Shard


def row_shard(rows: int, *, seed: int, shuffle: bool, kind: str = "train", number: int = 0) -> Shard:
    """The first rows of a manifest as one shard."""
    return _shard(RowRange(epoch=0, start=0, length=rows, seed=seed, shuffle=shuffle), kind, number)


def row_shards(ranges: RowRanges, kind: str = "train") -> Iterator[Shard]:
    """All shards of a manifest in the order in which a job's only worker gets them."""
    for cursor in range(ranges.total):
        number = ranges.number_at(cursor)
        yield _shard(ranges.range(number), kind, number)


def _shard(rows: RowRange, kind: str, number: int) -> Shard:
    split = Split(stream=TRAINING_STREAM, number=number, rows=rows.length, range=rows)
    return Shard(kind=kind, split=split, offset=0, attempt=1)
