"""Marks of applied pushes in records: what a part says of them, and what of it a server takes that restores buckets.

Marks lie in the part that holds what they speak of. They say something only where the splits begin at the positions
of the same record: those may be behind the marks, because a push is applied before its rows are reported, and never
ahead of them. No rows and no requests in here.
"""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np

from elastrec.checkpoints import DamagedRecordError, PartManifest, Record
from elastrec.trainers.parameter_server.marks import BucketMarks, least

Array = np.ndarray[Any, Any]


def marks_of(
    record: Record, buckets: Array, dense_range: tuple[int, int], *, has_same_buckets: bool
) -> list[BucketMarks]:
    """The marks of these buckets, and of a range of the dense parameters. Of base and deltas take the last record.

    Where one set of marks has to stand for several that differ it is the least of them: some rows of a push may then
    count twice for what had them already, and none is lost for what had not.

    Args:
        buckets: [b] of the job.
        dense_range: first element and one past the last; empty: the dense slice has the marks of the buckets.
        has_same_buckets: the record numbers its buckets as the job does; else each row may have been in any of them.

    Raises:
        DamagedRecordError: a part or its marks are damaged.
    """
    parts = {share.part.file: share.part for share in record.shares(buckets if has_same_buckets else None)}
    of_dense = {part.file: part for part in record.manifest.parts if _overlap(part.dense_range, dense_range)}
    found = {file: _marks_in(record, part) for file, part in (parts | of_dense).items()}
    if not has_same_buckets:
        everything = least([marks.streams for of_part in found.values() for marks in of_part])
        return [BucketMarks(buckets.tolist(), True, everything)]
    taken = [
        BucketMarks(mine.tolist(), False, marks.streams)
        for of_part in found.values()
        for marks in of_part
        if len(mine := np.intersect1d(marks.buckets, buckets))
    ]
    dense = [marks.streams for file in of_dense for marks in found[file] if marks.with_dense]
    return [*taken, BucketMarks([], True, least(dense or [marks.streams for marks in taken]))]


def _overlap(one: tuple[int, int] | None, other: tuple[int, int]) -> bool:
    return one is not None and max(one[0], other[0]) < min(one[1], other[1])


def _marks_in(record: Record, part: PartManifest) -> list[BucketMarks]:
    """All marks of a part; one that was written without any says that no push is applied."""
    answered = np.unique(np.concatenate([np.empty(0, np.int64), *(group.buckets() for group in part.groups)]))
    data = record.marks(part)
    if data is None:
        return [BucketMarks(answered.tolist(), True, [])]
    where = f"{record.uri}/{part.file}"
    try:
        marks = msgspec.msgpack.decode(data, type=list[BucketMarks])
    except msgspec.MsgspecError as error:
        raise DamagedRecordError(f"{where}: the marks of applied pushes cannot be read: {error}") from error
    named = np.sort(np.array([bucket for each in marks for bucket in each.buckets], np.int64))
    if not np.array_equal(named, answered) or sum(each.with_dense for each in marks) != 1:
        raise DamagedRecordError(
            f"{where}: the marks of applied pushes name {len(named)} buckets, the part answers for {len(answered)}; "
            "each of those must be named once, and so must the dense parameters; use an older record"
        )
    return marks


def encode_marks(marks: list[BucketMarks]) -> bytes:
    """For `PartWriter.write_marks`."""
    return msgspec.msgpack.encode(marks)
