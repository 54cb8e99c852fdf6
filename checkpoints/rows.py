"""What buckets hold, as it is read from a record: columns over many buckets, whatever format it was written in."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from elastrec.checkpoints.errors import DamagedRecordError
from elastrec.checkpoints.quantized import dequantized
from elastrec.checkpoints.sections import SectionEntry, SectionKind

Array = np.ndarray[Any, Any]
Arrays = dict[str, Array]

_MINUTES = (1 << 23) - 1
"""Format 1 keeps so many low bits of a candidate's minute, 16 years."""


@dataclass(frozen=True)
class BucketRows:
    """Rows, candidates or deleted ids of some buckets of one table group; a bucket may go on in a later one.

    Attributes:
        where: the part that holds them, for messages.
        tables: names of the group's tables.
        buckets, counts: [b] int32, int64: how many entries of the columns each bucket has, one after the other.
        columns: [n, ...] each: `ids` int64 and `tables`, numbers in `tables`; of rows `versions` uint32, `values`
            [n, D] float32, and where they were kept `state` [n, S] float32 and `last_seen` uint32, seconds since the
            epoch; of candidates `sightings` and `last_seen`.
    """

    kind: SectionKind
    where: str
    tables: Sequence[str]
    buckets: Array
    counts: Array
    columns: Arrays

    def __len__(self) -> int:
        return int(self.counts.sum())

    @property
    def bucket_of_entry(self) -> Array:
        """[n] int32."""
        return np.repeat(self.buckets, self.counts)

    def of_buckets(self, buckets: Array | None) -> BucketRows:
        """The entries of these buckets; all for None."""
        if buckets is None:
            return self
        kept = np.isin(self.buckets, buckets)
        if kept.all():
            return self
        entries = np.repeat(kept, self.counts)
        columns = {name: column[entries] for name, column in self.columns.items()}
        return BucketRows(self.kind, self.where, self.tables, self.buckets[kept], self.counts[kept], columns)

    def entries(self, chosen: Array) -> Arrays:
        """The columns of chosen entries, a mask [n] or numbers; the columns themselves where the mask is all true."""
        if chosen.dtype == np.bool_ and chosen.all():
            return self.columns
        return {name: column[chosen] for name, column in self.columns.items()}


def chunk(entry: SectionEntry, arrays: Arrays, tables: Sequence[str], where: str) -> BucketRows:
    """A section of rows, candidates or deleted ids.

    Raises:
        DamagedRecordError: its arrays contradict each other.
    """
    arrays = dequantized(arrays, entry.attributes, f"{where}: section {entry.key}")
    rows = BucketRows(entry.key.kind, where, tables, entry.buckets, entry.counts, arrays)
    total = len(rows)
    is_odd = len(rows.buckets) != len(rows.counts) or bool((rows.counts < 0).any())
    if is_odd or any(len(column) != total for column in arrays.values()):
        raise DamagedRecordError(f"{where}: section {entry.key} has columns of other lengths than its buckets say")
    if total and int(arrays["tables"].max()) >= len(tables):
        raise DamagedRecordError(f"{where}: section {entry.key} names table {int(arrays['tables'].max())} of {tables}")
    return rows


def of_first_format(entry: SectionEntry, arrays: Arrays, created: float, where: str) -> Iterator[BucketRows]:
    """The rows, and then the candidates, of one bucket of one table as format 1 has it.

    Args:
        created: seconds since the epoch when the record was made; candidates' minutes are counted back from it.
    """
    table, buckets = [entry.key.name], np.array([entry.key.bucket], np.int32)

    def of(kind: SectionKind, columns: Arrays) -> BucketRows:
        length = len(columns["ids"])
        columns = {
            **columns,
            "ids": columns["ids"].astype(np.int64),
            "tables": np.zeros(length, np.uint16),
            "versions": np.zeros(length, np.uint32),
        }
        return BucketRows(kind, where, table, buckets, np.array([length], np.int64), columns)

    waiting = {"candidate_ids", "candidate_sightings", "candidate_minutes"}
    yield of(SectionKind.ROWS, {name: array for name, array in arrays.items() if name not in waiting})
    if waiting <= arrays.keys():
        minute = int(created) // 60
        ago = (minute - arrays["candidate_minutes"].astype(np.int64)) & _MINUTES
        # It may have been seen at the end of that minute.
        seen = np.maximum((minute - ago) * 60 + 59, 0).astype(np.uint32)
        columns = {"ids": arrays["candidate_ids"], "sightings": arrays["candidate_sightings"], "last_seen": seen}
        yield of(SectionKind.CANDIDATES, columns)
