"""Loads a record into the stores of a server, whose tables, groups and rules may differ from the record's."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from itertools import compress
from typing import Any, NamedTuple, TypeVar

import numpy as np
import xxhash

from elastrec.checkpoints import Adaptation, Attribute, BucketRows, DamagedRecordError, RecordManifest, SectionKind
from elastrec.checkpoints.rows import CELLS, chunk
from elastrec.checkpoints.sections import SectionEntry
from elastrec.checkpoints.shares import KINDS, Share
from elastrec.checkpoints.summary import SegmentSummary
from elastrec.platform.specs.errors import CheckpointError
from elastrec.trainers.parameter_server.plan import TablePlan
from elastrec.trainers.parameter_server.storage import RowStore
from elastrec.trainers.parameter_server.storage.columns import (
    Columns,
    candidate_cells,
    cell_words,
    deleted_cells,
    row_cells,
)
from elastrec.trainers.parameter_server.storage.conversion import SegmentError, converted_states, is_kept
from elastrec.trainers.parameter_server.storage.kernels.arrays import COUNT, VERSION
from elastrec.trainers.parameter_server.storage.lines import LINES, place_words
from elastrec.trainers.parameter_server.storage.loading import (
    ForeignCellError,
    load,
    load_columns,
    reserve_rows,
    unload,
)
from elastrec.trainers.parameter_server.storage.memory import LINE_BYTES
from elastrec.trainers.parameter_server.storage.slabs import SlabLoader

Array = np.ndarray[Any, Any]
_T = TypeVar("_T")

_PROGRESS_SECONDS = 0.05
"""Between two reports of progress, by which a master distinguishes a slow restore from one that hangs."""


def _side_by_side(readers: Sequence[Iterator[_T]], enter: Callable[[_T], None]) -> Iterator[None]:
    """Loads all chunks of several readers, each in a thread of its own; yields now and then if chunks were loaded.

    After the end of all readers, raises the first error of one of them.
    """
    entered = [0] * len(readers)
    is_over = threading.Event()

    def run(number: int, reader: Iterator[_T]) -> None:
        try:
            for chunk in reader:
                enter(chunk)
                entered[number] += 1
                if is_over.is_set():
                    return
        except BaseException:
            is_over.set()
            raise

    with ThreadPoolExecutor(max(1, len(readers)), "restore") as pool:
        running = [pool.submit(run, number, reader) for number, reader in enumerate(readers)]
        left, seen = set(running), 0
        try:
            while left:
                # Not woken for each chunk: it would take the core of one of the readers.
                _, left = wait(left, _PROGRESS_SECONDS)
                if (count := sum(entered)) != seen:
                    seen = count
                    yield
        finally:
            is_over.set()
    for each in running:
        each.result()


def _fitting(
    entries: Sequence[SectionEntry], name: str, width: int, store: RowStore, attributes: dict[str, Attribute]
) -> list[bool]:
    """The sections that are one array of words [n, width] with these attributes, of buckets that a store may have."""
    if not entries:
        return []
    buckets, counts = [entry.buckets for entry in entries], [entry.counts for entry in entries]
    lengths, count_lengths = (np.array([len(each) for each in lists]) for lists in (buckets, counts))
    number_of, bucket_of = np.repeat(np.arange(len(entries)), lengths), np.concatenate(buckets).astype(np.int64)
    number_of_count, count = np.repeat(np.arange(len(entries)), count_lengths), np.concatenate(counts)
    is_odd, totals = lengths != count_lengths, np.zeros(len(entries), np.int64)
    is_odd[number_of[(bucket_of < 0) | (bucket_of >= len(store.owned))]] = True
    is_odd[number_of_count[count < 0]] = True
    np.add.at(totals, number_of_count, count)
    # A section contains a bucket once.
    keys = np.sort(number_of * len(store.owned) + np.clip(bucket_of, 0, len(store.owned) - 1))
    is_odd[keys[1:][keys[1:] == keys[:-1]] // len(store.owned)] = True
    return [
        not odd
        and entry.attributes == attributes
        and [(array.name, array.dtype, *array.shape) for array in entry.arrays] == [(name, "<u4", total, width)]
        for entry, total, odd in zip(entries, totals.tolist(), is_odd.tolist(), strict=True)
    ]


class _Fresh(NamedTuple):
    """Rows of a share that replace nothing, all in one store.

    Attributes:
        number: of the store; numbers: [T] int64, numbers of the share's tables there.
        buckets, counts: [b] int64, buckets with rows, and the number of rows of each.
    """

    number: int
    numbers: Array
    buckets: Array
    counts: Array


class Loader:
    """One restore.

    Args:
        stores: one per group of the plan; the restored buckets are empty.
        manifest: of the record; adaptation: what the job keeps of it.
        now_seconds: replaces a missing `last_seen`.
        threads: for loading rows that replace nothing.

    Attributes:
        has_same_buckets: whether the record's virtual buckets are those of the plan; otherwise each row may be in any
            bucket.
        skipped: tables of the job that are not in the record, or have rows of another meaning.
    """

    def __init__(
        self,
        plan: TablePlan,
        stores: Sequence[RowStore],
        manifest: RecordManifest,
        adaptation: Adaptation,
        now_seconds: float,
        threads: int,
    ) -> None:
        self._stores, self._threads = stores, threads
        self._now = int(now_seconds)
        self.has_same_buckets = manifest.virtual_buckets == plan.virtual_buckets
        self.skipped: list[str] = []
        # Table of the record → store, number in its group.
        self._tables: dict[str, tuple[int, int]] = {}
        self._segments: dict[str, tuple[SegmentSummary, ...]] = {}
        self._entered = [np.zeros(plan.virtual_buckets, np.int64) for _ in stores]
        self._lock = threading.Lock()
        # Rows of a delta may replace others, so that their number is no measure.
        self._has_changes = False
        kept = adaptation.kept_tables
        for number, store in enumerate(stores):
            for index in range(store.group.first_table, store.group.end_table):
                table = plan.tables[index]
                saved = manifest.model.table(table.name)
                if saved is None or table.name not in kept:
                    self.skipped.append(table.name)
                    continue
                self._tables[table.name] = number, index - store.group.first_table
                self._segments[table.name] = tuple(saved.row_segments)

    def take(self, share: Share) -> Iterator[None]:
        """Loads a share chunk by chunk.

        Raises:
            CheckpointError: the share contradicts itself or is damaged.
            ServerMemoryError: no room for more rows.
        """
        if share.tables and not any(table in self._tables for table in share.tables):
            return
        self._has_changes |= bool(share.first.any())
        fresh = self._expect(share) if self.has_same_buckets else None
        kinds: Sequence[SectionKind] = KINDS
        if fresh is not None:
            # A full part deletes nothing.
            kinds = (SectionKind.CANDIDATES,)
            if (slabs := self._slabs(share, fresh)) is not None:
                yield from self._copy_slabs(share, fresh.number, slabs)
            else:
                store = self._stores[fresh.number]
                store.rows_memory.clear_lines(fresh.buckets[store.owned[fresh.buckets]])
                enter = functools.partial(self._enter_fresh, fresh.number, fresh.numbers)
                yield from _side_by_side(share.readers(SectionKind.ROWS, self._threads), enter)
        for rows in share.read(kinds):
            self._enter(rows)
            yield

    def _expect(self, share: Share) -> _Fresh | None:
        """Restores the versions of the buckets and reserves memory for their rows; None: these may replace others."""
        targets = {self._tables[table][0] if table in self._tables else -1 for table in share.tables}
        buckets = share.answered
        for number in targets - {-1}:
            versions = self._stores[number].marks[:, VERSION]
            versions[buckets] = np.maximum(versions[buckets], share.last + 1)
        if len(targets) == 1 and -1 not in targets and not share.first.any():
            number = targets.pop()
            buckets, counts = share.row_counts()
            if reserve_rows(self._stores[number], buckets, counts, clear=False):
                numbers = np.array([self._tables[table][1] for table in share.tables], np.int64)
                return _Fresh(number, numbers, buckets, counts)
        return None

    def _slabs(self, share: Share, fresh: _Fresh) -> SlabLoader | None:
        """A loader that copies the share's cells unchanged; None: rows of the store have other cells or buckets."""
        store = self._stores[fresh.number]
        is_here = np.array_equal(fresh.numbers, np.arange(len(store.salts)))
        if not is_here or not all(is_kept(self._segments[table], store.group.segments) for table in share.tables):
            return None
        rows = share.entries(SectionKind.ROWS)
        if not all(_fitting(rows, CELLS, store.layout.width, store, cell_words(store.layout))):
            return None
        mine = store.owned[fresh.buckets]
        slabs = SlabLoader(store, fresh.buckets[mine], fresh.counts[mine])
        return slabs if slabs.has_room else None

    def _copy_slabs(self, share: Share, number: int, slabs: SlabLoader) -> Iterator[None]:
        """Loads the sections of rows unchanged, and those sections of lines that fit the store."""
        store = self._stores[number]
        rows = sorted(share.entries(SectionKind.ROWS), key=lambda entry: entry.key.bucket)
        lines = share.entries(SectionKind.LINES)
        lines = list(compress(lines, _fitting(lines, LINES, LINE_BYTES // 4, store, place_words(store))))
        held, firsts = np.zeros(len(store.owned), np.int64), {}
        for entry in rows:
            firsts[entry.key] = held[entry.buckets]
            held[entry.buckets] += entry.counts

        def enter_lines(entry: SectionEntry, lines: Array) -> tuple[int, Callable[[], None]]:
            bucket = slabs.load_lines(entry.buckets, entry.counts, lines)

            def confirm() -> None:
                if bucket >= 0:
                    raise DamagedRecordError(
                        f"{share.where}: section {entry.key}: the index of bucket {bucket} is not that of its rows; "
                        "use an older record"
                    )

            return xxhash.xxh3_64_intdigest(lines.data), confirm

        def enter_cells(entry: SectionEntry, cells: Array) -> tuple[int, Callable[[], None]]:
            try:
                checksum, count = slabs.load_cells(entry.buckets, entry.counts, firsts[entry.key], cells)
            except ForeignCellError as error:
                raise self._foreign_cell(share, entry, cells, error.number) from error

            def confirm() -> None:
                try:
                    count()
                except ForeignCellError as error:
                    raise self._foreign_cell(share, entry, cells, error.number) from error

            return checksum, confirm

        def enter(entry: SectionEntry, words: Array) -> tuple[int, Callable[[], None]]:
            return (enter_lines if entry.key.kind is SectionKind.LINES else enter_cells)(entry, words)

        try:
            yield from _side_by_side(share.streams([*rows, *lines], self._threads, enter), lambda _: None)
        except BaseException:
            slabs.abandon()
            raise
        slabs.finish()
        self._entered[number][slabs.buckets] += slabs.counts

    def _foreign_cell(self, share: Share, entry: SectionEntry, cells: Array, at: int) -> DamagedRecordError:
        found = chunk(entry, {CELLS: cells}, share.tables, share.where)
        table = share.tables[found.columns["tables"][at]]
        return self._foreign(found, found.columns["ids"][at], table, found.bucket_of_entry[at])

    def _enter(self, rows: BucketRows) -> None:
        target = np.array([self._tables.get(table, (-1, 0))[0] for table in rows.tables], np.int64)
        numbers = np.array([self._tables.get(table, (-1, 0))[1] for table in rows.tables], np.uint16)
        store_of_entry = target[rows.columns["tables"]]
        for number in sorted(set(target.tolist()) - {-1}):
            chosen = store_of_entry == number
            if not chosen.any():
                continue
            columns = rows.entries(chosen)
            buckets = rows.bucket_of_entry[chosen] if self.has_same_buckets else None
            recorded = columns["tables"]
            columns = {**columns, "tables": numbers[recorded]}
            try:
                self._enter_into(number, rows, columns, recorded, buckets)
            except ForeignCellError as error:
                assert buckets is not None
                table = rows.tables[recorded[error.number]]
                raise self._foreign(rows, columns["ids"][error.number], table, buckets[error.number]) from error

    def _enter_fresh(self, number: int, numbers: Array, rows: BucketRows) -> None:
        store, recorded = self._stores[number], rows.columns["tables"]
        columns = {**rows.columns, "state": self._states(store, rows, rows.columns, recorded)}
        self._date(store, columns)
        try:
            load_columns(store, rows.buckets, rows.counts, numbers, columns)
        except ForeignCellError as error:
            at = error.number
            raise self._foreign(
                rows, columns["ids"][at], rows.tables[recorded[at]], rows.bucket_of_entry[at]
            ) from error
        with self._lock:
            np.add.at(self._entered[number], rows.buckets, rows.counts)

    def _date(self, store: RowStore, columns: Columns) -> None:
        """Rows of a record without sightings get the present time."""
        if store.evicts and "last_seen" not in columns:
            columns["last_seen"] = np.full(len(columns["ids"]), self._now, np.uint32)

    def _foreign(self, rows: BucketRows, row_id: int, table: str, bucket: int) -> DamagedRecordError:
        return DamagedRecordError(
            f"{rows.where}: id {row_id} of table {table} is among the {rows.kind} of bucket {bucket}, to which it does "
            "not belong; use an older record"
        )

    def _enter_into(
        self, number: int, rows: BucketRows, columns: Columns, recorded: Array, buckets: Array | None
    ) -> None:
        store = self._stores[number]
        if rows.kind is SectionKind.DELETED:
            unload(store, deleted_cells(columns), buckets)
        elif rows.kind is SectionKind.CANDIDATES:
            if store.group.admit_after > 1:
                cells = candidate_cells(columns, store.group.admit_after - 1)
                load(store, 1, cells, buckets, keep_versions=self.has_same_buckets)
        else:
            columns["state"] = self._states(store, rows, columns, recorded)
            self._date(store, columns)
            cells = row_cells(store.layout, columns)
            self._entered[number] += load(store, 0, cells, buckets, keep_versions=self.has_same_buckets)

    def _states(self, store: RowStore, rows: BucketRows, columns: Columns, recorded: Array) -> Array:
        """[n, S] for the store's update rules; see `converted_states`."""
        values = columns["values"]
        states = columns.get("state", np.empty((len(recorded), 0), np.float32))
        alike: dict[tuple[SegmentSummary, ...], list[int]] = {}
        for number, table in enumerate(rows.tables):
            if table in self._segments:
                alike.setdefault(self._segments[table], []).append(number)
        try:
            if len(alike) == 1:
                return converted_states(next(iter(alike)), store.group.segments, values, states)
            out = np.empty((len(recorded), store.layout.states), np.float32)
            for segments, numbers in alike.items():
                chosen = np.isin(recorded, numbers)
                if not chosen.any():
                    continue
                out[chosen] = converted_states(segments, store.group.segments, values[chosen], states[chosen])
        except SegmentError as error:
            raise CheckpointError(
                f"{rows.where}: rows of {', '.join(rows.tables)}: {error}; use an older record, or "
                "spec.continual.start_from: nothing"
            ) from error
        return out

    def check(self, where: str, buckets: Array) -> None:
        """Checks that all rows of a full record in buckets [b] were loaded, so that no id was duplicate.

        Raises:
            DamagedRecordError: names the bucket.
        """
        if self._has_changes:
            return
        for store, entered in zip(self._stores, self._entered, strict=True):
            held = store.rows_memory.indexed.pool.buckets[:, COUNT]
            if len(doubled := buckets[held[buckets] != entered[buckets]]):
                bucket = int(doubled[0])
                raise DamagedRecordError(
                    f"{where}: bucket {bucket} has {entered[bucket]} rows, of which {held[bucket]} are of different "
                    "ids; use an older record"
                )
