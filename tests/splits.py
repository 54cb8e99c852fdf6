"""Shards of rows, reports about them and origins of their pushes, as masters and workers make them."""

from __future__ import annotations

from elastrec.platform.specs.splits import EVALUATION_STREAM, TRAINING_STREAM, RowRange, Split
from elastrec.platform.transport.messages.job import Shard, ShardProgress
from elastrec.trainers.parameter_server.messages import Origin

_STREAMS = {"train": TRAINING_STREAM, "evaluate": EVALUATION_STREAM}


def row_shard(
    number: int,
    start: int,
    length: int,
    *,
    kind: str = "train",
    epoch: int = 0,
    offset: int = 0,
    attempt: int = 1,
    seed: int = 0,
    shuffle: bool = False,
    keep_predictions: bool = False,
) -> Shard:
    """A lease of `length` rows."""
    rows = RowRange(epoch=epoch, start=start, length=length, seed=seed, shuffle=shuffle)
    split = Split(stream=_STREAMS[kind], number=number, rows=length, range=rows)
    return Shard(kind=kind, split=split, offset=offset, attempt=attempt, keep_predictions=keep_predictions)


def length_of(shard: Shard) -> int:
    """Rows of a shard."""
    return shard.split.range.length


def progress_of(shard: Shard, offset: int, sketch: bytes = b"") -> ShardProgress:
    """What a worker reports once the rows before `offset` are trained."""
    return shard.progress(offset, ended=offset == length_of(shard), sketch=sketch)


def origin_of(place: int, *, number: int = 0, attempt: int = 1, rows: int = 20, is_last: bool = False) -> Origin:
    """The push of a split's minibatch at this place, 0 is the first, of an attempt that began with the split."""
    return Origin(TRAINING_STREAM, number, attempt, place * rows, (place + 1) * rows, place == 0, is_last)
