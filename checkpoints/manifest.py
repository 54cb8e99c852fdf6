"""The manifest of a checkpoint record: the file that makes a folder of parts a record, written last."""

from __future__ import annotations

import math
from enum import StrEnum

import msgspec
import xxhash

from elastrec.checkpoints.errors import DamagedRecordError
from elastrec.checkpoints.parts import DenseSlice, PartManifest
from elastrec.checkpoints.summary import DenseSummary, ModelSummary
from elastrec.platform.specs.errors import CheckpointError

MANIFEST = "manifest.json"
FORMAT_VERSION = 1


class RecordKind(StrEnum):
    """Why a record was made."""

    PERIODIC = "periodic"
    FINAL = "final"


class Contents(StrEnum):
    """What a record holds of the model. Only `full` is written today; a reader refuses what it does not know."""

    FULL = "full"


class RecordManifest(msgspec.Struct, frozen=True, kw_only=True):
    """All that a reader must know of a record.

    Attributes:
        step: what the master counts, by custom samples trained; orders the records of one term of one job.
        term: of the master that committed it; 0: of a master before there were terms.
        interval_start, interval_end: ISO 8601 bounds of the data that the job trains on; empty when unknown.
        positions_file: object with the shard states, opaque JSON; `positions_checksum` is its xxh3-64.
        attributes: free text for people and for later rooms.
    """

    format_version: int
    job_name: str
    job_id: str
    kind: RecordKind
    contents: Contents
    step: int
    generation: int
    interval_start: str
    interval_end: str
    created_unix_seconds: float
    virtual_buckets: int
    model: ModelSummary
    positions_file: str
    positions_bytes: int
    positions_checksum: int
    parts: list[PartManifest]
    attributes: dict[str, str] = {}
    term: int = 0

    @property
    def rows(self) -> dict[str, int]:
        """Rows by table, over all parts; a table without rows yet has 0."""
        totals = {table.name: 0 for table in self.model.tables}
        for part in self.parts:
            for table in part.tables:
                totals[table.name] = totals.get(table.name, 0) + table.rows
        return totals

    @property
    def size_bytes(self) -> int:
        return sum(part.size_bytes for part in self.parts) + self.positions_bytes


class _Envelope(msgspec.Struct, frozen=True):
    checksum: str
    manifest: msgspec.Raw


def encode_manifest(manifest: RecordManifest) -> bytes:
    """The manifest with its own checksum (xxh3-64 of the inner JSON bytes)."""
    inner = msgspec.json.encode(manifest)
    return msgspec.json.encode(_Envelope(xxhash.xxh3_64_hexdigest(inner), msgspec.Raw(inner)))


def decode_manifest(data: bytes, where: str) -> RecordManifest:
    """Reads what `encode_manifest` wrote.

    Raises:
        DamagedRecordError: damaged or something else.
        CheckpointError: of a newer format.
    """
    try:
        envelope = msgspec.json.decode(data, type=_Envelope)
        inner = bytes(envelope.manifest)
        if xxhash.xxh3_64_hexdigest(inner) != envelope.checksum:
            raise DamagedRecordError(f"{where}: the manifest is damaged (checksum differs)")
        version = msgspec.json.decode(inner, type=dict[str, msgspec.Raw]).get("format_version", msgspec.Raw(b"null"))
        if bytes(version) != str(FORMAT_VERSION).encode():
            raise CheckpointError(
                f"{where}: format_version {bytes(version).decode()} is not allowed; allowed: {FORMAT_VERSION}; "
                "read it with the version of elastrec that wrote it"
            )
        return msgspec.json.decode(inner, type=RecordManifest)
    except msgspec.MsgspecError as error:
        raise DamagedRecordError(f"{where}: the manifest cannot be read: {error}") from error


