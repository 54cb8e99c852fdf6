"""Shards of plain rows, as a master would lease them, for benchmarks that run without one."""

from __future__ import annotations

from elastrec.platform.specs.splits import TRAINING_STREAM, RowRange, Split
from elastrec.platform.transport.job_messages import Shard


def row_shard(rows: int, *, seed: int, shuffle: bool, kind: str = "train", number: int = 0) -> Shard:
    """The first rows of a manifest as one shard."""
    span = RowRange(epoch=0, start=0, length=rows, seed=seed, shuffle=shuffle)
    split = Split(stream=TRAINING_STREAM, number=number, rows=rows, range=span)
    return Shard(kind=kind, split=split, offset=0, attempt=1)
