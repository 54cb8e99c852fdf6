"""Checkpoint records: model, optimiser and shard states of one moment, complete or not there at all.

A record is a folder `{store}/{job name}/records/{step:012d}-{job}-{random}/`. Servers write immutable parts into it in
parallel; the master then writes the shard states and, last, the manifest. A folder without a valid manifest is torn:
readers skip it. `{job}` is 8 hexadecimal digits of the job id's hash, so that one listing tells whose a folder is,
torn ones included.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import structlog
import xxhash

from elastrec.checkpoints.errors import DamagedRecordError, StoreError
from elastrec.checkpoints.manifest import (
    FORMAT_VERSION,
    MANIFEST,
    Contents,
    RecordKind,
    RecordManifest,
    check_parts,
    decode_manifest,
    encode_manifest,
)
from elastrec.checkpoints.parts import (
    ArrayEntry,
    Attribute,
    PartManifest,
    SectionEntry,
    SectionKey,
    SectionKind,
    read_index,
)
from elastrec.checkpoints.store import Store, open_store
from elastrec.checkpoints.summary import summarize
from elastrec.platform.specs.errors import CheckpointError
from elastrec.platform.specs.job import TrainingJob

_log = structlog.get_logger(__name__)

READ_AHEAD_BYTES = 16 * 2**20
"""Neighbouring sections are fetched together up to this size: a request to S3 costs as long as about 1 MiB."""

Arrays = dict[str, np.ndarray[Any, Any]]


def records_folder(job_name: str) -> str:
    """Key of the folder with all records of a job name."""
    return f"{job_name}/records"


def job_digits(job_id: str) -> str:
    """The middle of a record's name: whose it is."""
    return xxhash.xxh32_hexdigest(job_id.encode())


def new_record_uri(store: str | Store, job_name: str, job_id: str, step: int) -> str:
    """URI of a folder for a new record; nobody else gets the same. Nothing is written yet."""
    if step < 0:
        raise CheckpointError(f"step: {step} is not allowed; allowed: 0 and above")
    opened = open_store(store) if isinstance(store, str) else store
    name = f"{step:012d}-{job_digits(job_id)}-{uuid.uuid4().hex[:8]}"
    return opened.child_uri(f"{records_folder(job_name)}/{name}")


def utc(moment: str) -> str:
    """ISO 8601 text in UTC, so that texts sort as moments do; an empty text stays empty.

    Raises:
        CheckpointError: it is no ISO 8601 moment.
    """
    if not moment:
        return ""
    try:
        parsed = datetime.fromisoformat(moment)
    except ValueError:
        raise CheckpointError(f"moment: {moment!r} is not allowed; allowed: ISO 8601, 2026-01-31T00:00Z") from None
    # Python writes microseconds only when there are some, and "...00.5" sorts wrongly beside "...00+".
    aware = parsed.replace(tzinfo=UTC) if parsed.tzinfo is None else parsed.astimezone(UTC)
    return aware.isoformat(timespec="microseconds")


def commit_record(
    uri: str,
    parts: Iterable[PartManifest],
    positions: bytes,
    *,
    job: TrainingJob,
    job_id: str,
    kind: RecordKind | str,
    step: int,
    generation: int,
    interval: tuple[str, str] = ("", ""),
    attributes: dict[str, str] | None = None,
    created_unix_seconds: float | None = None,
    term: int = 0,
    check: Callable[[], object] = lambda: None,
) -> RecordManifest:
    """Makes a record of a folder whose parts are all written: checks them, writes the positions, then the manifest.

    Args:
        uri: from `new_record_uri`.
        positions: shard states as the master wants them back, opaque.
        interval: ISO 8601 start and end of the job's data; without an offset they are UTC.
        check: called right before the manifest is written; what it raises leaves the folder without one.

    Raises:
        CheckpointError: a part is missing or damaged, parts contradict each other or leave a hole, or the folder is
            already a record.
    """
    store = open_store(uri)
    found = list(parts)
    dense = check_parts(found, job.spec.resources.virtual_buckets, generation, uri)
    for part in found:
        size = store.size(part.file)
        if size != part.size_bytes:
            raise CheckpointError(
                f"{uri}/{part.file}: the part has {size} bytes, its writer reported {part.size_bytes}"
            )
    positions_file = f"positions-{uuid.uuid4().hex[:8]}.json"
    store.put(positions_file, positions)
    manifest = RecordManifest(
        format_version=FORMAT_VERSION,
        job_name=job.metadata.name,
        job_id=job_id,
        kind=RecordKind(kind),
        contents=Contents.FULL,
        step=step,
        generation=generation,
        interval_start=utc(interval[0]),
        interval_end=utc(interval[1]),
        created_unix_seconds=time.time() if created_unix_seconds is None else created_unix_seconds,
        virtual_buckets=job.spec.resources.virtual_buckets,
        model=summarize(job, dense),
        positions_file=positions_file,
        positions_bytes=len(positions),
        positions_checksum=xxhash.xxh3_64_intdigest(positions),
        parts=found,
        attributes=dict(attributes or {}),
        term=term,
    )
    check()
    _put_manifest(store, encode_manifest(manifest))
    _log.info(
        "record committed", record=uri, kind=manifest.kind, step=step, generation=generation,
        parts=len(found), rows=sum(manifest.rows.values()), size_bytes=manifest.size_bytes,
    )  # fmt: skip
    return manifest


