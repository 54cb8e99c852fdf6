"""A server's share of a checkpoint record: writing it, and reading the part of a record for a place.

A record is independent of servers: rows are stored in columns over virtual buckets, dense parameters in runs by name.
So two servers can restore a record of three, each reading its own virtual and dense buckets.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import structlog

from elastrec.checkpoints import (
    CHUNK_BYTES,
    Adaptation,
    Attribute,
    DamagedRecordError,
    GroupPart,
    PartManifest,
    PartWriter,
    Record,
    SectionKind,
    Store,
    Verdict,
    adapt,
    answer,
    blamed_on,
    chain_shares,
    open_record,
    quantized,
)
from elastrec.checkpoints.flash import MemoryStore, PartMemory
from elastrec.checkpoints.rows import CELLS
from elastrec.platform.specs.errors import CheckpointError
from elastrec.platform.transport.messages.directive import RoutingTable
from elastrec.trainers.parameter_server.dense.layout import dense_runs, layout_size, run_size
from elastrec.trainers.parameter_server.dense.store import DenseStore
from elastrec.trainers.parameter_server.messages import Parameter
from elastrec.trainers.parameter_server.records.loader import Loader
from elastrec.trainers.parameter_server.records.recorded_marks import encode_marks, marks_of
from elastrec.trainers.parameter_server.serving.server import ParameterServer, Place
from elastrec.trainers.parameter_server.storage import RowStore, ThawedError
from elastrec.trainers.parameter_server.storage.columns import (
    Columns,
    candidate_columns,
    cell_words,
    deleted_columns,
    row_columns,
)
from elastrec.trainers.parameter_server.storage.copying import CANDIDATES, ROWS, Copied, copy_frozen
from elastrec.trainers.parameter_server.storage.kernels.arrays import FROZEN
from elastrec.trainers.parameter_server.storage.lines import LINES, LineMaker, Lines, place_words
from elastrec.trainers.parameter_server.storage.memory import UsedRegions

Array = np.ndarray[Any, Any]

_MOST_READERS = 8
"""Threads of a restore at most: each holds a few sections of a record."""

log = structlog.get_logger(__name__)


def save_part(
    server: ParameterServer,
    record: str | Store,
    is_wanted: Callable[[], bool] = lambda: True,
    *,
    cut: str = "",
    base: str = "",
    froze: Callable[[], None] = lambda: None,
) -> PartManifest:
    """Writes the server's part of a record, as of one moment, while requests are served.

    Args:
        record: URI of its folder, or a store rooted there.
        is_wanted: called before each section, and before the part is complete.
        cut: the save that the part is of.
        base: an earlier save: only changes since it are written, except for buckets whose changes are not known, which
            are written whole. Empty: all buckets are written whole. Only rows of deltas are quantized, if the job file
            requests it.
        froze: called as soon as pushes can no longer change the written contents.

    Raises:
        CheckpointError, OSError: the store refused, or the part is no longer wanted; the server is not affected.
    """

    uri = record if isinstance(record, str) else record.uri

    def check() -> None:
        if not is_wanted():
            raise CheckpointError(f"the part of {uri} is not wanted any more")

    check()
    is_small = server.spec.checkpoint.delta_values == "int8"
    for store in server.stores:
        store.cuts.logs = server.spec.checkpoint.deltas > 0
        store.cuts.forget_changes(base)
    frozen = server.freeze()
    dense = frozen.dense
    try:
        # Who cancels a save thaws what is frozen after it has become unwanted, and nothing was until here.
        check()
        groups = [
            (store, np.array(buckets, np.int64), store.cuts.since(base, np.array(buckets, np.int64)))
            for store, buckets in frozen.stores
        ]
        held: dict[str, int] = {}
        for store, buckets, _ in groups:
            store.cuts.remember(cut, buckets)
            held |= dict(zip(_tables(store), store.cuts.frozen_rows.tolist(), strict=True))
        froze()
        with PartWriter(
            record,
            server.name,
            groups=[_answer(*group) for group in groups],
            dense_buckets=sorted(bucket for marks in frozen.marks for bucket in marks.dense_buckets),
            dense_ranges=() if dense is None else dense.runs,
            generation=frozen.generation,
            cut=cut,
        ) as writer:
            for number, (store, buckets, since) in enumerate(groups):
                last_cut = np.full(server.plan.virtual_buckets, -1, np.int64)
                last_cut[buckets] = since
                # Cells and lines of a full part are copied unchanged.
                makers = [LineMaker(store)] if (since < 0).all() else []
                for copied in _copied(store, buckets, since, check):
                    check()
                    if makers and copied.kind == ROWS:
                        _write_cells(writer, number, store, copied)
                        _write_lines(writer, number, store, makers[0].add(copied))
                        server.transfers += 1
                        continue
                    kind, columns = _columns(store, copied)
                    attributes: dict[str, Attribute] = {}
                    if is_small and kind is SectionKind.ROWS and (last_cut[copied.buckets] >= 0).all():
                        columns, attributes = quantized(columns, [segment.width for segment in store.group.segments])
                    writer.write_chunk(number, kind, copied.buckets, copied.counts, columns, attributes)
                    server.transfers += 1
                for maker in makers:
                    _write_lines(writer, number, store, maker.finish())
            for piece, arrays in dense.saved() if dense is not None else ():
                check()
                writer.write_dense(piece.parameter.name, piece.parameter.shape, piece.start, arrays)
                server.transfers += 1
            writer.write_marks(encode_marks(frozen.marks))
            server.transfers += 1
            check()
            manifest = writer.finish(held)
    finally:
        frozen.thaw()
    log.info("part_saved", uri=uri, bytes=manifest.size_bytes, rows=sum(table.rows for table in manifest.tables))
    return manifest


def _tables(store: RowStore) -> list[str]:
    return [table.name for table in store.plan.tables[store.group.first_table : store.group.end_table]]


def _answer(store: RowStore, buckets: Array, since: Array) -> GroupPart:
    """A part's description of frozen buckets, including empty ones."""
    return answer(_tables(store), buckets, first=since + 1, last=np.maximum(store.marks[buckets, FROZEN], since + 1))


