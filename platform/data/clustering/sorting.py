"""sorted_by_session: a partition's rows in the order session, time, source row, within a bounded memory.

An external range sort: if the rows do not fit, sampled quantiles of the sessions divide them into ranges, each of which
is spilled to its own file and sorted alone. The order does not depend on the allowed memory. The files have no name, so
that the system frees their space even if the process is killed.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from elastrec.platform.data.deduplicating.stored_groups import stored_groups
from elastrec.platform.data.files import opened_parquet
from elastrec.platform.data.finished import Progress
from elastrec.platform.data.reading.numbers import combined, schema_without_views
from elastrec.platform.specs.data import TrainingData
from elastrec.platform.specs.errors import DataError

_BATCH_ROWS = 65_536
_SAMPLED_PER_GROUP = 256
_SPREAD = 3
"""Decoded and sorted copies of a range that exist at once, and that must fit into the memory."""


@dataclass(frozen=True)
class ClusterKeys:
    """The columns that decide the order: `session`, then `timestamp` where there is one."""

    session: str
    timestamp: str | None

    @property
    def names(self) -> tuple[str, ...]:
        return (self.session,) if self.timestamp is None else (self.session, self.timestamp)

    @classmethod
    def of(cls, data: TrainingData) -> ClusterKeys:
        """The columns of a data section.

        Raises:
            DataError: it names no session.
        """
        if data.session is None:
            raise DataError("data.session: is absent; allowed: the name of the column that holds the session; name it")
        return cls(data.session, data.timestamp)


@dataclass(frozen=True)
class SortSource:
    """Parquet files with one schema.

    Attributes:
        schema: to which each file's columns are cast.
        decoded_bytes: of all rows together, before compression.
    """

    uris: tuple[str, ...]
    schema: pa.Schema
    rows: int
    decoded_bytes: int


def open_source(uris: Sequence[str], keys: ClusterKeys) -> SortSource:
    """Look at the files' footers.

    Raises:
        DataError: a file is unreadable or no Parquet, the files' schemas do not fit together, or a key column is
            missing or of a type that has no order.
    """
    schemas, rows, size = [], 0, 0
    for uri in uris:
        with opened_parquet(uri) as parquet:
            metadata = parquet.metadata
            if stored_groups(parquet.schema_arrow.metadata):
                raise DataError(
                    f"{uri}: holds deduplicated features, whose rows cannot be moved; cluster the log that it was made "
                    "from"
                )
            schemas.append(schema_without_views(parquet.schema_arrow.remove_metadata()))
            rows += metadata.num_rows
            size += sum(metadata.row_group(i).total_byte_size for i in range(metadata.num_row_groups))
    try:
        schema = pa.unify_schemas(schemas, promote_options="permissive")
    except pa.ArrowException as error:
        raise DataError(f"{uris[0]}: its columns do not fit those of the other files ({error})") from error
    for field, column in (("data.session", keys.session), ("data.timestamp", keys.timestamp)):
        if column is None:
            continue
        if column not in schema.names:
            raise DataError(f"{field}: {column!r} is not allowed; allowed: {', '.join(schema.names)}")
        kind = schema.field(column).type
        if pa.types.is_nested(kind):
            raise DataError(f"{field}: column {column!r} is a {kind}; allowed: numbers, text or times")
    return SortSource(tuple(uris), schema, rows, size)


def sorted_by_session(
    source: SortSource, keys: ClusterKeys, *, memory_bytes: int, progress: Progress | None = None
) -> Iterator[pa.Table]:
    """All rows in order; no session lies in two tables. Rows without a session come last.

    Args:
        memory_bytes: for decoded rows. One session is never cut, however large it is.

    Raises:
        DataError: a file cannot be read.
    """
    ranges = range_count(source, memory_bytes)
    if ranges == 1:
        tables = list(_pieces(source, progress))
        if tables:
            yield _in_order(pa.concat_tables(tables), keys)
        return
    bounds = _quantiles(source, keys.session, ranges)
    with ExitStack() as stack:
        files = [stack.enter_context(tempfile.TemporaryFile()) for _ in range(len(bounds) + 1)]
        _spill(source, keys.session, bounds, files, progress)
        for file in files:
            with file:
                file.seek(0)
                table = pa.ipc.open_stream(file).read_all()
            if table.num_rows:
                yield _in_order(table, keys)
            del table


def range_count(source: SortSource, memory_bytes: int) -> int:
    """The number of ranges of sessions, so that each can be sorted within the memory."""
    return max(1, -(-source.decoded_bytes * _SPREAD // memory_bytes))


def session_starts(sessions: pa.ChunkedArray | pa.Array) -> NDArray[np.bool_]:
    """bool [B]: whether this row begins a session. A row without a session is a session of its own."""
    column = combined(sessions)
    starts_B = np.ones(len(column), np.bool_)
    if len(column) > 1:
        differs = pc.fill_null(pc.not_equal(column[1:], column[:-1]), True)
        starts_B[1:] = np.asarray(differs)
    return starts_B


def session_numbers(sessions: pa.Array) -> NDArray[np.int64]:
    """int64 [B]: the number of each row's session, from 0; equal sessions are adjacent."""
    return np.cumsum(session_starts(sessions)) - 1


