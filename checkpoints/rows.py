"""The contents of buckets in a record, as columns over many buckets, for all formats.

Full records contain rows as cells, whose words are in the order in which a server keeps them, so that a server can copy
them. All other readers convert them to columns.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from elastrec.checkpoints.errors import DamagedRecordError
from elastrec.checkpoints.quantized import QUANTIZED, SCALES, VALUES, dequantized
from elastrec.checkpoints.sections import Attribute, SectionEntry, SectionKind

Array = np.ndarray[Any, Any]
Arrays = dict[str, Array]

CELLS = "cells"
"""Rows as one array [n, W] uint32. Words of a cell: id (two), version, number of the table in the group (the lower half
of a word), last sighting if kept, then state and values as float32."""
SEEN_WORD, STATE_WORD, VALUE_WORD = "seen_word", "state_word", "value_word"
"""Attributes of a section with cells: the first words of the columns; `seen_word` is 0 if there is no last sighting."""

_ID, _VERSION, _TABLE = 0, 2, 3
_TABLE_BITS = 0xFFFF
_MINUTES = (1 << 23) - 1
"""Number of low bits of a candidate's minute that format 1 keeps (16 years)."""


def cell_ids(cells: Array) -> Array:
    """Ids [n] int64 of cells [n, W] uint32."""
    return np.ascontiguousarray(cells[:, _ID : _ID + 2]).view(np.int64).reshape(-1)


def cell_tables(cells: Array) -> Array:
    """Numbers of their tables in the group [n] uint16."""
    return (cells[:, _TABLE] & _TABLE_BITS).astype(np.uint16)


def cell_names(cells: Array) -> Arrays:
    """`ids`, `tables` and `versions` [n] uint32 of cells [n, W] uint32."""
    return {
        "ids": cell_ids(cells),
        "tables": cell_tables(cells),
        "versions": np.ascontiguousarray(cells[:, _VERSION]),
    }


def cell_columns(cells: Array, seen_word: int, state_word: int, value_word: int) -> Arrays:
    """The columns of rows' cells [n, W] uint32, in their order; see `BucketRows`."""
    numbers = cells.view(np.float32)
    columns = cell_names(cells)
    if seen_word:
        columns["last_seen"] = np.ascontiguousarray(cells[:, seen_word])
    columns["state"] = np.ascontiguousarray(numbers[:, state_word:value_word])
    columns["values"] = np.ascontiguousarray(numbers[:, value_word:])
    return columns


def _of_cells(arrays: Arrays, attributes: dict[str, Attribute], where: str) -> Arrays:
    """Converts cells to columns; other arrays stay unchanged."""
    if CELLS not in arrays:
        return arrays
    cells, words = arrays[CELLS], [attributes.get(name) for name in (SEEN_WORD, STATE_WORD, VALUE_WORD)]
    seen, state, value = (word if isinstance(word, int) else -1 for word in words)
    if cells.ndim != 2 or not (seen == 0 or seen == _TABLE + 1) or not _TABLE < state <= value <= cells.shape[1]:
        raise DamagedRecordError(f"{where}: cells {list(cells.shape)} do not have their numbers from the words {words}")
    return cell_columns(cells, seen, state, value)


def stored_names(columns: Sequence[str]) -> list[str]:
    """The names of the arrays that contain these columns, for all formats."""
    return [*columns, CELLS, *((QUANTIZED, SCALES) if VALUES in columns else ())]


@dataclass(frozen=True)
class BucketRows:
    """Rows, candidates or deleted ids of some buckets of one table group; a bucket may continue in a later one.

    Attributes:
        where: the part that holds them, for messages.
        tables: names of the group's tables.
        buckets, counts: [b] int32, int64: the buckets, and the number of consecutive entries of each.
        columns: [n, ...] each: `ids` int64 and `tables`, numbers in `tables`; of rows `versions` uint32, `values`
            [n, D] float32, and where they were kept `state` [n, S] float32 and `last_seen` uint32, seconds since the
            epoch; of candidates `sightings` and `last_seen`.
    """

    kind: SectionKind
    where: str
    tables: Sequence[str]
    buckets: Array
    counts: Array
    columns: Arrays

    def __len__(self) -> int:
        return int(self.counts.sum())

    @property
    def bucket_of_entry(self) -> Array:
        """[n] int32."""
        return np.repeat(self.buckets, self.counts)

    def of_buckets(self, buckets: Array | None) -> BucketRows:
        """The entries of these buckets (None: all)."""
        if buckets is None:
            return self
        kept = np.isin(self.buckets, buckets)
        if kept.all():
            return self
        entries = np.repeat(kept, self.counts)
        columns = {name: column[entries] for name, column in self.columns.items()}
        return BucketRows(self.kind, self.where, self.tables, self.buckets[kept], self.counts[kept], columns)

    def entries(self, chosen: Array) -> Arrays:
        """The columns of chosen entries, given as a mask [n] or numbers; without a copy if the mask is all true."""
        if chosen.dtype == np.bool_ and chosen.all():
            return self.columns
        return {name: column[chosen] for name, column in self.columns.items()}


def chunk(entry: SectionEntry, arrays: Arrays, tables: Sequence[str], where: str) -> BucketRows:
    """A section of rows, candidates or deleted ids.

    Raises:
        DamagedRecordError: its arrays contradict each other.
    """
    arrays = _of_cells(arrays, entry.attributes, f"{where}: section {entry.key}")
    arrays = dequantized(arrays, entry.attributes, f"{where}: section {entry.key}")
    rows = BucketRows(entry.key.kind, where, tables, entry.buckets, entry.counts, arrays)
    total = len(rows)
    is_odd = len(rows.buckets) != len(rows.counts) or bool((rows.counts < 0).any())
    if is_odd or any(len(column) != total for column in arrays.values()):
        raise DamagedRecordError(f"{where}: section {entry.key} has columns of other lengths than its buckets say")
    if total and int(arrays["tables"].max()) >= len(tables):
        raise DamagedRecordError(f"{where}: section {entry.key} names table {int(arrays['tables'].max())} of {tables}")
    return rows


def of_first_format(entry: SectionEntry, arrays: Arrays, created: float, where: str) -> Iterator[BucketRows]:
    """The rows, and then the candidates, of one bucket of one table as format 1 has it.

    Args:
        created: seconds since the epoch when the record was made; candidates' minutes are counted back from it.
    """
    table, buckets = [entry.key.name], np.array([entry.key.bucket], np.int32)

    def of(kind: SectionKind, columns: Arrays) -> BucketRows:
        length = len(columns["ids"])
        columns = {
            **columns,
            "ids": columns["ids"].astype(np.int64),
            "tables": np.zeros(length, np.uint16),
            "versions": np.zeros(length, np.uint32),
        }
        return BucketRows(kind, where, table, buckets, np.array([length], np.int64), columns)

    waiting = {"candidate_ids", "candidate_sightings", "candidate_minutes"}
    yield of(SectionKind.ROWS, {name: array for name, array in arrays.items() if name not in waiting})
    if waiting <= arrays.keys():
        minute = int(created) // 60
        ago = (minute - arrays["candidate_minutes"].astype(np.int64)) & _MINUTES
        # It may have been seen at the end of that minute.
        seen = np.maximum((minute - ago) * 60 + 59, 0).astype(np.uint32)
        columns = {"ids": arrays["candidate_ids"], "sightings": arrays["candidate_sightings"], "last_seen": seen}
        yield of(SectionKind.CANDIDATES, columns)
