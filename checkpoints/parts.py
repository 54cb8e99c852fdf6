"""One server's part of a checkpoint record: named arrays in sections, written once as a stream.

A part is one immutable object. Layout, little-endian:

    8 bytes magic | arrays, each starting at a multiple of 64 bytes | index (msgpack) | trailer of 32 bytes

The trailer is (index start u64, index length u64, xxh3-64 of the index u64, magic). Every array has its own xxh3-64
in the index. Rows lie in long columns over many buckets, in chunks of bounded size, so that neither the number of
sections nor the time that they take depends on the number of buckets.
"""

from __future__ import annotations

import math
import struct
import uuid
from collections.abc import Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

import msgspec
import numpy as np
import xxhash

from elastrec.checkpoints.answers import GroupPart
from elastrec.checkpoints.rows import CELLS, cell_tables
from elastrec.checkpoints.sections import (
    ArrayEntry,
    Attribute,
    SectionEntry,
    SectionKey,
    SectionKind,
    stored_dtype,
)
from elastrec.checkpoints.sections import read_index as _read_index
from elastrec.checkpoints.stores.store import Store, checked_key, open_store
from elastrec.platform.specs.errors import CheckpointError

MAGIC = b"ELRPART2"
TRAILER = struct.Struct("<QQQ8s")
ALIGNMENT_BYTES = 64
CHUNK_BYTES = 4 * 2**20
"""Usual size of the rows of a chunk, which are read, checked and entered together."""
_WRITE_BYTES = 8 * 2**20


class TablePart(msgspec.Struct, frozen=True, kw_only=True):
    """One table's share of a part; `buckets` with rows of it are named by parts of format 1 alone."""

    name: str
    rows: int
    size_bytes: int
    buckets: list[int] = []


class DenseSlice(msgspec.Struct, frozen=True, kw_only=True):
    """A run of elements of one dense parameter, in C order: `shape` is that of the whole parameter."""

    name: str
    shape: tuple[int, ...]
    start: int
    length: int
    dtype: str