def _put_manifest(store: Store, data: bytes) -> None:
    if store.conditional_writes():
        written = store.put_if_absent(MANIFEST, data)
    else:
        # Safe all the same: the folder's name is random and one master commits it once. Said, not hidden.
        _log.warning("store without conditional puts", store=store.uri, consequence="a record's name alone is its lock")
        written = not store.exists(MANIFEST)
        if written:
            store.put(MANIFEST, data)
    if not written:
        raise CheckpointError(f"{store.uri}: the folder is already a record; take a new one from new_record_uri")


class Record:
    """An opened record: its manifest, and its arrays by section. Thread-safe; arrays of local records are memory maps.

    Attributes:
        uri: the record's folder.
    """

    def __init__(self, store: Store, manifest: RecordManifest) -> None:
        self.uri = store.uri
        self.manifest = manifest
        self._store = store
        self._sections: dict[SectionKey, tuple[PartManifest, SectionEntry]] = {}
        for part in manifest.parts:
            for entry in read_index(store, part):
                if entry.key in self._sections:
                    raise DamagedRecordError(
                        f"{self.uri}: section {entry.key} is in {self._sections[entry.key][0].file} and in {part.file}"
                    )
                self._sections[entry.key] = (part, entry)

    def positions(self) -> bytes:
        """The shard states given to `commit_record`.

        Raises:
            CheckpointError: missing or damaged.
        """
        data = self._store.get(self.manifest.positions_file)
        if xxhash.xxh3_64_intdigest(data) != self.manifest.positions_checksum:
            raise DamagedRecordError(f"{self.uri}/{self.manifest.positions_file}: damaged (checksum differs)")
        return data

    def sections(
        self, kind: SectionKind | None = None, name: str | None = None, buckets: Iterable[int] | None = None
    ) -> list[SectionKey]:
        """Keys of the sections that match everything given, sorted."""
        wanted = None if buckets is None else set(buckets)
        return sorted(
            key
            for key in self._sections
            if (kind is None or key.kind == kind)
            and (name is None or key.name == name)
            and (wanted is None or key.bucket in wanted)
        )

    def attributes(self, key: SectionKey) -> dict[str, Attribute]:
        return dict(self._entry(key)[1].attributes)

    def _entry(self, key: SectionKey) -> tuple[PartManifest, SectionEntry]:
        try:
            return self._sections[key]
        except KeyError:
            raise CheckpointError(f"{self.uri}: the record has no section {key}") from None

    def read(self, key: SectionKey) -> Arrays:
        """One section's arrays, read-only, each checked against its checksum.

        Raises:
            CheckpointError: no such section, or an array is damaged.
        """
        return next(arrays for _, arrays in self.read_many([key]))

    def read_many(self, keys: Iterable[SectionKey]) -> Iterator[tuple[SectionKey, Arrays]]:
        """Sections in the order of their bytes, neighbours fetched together; every array is checked.

        Memory in use stays near READ_AHEAD_BYTES (or one section, if larger) as long as the caller keeps nothing.

        Raises:
            CheckpointError: no such section, or an array is damaged.
        """
        entries = [self._entry(key) for key in dict.fromkeys(keys)]
        entries.sort(key=lambda item: (item[0].file, item[1].span))
        for part, group in _neighbours(entries):
            start = min(entry.span[0] for entry in group)
            end = max(entry.span[1] for entry in group)
            data = self._bytes(part, start, end)
            for entry in group:
                yield entry.key, {array.name: self._array(part, entry, array, data, start) for array in entry.arrays}

    def _bytes(self, part: PartManifest, start: int, end: int) -> np.ndarray[Any, Any]:
        path = self._store.local_path(part.file)
        if path is not None:
            return _mapped(path, part.size_bytes)[start:end]
        return np.frombuffer(self._store.get_range(part.file, start, end - start), dtype=np.uint8)

    def _array(
        self, part: PartManifest, section: SectionEntry, entry: ArrayEntry, data: np.ndarray[Any, Any], start: int
    ) -> np.ndarray[Any, Any]:
        # An empty array has no bytes, so its offset may lie outside what was fetched.
        first = entry.offset - start if entry.nbytes else 0
        raw = data[first : first + entry.nbytes]
        if len(raw) != entry.nbytes or xxhash.xxh3_64_intdigest(raw.data) != entry.checksum:
            raise DamagedRecordError(
                f"{self.uri}/{part.file}: array {entry.name!r} of section {section.key} is damaged "
                f"(checksum differs, bytes {entry.offset} to {entry.offset + entry.nbytes}); use an older record"
            )
        if entry.nbytes == 0:
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
            known = [dense.name for dense in self.manifest.model.dense]
            raise CheckpointError(f"{self.uri}: the record has no dense parameter {parameter!r}; it has {known}")
        keys = self.sections(SectionKind.DENSE, parameter)
        slices = dict(self.read_many(keys))
        ordered = [slices[key] for key in keys]
        whole: Arrays = {}
        for name, first in ordered[0].items():
            if first.ndim == 0:
                whole[name] = first
            else:
                whole[name] = np.concatenate([arrays[name] for arrays in ordered]).reshape(shape)
        return whole


