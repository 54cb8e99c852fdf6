"""Reads records: the manifest, rows by bucket, dense parameters and shard states."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import xxhash

from elastrec.checkpoints.errors import DamagedRecordError, StoreError
from elastrec.checkpoints.manifest import MANIFEST, RecordManifest, decode_manifest
from elastrec.checkpoints.parts import PartManifest, read_index
from elastrec.checkpoints.rows import Arrays, BucketRows
from elastrec.checkpoints.sections import ArrayEntry, SectionEntry, SectionKind
from elastrec.checkpoints.shares import Share
from elastrec.checkpoints.stores.store import Store, open_store
from elastrec.platform.specs.errors import CheckpointError

READ_AHEAD_BYTES = 16 * 2**20
"""Adjacent sections are fetched together up to this size, which all concurrent readers share: a request to S3 takes as
long as reading about 1 MiB."""

_LONGEST_CHAIN = 1001

Array = np.ndarray[Any, Any]


class Record:
    """An opened record. Thread-safe. The index of a part is read at the first access to the part.

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

    @property
    def name(self) -> str:
        """The last part of the URI."""
        return self.uri.rpartition("/")[2]

    @property
    def base_uri(self) -> str:
        """URI of the record on which this one builds; empty: none."""
        return f"{self.uri.rpartition('/')[0]}/{self.manifest.base}" if self.manifest.base else ""

    def positions(self) -> bytes:
        """The shard states given to `commit_record`.

        Raises:
            DamagedRecordError: missing or damaged.
            StoreError: the store could not be asked.
        """
        data = self._store.get_if_exists(self.manifest.positions_file)
        if data is None:
            raise DamagedRecordError(f"{self.uri}/{self.manifest.positions_file}: the file is missing")
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
        """Checks sizes and indices of all parts, but no arrays.

        Raises:
            DamagedRecordError: a part is missing, of another length, or its index is damaged.
        """
        for part in self.manifest.parts:
            self.index(part)

    def chain(self) -> list[Record]:
        """The records that together make up this state: a full record first, then deltas, this one last.

        Raises:
            DamagedRecordError: one of them is missing, or its manifest is damaged.
        """
        records = [self]
        while uri := records[0].base_uri:
            with blamed_on(uri):
                records.insert(0, open_record(uri, self._through))
            if len(records) > _LONGEST_CHAIN:
                raise DamagedRecordError(f"{self.uri}: builds on more than {_LONGEST_CHAIN} records, or on itself")
        return records

    def shares(self, buckets: Iterable[int] | Array | None = None) -> list[Share]:
        """The shares of the parts in these buckets (None: all buckets). No index is read yet."""
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
        """The marks that `PartWriter.write_marks` wrote; None if the part has none.

        Raises:
            DamagedRecordError: the part, its index or an array is damaged.
        """
        entries = [entry for entry in self.index(part) if entry.key.kind is SectionKind.MARKS]
        return next((arrays["bytes"].tobytes() for _, arrays in self.read(part, entries)), None)

    def rows(
        self, table: str, buckets: Iterable[int] | None = None, kinds: Sequence[SectionKind] = (SectionKind.ROWS,)
    ) -> Iterator[BucketRows]:
        """Rows of buckets, for all tables in the group of this table; of a delta only its changes.

        Raises:
            DamagedRecordError: a part, its index or an array is damaged.
        """
        for share in self.shares(buckets):
            if not share.tables or table in share.tables:
                yield from (rows for rows in share.read(kinds) if table in rows.tables)

    def read(
        self, part: PartManifest, entries: Iterable[SectionEntry], readers: int = 1
    ) -> Iterator[tuple[SectionEntry, Arrays]]:
        """Reads sections of a part in the order of their bytes, adjacent ones together; every array is checked.

        Args:
            readers: number of concurrent readers, which share READ_AHEAD_BYTES.

        Raises:
            DamagedRecordError: an array is damaged, or the part is shorter than it was.
        """
        for start, end, group, data in self._fetched(part, entries, readers):
            for entry in group:
                try:
                    arrays = self._arrays(part, entry, data, start)
                except DamagedRecordError:
                    if not self._store.distrust(part.file):
                        raise
                    data = self._bytes(part, start, end)
                    arrays = self._arrays(part, entry, data, start)
                yield entry, arrays

    def stream(
        self,
        part: PartManifest,
        entries: Iterable[SectionEntry],
        enter: Callable[[SectionEntry, Array], tuple[int, Callable[[], None]]],
        readers: int = 1,
    ) -> Iterator[None]:
        """Reads sections of one array each in the order of `read`. Yields after each section.

        Args:
            enter: gets a section and its array, whose bytes may be damaged. It returns the xxh3-64 of the bytes that it
                has used, and a function, which is called if the array is intact. Otherwise `enter` is called again if
                there is another copy. So it can use bytes while they are in the processor's cache for the checksum.

        Raises:
            DamagedRecordError: as in `read`.
        """
        for start, end, group, data in self._fetched(part, entries, readers):
            for entry in group:
                (array,) = entry.arrays
                confirm = _entered(entry, _raw(array, data, start), enter)
                if confirm is None and self._store.distrust(part.file):
                    data = self._bytes(part, start, end)
                    confirm = _entered(entry, _raw(array, data, start), enter)
                if confirm is None:
                    raise self._damaged(part, entry, array)
                confirm()
                yield

    def _fetched(
        self, part: PartManifest, entries: Iterable[SectionEntry], readers: int
    ) -> Iterator[tuple[int, int, list[SectionEntry], Array]]:
        """The sections as `_neighbours` groups them, with their bytes."""
        for start, end, group in _neighbours(entries, READ_AHEAD_BYTES // readers):
            yield start, end, group, self._bytes(part, start, end)

    def _arrays(self, part: PartManifest, entry: SectionEntry, data: Array, start: int) -> Arrays:
        return {array.name: self._array(part, entry, array, data, start) for array in entry.arrays}

    def _bytes(self, part: PartManifest, start: int, end: int) -> Array:
        try:
            # Read into memory that is freed afterwards, because pages of a mapped file would count as memory of the
            # process.
            return np.frombuffer(self._store.get_range(part.file, start, end - start), dtype=np.uint8)
        except (DamagedRecordError, StoreError):
            raise
        except CheckpointError as error:
            raise DamagedRecordError(f"{self.uri}/{part.file}: the part cannot be read: {error}") from error

    def _array(self, part: PartManifest, section: SectionEntry, entry: ArrayEntry, data: Array, start: int) -> Array:
        raw = _raw(entry, data, start)
        if len(raw) != entry.nbytes or xxhash.xxh3_64_intdigest(raw.data) != entry.checksum:
            raise self._damaged(part, section, entry)
        return raw.view(entry.dtype).reshape(entry.shape)

    def _damaged(self, part: PartManifest, section: SectionEntry, entry: ArrayEntry) -> DamagedRecordError:
        return DamagedRecordError(
            f"{self.uri}/{part.file}: array {entry.name!r} of section {section.key} is damaged "
            f"(checksum differs, bytes {entry.offset} to {entry.offset + entry.nbytes}); use an older record"
        )

    def dense(self, parameter: str) -> Arrays:
        """One dense parameter, assembled from its slices: `value` and optimiser state.

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
        """The runs of one dense parameter, each with its first element and its arrays.

        Args:
            within: first element and one past the last; only runs with some of these are read, completely. None: all.

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


def _raw(entry: ArrayEntry, data: Array, start: int) -> Array:
    """An array's bytes among `data` [n] uint8, which begins at byte `start` of the part; fewer if it ends before."""
    # An empty array has no bytes, so its offset may lie outside what was fetched.
    size = entry.nbytes
    first = entry.offset - start if size else 0
    return data[first : first + size]


def _entered(
    section: SectionEntry, raw: Array, enter: Callable[[SectionEntry, Array], tuple[int, Callable[[], None]]]
) -> Callable[[], None] | None:
    """What `enter` returns for a section of one array with these bytes; None: they are damaged."""
    (entry,) = section.arrays
    if len(raw) != entry.nbytes:
        return None
    checksum, confirm = enter(section, raw.view(entry.dtype).reshape(entry.shape))
    return confirm if checksum == entry.checksum else None


def _neighbours(entries: Iterable[SectionEntry], most_bytes: int) -> Iterator[tuple[int, int, list[SectionEntry]]]:
    """Groups sections that are close together in the part; each run has at most the given bytes, or one section.

    Each run comes with its first byte in the part, and one past its last.
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


@contextlib.contextmanager
def blamed_on(uri: str) -> Iterator[None]:
    """Damage that is found in this block is that of the record with this URI: all records that build on it are
    unusable, too."""
    try:
        yield
    except DamagedRecordError as error:
        error.record = uri
        raise


def open_record(uri: str, through: Callable[[Store], Store] = lambda store: store) -> Record:
    """Opens a complete record: the manifest is checked now, an index and each array when it is read.

    Args:
        through: makes the stores from which the parts of the record and of its bases are read (`flash.MemoryStore`).

    Raises:
        CheckpointError: the folder is not a record, or its manifest is damaged.
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
