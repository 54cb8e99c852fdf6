"""Marks of applied pushes in records: their contents in a part, and their use by a server that restores buckets.

Marks are in the part with their buckets. They are only valid if the splits begin at the positions of the same record:
these may be before the marks, because a push is applied before its rows are reported, but never after them. Rows and
requests do not belong here.
"""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np

from elastrec.checkpoints import DamagedRecordError, PartManifest, Record
from elastrec.platform.specs.text.decoders import msgpack_decoder
from elastrec.trainers.parameter_server.serving.marks import BucketMarks, least

Array = np.ndarray[Any, Any]
# Made at import: while one thread restores, another one may read the marks that a server sends with its buckets.
_decoder = msgpack_decoder(list[BucketMarks])


def marks_of(record: Record, buckets: Array, dense_buckets: Array, *, has_same_buckets: bool) -> list[BucketMarks]:
    """The marks of these virtual and dense buckets. Of a base and its deltas, use the last record.

    If the job has other buckets than the record, all of them get one set of marks, the least: some rows of a push may
    then count twice for buckets that had them, but none is lost for the others.

    Args:
        buckets, dense_buckets: numbers of the job's.
        has_same_buckets: whether the record and the job number buckets equally; otherwise each row may have been in any
            bucket.

    Raises:
        DamagedRecordError: a part or its marks are damaged.
    """
    parts = {share.part.file: share.part for share in record.shares(buckets if has_same_buckets else None)}
    of_dense = {part.file: part for part in record.manifest.parts if np.isin(part.dense_buckets, dense_buckets).any()}
    found = [marks for part in (parts | of_dense).values() for marks in _marks_in(record, part)]
    if not has_same_buckets:
        return [BucketMarks(buckets.tolist(), dense_buckets.tolist(), least([marks.streams for marks in found]))]
    taken = [
        BucketMarks(_both(marks.buckets, buckets), _both(marks.dense_buckets, dense_buckets), marks.streams)
        for marks in found
    ]
    return [marks for marks in taken if marks.buckets or marks.dense_buckets]


def _both(held: list[int], needed: Array) -> list[int]:
    numbers: list[int] = np.intersect1d(np.array(held, np.int64), needed).tolist()
    return numbers


def _marks_in(record: Record, part: PartManifest) -> list[BucketMarks]:
    """All marks of a part; a part without marks has no applied push."""
    answered = np.unique(np.concatenate([np.empty(0, np.int64), *(group.buckets() for group in part.groups)]))
    data = record.marks(part)
    if data is None:
        return [BucketMarks(answered.tolist(), part.dense_buckets, [])]
    where = f"{record.uri}/{part.file}"
    try:
        marks = _decoder.decode(data)
    except msgspec.MsgspecError as error:
        raise DamagedRecordError(f"{where}: the marks of applied pushes cannot be read: {error}") from error
    named = sorted(bucket for each in marks for bucket in each.buckets)
    dense = sorted(bucket for each in marks for bucket in each.dense_buckets)
    if named != answered.tolist() or dense != sorted(part.dense_buckets):
        raise DamagedRecordError(
            f"{where}: the marks of applied pushes name {len(named)} virtual and {len(dense)} dense buckets, the "
            f"part answers for {len(answered)} and {len(part.dense_buckets)}; each of those must be named "
            "once; use an older record"
        )
    return marks


def encode_marks(marks: list[BucketMarks]) -> bytes:
    """For `PartWriter.write_marks`."""
    return msgspec.msgpack.encode(marks)