def _write_cells(writer: PartWriter, group: int, store: RowStore, copied: Copied) -> None:
    attributes = cell_words(store.layout)
    writer.write_chunk(group, SectionKind.ROWS, copied.buckets, copied.counts, {CELLS: copied.cells}, attributes)


def _write_lines(writer: PartWriter, group: int, store: RowStore, made: Iterator[Lines]) -> None:
    for each in made:
        columns, attributes = {LINES: each.lines}, place_words(store)
        writer.write_chunk(group, SectionKind.LINES, each.buckets, each.counts, columns, attributes)


def _columns(store: RowStore, copied: Copied) -> tuple[SectionKind, Columns]:
    if copied.kind == ROWS:
        return SectionKind.ROWS, row_columns(store.layout, copied.cells)
    if copied.kind == CANDIDATES:
        return SectionKind.CANDIDATES, candidate_columns(copied.cells)
    return SectionKind.DELETED, deleted_columns(copied.cells)


def _copied(store: RowStore, buckets: Array, since: Array, check: Callable[[], None]) -> Iterator[Copied]:
    """Cells of frozen buckets; if the part was cancelled, they are already thawed."""
    try:
        yield from copy_frozen(store, buckets, CHUNK_BYTES, since)
    except ThawedError:
        check()
        raise


