"""Describes the contents of a record for people: its tables and parameters, and one row by its id.

To find a row, only its bucket is read, which depends on table and id, by the hash with which parameter servers place
rows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec
import xxhash

from elastrec.checkpoints.manifest import RecordKind
from elastrec.checkpoints.record import Record
from elastrec.checkpoints.sections import SectionKind
from elastrec.checkpoints.summary import SegmentSummary, TableSummary
from elastrec.platform.specs.errors import CheckpointError
from elastrec.platform.specs.optimizers import OptimizerKind, row_state

_MASK = 2**64 - 1


class TableFacts(msgspec.Struct, frozen=True, kw_only=True):
    """One embedding table of a record; `size_bytes` with optimiser state and bookkeeping."""

    name: str
    rows: int
    size_bytes: int
    dimension: int
    segments: list[SegmentSummary]
    hash_size: int | None
    features: list[str]


class DenseFacts(msgspec.Struct, frozen=True, kw_only=True):
    """One dense parameter of a record."""

    name: str
    shape: tuple[int, ...]
    elements: int


class RecordFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The outline of a record."""

    uri: str
    job_name: str
    job_id: str
    kind: RecordKind
    step: int
    generation: int
    interval: tuple[str, str]
    created_unix_seconds: float
    architecture: str
    virtual_buckets: int
    parts: int
    size_bytes: int
    rows: int
    tables: list[TableFacts]
    dense_optimizer: OptimizerKind
    dense_elements: int
    dense: list[DenseFacts]


class RowFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The entry of one id in a record.

    Attributes:
        found: `row`; `candidate`: seen, but not often enough to have a row; `absent`.
        optimizer_state: by name; empty unless it is a row.
        sightings: of a candidate; None for a row, which does not count them any more.
        last_seen_unix_seconds: None if the table does not record it; for a candidate in a record of format 1, the end
        of the minute.
    """

    table: str
    id: int
    bucket: int
    found: str
    values: list[float] = []
    optimizer_state: dict[str, list[float]] = {}
    sightings: int | None = None
    last_seen_unix_seconds: int | None = None


def record_facts(record: Record) -> RecordFacts:
    """The outline of a record, from its manifest."""
    manifest = record.manifest
    sizes: dict[str, int] = {}
    for part in manifest.parts:
        for table in part.tables:
            sizes[table.name] = sizes.get(table.name, 0) + table.size_bytes
    dense = [DenseFacts(name=d.name, shape=d.shape, elements=math.prod(d.shape)) for d in manifest.model.dense]
    return RecordFacts(
        uri=record.uri,
        job_name=manifest.job_name,
        job_id=manifest.job_id,
        kind=manifest.kind,
        step=manifest.step,
        generation=manifest.generation,
        interval=(manifest.interval_start, manifest.interval_end),
        created_unix_seconds=manifest.created_unix_seconds,
        architecture=manifest.model.architecture,
        virtual_buckets=manifest.virtual_buckets,
        parts=len(manifest.parts),
        size_bytes=manifest.size_bytes,
        rows=sum(manifest.rows.values()),
        tables=[
            TableFacts(
                name=table.name,
                rows=manifest.rows[table.name],
                size_bytes=sizes.get(table.name, 0),
                dimension=table.dimension,
                segments=table.row_segments,
                hash_size=table.hash_size,
                features=table.features,
            )
            for table in manifest.model.tables
        ],
        dense_optimizer=manifest.model.dense_optimizer,
        dense_elements=sum(parameter.elements for parameter in dense),
        dense=dense,
    )


def bucket_of(row_id: int, table: str, virtual_buckets: int) -> int:
    """The virtual bucket of an id (signed or unsigned 64 bits): splitmix64(id ^ salt(table)) mod virtual_buckets."""
    z = ((row_id & _MASK) ^ xxhash.xxh3_64_intdigest(table.encode())) + 0x9E3779B97F4A7C15 & _MASK
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 & _MASK
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB & _MASK
    return (z ^ (z >> 31)) % virtual_buckets


def find_row(record: Record, table: str, row_id: int) -> RowFacts:
    """The row of one id; only its bucket is read.

    Args:
        row_id: the encoded id, modulo the table's `hash_size` if it has one.

    Raises:
        CheckpointError: no such table, or the bucket is damaged.
    """
    manifest = record.manifest
    summary = manifest.model.table(table)
    if summary is None:
        tables = ", ".join(known_table.name for known_table in manifest.model.tables)
        raise CheckpointError(f"{record.uri}: table {table!r} is not in the record; allowed: {tables}")
    bucket = bucket_of(row_id, table, manifest.virtual_buckets)
    for link in reversed(record.chain()):
        row, is_whole = _in_record(link, table, row_id, bucket, summary)
        if row is not None or is_whole:
            return row or RowFacts(table=table, id=row_id, bucket=bucket, found="absent")
    return RowFacts(table=table, id=row_id, bucket=bucket, found="absent")


def _in_record(
    record: Record, table: str, row_id: int, bucket: int, summary: TableSummary
) -> tuple[RowFacts | None, bool]:
    """The entry of an id in one record (None if there is none), and whether the record contains the whole bucket."""
    kinds, is_deleted = (SectionKind.ROWS, SectionKind.CANDIDATES, SectionKind.DELETED), False
    is_whole = not any(share.first.any() for share in record.shares([bucket]) if table in share.tables)
    for rows in record.rows(table, [bucket], kinds):
        columns = rows.columns
        is_it = (columns["ids"].astype("int64") == row_id) & (columns["tables"] == rows.tables.index(table))
        places = is_it.nonzero()[0]
        if not len(places):
            continue
        if rows.kind is SectionKind.DELETED:
            is_deleted = True
            continue
        place, seconds = int(places[0]), columns.get("last_seen")
        last_seen = None if seconds is None else int(seconds[place])
        if rows.kind is SectionKind.CANDIDATES:
            candidate = RowFacts(
                table=table,
                id=row_id,
                bucket=bucket,
                found="candidate",
                sightings=int(columns["sightings"][place]),
                last_seen_unix_seconds=last_seen,
            )
            return candidate, is_whole
        state = columns["state"][place].tolist() if "state" in columns else []
        row = RowFacts(
            table=table,
            id=row_id,
            bucket=bucket,
            found="row",
            values=columns["values"][place].tolist(),
            optimizer_state=_named_state(summary.row_segments, state),
            last_seen_unix_seconds=last_seen,
        )
        return row, is_whole
    return (RowFacts(table=table, id=row_id, bucket=bucket, found="absent") if is_deleted else None), is_whole


def _named_state(segments: Sequence[SegmentSummary], state: list[float]) -> dict[str, list[float]]:
    named, at = {}, 0
    for segment in segments:
        for name, width in row_state(segment.optimizer, segment.width):
            named[name if len(segments) == 1 else f"{segment.name}.{name}"] = state[at : at + width]
            at += width
    return named
