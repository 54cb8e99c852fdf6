"""Marks: by bucket, the offset up to which each split of the training data is applied, so that a push counts once.

A push covers all buckets that its server owns, virtual and dense, including buckets without rows in it. So all buckets
that have been on one server from the beginning have equal marks: they share one *table* of them. Buckets from another
server or from a record have a table of their own, and keep it until it equals another one. A push that is new to some
tables only is applied to their buckets alone.

A split needs one offset while it is trained and one bit afterwards. Attempts are not distinguished: a split has the
same rows in the same order in each of them, cut at the same offsets as long as batches have one size. Locks, clocks,
input and output do not belong here.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
import numpy as np

from elastrec.trainers.parameter_server.messages import WHOLE, Origin, SplitKey

Array = np.ndarray[Any, Any]


class StreamMarks(msgspec.Struct, frozen=True):
    """Marks of one stream.

    Attributes:
        whole_below: all splits with lower numbers are applied completely.
        whole: bit i of byte j, from the lowest: split `whole_below + 8 j + i` is.
        offsets: of other splits by number: pushes that end at or before the offset are applied.
    """

    stream: str
    whole_below: int = 0
    whole: bytes = b""
    offsets: dict[int, int] = {}


class BucketMarks(msgspec.Struct, frozen=True):
    """Equal marks of some buckets.

    Attributes:
        buckets: numbers of virtual buckets; dense_buckets: of dense buckets.
        streams: ordered by name.
    """

    buckets: list[int]
    dense_buckets: list[int]
    streams: list[StreamMarks]


class _Whole:
    """A set of splits' numbers, one bit each, without bits for those below the lowest missing one."""

    def __init__(self, below: int = 0, bits: bytes = b"") -> None:
        self.below, self.bits = below, bytearray(bits)
        self._strip()

    def __contains__(self, number: int) -> bool:
        place = number - self.below
        return place < 0 or (place >> 3 < len(self.bits) and bool(self.bits[place >> 3] >> (place & 7) & 1))

    @property
    def end(self) -> int:
        """The end: no number from here on is in the set."""
        return self.below + 8 * len(self.bits)

    def add(self, number: int) -> None:
        if number in self:
            return
        place = number - self.below
        if place >> 3 >= len(self.bits):
            self.bits.extend(bytes((place >> 3) + 1 - len(self.bits)))
        self.bits[place >> 3] |= 1 << (place & 7)
        self._strip()

    def _strip(self) -> None:
        full = len(self.bits) - len(self.bits.lstrip(b"\xff"))
        if full:
            del self.bits[:full]
            self.below += 8 * full


class _Table:
    """Marks of some buckets, all streams."""

    def __init__(self, streams: Iterable[StreamMarks] = ()) -> None:
        self._whole: dict[str, _Whole] = {}
        self._offsets: dict[SplitKey, int] = {}
        for stream in streams:
            self._whole[stream.stream] = _Whole(stream.whole_below, stream.whole)
            self._offsets.update({(stream.stream, number): offset for number, offset in stream.offsets.items()})

    def offset(self, split: SplitKey) -> int:
        offset = self._offsets.get(split)
        if offset is not None:
            return offset
        whole = self._whole.get(split[0])
        return WHOLE if whole is not None and split[1] in whole else -1

    def advance(self, split: SplitKey, offset: int) -> None:
        """Pushes up to this offset are applied; WHOLE: all."""
        if self.offset(split) >= offset:
            return
        if offset < WHOLE:
            self._offsets[split] = offset
        else:
            self._offsets.pop(split, None)
            self._whole.setdefault(split[0], _Whole()).add(split[1])

    def values(self) -> list[StreamMarks]:
        streams = sorted({*self._whole, *(stream for stream, _ in self._offsets)})
        return [
            StreamMarks(
                stream=stream,
                whole_below=(whole := self._whole.get(stream, _Whole())).below,
                whole=bytes(whole.bits),
                offsets={number: at for (name, number), at in sorted(self._offsets.items()) if name == stream},
            )
            for stream in streams
        ]

    @staticmethod
    def least(tables: Sequence[_Table]) -> _Table:
        """The lowest offset of each split."""
        found = _Table()
        for stream in {stream for table in tables for stream in table._whole}:
            numbers = [table._whole.get(stream, _Whole()) for table in tables]
            below = min(whole.below for whole in numbers)
            if below:
                found._whole[stream] = _Whole(below)
            for number in range(below, max(whole.end for whole in numbers)):
                found.advance((stream, number), min(table.offset((stream, number)) for table in tables))
        for split in {split for table in tables for split in table._offsets}:
            found.advance(split, min(table.offset(split) for table in tables))
        return found


