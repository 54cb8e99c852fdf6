"""Reads the contents of table groups and buckets from parts of records, chunk by chunk."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from elastrec.checkpoints.parts import PartManifest
from elastrec.checkpoints.rows import Arrays, BucketRows, chunk, of_first_format, stored_names
from elastrec.checkpoints.sections import SectionEntry, SectionKind

if TYPE_CHECKING:
    from elastrec.checkpoints.record import Record

Array = np.ndarray[Any, Any]

KINDS = (SectionKind.DELETED, SectionKind.ROWS, SectionKind.CANDIDATES)
"""The order in which they must be applied, because a deleted id may have been added again."""


@dataclass(frozen=True)
class Share:
    """The contents of one table group in one part, or of some of its buckets.

    Attributes:
        group: number in the part's groups; in parts of format 1 always 0, for all tables.
        tables: names; empty for format 1, whose sections name their table.
        buckets: buckets to be read; None: all in the part.
        answered: [b] those of them that the part covers; format 1: none.
        first, last: [b] their versions, see BucketRun.
    """

    record: Record
    part: PartManifest
    group: int
    tables: Sequence[str]
    buckets: Array | None
    answered: Array
    first: Array
    last: Array

    @property
    def where(self) -> str:
        return f"{self.record.uri}/{self.part.file}"

    def of(self, chosen: Array) -> Share:
        """The share in some of its covered buckets, given as a mask [b]."""
        if chosen.all():
            return self
        answered = self.answered[chosen]
        return replace(self, buckets=answered, answered=answered, first=self.first[chosen], last=self.last[chosen])

    def entries(self, kind: SectionKind) -> list[SectionEntry]:
        """The sections of one kind that contain entries of the buckets."""
        entries = [entry for entry in self.record.index(self.part) if entry.key.kind is kind]
        if kind is SectionKind.TABLE:
            buckets = None if self.buckets is None else set(self.buckets.tolist())
            return [entry for entry in entries if buckets is None or entry.key.bucket in buckets]
        of_group = [entry for entry in entries if entry.key.name == str(self.group)]
        return [entry for entry in of_group if self.buckets is None or np.isin(entry.buckets, self.buckets).any()]

    def row_counts(self) -> tuple[Array, Array]:
        """Distinct buckets with rows, [b] int64, and their numbers of rows, from the part's index. Empty for format
        1."""
        entries = self.entries(SectionKind.ROWS)
        buckets = np.concatenate([np.empty(0, np.int32), *(entry.buckets for entry in entries)]).astype(np.int64)
        counts = np.concatenate([np.empty(0, np.int64), *(entry.counts for entry in entries)])
        if self.buckets is not None:
            chosen = np.isin(buckets, self.buckets)
            buckets, counts = buckets[chosen], counts[chosen]
        once, places = np.unique(buckets, return_inverse=True)
        return once, np.bincount(places, counts, len(once)).astype(np.int64)

    def read(self, kinds: Sequence[SectionKind] = KINDS, columns: Sequence[str] | None = None) -> Iterator[BucketRows]:
        """The contents of the buckets, chunk by chunk: all of one kind before the next.

        Uses about twice READ_AHEAD_BYTES of memory, because the caller still holds the last chunk of the previous
        fetch.

        Args:
            columns: to be fetched, including `ids` and `tables`; None: all.

        Raises:
            DamagedRecordError: the part, its index or an array is damaged.
        """
        if not self.part.groups:
            created = self.record.manifest.created_unix_seconds
            for entry, arrays in self.record.read(self.part, self.entries(SectionKind.TABLE)):
                for rows in of_first_format(entry, arrays, created, self.where):
                    if rows.kind in kinds:
                        yield rows
            return
        for kind in kinds:
            entries = self.entries(kind)
            if columns is not None:
                entries = [entry.with_arrays(stored_names(columns)) for entry in entries]
            yield from self._chunks(self.record.read(self.part, entries))

    def _chunks(self, sections: Iterable[tuple[SectionEntry, Arrays]]) -> Iterator[BucketRows]:
        for entry, arrays in sections:
            yield chunk(entry, arrays, self.tables, self.where).of_buckets(self.buckets)

    def readers(self, kind: SectionKind, count: int) -> list[Iterator[BucketRows]]:
        """Like `read` of one kind, with at most the given number of concurrent readers, each for consecutive chunks.

        Together they fetch no more at once than one reader would, or one section each. Not for parts of format 1.
        """
        runs = _runs(self.entries(kind), count)
        return [self._chunks(self.record.read(self.part, run, len(runs))) for run in runs]

    def streams(
        self,
        entries: Iterable[SectionEntry],
        count: int,
        enter: Callable[[SectionEntry, Array], tuple[int, Callable[[], None]]],
    ) -> list[Iterator[None]]:
        """Readers like `readers`, of sections of any kinds; see `Record.stream`."""
        runs = _runs(entries, count)
        return [self.record.stream(self.part, run, enter, len(runs)) for run in runs]


def _runs(entries: Iterable[SectionEntry], count: int) -> list[list[SectionEntry]]:
    """At most `count` lists of consecutive sections."""
    ordered = sorted(entries, key=lambda entry: entry.span)
    ends = [len(ordered) * number // count for number in range(count + 1)]
    return [ordered[start:end] for start, end in itertools.pairwise(ends) if start < end]


def chain_shares(chain: Sequence[Record], buckets: Iterable[int] | Array | None = None) -> Iterator[Share]:
    """The shares of a chain of records in buckets, in the order in which they must be applied.

    Buckets that a later record contains completely are left out of the records before it.
    """
    numbers = None if buckets is None else np.unique(np.fromiter(buckets, np.int64))
    last_full: dict[tuple[str, ...], Array] = {}
    for number, record in enumerate(chain):
        for share in record.shares(numbers):
            last = last_full.setdefault(tuple(share.tables), np.zeros(record.manifest.virtual_buckets, np.int64))
            last[share.answered[share.first == 0]] = number
    for number, record in enumerate(chain):
        for share in record.shares(numbers):
            if not share.tables:
                yield share
            elif len((needed := share.of(last_full[tuple(share.tables)][share.answered] <= number)).answered):
                yield needed