class PartManifest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The facts by which a record finds and verifies a part. Small, because it is sent with a heartbeat.

    Attributes:
        groups: the buckets of each table group that the part covers.
        buckets: format 1: virtual buckets of all tables that the part covers; None in parts that do not list them.
        dense_ranges: first element and one past the last of each run of the job's dense parameters that the part
            covers, counted in the order of their layout. `dense` describes the runs in the same order.
        dense_buckets: numbers of the dense buckets of these elements; their marks are in the part.
        dense_range: the only run of a part of an older format.
        generation: the job's number of rollbacks when the part was written.
        cut: the save to which the part belongs; the same for all parts of a record.
    """

    name: str
    file: str
    size_bytes: int
    index_start: int
    index_bytes: int
    index_checksum: int
    tables: list[TablePart]
    dense: list[DenseSlice]
    attributes: dict[str, Attribute] = {}
    groups: list[GroupPart] = []
    buckets: list[int] | None = None
    dense_range: tuple[int, int] | None = None
    dense_ranges: list[tuple[int, int]] = []
    dense_buckets: list[int] = []
    generation: int = 0
    cut: str = ""

    def dense_runs(self) -> list[tuple[int, int]]:
        """The runs of dense parameters that the part covers, for parts of all formats."""
        return self.dense_ranges if self.dense_range is None else [self.dense_range]

    def to_json(self) -> bytes:
        return msgspec.json.encode(self)

    @classmethod
    def from_json(cls, data: bytes) -> PartManifest:
        """Reads the text of `to_json`.

        Raises:
            CheckpointError: the text is something else.
        """
        try:
            return msgspec.json.decode(data, type=cls)
        except msgspec.MsgspecError as error:
            raise CheckpointError(f"not the manifest of a checkpoint part: {error}") from error


def _chunks(array: np.ndarray[Any, Any]) -> Iterator[memoryview]:
    """The array's bytes in C order without a second whole copy."""
    if array.size == 0:
        return
    if array.flags.c_contiguous:
        view = array.reshape(-1).view(np.uint8).data
        for start in range(0, len(view), _WRITE_BYTES):
            yield view[start : start + _WRITE_BYTES]
        return
    if array.ndim == 1:
        step = max(1, _WRITE_BYTES // array.itemsize)
    else:
        step = max(1, _WRITE_BYTES // (array.itemsize * math.prod(array.shape[1:])))
    for start in range(0, len(array), step):
        yield np.ascontiguousarray(array[start : start + step]).reshape(-1).view(np.uint8).data


class PartWriter:
    """Streams one part into a record's folder; uses memory for a few chunks in addition to the given arrays.

    As a context manager, it aborts if the block raised or `finish` was not called. Not thread-safe.

        groups = [answer(["ad", "user"], owned_buckets)]
        with PartWriter(save_order.uri, pod_name, groups=groups, dense_ranges=[(0, 3400)]) as writer:
            columns = {"ids": ids_N, "tables": tables_N, "versions": versions_N, "state": state_NS, "values": rows_ND}
            writer.write_chunk(0, SectionKind.ROWS, buckets_B, counts_B, columns)
            writer.write_dense("over.0.weight", (256, 13), start, {"value": slice_E, "moment1": slice_E})
            manifest = writer.finish()

    Args:
        record: URI of the record's folder (SaveOrder.uri), or a store rooted there.
        name: unique among the record's parts, for example the pod's name.
        attributes: small facts kept in the part's manifest.
        groups, dense_ranges, dense_buckets, generation, cut: see PartManifest.
    """

    def __init__(
        self,
        record: str | Store,
        name: str,
        attributes: Mapping[str, Attribute] | None = None,
        *,
        groups: Sequence[GroupPart] = (),
        dense_ranges: Sequence[tuple[int, int]] = (),
        dense_buckets: Sequence[int] = (),
        generation: int = 0,
        cut: str = "",
    ) -> None:
        store = open_store(record)
        self._name = name
        self._attributes = dict(attributes or {})
        self._groups = list(groups)
        self._answered = [group.buckets() for group in groups]
        self._cut = cut
        self._dense_ranges, self._dense_buckets = list(dense_ranges), list(dense_buckets)
        self._generation = generation
        # If a server was killed and saves again, it must not find its earlier file.
        self._file = checked_key(f"parts/{name}-{uuid.uuid4().hex[:8]}.bin")
        self._writer = store.open_write(self._file)
        self._position = 0
        self._sections: dict[SectionKey, SectionEntry] = {}
        self._rows = {table: 0 for group in groups for table in group.tables}
        self._bytes = dict(self._rows)
        self._chunks = 0
        self._dense: list[DenseSlice] = []
        self._manifest: PartManifest | None = None
        self._append(MAGIC)

    def write_chunk(
        self,
        group: int,
        kind: SectionKind,
        buckets: np.ndarray[Any, Any],
        counts: np.ndarray[Any, Any],
        columns: Mapping[str, np.ndarray[Any, Any]],
        attributes: Mapping[str, Attribute] | None = None,
    ) -> None:
        """Writes the contents of some buckets of a table group, bucket after bucket; a bucket may continue in a later
        chunk.

        Args:
            group: number in `groups`.
            buckets, counts: [b] integers, and the number of entries of the columns that belong to each bucket.
            columns: [n, ...] each; `ids` [n] int64 and `tables` [n], numbers of tables in the group, are
                among them. By custom rows have `versions` [n] uint32, `state` [n, S] and `values` [n, D] float32.
                Or rows as `cells` alone (`rows.CELLS`), with their attributes; of LINES any.

        Raises:
            CheckpointError: the part does not cover a bucket, or lengths differ.
        """
        where = f"part {self._name}: {kind} of {self._groups[group].tables}"
        buckets, counts = np.asarray(buckets, "<i4"), np.asarray(counts, "<i8")
        not_answered_for = buckets[~np.isin(buckets, self._answered[group])]
        if len(not_answered_for):
            raise CheckpointError(f"{where}: the part does not answer for bucket {not_answered_for[0]}")
        total = int(counts.sum())
        lengths = {name: len(column) for name, column in columns.items()}
        if len(counts) != len(buckets) or any(length != total for length in lengths.values()):
            raise CheckpointError(f"{where}: {len(buckets)} buckets with {total} entries, but columns of {lengths}")
        self._chunks += 1
        key = SectionKey(kind, str(group), self._chunks)
        written = self.write(key, columns, attributes, packed_buckets=buckets.tobytes(), packed_counts=counts.tobytes())
        if not total or kind is SectionKind.LINES:
            return
        tables = self._groups[group].tables
        numbers = cell_tables(columns[CELLS]) if CELLS in columns else columns["tables"]
        shares = np.bincount(numbers, minlength=len(tables))
        if len(shares) > len(tables):
            raise CheckpointError(f"{where}: table number {len(shares) - 1}; allowed: 0 to {len(tables) - 1}")
        for name, entries in zip(tables, shares.tolist(), strict=True):
            self._rows[name] += entries if kind is SectionKind.ROWS else 0
            self._bytes[name] += written * entries // total

    def write_marks(self, data: bytes) -> None:
        """Writes the marks of the pushes that are contained in the part's buckets, as opaque bytes; once.

        Raises:
            CheckpointError: it was already written.
        """
        self.write(SectionKey(SectionKind.MARKS, ""), {"bytes": np.frombuffer(data, np.uint8)})

    def write_dense(
        self,
        parameter: str,
        shape: tuple[int, ...],
        start: int,
        arrays: Mapping[str, np.ndarray[Any, Any]],
        attributes: Mapping[str, Attribute] | None = None,
    ) -> None:
        """Writes a run of one dense parameter's elements.

        Args:
            shape: of the whole parameter.
            start: index of the slice's first element in the flattened (C order) parameter.
            arrays: `value` [length], and optimiser state of any names, each [length] or scalar [].

        Raises:
            CheckpointError: no `value`, lengths that differ or exceed the shape, or a slice written twice.
        """
        where = f"part {self._name}: dense parameter {parameter!r}"
        if "value" not in arrays:
            raise CheckpointError(f"{where}: no array 'value' among {sorted(arrays)}")
        length, total = arrays["value"].size, math.prod(shape)
        for name, array in arrays.items():
            if array.ndim > 1 or (array.ndim == 1 and array.size != length):
                raise CheckpointError(f"{where}: array {name!r} has shape {array.shape}; allowed: ({length},) or ()")
        if arrays["value"].ndim != 1 or not 0 <= start <= start + length <= total:
            raise CheckpointError(
                f"{where}: a slice of shape {arrays['value'].shape} from {start} does not fit {total} elements"
            )
        if length == 0 and total:
            return  # an empty slice would have the same key as the slice that begins there
        self.write(SectionKey(SectionKind.DENSE, parameter, start), arrays, attributes)
        dtype = stored_dtype(arrays["value"].dtype, where).str
        self._dense.append(DenseSlice(name=parameter, shape=tuple(shape), start=start, length=length, dtype=dtype))

    def write(
        self,
        key: SectionKey,
        arrays: Mapping[str, np.ndarray[Any, Any]],
        attributes: Mapping[str, Attribute] | None = None,
        *,
        packed_buckets: bytes = b"",
        packed_counts: bytes = b"",
    ) -> int:
        """Writes a section and returns its bytes; usually called by `write_chunk` and `write_dense`.

        Raises:
            CheckpointError: the section was already written, or an array's dtype is not a plain number or boolean.
        """
        if key in self._sections:
            raise CheckpointError(f"part {self._name}: section {key} was written twice")
        entries = [self._write_array(f"part {self._name}: {key}", name, array) for name, array in arrays.items()]
        self._sections[key] = SectionEntry(key, entries, dict(attributes or {}), packed_buckets, packed_counts)
        return sum(entry.nbytes for entry in entries)

    def _write_array(self, where: str, name: str, array: np.ndarray[Any, Any]) -> ArrayEntry:
        dtype = stored_dtype(array.dtype, f"{where}: array {name!r}")
        if array.dtype != dtype:
            array = array.astype(dtype)
        self._append(bytes(-self._position % ALIGNMENT_BYTES))
        offset = self._position
        checksum = xxhash.xxh3_64()
        for chunk in _chunks(array):
            checksum.update(chunk)
            self._append(chunk)
        return ArrayEntry(name, dtype.str, tuple(array.shape), offset, checksum.intdigest())

    def _append(self, data: bytes | memoryview) -> None:
        if self._manifest is not None:
            raise CheckpointError(f"part {self._name}: already finished")
        self._writer.write(data)
        self._position += len(data)

    def finish(self, held: Mapping[str, int] | None = None) -> PartManifest:
        """Makes the part durable and returns its manifest; a second call returns the same.

        Args:
            held: for a part with changes only: all rows of its buckets, by table; default: the rows that were written.
        """
        if self._manifest is not None:
            return self._manifest
        index = msgspec.msgpack.encode(list(self._sections.values()))
        start, checksum = self._position, xxhash.xxh3_64_intdigest(index)
        self._append(index)
        self._append(TRAILER.pack(start, len(index), checksum, MAGIC))
        self._writer.close()
        self._manifest = PartManifest(
            name=self._name,
            file=self._file,
            size_bytes=self._position,
            index_start=start,
            index_bytes=len(index),
            index_checksum=checksum,
            tables=[
                TablePart(name=name, rows=rows, size_bytes=self._bytes[name])
                for name, rows in (self._rows | dict(held or {})).items()
            ],
            dense=self._dense,
            attributes=self._attributes,
            groups=self._groups,
            dense_ranges=self._dense_ranges,
            dense_buckets=self._dense_buckets,
            generation=self._generation,
            cut=self._cut,
        )
        return self._manifest

    def abort(self) -> None:
        """Drops the part, unless it was finished."""
        if self._manifest is None:
            self._writer.abort()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.abort()


def read_index(store: Store, part: PartManifest) -> list[SectionEntry]:
    """The sections of a part; see `sections.read_index`."""
    return _read_index(
        store, part.file, size_bytes=part.size_bytes, start=part.index_start, length=part.index_bytes,
        checksum=part.index_checksum,
    )  # fmt: skip
