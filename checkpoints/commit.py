"""Commits checkpoint records: model, optimiser and shard states of one moment, either complete or invisible.

A record is a folder `{store}/{job name}/records/{step:012d}-{job}-{random}/`. Servers write immutable parts into it in
parallel; the master then writes the shard states and, last, the manifest. A folder without a valid manifest is torn:
readers skip it. `{job}` is 8 hexadecimal digits of the job id's hash, so that one listing shows whose a folder is,
torn ones included.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterable
from datetime import UTC, datetime

import structlog
import xxhash

from elastrec.checkpoints.completeness import check_base, check_parts, is_delta
from elastrec.checkpoints.manifest import (
    FORMAT_VERSION,
    MANIFEST,
    Contents,
    RecordKind,
    RecordManifest,
    encode_manifest,
)
from elastrec.checkpoints.parts import PartManifest
from elastrec.checkpoints.record import read_manifest
from elastrec.checkpoints.stores.store import Store, open_store
from elastrec.checkpoints.summary import summarize
from elastrec.platform.specs.errors import CheckpointError
from elastrec.platform.specs.job import TrainingJob

_log = structlog.get_logger(__name__)


def records_folder(job_name: str) -> str:
    """Key of the folder with all records of a job name."""
    return f"{job_name}/records"


def job_digits(job_id: str) -> str:
    """The middle of a record's name, which identifies the job."""
    return xxhash.xxh32_hexdigest(job_id.encode())


def new_record_uri(store: str | Store, job_name: str, job_id: str, step: int) -> str:
    """A unique URI of a folder for a new record. Nothing is written yet."""
    if step < 0:
        raise CheckpointError(f"step: {step} is not allowed; allowed: 0 and above")
    opened = open_store(store)
    name = f"{step:012d}-{job_digits(job_id)}-{uuid.uuid4().hex[:8]}"
    return opened.child_uri(f"{records_folder(job_name)}/{name}")


def utc(moment: str) -> str:
    """ISO 8601 text in UTC, whose alphabetical order is the order of time; an empty text stays empty.

    Raises:
        CheckpointError: the text is not an ISO 8601 moment.
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
    cut: str | None = None,
    base: str = "",
    check: Callable[[], object] = lambda: None,
) -> RecordManifest:
    """Completes a record after all of its parts were written: checks them, writes the positions, then the manifest.

    Args:
        uri: from `new_record_uri`.
        positions: shard states of the master, opaque.
        interval: ISO 8601 start and end of the job's data; without an offset they are UTC.
        cut: the save to which all parts must belong; None: any save, but the same for all.
        base: URI of the record on which the parts may build, in the same folder.
        check: called right before the manifest is written; if it raises, no manifest is written.

    Raises:
        CheckpointError: a part is missing or damaged, parts contradict each other or leave a gap, or the folder is
            already a record.
    """
    store = open_store(uri)
    all_parts = list(parts)
    dense = check_parts(
        all_parts, tables=job.spec.data.tables, virtual_buckets=job.spec.resources.virtual_buckets,
        generation=generation, cut=cut, where=uri,
    )  # fmt: skip
    changes = is_delta(all_parts)
    if changes:
        before = read_manifest(open_store(base)) if base else None
        same = before is not None and before.virtual_buckets == job.spec.resources.virtual_buckets
        base_parts = before.parts if before is not None and same else []
        check_base(all_parts, base_parts, job.spec.resources.virtual_buckets, uri, base)
        if base.rpartition("/")[0] != uri.rpartition("/")[0]:
            raise CheckpointError(f"{uri}: builds on {base}; allowed: a record in the same folder")
    for part in all_parts:
        size = store.size(part.file)
        if size != part.size_bytes:
            raise CheckpointError(
                f"{uri}/{part.file}: the part has {size} bytes, its writer reported {part.size_bytes}"
            )
    checksum = xxhash.xxh3_64_intdigest(positions)
    # Named after its content: a commit that is repeated, because its master was killed, leaves no second file, and one
    # with other positions damages none.
    positions_file = f"positions-{checksum:016x}.json"
    if store.size(positions_file) != len(positions):
        store.put(positions_file, positions)
    manifest = RecordManifest(
        format_version=FORMAT_VERSION,
        job_name=job.metadata.name,
        job_id=job_id,
        kind=RecordKind(kind),
        contents=Contents.DELTA if changes else Contents.FULL,
        step=step,
        generation=generation,
        interval_start=utc(interval[0]),
        interval_end=utc(interval[1]),
        created_unix_seconds=time.time() if created_unix_seconds is None else created_unix_seconds,
        virtual_buckets=job.spec.resources.virtual_buckets,
        model=summarize(job, dense),
        positions_file=positions_file,
        positions_bytes=len(positions),
        positions_checksum=checksum,
        parts=all_parts,
        attributes=dict(attributes or {}),
        term=term,
        base=base.rpartition("/")[2] if changes else "",
    )
    check()
    _put_manifest(store, encode_manifest(manifest))
    _log.info(
        "record committed", record=uri, kind=manifest.kind, step=step, generation=generation,
        parts=len(all_parts), rows=sum(manifest.rows.values()), size_bytes=manifest.size_bytes,
    )  # fmt: skip
    return manifest


def _put_manifest(store: Store, data: bytes) -> None:
    if store.conditional_writes():
        written = store.put_if_absent(MANIFEST, data)
    else:
        # Safe nevertheless, because the folder's name is random and one master commits it once; logged for the user.
        _log.warning("store without conditional puts", store=store.uri, consequence="a record's name alone is its lock")
        written = not store.exists(MANIFEST)
        if written:
            store.put(MANIFEST, data)
    if not written:
        raise CheckpointError(f"{store.uri}: the folder is already a record; take a new one from new_record_uri")