def _pieces(source: SortSource, progress: Progress | None) -> Iterator[pa.Table]:
    """Pieces of all files in order."""
    done = 0
    for uri in source.uris:
        with opened_parquet(uri) as parquet:
            try:
                for batch in parquet.iter_batches(_BATCH_ROWS):
                    yield as_schema(pa.Table.from_batches([batch]), source.schema)
                    done += batch.num_rows
                    if progress is not None:
                        progress(done, source.rows)
            except (pa.ArrowException, OSError) as error:
                raise DataError(f"{uri}: cannot be read ({error}); write it again") from error


def as_schema(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """A file's rows with the columns and types of all files together."""
    columns = [
        table[field.name].cast(field.type)
        if field.name in table.schema.names
        else pa.nulls(table.num_rows, field.type)
        for field in schema
    ]  # fmt: skip
    return pa.Table.from_arrays(columns, schema=schema)


def _in_order(table: pa.Table, keys: ClusterKeys) -> pa.Table:
    # A stable sort: rows of equal keys stay in the order of their files.
    index = pc.sort_indices(table, sort_keys=[(name, "ascending", "at_end") for name in keys.names])
    # Picking from one chunk is several times as fast as from many.
    return table.combine_chunks().take(index)


def _quantiles(source: SortSource, session: str, ranges: int) -> list[pa.Scalar]:
    """The first session of each range except the first."""
    samples = []
    for uri in source.uris:
        with opened_parquet(uri) as parquet:
            for index in range(parquet.metadata.num_row_groups):
                column = parquet.read_row_group(index, columns=[session])[session].cast(
                    source.schema.field(session).type
                )
                step = max(1, len(column) // _SAMPLED_PER_GROUP)
                samples.append(column.take(pa.array(np.arange(0, len(column), step))).combine_chunks())
    sample = pc.drop_null(pa.concat_arrays(samples))
    if not len(sample):
        return []
    ordered = sample.take(pc.sort_indices(sample))
    places = (np.arange(1, ranges) * len(ordered)) // ranges
    return list(ordered.take(pa.array(np.unique(places))).unique())


def _spill(
    source: SortSource, session: str, bounds: list[pa.Scalar], files: Sequence[BinaryIO], progress: Progress | None
) -> None:
    options = pa.ipc.IpcWriteOptions(compression="lz4")
    with ExitStack() as stack:
        writers = []
        for file in files:
            writers.append(stack.enter_context(pa.ipc.new_stream(file, source.schema, options=options)))
        for table in _pieces(source, progress):
            column = table[session].combine_chunks()
            range_B = np.zeros(len(column), np.int64)
            for bound in bounds:
                range_B += np.asarray(pc.fill_null(pc.greater_equal(column, bound), True))
            for index in np.unique(range_B).tolist():
                writers[index].write_table(table.filter(pa.array(range_B == index)))
