"""One server's part of a checkpoint record: named arrays in sections, written once as a stream.

A part is one immutable object. Layout, little-endian:

    8 bytes magic | arrays, each starting at a multiple of 64 bytes | index (msgpack) | trailer of 32 bytes

The trailer is (index start u64, index length u64, xxh3-64 of the index u64, magic). Every array has its own xxh3-64
in the index. The part's manifest is small whatever the number of sections, for it travels through the job master.
"""

from __future__ import annotations

import math
import struct
import uuid
from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum
from types import TracebackType
from typing import Any, Self

import msgspec
import numpy as np
import xxhash

from elastrec.checkpoints.errors import DamagedRecordError
from elastrec.checkpoints.store import Store, checked_key, open_store
from elastrec.platform.specs.errors import CheckpointError

MAGIC = b"ELRPART1"
TRAILER = struct.Struct("<QQQ8s")
ALIGNMENT_BYTES = 64
_CHUNK_BYTES = 8 * 2**20

Attribute = int | float | str | bool


class SectionKind(StrEnum):
    """What a section holds."""

    TABLE = "table"  # rows of one virtual bucket of one embedding table
    DENSE = "dense"  # a slice of one dense parameter and its optimiser state
    STATE = "state"  # anything else that a server must find again


class SectionKey(msgspec.Struct, frozen=True, order=True, array_like=True):
    """Name of a section, unique in a record.

    Attributes:
        name: table, dense parameter, or the state's own name.
        bucket: virtual bucket of a table; for a dense slice the index of its first element; else any small number.
    """

    kind: SectionKind
    name: str
    bucket: int = 0

    def __str__(self) -> str:
        return f"{self.kind}/{self.name}/{self.bucket}"


class ArrayEntry(msgspec.Struct, frozen=True, array_like=True):
    """Where one array lies: numpy dtype string (`<f4`), shape, first byte in the part, xxh3-64 of its bytes."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    checksum: int

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize


class SectionEntry(msgspec.Struct, frozen=True, array_like=True):
    """One section of a part."""

    key: SectionKey
    arrays: list[ArrayEntry]
    attributes: dict[str, Attribute]

    @property
    def span(self) -> tuple[int, int]:
        """First byte and one past the last byte of the section's arrays in the part; (0, 0) without bytes."""
        filled = [entry for entry in self.arrays if entry.nbytes]
        if not filled:
            return (0, 0)
        return min(entry.offset for entry in filled), max(entry.offset + entry.nbytes for entry in filled)


class TablePart(msgspec.Struct, frozen=True, kw_only=True):
    """One table's share of a part."""

    name: str
    rows: int
    size_bytes: int
    buckets: list[int]


class DenseSlice(msgspec.Struct, frozen=True, kw_only=True):
    """A run of elements of one dense parameter, in C order: `shape` is that of the whole parameter."""

    name: str
    shape: tuple[int, ...]
    start: int
    length: int
    dtype: str


