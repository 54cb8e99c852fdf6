"""A server's share of a checkpoint record: writing it, and reading whatever of a record belongs to a place.

A record says nothing of servers: tables lie in sections per virtual bucket, dense parameters in runs by name. So a
record written by three servers is restored by two, each taking its own buckets and its own slice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import structlog

from elastrec.checkpoints import PartManifest, PartWriter, Record, SectionKind, open_record
from elastrec.platform.specs.errors import CheckpointError
from elastrec.platform.specs.job import first_order_columns
from elastrec.platform.transport.job_messages import RoutingTable
from elastrec.trainers.parameter_server.dense_slice import DenseSlice, layout_size, slice_bounds
from elastrec.trainers.parameter_server.messages import Parameter
from elastrec.trainers.parameter_server.server import ParameterServer, Place
from elastrec.trainers.parameter_server.storage import RowStore, ThawedError

Array = np.ndarray[Any, Any]

log = structlog.get_logger(__name__)


def save_part(server: ParameterServer, uri: str, is_wanted: Callable[[], bool] = lambda: True) -> PartManifest:
    """Writes the server's part of the record at `uri`, of one moment; requests are served meanwhile.

    Args:
        is_wanted: asked before each section, and before the part is complete.

    Raises:
        CheckpointError, OSError: the store refused, or the part is not wanted any more; the server is unharmed.
    """

    def check() -> None:
        if not is_wanted():
            raise CheckpointError(f"the part of {uri} is not wanted any more")

    check()
    frozen = server.freeze()
    dense = frozen.dense
    dense_range = None if dense is None else (dense.start, dense.start + len(dense.values))
    try:
        with PartWriter(
            uri, server.name, buckets=frozen.owned, dense_range=dense_range, generation=frozen.generation
        ) as writer:
            for store, buckets in frozen.stores:
                for bucket in buckets:
                    check()
                    for table, arrays in _copied(store, bucket, check):
                        writer.write_table(table, bucket, arrays)
                        server.transfers += 1
            for run in dense.runs() if dense is not None else ():
                check()
                writer.write_dense(run.parameter.name, run.parameter.shape, run.start, run.arrays)
                server.transfers += 1
            check()
            manifest = writer.finish()
    finally:
        frozen.thaw()
    log.info("part_saved", uri=uri, bytes=manifest.size_bytes, rows=sum(table.rows for table in manifest.tables))
    return manifest


def _copied(store: RowStore, bucket: int, check: Callable[[], None]) -> Iterator[tuple[str, dict[str, Array]]]:
    """A frozen bucket's arrays by table; whoever gave the part up has thawed it."""
    try:
        yield from store.frozen_arrays(bucket)
    except ThawedError:
        check()
        raise


def restore(server: ParameterServer, uri: str, routing: RoutingTable, generation: int) -> None:
    """Forgets everything and takes the server's buckets and dense slice from a record; `uri` empty: from nothing.

    What the record holds beyond the job is left; tables of another dimension, or whose rows gained or lost the
    first-order weight, start anew; where the update rule is another one, values are kept and the optimiser's state
    starts anew.

    Raises:
        CheckpointError: the record is missing or damaged; the server answers Stale from then on.
    """
    # Before anything is read: the old model and the new one together may be more than the pod's memory.
    server.forget()
    if not uri:
        server.start_empty(routing, generation)
        log.info("restored_from_nothing", epoch=routing.epoch, generation=generation)
        return
    place = Place.under(routing, server.name)
    record = open_record(uri)
    if record.manifest.virtual_buckets == server.plan.virtual_buckets:
        buckets: list[int] | None = np.flatnonzero(place.owned).tolist()
    else:
        buckets = None  # other buckets: every section may hold rows of ours
    stores = server.empty_stores(place)
    skipped = []
    recorded_weights = first_order_columns(record.manifest.model.architecture)
    wanted: dict[str, tuple[RowStore, bool]] = {}
    for store in stores:
        for index in range(store.group.first_table, store.group.end_table):
            table = server.plan.tables[index]
            name = table.name
            saved = record.manifest.model.table(name)
            if saved is None or (saved.dimension, recorded_weights) != (table.dimension, table.zero_columns):
                skipped.append(name)
                continue
            wanted[name] = store, saved.optimizer == server.spec.optimizers.rows.kind
    # All at once, so that neighbours are read together: a part holds bucket after bucket, each with all its tables.
    keys = [key for key in record.sections(SectionKind.TABLE, buckets=buckets) if key.name in wanted]
    for key, arrays in record.read_many(keys):
        store, keep_state = wanted[key.name]
        store.import_rows(key.name, arrays, keep_state=keep_state, now_seconds=server.now_seconds())
        server.transfers += 1
    source = _DenseOfRecord(server, record)
    server.become(place, routing, generation, stores, source.slice_of(place), source)
    log.info(
        "restored", uri=uri, rows=sum(store.rows for store in stores), tables_new=skipped, epoch=routing.epoch,
        generation=generation,
    )  # fmt: skip


class _DenseOfRecord:
    """The dense parameters that a record holds, for slices of any layout."""

    def __init__(self, server: ParameterServer, record: Record) -> None:
        self._server = server
        self._optimizer = server.spec.optimizers.dense
        self._record = record
        self._keep_state = record.manifest.model.dense_optimizer == self._optimizer.kind
        self._layout = [Parameter(dense.name, tuple(dense.shape)) for dense in record.manifest.model.dense]

    def slice_of(self, place: Place) -> DenseSlice | None:
        """The place's slice in the record's own order, so that a save before any worker came loses nothing."""
        if not self._layout:
            return None
        start, end = slice_bounds(layout_size(self._layout), place.server, place.servers)
        dense = DenseSlice(self._layout, start, np.zeros(end - start, np.float32), self._optimizer)
        missing = self(dense)
        if missing:
            raise CheckpointError(f"{self._record.uri}: the dense parameters {missing} are named but not held")
        return dense

    def __call__(self, dense: DenseSlice) -> list[str]:
        known = {parameter.name: parameter for parameter in self._layout}
        saved = {}
        for name in dense.names():
            if name in known:
                saved[name] = known[name].shape, self._record.dense(name)
                self._server.transfers += 1
        return dense.take(saved, keep_state=self._keep_state)
