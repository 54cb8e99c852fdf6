"""The manifest of a checkpoint record: the file that makes a folder of parts a record, written last."""

from __future__ import annotations

from enum import StrEnum

import msgspec
import xxhash

from elastrec.checkpoints.errors import DamagedRecordError
from elastrec.checkpoints.parts import PartManifest
from elastrec.checkpoints.summary import ModelSummary
from elastrec.platform.specs.errors import CheckpointError
from elastrec.platform.specs.text.decoders import json_decoder

MANIFEST = "manifest.json"
FORMAT_VERSION = 3
READABLE_FORMATS = (1, 2, FORMAT_VERSION)
"""Format 1: a section per virtual bucket and table, without versions. Format 2: all rows as columns."""


class RecordKind(StrEnum):
    """Why a record was made."""

    PERIODIC = "periodic"
    FINAL = "final"


class Contents(StrEnum):
    """The contents of a record; a reader refuses unknown values."""

    FULL = "full"
    DELTA = "delta"  # of some buckets only the changes since its base


class RecordManifest(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that a reader needs to know about a record.

    Attributes:
        step: the master's counter, usually trained samples; orders the records of one term of one job.
        term: of the master that committed it; 0: of a version without terms.
        interval_start, interval_end: ISO 8601 bounds of the data that the job trains on; empty when unknown.
        positions_file: object with the shard states, opaque JSON; `positions_checksum` is its xxh3-64.
        base: name of the record on which a delta builds, in the same folder as this one; empty: none.
        attributes: text for people and for other rooms.
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
    base: str = ""

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


_envelopes, _manifests = json_decoder(_Envelope), json_decoder(RecordManifest)


def encode_manifest(manifest: RecordManifest) -> bytes:
    """The manifest with its own checksum (xxh3-64 of the inner JSON bytes)."""
    inner = msgspec.json.encode(manifest)
    return msgspec.json.encode(_Envelope(xxhash.xxh3_64_hexdigest(inner), msgspec.Raw(inner)))


def decode_manifest(data: bytes, where: str) -> RecordManifest:
    """Reads the bytes of `encode_manifest`.

    Raises:
        DamagedRecordError: the bytes are damaged or something else.
        CheckpointError: the manifest has a newer format.
    """
    try:
        envelope = _envelopes.decode(data)
        inner = bytes(envelope.manifest)
        if xxhash.xxh3_64_hexdigest(inner) != envelope.checksum:
            raise DamagedRecordError(f"{where}: the manifest is damaged (checksum differs)")
        version = msgspec.json.decode(inner, type=dict[str, msgspec.Raw]).get("format_version", msgspec.Raw(b"null"))
        if bytes(version) not in [str(number).encode() for number in READABLE_FORMATS]:
            raise CheckpointError(
                f"{where}: format_version {bytes(version).decode()} is not allowed; allowed: "
                f"{', '.join(map(str, READABLE_FORMATS))}; read it with the version of elastrec that wrote it"
            )
        return _manifests.decode(inner)
    except msgspec.MsgspecError as error:
        raise DamagedRecordError(f"{where}: the manifest cannot be read: {error}") from error
