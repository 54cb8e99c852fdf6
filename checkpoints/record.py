"""Reading a record: its manifest, what it holds of buckets, its dense parameters, the shard states."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import xxhash

from elastrec.checkpoints.errors import DamagedRecordError, StoreError
from elastrec.checkpoints.manifest import MANIFEST, RecordManifest, decode_manifest
from elastrec.checkpoints.parts import PartManifest, read_index
from elastrec.checkpoints.quantized import stored_names
from elastrec.checkpoints.rows import Arrays, BucketRows, chunk, of_first_format
from elastrec.checkpoints.sections import ArrayEntry, SectionEntry, SectionKind
from elastrec.checkpoints.stores.store import Store, open_store
from elastrec.platform.specs.errors import CheckpointError

READ_AHEAD_BYTES = 16 * 2**20
"""Neighbouring sections are fetched together up to this size, by all readers of a share together: a request to S3 costs
as long as about 1 MiB."""

KINDS = (SectionKind.DELETED, SectionKind.ROWS, SectionKind.CANDIDATES)
"""In the order in which they are taken in: what is gone may have come back."""

_LONGEST_CHAIN = 1001

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Share:
    """What one part holds of one table group, or of some buckets of it.

    Attributes:
        group: number in the part's groups; of a part of format 1 always 0, for all tables.
        tables: names; empty for format 1, whose sections name their table.
        buckets: those that are read, None: all that the part holds.
        answered: [b] those of them that the part answers for; format 1: none.
        first, last: [b] versions of these, see BucketRun.
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
        """What it holds of some of the buckets that it answers for: a mask [b]."""
        if chosen.all():
            return self
        answered = self.answered[chosen]
        return replace(self, buckets=answered, answered=answered, first=self.first[chosen], last=self.last[chosen])

    def _entries(self, kind: SectionKind) -> list[SectionEntry]:
        entries = [entry for entry in self.record.index(self.part) if entry.key.kind is kind]
        if kind is SectionKind.TABLE:
            buckets = None if self.buckets is None else set(self.buckets.tolist())
            return [entry for entry in entries if buckets is None or entry.key.bucket in buckets]
        of_group = [entry for entry in entries if entry.key.name == str(self.group)]
        return [entry for entry in of_group if self.buckets is None or np.isin(entry.buckets, self.buckets).any()]

    def row_counts(self) -> tuple[Array, Array]:
        """Buckets with rows, [b] int64 each once, and how many; from the part's index alone. Format 1: none."""
        entries = self._entries(SectionKind.ROWS)
        buckets = np.concatenate([np.empty(0, np.int32), *(entry.buckets for entry in entries)]).astype(np.int64)
        counts = np.concatenate([np.empty(0, np.int64), *(entry.counts for entry in entries)])
        if self.buckets is not None:
            chosen = np.isin(buckets, self.buckets)
            buckets, counts = buckets[chosen], counts[chosen]
        once, places = np.unique(buckets, return_inverse=True)
        return once, np.bincount(places, counts, len(once)).astype(np.int64)

    def read(self, kinds: Sequence[SectionKind] = KINDS, columns: Sequence[str] | None = None) -> Iterator[BucketRows]:
        """What the buckets hold, chunk by chunk: all of one kind before the next.

        Memory in use stays near twice READ_AHEAD_BYTES: the caller still has the last chunk of what was fetched before.

        Args:
            columns: that are fetched, `ids` and `tables` among them; None: all.

        Raises:
            DamagedRecordError: the part, its index or an array is damaged.
        """
        if not self.part.groups:
            created = self.record.manifest.created_unix_seconds
            for entry, arrays in self.record.read(self.part, self._entries(SectionKind.TABLE)):
                for rows in of_first_format(entry, arrays, created, self.where):
                    if rows.kind in kinds:
                        yield rows
            return
        for kind in kinds:
            entries = self._entries(kind)
            if columns is not None:
                entries = [entry.with_arrays(stored_names(columns)) for entry in entries]
            yield from self._read(entries, READ_AHEAD_BYTES)

    def _read(self, entries: Sequence[SectionEntry], ahead_bytes: int) -> Iterator[BucketRows]:
        for entry, arrays in self.record.read(self.part, entries, ahead_bytes):
            yield chunk(entry, arrays, self.tables, self.where).of_buckets(self.buckets)

    def readers(self, kind: SectionKind, count: int) -> list[Iterator[BucketRows]]:
        """As `read` of one kind, by at most so many readers side by side, each of chunks that follow each other.

        All of them together fetch no more at once than one reader would, or a section each. Not for a part of format 1.
        """
        entries = sorted(self._entries(kind), key=lambda entry: entry.span)
        ends = [len(entries) * number // count for number in range(count + 1)]
        runs = [entries[start:end] for start, end in itertools.pairwise(ends) if start < end]
        return [self._read(run, READ_AHEAD_BYTES // len(runs)) for run in runs]


class Record:
    """An opened record. Thread-safe. Indices of parts are read when something of theirs is.

    Attributes:
        uri: the record's folder.
    """

    def __init__(
        self, store: Store, manifest: RecordManifest, through: Callable[[Store], Store] = lambda store: store
    ) -> None:
        self.uri = store.uri
        self.manifest = manifest
        self._store, self._through = store, through
        self._indices: dict[str, list[SectionEntry]] = {}
        self._lock = threading.Lock()

    def positions(self) -> bytes:
        """The shard states given to `commit_record`.

        Raises:
            CheckpointError: missing or damaged.
        """
        data = self._store.get(self.manifest.positions_file)
        if xxhash.xxh3_64_intdigest(data) != self.manifest.positions_checksum:
            raise DamagedRecordError(f"{self.uri}/{self.manifest.positions_file}: damaged (checksum differs)")
        return data

    def index(self, part: PartManifest) -> list[SectionEntry]:
        """The sections of a part.

        Raises:
            DamagedRecordError: the part is missing, of another length, or its index is damaged.
        """
        with self._lock:
            sections = self._indices.get(part.file)
        if sections is None:
            try:
                sections = read_index(self._store, part)
            except DamagedRecordError:
                if not self._store.distrust(part.file):
                    raise
                sections = read_index(self._store, part)
            with self._lock:
                self._indices[part.file] = sections
        return sections

    def check(self) -> None:
        """Looks at sizes and indices of all parts, at no array.

        Raises:
            DamagedRecordError: a part is missing, of another length, or its index is damaged.
        """
        for part in self.manifest.parts:
            self.index(part)

    def verify(self) -> int:
        """Reads every array and checks it, of the records that it builds on, too; returns how many sections there are.

        Raises:
            DamagedRecordError: something is damaged.
        """
        self.positions()
        return sum(
            1
            for record in self.chain()
            for part in record.manifest.parts
            for _ in record.read(part, record.index(part))
        )

    def chain(self) -> list[Record]:
        """The records that together hold what this one stands for: a full one first, then deltas, this one last.

        Raises:
            DamagedRecordError: one of them is not there, or its manifest is damaged.
        """
        records = [self]
        while name := records[0].manifest.base:
            records.insert(0, open_record(f"{self.uri.rpartition('/')[0]}/{name}", self._through))
            if len(records) > _LONGEST_CHAIN:
                raise DamagedRecordError(f"{self.uri}: builds on more than {_LONGEST_CHAIN} records, or on itself")
        return records

    def shares(self, buckets: Iterable[int] | Array | None = None) -> list[Share]:
        """What the parts hold of these buckets; all for None. No index is read yet."""
        numbers = None if buckets is None else np.unique(np.fromiter(buckets, np.int64))
        shares = []
        for part in self.manifest.parts:
            for number, group in enumerate(part.groups):
                versions = group.versions()
                chosen = np.ones(len(versions.buckets), np.bool_)
                if numbers is not None:
                    chosen = np.isin(versions.buckets, numbers)
                if chosen.any():
                    answered = versions.buckets[chosen]
                    shares.append(
                        Share(
                            self, part, number, group.tables, None if chosen.all() else answered, answered,
                            versions.first[chosen], versions.last[chosen],
                        )
                    )  # fmt: skip
            if not part.groups:
                nothing = np.empty(0, np.int64)
                shares.append(Share(self, part, 0, (), numbers, nothing, nothing, nothing))
        return shares

    def marks(self, part: PartManifest) -> bytes | None:
        """What `PartWriter.write_marks` was given; None: the part was written without.

        Raises:
            DamagedRecordError: the part, its index or an array is damaged.
        """
        entries = [entry for entry in self.index(part) if entry.key.kind is SectionKind.MARKS]
        return next((arrays["bytes"].tobytes() for _, arrays in self.read(part, entries)), None)

    def rows(
        self, table: str, buckets: Iterable[int] | None = None, kinds: Sequence[SectionKind] = (SectionKind.ROWS,)
    ) -> Iterator[BucketRows]:
        """What buckets hold, of all tables that lie with this one in a group; of a delta what is in it.

        Raises:
            DamagedRecordError: a part, its index or an array is damaged.
        """
        for share in self.shares(buckets):
            if not share.tables or table in share.tables:
                yield from (rows for rows in share.read(kinds) if table in rows.tables)

    def read(
        self, part: PartManifest, entries: Iterable[SectionEntry], ahead_bytes: int | None = None
    ) -> Iterator[tuple[SectionEntry, Arrays]]:
        """Sections of a part in the order of their bytes, neighbours fetched together; every array is checked.

        Args:
            ahead_bytes: of neighbours, at most; default READ_AHEAD_BYTES.

        Raises:
            DamagedRecordError: an array is damaged, or the part is shorter than it was.
        """
        for start, end, group in _neighbours(entries, READ_AHEAD_BYTES if ahead_bytes is None else ahead_bytes):
            data = self._bytes(part, start, end)
            for entry in group:
                try:
                    arrays = self._arrays(part, entry, data, start)
                except DamagedRecordError:
                    if not self._store.distrust(part.file):
                        raise
                    data = self._bytes(part, start, end)
                    arrays = self._arrays(part, entry, data, start)
                yield entry, arrays

    def _arrays(self, part: PartManifest, entry: SectionEntry, data: Array, start: int) -> Arrays:
        return {array.name: self._array(part, entry, array, data, start) for array in entry.arrays}

    def _bytes(self, part: PartManifest, start: int, end: int) -> Array:
        try:
            # Into memory that is free again after its rows: pages of a mapped file would count as the process's.
            return np.frombuffer(self._store.get_range(part.file, start, end - start), dtype=np.uint8)
        except (DamagedRecordError, StoreError):
            raise
        except CheckpointError as error:
            raise DamagedRecordError(f"{self.uri}/{part.file}: the part cannot be read: {error}") from error

    def _array(self, part: PartManifest, section: SectionEntry, entry: ArrayEntry, data: Array, start: int) -> Array:
        size = entry.nbytes
        # An empty array has no bytes, so its offset may lie outside what was fetched.
        first = entry.offset - start if size else 0
        raw = data[first : first + size]
        if len(raw) != size or xxhash.xxh3_64_intdigest(raw.data) != entry.checksum:
            raise DamagedRecordError(
                f"{self.uri}/{part.file}: array {entry.name!r} of section {section.key} is damaged "
                f"(checksum differs, bytes {entry.offset} to {entry.offset + size}); use an older record"
            )
        if size == 0:
            return np.frombuffer(b"", dtype=entry.dtype).reshape(entry.shape)
        return raw.view(entry.dtype).reshape(entry.shape)

    def dense(self, parameter: str) -> Arrays:
        """One dense parameter put together from its slices: `value` and optimiser state.

        Returns:
            arrays of the parameter's whole shape; arrays that were scalars in every slice stay scalars (the first
            slice's).

        Raises:
            CheckpointError: no such parameter, or a slice is damaged.
        """
        shape = next((dense.shape for dense in self.manifest.model.dense if dense.name == parameter), None)
        if shape is None:
            names = [dense.name for dense in self.manifest.model.dense]
            raise CheckpointError(f"{self.uri}: the record has no dense parameter {parameter!r}; it has {names}")
        slices = dict(self.dense_runs(parameter))
        ordered = [slices[start] for start in sorted(slices)]
        parameters: Arrays = {}
        for name, first in ordered[0].items():
            if first.ndim == 0:
                parameters[name] = first
            else:
                parameters[name] = np.concatenate([arrays[name] for arrays in ordered]).reshape(shape)
        return parameters

    def dense_runs(self, parameter: str, within: tuple[int, int] | None = None) -> Iterator[tuple[int, Arrays]]:
        """The runs of one dense parameter, each whole: its first element and arrays.

        Args:
            within: first element and one past the last; runs that hold none of these are not read. None: all.

        Raises:
            DamagedRecordError: a run is damaged.
        """
        for part in self.manifest.parts:
            starts = {
                run.start
                for run in part.dense
                if run.name == parameter and (within is None or within[0] - run.length < run.start < within[1])
            }
            if starts:
                entries = [
                    entry
                    for entry in self.index(part)
                    if (entry.key.kind, entry.key.name) == (SectionKind.DENSE, parameter) and entry.key.bucket in starts
                ]
                yield from ((entry.key.bucket, arrays) for entry, arrays in self.read(part, entries))


def chain_shares(chain: Sequence[Record], buckets: Iterable[int] | Array | None = None) -> Iterator[Share]:
    """What records that build on each other hold of buckets, in the order in which it is taken in.

    What a later record holds whole is left out of those before it.
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


def _neighbours(entries: Iterable[SectionEntry], most_bytes: int) -> Iterator[tuple[int, int, list[SectionEntry]]]:
    """Runs of sections that lie closely behind each other, each run at most so many bytes or one section long.

    With each run its first byte in the part, and one past its last.
    """
    group: list[SectionEntry] = []
    start = end = 0
    for (first, last), entry in sorted(((entry.span, entry) for entry in entries), key=lambda one: one[0]):
        if group and last and not (first - end <= 2**20 and last - start <= most_bytes):
            yield start, end, group
            group = []
        if not group:
            start, end = first, last
        group.append(entry)
        end = max(end, last)
    if group:
        yield start, end, group


def open_record(uri: str, through: Callable[[Store], Store] = lambda store: store) -> Record:
    """Opens a complete record: the manifest is checked now, an index and each array when it is read.

    Args:
        through: by which its parts are read, and those of the records that it builds on (`flash.MemoryStore`).

    Raises:
        CheckpointError: the folder is no record, or its manifest is damaged; says where.
    """
    store = open_store(uri)
    return Record(through(store), read_manifest(store), through)


def read_manifest(store: Store) -> RecordManifest:
    """The manifest of the record that a store is rooted at.

    Raises:
        CheckpointError: none, or damaged.
    """
    data = store.get_if_exists(MANIFEST)
    if data is None:
        raise DamagedRecordError(f"{store.uri}: no complete checkpoint record is there ({MANIFEST} is missing)")
    return decode_manifest(data, f"{store.uri}/{MANIFEST}")