def _mapped(path: Path, expected_bytes: int) -> np.ndarray[Any, Any]:
    try:
        data = np.memmap(path, dtype=np.uint8, mode="r")
    except (FileNotFoundError, ValueError) as error:
        raise DamagedRecordError(f"{path}: the part cannot be read: {error}") from error
    except OSError as error:
        raise StoreError(f"could not read {path}: {error.strerror or error}") from error
    if len(data) != expected_bytes:
        raise DamagedRecordError(f"{path}: the part has {len(data)} bytes, the record says {expected_bytes}")
    return data.view(np.ndarray)


def _neighbours(
    entries: list[tuple[PartManifest, SectionEntry]],
) -> Iterator[tuple[PartManifest, list[SectionEntry]]]:
    """Runs of sections that lie closely behind each other in one part, each run at most READ_AHEAD_BYTES long."""
    group: list[SectionEntry] = []
    current: PartManifest | None = None
    start = end = 0
    for part, entry in entries:
        first, last = entry.span
        near = part is current and first - end <= 2**20 and last - start <= READ_AHEAD_BYTES
        if (first, last) == (0, 0) and part is current:
            near, first, last = True, end, end
        if group and not near:
            assert current is not None
            yield current, group
            group = []
        if not group:
            current, start, end = part, first, last
        group.append(entry)
        end = max(end, last)
    if group:
        assert current is not None
        yield current, group


def open_record(uri: str) -> Record:
    """Opens a complete record: manifest, sizes and indices are checked now, each array when it is read.

    Raises:
        CheckpointError: the folder is no record, is torn, or is damaged; says where.
    """
    store = open_store(uri)
    return Record(store, read_manifest(store))


def read_manifest(store: Store) -> RecordManifest:
    """The manifest of the record that a store is rooted at.

    Raises:
        CheckpointError: none, or damaged.
    """
    found = store.get_versioned(MANIFEST)
    if found is None:
        raise DamagedRecordError(f"{store.uri}: no complete checkpoint record is there ({MANIFEST} is missing)")
    return decode_manifest(found[0], f"{store.uri}/{MANIFEST}")


__all__ = [
    "Arrays",
    "Record",
    "RecordKind",
    "RecordManifest",
    "commit_record",
    "job_digits",
    "new_record_uri",
    "open_record",
    "read_manifest",
    "records_folder",
    "utc",
]