def restore(
    server: ParameterServer,
    uri: str,
    routing: RoutingTable,
    generation: int,
    *,
    threads: int | None = None,
    with_marks: bool = False,
    memory: PartMemory | None = None,
    pages: UsedRegions | None = None,
) -> None:
    """Discards everything and loads the server's virtual and dense buckets from a record; `uri` empty: starts without
    rows.

    Contents that are not in the job are ignored; tables and dense parameters of another shape or meaning are
    initialised again (`checkpoints.mismatch`); if the rule of a segment differs, values are kept and its state is
    initialised again. Rows are read chunk by chunk into the memory of the earlier model, so that the used memory hardly
    exceeds that of the larger one.

    Args:
        threads: for reading, at most `_MOST_READERS`; None: the number of this machine's cores.
        with_marks: see RestoreOrder.
        memory: of the server's node: its parts are read from it, all others from the store.
        pages: created for the rows; unused ones are returned to the system.

    Raises:
        DamagedRecordError: the record contradicts itself, or its bytes are damaged.
        CheckpointError: the record is missing or damaged; the server answers Stale from then on.
    """
    # Before reading, because the old and the new model together may exceed the pod's memory.
    used = server.forget()
    if pages is not None:
        used.add(pages)
    if not uri:
        used.clear()
        server.start_empty(routing, generation)
        log.info("restored_from_nothing", epoch=routing.epoch, generation=generation)
        return
    place = Place.under(routing, server.name)
    before_bytes = memory.read_bytes if memory is not None else 0
    record = open_record(uri) if memory is None else open_record(uri, lambda store: MemoryStore(store, memory))
    stores = server.empty_stores(place, used)
    adaptation = adapt(record.manifest.model, server.spec)
    loader = _load(server, record, adaptation, stores, np.flatnonzero(place.owned), threads)
    for store in stores:
        store.trim()
    source = DenseOfRecord(server, uri, (record, adaptation))
    dense, marks = source.store_of(place), []
    if with_marks:
        numbers = np.flatnonzero(place.owned), np.flatnonzero(place.dense_owned)
        marks = marks_of(record, *numbers, has_same_buckets=loader.has_same_buckets)
    server.become(place, routing, generation, stores, dense, source, marks)
    log.info(
        "restored", uri=uri, rows=sum(store.rows for store in stores), tables_new=loader.skipped, epoch=routing.epoch,
        generation=generation, with_marks=with_marks,
        bytes_from_memory=memory.read_bytes - before_bytes if memory is not None else 0,
    )  # fmt: skip


def _load(
    server: ParameterServer,
    record: Record,
    adaptation: Adaptation,
    stores: Sequence[RowStore],
    buckets: Array,
    threads: int | None,
) -> Loader:
    """Loads buckets [b] from a record and its bases into stores without their contents."""
    readers = min(_MOST_READERS, threads or os.cpu_count() or 1)
    loader = Loader(server.plan, stores, record.manifest, adaptation, server.now_seconds(), readers)
    for share in chain_shares(record.chain(), buckets if loader.has_same_buckets else None):
        with blamed_on(share.record.uri):
            for _ in loader.take(share):
                server.transfers += 1
    loader.check(record.uri, buckets)
    return loader


class DenseOfRecord:
    """The dense parameters of a record that the job keeps, for servers with any dense buckets of any layout.

    Args:
        read: the record and what the job keeps of it; None: it is opened when it is needed.
    """

    def __init__(self, server: ParameterServer, uri: str, read: tuple[Record, Adaptation] | None = None) -> None:
        self.uri = uri
        self._server = server
        self._optimizer = server.spec.optimizers.dense
        self._given = read

    @cached_property
    def _read(self) -> tuple[Record, Adaptation]:
        if self._given is not None:
            return self._given
        record = open_record(self.uri)
        return record, adapt(record.manifest.model, self._server.spec)

    @cached_property
    def _layout(self) -> list[Parameter]:
        record, adaptation = self._read
        is_anew = adaptation.dense("*") is Verdict.NEW
        return [] if is_anew else [Parameter(dense.name, tuple(dense.shape)) for dense in record.manifest.model.dense]

    def store_of(self, place: Place) -> DenseStore | None:
        """The place's buckets in the record's own order, so that a save before the first worker loses nothing."""
        if not self._layout:
            return None
        size = run_size(dense_runs(place.dense_owned, layout_size(self._layout)))
        dense = DenseStore(self._layout, place.dense_owned, np.zeros(size, np.float32), self._optimizer)
        self(dense)
        return dense

    def __call__(self, dense: DenseStore) -> list[str]:
        """See DenseSource."""
        shapes = {parameter.name: parameter.shape for parameter in self._layout}
        record, _ = self._read
        keep_state = record.manifest.model.dense_optimizer == self._optimizer.kind
        unknown = []
        for parameter, group in itertools.groupby(dense.pieces(), key=lambda piece: piece.parameter):
            if shapes.get(parameter.name) != tuple(parameter.shape):
                unknown.append(parameter.name)
                continue
            pieces = list(group)
            needed = pieces[0].start, pieces[-1].start + pieces[-1].length
            lacking = sum(piece.length for piece in pieces)
            for start, arrays in record.dense_runs(parameter.name, needed):
                for piece in pieces:
                    lacking -= dense.take(piece, start, arrays, keep_state=keep_state)
                self._server.transfers += 1
            if lacking:
                raise DamagedRecordError(
                    f"{record.uri}: {lacking} elements of the dense parameter {parameter.name} are not held"
                )
        return unknown
