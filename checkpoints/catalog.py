"""The records in a store: lists complete records, and deletes records that are not needed any more."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor

import structlog

from elastrec.checkpoints.commit import job_digits, records_folder, utc
from elastrec.checkpoints.errors import DamagedRecordError
from elastrec.checkpoints.manifest import MANIFEST, RecordKind, RecordManifest
from elastrec.checkpoints.predictions import delete_predictions
from elastrec.checkpoints.record import Record, read_manifest
from elastrec.checkpoints.stores.store import Store, open_store
from elastrec.checkpoints.terms import concluded_term, list_terms
from elastrec.platform.specs.errors import CheckpointError

_log = structlog.get_logger(__name__)
_PUBLICATION_SECONDS = 86_400.0
"""Time in which the model of a final record is expected to be published."""


def list_records(store: str | Store, job_name: str, job_id: str | None = None) -> list[tuple[str, RecordManifest]]:
    """(URI, manifest) of the complete records of a job name, newest first; torn ones are skipped and logged.

    Records are ordered by the end of the data interval, then by the job that wrote last, then by term, then by step. So
    a job that trains an old day again does not displace yesterday's record, and the order within a job does not depend
    on the clock, which may be set back. The record from which a term continues counts as a record of that term, so
    records that an older master commits later are not newer.
    """
    opened = open_store(store)
    names = _names(opened, job_name, job_id)
    with ThreadPoolExecutor(max_workers=8, thread_name_prefix="manifests") as pool:
        uris = [opened.child_uri(f"{records_folder(job_name)}/{name}") for name in names]
        complete = [item for item in pool.map(_complete, uris) if item is not None]
    by_name = {_name(uri): manifest for uri, manifest in complete}
    records = []
    for uri, manifest in complete:
        if job_id is not None and manifest.job_id != job_id:
            continue
        bases = _chain(manifest, by_name)
        if bases is None:
            _log.warning("checkpoint record skipped", record=uri, reason=f"{manifest.base}, its base, is not complete")
            continue
        records.append((uri, manifest))
    written: dict[tuple[str, str], float] = {}
    for _, manifest in records:
        data_and_job = (manifest.interval_end, manifest.job_id)
        written[data_and_job] = max(written.get(data_and_job, 0.0), manifest.created_unix_seconds)

    continued = _bases(opened, job_name, records)

    def age(item: tuple[str, RecordManifest]) -> tuple[str, float, str, int, int, float]:
        uri, manifest = item
        last = written[manifest.interval_end, manifest.job_id]
        term = max(manifest.term, continued.get(_name(uri), 0))
        return manifest.interval_end, last, manifest.job_id, term, manifest.step, manifest.created_unix_seconds

    return sorted(records, key=age, reverse=True)


def _chain(manifest: RecordManifest, by_name: Mapping[str, RecordManifest]) -> list[str] | None:
    """Names of the records on which a record builds, the nearest first; None if one of them is missing."""
    names: list[str] = []
    while name := manifest.base:
        if name not in by_name or name in names:
            return None
        names.append(name)
        manifest = by_name[name]
    return names


def _bases(store: Store, job_name: str, records: list[tuple[str, RecordManifest]]) -> dict[str, int]:
    """The highest term that continues from each record, by the record's name, which does not change when a store is
    moved.

    Only read for jobs with several records.
    """
    of_job = Counter(manifest.job_id for _, manifest in records)
    bases: dict[str, int] = {}
    for job_id in (job_id for job_id, count in of_job.items() if count > 1):
        for term in list_terms(store, job_name, job_id, after=1):
            bases[_name(term.base)] = term.term
    return bases


def _name(uri: str) -> str:
    return uri.rpartition("/")[2]


def _names(store: Store, job_name: str, job_id: str | None) -> list[str]:
    names = store.folders(records_folder(job_name))
    return [name for name in names if job_id is None or _is_of(name, job_id)]


def _is_of(name: str, job_id: str) -> bool:
    return name.split("-")[1:2] == [job_digits(job_id)]


def _complete(uri: str) -> tuple[str, RecordManifest] | None:
    store = open_store(uri)
    try:
        manifest = read_manifest(store)
        _check_sizes(store, manifest)
    except DamagedRecordError as error:
        _log.warning("checkpoint record skipped", record=uri, reason=str(error))
        return None
    return uri, manifest


def _check_sizes(store: Store, manifest: RecordManifest) -> None:
    """Raises DamagedRecordError if a part is missing or of another length."""
    for part in manifest.parts:
        if (size := store.size(part.file)) != part.size_bytes:
            raise DamagedRecordError(
                f"{store.uri}/{part.file}: the part has {size} bytes, the record says {part.size_bytes}"
            )


def _is_unusable(uri: str) -> bool:
    """Whether a periodic record with a readable manifest lacks bytes, its own or those on which it builds."""
    store = open_store(uri)
    try:
        manifest = read_manifest(store)
    except DamagedRecordError:
        return False
    if manifest.kind is not RecordKind.PERIODIC:
        return False
    try:
        _check_sizes(store, manifest)
    except DamagedRecordError:
        return True
    return bool(manifest.base) and not open_store(f"{uri.rpartition('/')[0]}/{manifest.base}").exists(MANIFEST)


def latest_record(
    store: str | Store,
    job_name: str,
    kind: RecordKind | str | None = None,
    *,
    job_id: str | None = None,
    interval_end_at_most: str | None = None,
) -> Record | None:
    """The newest record that is complete, else None; see `newest_records`."""
    return next(newest_records(store, job_name, kind, job_id=job_id, interval_end_at_most=interval_end_at_most), None)


def newest_records(
    store: str | Store,
    job_name: str,
    kind: RecordKind | str | None = None,
    *,
    job_id: str | None = None,
    interval_end_at_most: str | None = None,
) -> Iterator[Record]:
    """The complete records, newest first, in the order of `list_records`. Damaged ones are skipped and logged.

    Manifest, sizes and indices are checked here; arrays are checked when they are read.

    Args:
        interval_end_at_most: ISO 8601, UTC without an offset; leaves out records trained on later data, so that a
            re-run of an old day does not continue from the future.

    Raises:
        CheckpointError: the store could not be asked; that is no reason to start from an older record.
    """
    bound = None if interval_end_at_most is None else utc(interval_end_at_most)
    for uri, manifest in list_records(store, job_name, job_id):
        if kind is not None and manifest.kind != RecordKind(kind):
            continue
        if bound is not None and manifest.interval_end > bound:
            continue
        record = Record(open_store(uri), manifest)
        try:
            record.check()
        except DamagedRecordError as error:
            _log.warning("checkpoint record skipped", record=uri, reason=str(error))
        else:
            yield record


def prune(
    store: str | Store,
    job_name: str,
    job_id: str,
    keep: int,
    in_progress: Callable[[], Iterable[str]] = lambda: (),
    damaged: Iterable[str] = (),
    check: Callable[[], object] = lambda: None,
) -> list[str]:
    """Deletes a job's old and unusable periodic records, torn folders and unfinished objects; final records stay.

    Returns the URIs of the deleted folders.

    Args:
        keep: number of complete periodic records of this job that stay, the newest; records on which they build also
            stay.
        in_progress: returns the URIs of records that are being written, or were just written; they always stay, and
            so do records on which they build. Called before each deletion, because another record may have been begun
            since the store was listed.
        damaged: URIs of damaged records, which are deleted and do not count as kept.
        check: called before each deletion; an exception ends the pruning.

    Raises:
        CheckpointError: the store failed; earlier deletions are not undone.
    """
    if keep < 0:
        raise CheckpointError(f"keep: {keep} is not allowed; allowed: 0 and above")
    opened = open_store(store)
    bad = {open_store(uri).uri for uri in damaged}
    listed = list_records(opened, job_name, job_id)
    by_name = {_name(uri): manifest for uri, manifest in listed}
    chains = {uri: _chain(manifest, by_name) or [] for uri, manifest in listed}
    # Records that build on a damaged record are unusable, too.
    bad_names = {_name(uri) for uri in bad}
    bad |= {uri for uri, chain in chains.items() if bad_names & set(chain)}
    complete = [item for item in listed if item[0] not in bad]
    periodic = [uri for uri, manifest in complete if manifest.kind is RecordKind.PERIODIC]
    spared = {uri for uri, _ in complete} - set(periodic[keep:])
    needed = {name for uri in spared for name in chains[uri]}
    spared |= {uri for uri, _ in complete if _name(uri) in needed}
    folder, deleted = records_folder(job_name), []
    # A killed writer may have left only an unfinished object.
    unfinished = {key.removeprefix(f"{folder}/").partition("/")[0] for key in opened.unfinished(folder)}
    unfinished = {name for name in unfinished if _is_of(name, job_id)}
    names = {*_names(opened, job_name, job_id), *unfinished}
    # The newest complete records are deleted first, before the records on which they build.
    for name in [*sorted(names - by_name.keys()), *sorted(names & by_name.keys(), reverse=True)]:
        key = f"{folder}/{name}"
        uri = opened.child_uri(key)
        # An unreadable manifest may have a newer format, or the error may be temporary, so the record is not deleted.
        # One whose manifest is readable and whose parts have other sizes is never usable again.
        to_delete = uri in periodic or uri in bad
        if name in unfinished and name in by_name:
            # No process writes into a complete record; unfinished objects are from killed servers that wrote their
            # parts again, or from a killed master that committed it.
            check()
            opened.delete_unfinished(key)
        written = {open_store(other).uri for other in in_progress()}
        if uri in written or uri in spared or any(name in chains.get(other, ()) for other in written):
            continue
        if not to_delete and opened.exists(f"{key}/{MANIFEST}") and not _is_unusable(uri):
            continue
        # After the listing, because a master takes its term before it writes records.
        check()
        # Without its manifest a half-deleted record is torn, never complete with parts missing.
        opened.delete(f"{key}/{MANIFEST}")
        opened.delete_tree(key)
        deleted.append(uri)
    if deleted:
        _log.info("records pruned", job=job_name, job_id=job_id, keep=keep, deleted=deleted)
    return deleted


def prune_final(
    store: str | Store, job_name: str, keep: int, kept: Iterable[str] = (), check: Callable[[], object] = lambda: None
) -> list[str]:
    """Deletes old final records of a job name, whichever job has made them, and with the last one of a job its
    predictions. Returns the URIs of the deleted records.

    Args:
        keep: this number of records of the latest data stay, in the order of `list_records`, and as many that were made
            last, so that the record of an older day that was trained again stays while it is evaluated.
        kept: URIs that always stay.
        check: called before each deletion; an exception ends the pruning.

    A record whose model is not published yet also stays for a day: if many days are trained at the same time, more
    than `keep` of them may be evaluated, or wait for MLflow.

    Raises:
        CheckpointError: the store failed; earlier deletions are not undone.
    """
    if keep < 1:
        raise CheckpointError(f"keep: {keep} is not allowed; allowed: 1 and above")
    opened = open_store(store)
    final = _final_records(opened, job_name)
    last_made = sorted(final, key=lambda item: item[1].created_unix_seconds, reverse=True)
    spared = {uri for uri, _ in [*final[:keep], *last_made[:keep]]} | {open_store(uri).uri for uri in kept}
    old = [item for item in final if item[0] not in spared and not _awaits_publication(opened, job_name, item[1])]
    deleted = [uri for uri, _ in old]
    for uri, manifest in old:
        check()
        # Listed again, because the job may be trained again; its workers predict after its final record.
        if not {other for other, _ in _final_records(opened, job_name, manifest.job_id)}.difference(deleted):
            # Before the record: after a kill in between, the record is still found, and both are deleted.
            delete_predictions(opened, job_name, manifest.job_id)
        discard(uri, may_be_complete=True)
    if deleted:
        _log.info("final records pruned", job=job_name, keep=keep, deleted=deleted)
    return deleted


def _final_records(store: Store, job_name: str, job_id: str | None = None) -> list[tuple[str, RecordManifest]]:
    return [item for item in list_records(store, job_name, job_id) if item[1].kind is RecordKind.FINAL]


def _awaits_publication(store: Store, job_name: str, manifest: RecordManifest) -> bool:
    if time.time() - manifest.created_unix_seconds > _PUBLICATION_SECONDS:
        return False
    return concluded_term(store, job_name, manifest.job_id) < manifest.term


def discard(uri: str, *, may_be_complete: bool = False) -> bool:
    """Deletes the files of a failed save, to free their space.

    Returns whether they were deleted; a complete record is not deleted unless `may_be_complete`.

    Raises:
        CheckpointError: the store failed.
    """
    opened = open_store(uri)
    if may_be_complete:
        # Without its manifest a half-deleted record is torn, never complete with parts missing.
        opened.delete(MANIFEST)
    elif opened.exists(MANIFEST):
        _log.warning("record not discarded", record=uri, reason="it is complete")
        return False
    # The folder itself is deleted, too, so this is a call of the parent's store.
    folder, _, name = uri.rstrip("/").rpartition("/")
    open_store(folder).delete_tree(name)
    _log.info("torn record discarded", record=uri)
    return True