class PartManifest(msgspec.Struct, frozen=True, kw_only=True):
    """What the record must know to find and trust a part. Small: it rides on a heartbeat.

    Attributes:
        buckets: virtual buckets that the part answers for, those without any row included; None: written before parts
            said so.
        dense_range: first element and one past the last of the job's dense parameters, one after the other in the
            order of their layout, that the part answers for; None: its server had no dense parameters.
        generation: of the job, counted in rollbacks, when the part was written.
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
    buckets: list[int] | None = None
    dense_range: tuple[int, int] | None = None
    generation: int = 0

    def to_json(self) -> bytes:
        return msgspec.json.encode(self)

    @classmethod
    def from_json(cls, data: bytes) -> PartManifest:
        """Reads what `to_json` wrote.

        Raises:
            CheckpointError: it is something else.
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
        for start in range(0, len(view), _CHUNK_BYTES):
            yield view[start : start + _CHUNK_BYTES]
        return
    if array.ndim == 1:
        step = max(1, _CHUNK_BYTES // array.itemsize)
    else:
        step = max(1, _CHUNK_BYTES // (array.itemsize * math.prod(array.shape[1:])))
    for start in range(0, len(array), step):
        yield np.ascontiguousarray(array[start : start + step]).reshape(-1).view(np.uint8).data


class PartWriter:
    """Streams one part into a record's folder; memory in use stays at a few chunks beyond the arrays given.

    As a context manager it aborts when the block raised or `finish` was not called. Not thread-safe.

        with PartWriter(save_order.uri, pod_name, buckets=owned, dense_range=(0, 3400)) as writer:
            writer.write_table("ad", bucket, {"ids": ids_N, "values": rows_ND, "accumulator": sums_N})
            writer.write_dense("over.0.weight", (256, 13), start, {"value": slice_E, "moment1": slice_E})
            manifest = writer.finish()

    Args:
        record: URI of the record's folder (SaveOrder.uri), or a store rooted there.
        name: unique among the record's parts, for example the pod's name.
        attributes: small facts kept in the part's manifest.
        buckets, dense_range, generation: see PartManifest.
    """

    def __init__(
        self,
        record: str | Store,
        name: str,
        attributes: Mapping[str, Attribute] | None = None,
        *,
        buckets: Iterable[int] = (),
        dense_range: tuple[int, int] | None = None,
        generation: int = 0,
    ) -> None:
        store = open_store(record) if isinstance(record, str) else record
        self._name = name
        self._attributes = dict(attributes or {})
        self._buckets = sorted(buckets)
        self._dense_range = dense_range
        self._generation = generation
        # A server that was killed and told to save again must not meet the file it left behind.
        self._file = checked_key(f"parts/{name}-{uuid.uuid4().hex[:8]}.bin")
        self._writer = store.open_write(self._file)
        self._position = 0
        self._sections: dict[SectionKey, SectionEntry] = {}
        self._tables: dict[str, TablePart] = {}
        self._dense: list[DenseSlice] = []
        self._manifest: PartManifest | None = None
        self._append(MAGIC)

    def write_table(
        self,
        table: str,
        bucket: int,
        arrays: Mapping[str, np.ndarray[Any, Any]],
        attributes: Mapping[str, Attribute] | None = None,
        *,
        rows: int | None = None,
    ) -> None:
        """Writes one virtual bucket of one table.

        Args:
            arrays: any named arrays; by custom `ids` [rows] uint64 / int64 and `values` [rows, dimension] float32.
            rows: for statistics; the length of `ids` when absent.

        Raises:
            CheckpointError: the bucket was already written, an array has a dtype that cannot be stored, no `rows`.
        """
        if rows is None:
            if "ids" not in arrays:
                raise CheckpointError(f"part {self._name}: table {table!r} has no array 'ids'; pass rows=")
            rows = len(arrays["ids"])
        written = self.write(SectionKey(SectionKind.TABLE, table, bucket), arrays, attributes)
        before = self._tables.get(table, TablePart(name=table, rows=0, size_bytes=0, buckets=[]))
        before.buckets.append(bucket)
        self._tables[table] = TablePart(
            name=table, rows=before.rows + rows, size_bytes=before.size_bytes + written, buckets=before.buckets
        )

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
            return  # an empty share would have the same key as the share that begins there
        self.write(SectionKey(SectionKind.DENSE, parameter, start), arrays, attributes)
        dtype = _stored_dtype(arrays["value"].dtype, where).str
        self._dense.append(DenseSlice(name=parameter, shape=tuple(shape), start=start, length=length, dtype=dtype))

    def write(
        self,
        key: SectionKey,
        arrays: Mapping[str, np.ndarray[Any, Any]],
        attributes: Mapping[str, Attribute] | None = None,
    ) -> int:
        """Writes a section and returns its bytes; `write_table` and `write_dense` are the usual ways in.

        Raises:
            CheckpointError: the section was already written, or an array's dtype is not a plain number or boolean.
        """
        if key in self._sections:
            raise CheckpointError(f"part {self._name}: section {key} was written twice")
        entries = [self._write_array(f"part {self._name}: {key}", name, array) for name, array in arrays.items()]
        self._sections[key] = SectionEntry(key, entries, dict(attributes or {}))
        return sum(entry.nbytes for entry in entries)

    def _write_array(self, where: str, name: str, array: np.ndarray[Any, Any]) -> ArrayEntry:
        dtype = _stored_dtype(array.dtype, f"{where}: array {name!r}")
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

    def finish(self) -> PartManifest:
        """Makes the part durable and returns what the record needs; again the same when called twice."""
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
            tables=list(self._tables.values()),
            dense=self._dense,
            attributes=self._attributes,
            buckets=self._buckets,
            dense_range=self._dense_range,
            generation=self._generation,
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


def _stored_dtype(dtype: np.dtype[Any], where: str) -> np.dtype[Any]:
    if dtype.kind not in "biuf":
        raise CheckpointError(f"{where} has dtype {dtype}; allowed: booleans, integers and floating point numbers")
    return dtype.newbyteorder("<")


def read_index(store: Store, part: PartManifest) -> list[SectionEntry]:
    """The sections of a part, from its index.

    Raises:
        DamagedRecordError: the part is missing, of another length, or its index is damaged.
    """
    where = f"{store.uri}/{part.file}"
    size = store.size(part.file)
    if size is None:
        raise DamagedRecordError(f"{where}: the part is missing")
    if size != part.size_bytes:
        raise DamagedRecordError(f"{where}: the part has {size} bytes, the record says {part.size_bytes}")
    data = store.get_range(part.file, part.index_start, part.index_bytes)
    if xxhash.xxh3_64_intdigest(data) != part.index_checksum:
        raise DamagedRecordError(f"{where}: the index of the part is damaged (checksum differs)")
    try:
        return msgspec.msgpack.decode(data, type=list[SectionEntry])
    except msgspec.MsgspecError as error:
        raise DamagedRecordError(f"{where}: the index of the part cannot be read: {error}") from error