def check_parts(parts: list[PartManifest], virtual_buckets: int, generation: int, where: str) -> list[DenseSummary]:
    """That the parts together are one model of one generation: nothing missing, nothing twice.

    Returns the dense layout.

    Raises:
        CheckpointError: names the first contradiction.
    """
    names = [part.name for part in parts]
    if not parts:
        raise CheckpointError(f"{where}: a record needs at least one part")
    if doubled := sorted({name for name in names if names.count(name) > 1}):
        raise CheckpointError(f"{where}: the parts {doubled} came more than once")
    if others := {part.name: part.generation for part in parts if part.generation != generation}:
        raise CheckpointError(f"{where}: the record is of generation {generation}, but the parts are of {others}")
    _check_buckets(parts, virtual_buckets, where)
    slices: dict[str, list[tuple[DenseSlice, str]]] = {}
    for part in parts:
        for dense in part.dense:
            slices.setdefault(dense.name, []).append((dense, part.name))
    layout = [_whole(name, found, where) for name, found in slices.items()]
    _check_dense_ranges(parts, sum(math.prod(dense.shape) for dense in layout), where)
    return layout


def _check_buckets(parts: list[PartManifest], virtual_buckets: int, where: str) -> None:
    """Each bucket is answered for by exactly one part, which alone may hold rows of it."""
    owners: dict[int, str] = {}
    for part in parts:
        for bucket in part.buckets or ():
            if not 0 <= bucket < virtual_buckets:
                raise CheckpointError(
                    f"{where}: part {part.name} has bucket {bucket}; allowed: 0 to {virtual_buckets - 1}"
                )
            other = owners.setdefault(bucket, part.name)
            if other != part.name:
                raise CheckpointError(f"{where}: bucket {bucket} is in part {other} and in part {part.name}")
        for table in part.tables:
            if strange := [bucket for bucket in table.buckets if owners.get(bucket) != part.name]:
                raise CheckpointError(
                    f"{where}: part {part.name} has rows of table {table.name} in bucket {strange[0]}, for which it "
                    "does not answer"
                )
    missing = [bucket for bucket in range(virtual_buckets) if bucket not in owners]
    if missing:
        raise CheckpointError(
            f"{where}: no part answers for {len(missing)} of {virtual_buckets} buckets, first: {missing[0]}; parts: "
            f"{[part.name for part in parts]}"
        )


def _check_dense_ranges(parts: list[PartManifest], elements: int, where: str) -> None:
    """Each element of the dense parameters is answered for by exactly one part."""
    ranges = [(part.dense_range, part.name) for part in parts if part.dense_range is not None]
    if not ranges and not elements:
        return
    position = 0
    for (start, end), name in sorted(ranges):
        if start != position or end < start:
            raise CheckpointError(
                f"{where}: part {name} answers for the dense elements {start} to {end}, but the parts before it end "
                f"at {position}"
            )
        position = end
    if position != elements:
        raise CheckpointError(
            f"{where}: the parts answer for {position} of {elements} elements of the dense parameters"
        )


def _whole(name: str, found: list[tuple[DenseSlice, str]], where: str) -> DenseSummary:
    shapes = {dense.shape for dense, _ in found}
    if len(shapes) > 1:
        raise CheckpointError(f"{where}: dense parameter {name} has the shapes {sorted(shapes)} in different parts")
    shape = shapes.pop()
    position, last = 0, "nobody"
    # Empty slices say nothing about coverage.
    for dense, part in sorted(((d, p) for d, p in found if d.length), key=lambda item: item[0].start):
        if dense.start != position:
            what = "missing" if dense.start > position else "written twice"
            raise CheckpointError(
                f"{where}: of dense parameter {name} the elements between {min(position, dense.start)} and "
                f"{max(position, dense.start)} are {what} (parts {last}, {part})"
            )
        position, last = dense.start + dense.length, part
    if position != math.prod(shape):
        raise CheckpointError(
            f"{where}: dense parameter {name} of shape {shape} has only {position} of {math.prod(shape)} elements"
        )
    return DenseSummary(name=name, shape=shape)
