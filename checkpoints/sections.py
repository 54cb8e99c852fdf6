"""Sections of a part: named arrays that are written and read together, each with its position and checksum."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from enum import StrEnum
from typing import Any

import msgspec
import numpy as np
import xxhash

from elastrec.checkpoints.errors import DamagedRecordError
from elastrec.checkpoints.stores.store import Store
from elastrec.platform.specs.errors import CheckpointError
from elastrec.platform.specs.text.decoders import msgpack_decoder

Array = np.ndarray[Any, Any]
Attribute = int | float | str | bool


class SectionKind(StrEnum):
    """The contents of a section."""

    ROWS = "rows"  # rows of many virtual buckets of one table group, as columns or as cells
    LINES = "lines"  # by bucket, the positions of such cells' ids in a server's index; readers may ignore them
    CANDIDATES = "candidates"  # ids that were not seen often enough to have a row
    DELETED = "deleted"  # ids of rows that were deleted since the previous record
    MARKS = "marks"  # marks of the pushes that are contained in the part's buckets, opaque bytes
    TABLE = "table"  # format 1: rows and candidates of one virtual bucket of one table
    DENSE = "dense"  # a slice of one dense parameter and its optimiser state


class SectionKey(msgspec.Struct, frozen=True, order=True, array_like=True):
    """Name of a section, unique in a part.

    Attributes:
        name: number of the table group in the part, or dense parameter; format 1: table.
        bucket: of a chunk its number; of a dense slice the index of its first element; format 1: virtual bucket of
            a table.
    """

    kind: SectionKind
    name: str
    bucket: int = 0

    def __str__(self) -> str:
        return f"{self.kind}/{self.name}/{self.bucket}"


@functools.cache
def _item_bytes(dtype: str) -> int:
    return np.dtype(dtype).itemsize


class ArrayEntry(msgspec.Struct, frozen=True, array_like=True):
    """Where one array lies: numpy dtype string (`<f4`), shape, first byte in the part, xxh3-64 of its bytes."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    checksum: int

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * _item_bytes(self.dtype)


class SectionEntry(msgspec.Struct, frozen=True, array_like=True):
    """One section of a part.

    Attributes:
        packed_buckets, packed_counts: of a chunk, its buckets as little-endian int32 and how many entries of its
            arrays belong to each, one bucket after the other, as int64; empty: the section is no chunk.
    """

    key: SectionKey
    arrays: list[ArrayEntry]
    attributes: dict[str, Attribute]
    packed_buckets: bytes = b""
    packed_counts: bytes = b""

    @property
    def buckets(self) -> Array:
        """[b] int32."""
        return np.frombuffer(self.packed_buckets, "<i4")

    @property
    def counts(self) -> Array:
        """[b] int64."""
        return np.frombuffer(self.packed_counts, "<i8")

    def with_arrays(self, names: Sequence[str]) -> SectionEntry:
        """The section with only these of its arrays."""
        return msgspec.structs.replace(self, arrays=[array for array in self.arrays if array.name in names])

    @property
    def span(self) -> tuple[int, int]:
        """First byte and one past the last byte of the section's arrays in the part; (0, 0) without bytes."""
        filled = [(entry.offset, entry.offset + size) for entry in self.arrays if (size := entry.nbytes)]
        if not filled:
            return (0, 0)
        return min(start for start, _ in filled), max(end for _, end in filled)


# Made at import, because several threads may read the index of a part.
_decoder = msgpack_decoder(list[SectionEntry])


def stored_dtype(dtype: np.dtype[Any], where: str) -> np.dtype[Any]:
    """The dtype as which numbers are written.

    Raises:
        CheckpointError: the dtype is not a plain number or boolean.
    """
    if dtype.kind not in "biuf":
        raise CheckpointError(f"{where} has dtype {dtype}; allowed: booleans, integers and floating point numbers")
    return dtype.newbyteorder("<")


def read_index(
    store: Store, file: str, *, size_bytes: int, start: int, length: int, checksum: int
) -> list[SectionEntry]:
    """The sections of a part, from its index; arguments as in PartManifest.

    Raises:
        DamagedRecordError: the part is missing, of another length, or its index is damaged.
    """
    where = f"{store.uri}/{file}"
    size = store.size(file)
    if size is None:
        raise DamagedRecordError(f"{where}: the part is missing")
    if size != size_bytes:
        raise DamagedRecordError(f"{where}: the part has {size} bytes, the record says {size_bytes}")
    data = store.get_range(file, start, length)
    if xxhash.xxh3_64_intdigest(data) != checksum:
        raise DamagedRecordError(f"{where}: the index of the part is damaged (checksum differs)")
    try:
        return _decoder.decode(data)
    except msgspec.MsgspecError as error:
        raise DamagedRecordError(f"{where}: the index of the part cannot be read: {error}") from error