def least(marks: Sequence[Sequence[StreamMarks]]) -> list[StreamMarks]:
    """The marks that hold for all of several: of each split the lowest offset. Of no marks: none."""
    return _Table.least([_Table(streams) for streams in marks]).values() if marks else []


class Marks:
    """Marks of the buckets of one server.

    Args:
        owned: [V] bool, the server's virtual buckets; dense_owned: [B] bool, its dense buckets.
        known: their marks; a bucket that is in none of them has none, and buckets of other servers are ignored.
    """

    def __init__(self, owned: Array, dense_owned: Array, known: Sequence[BucketMarks] = ()) -> None:
        # Dense bucket k has the index V + k.
        self._owned, self._rows = np.concatenate((owned, dense_owned)), len(owned)
        self._tables = [_Table(), *(_Table(marks.streams) for marks in known)]
        self._table_of = np.zeros(len(self._owned), np.int32)
        for number, marks in enumerate(known, start=1):
            self._table_of[marks.buckets] = number
            self._table_of[[self._rows + bucket for bucket in marks.dense_buckets]] = number
        self._join()

    def offset(self, split: SplitKey) -> int:
        """Offset up to which pushes are applied to all buckets; -1: none, WHOLE: all."""
        return min(table.offset(split) for table in self._tables)

    def lacking(self, origin: Origin) -> Array | None:
        """[V + B] bool, the virtual and then the dense buckets to which a push is not applied; None: all of them."""
        lack = [table.offset(origin.split) < origin.end for table in self._tables]
        return None if all(lack) else self._owned & np.array(lack)[self._table_of]

    def repeated_rows(self, origin: Origin) -> int:
        """Applied rows of an unapplied push, after another division into minibatches."""
        before = (table.offset(origin.split) for table in self._tables)
        return max((offset - origin.begin for offset in before if origin.begin < offset < origin.end), default=0)

    def advance(self, origin: Origin) -> None:
        """Records that a push is applied."""
        self._advance(origin.split, WHOLE if origin.is_last else origin.end)

    def close(self, split: SplitKey, end: int) -> None:
        """Records that a split ends with the push that ends at `end`, if that push is applied."""
        if end <= self.offset(split) < WHOLE:
            self._advance(split, WHOLE)

    def _advance(self, split: SplitKey, offset: int) -> None:
        for table in self._tables:
            table.advance(split, offset)
        if len(self._tables) > 1:
            self._join()

    def values(self) -> list[BucketMarks]:
        """All marks, for a record or a move."""
        return [
            BucketMarks(
                buckets=np.flatnonzero(mine[: self._rows]).tolist(),
                dense_buckets=np.flatnonzero(mine[self._rows :]).tolist(),
                streams=table.values(),
            )
            for number, table in enumerate(self._tables)
            for mine in [(self._table_of == number) & self._owned]
        ]

    def _join(self) -> None:
        """Merges equal tables and drops tables without buckets."""
        values = [table.values() for table in self._tables]
        used = np.unique(self._table_of[self._owned]).tolist() or [0]
        first = {number: next(other for other in used if values[other] == values[number]) for number in used}
        kept = sorted(set(first.values()))
        place = np.zeros(len(values), np.int32)
        for number in used:
            place[number] = kept.index(first[number])
        self._table_of = place[self._table_of]
        self._tables = [self._tables[number] for number in kept]
