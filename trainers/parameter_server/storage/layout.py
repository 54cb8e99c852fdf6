"""Cells and the arrays of records: what stands where in a cell, and cells sorted into arrays by table."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from elastrec.trainers.parameter_server.storage.arrays import CELL_VERSION, ID, REST, TABLE

Array = np.ndarray[Any, Any]

CANDIDATE_WORDS = 5
_TABLE_BITS, _SIGHTINGS_SHIFT = 0xFFFF, 16
MINUTES = (1 << 23) - 1
"""Older records keep so many low bits of a candidate's minute."""


@dataclass(frozen=True)
class RowLayout:
    """Where a row's numbers are in its cell: id, version, table, last sighting if kept, state [S], values [D]."""

    dimension: int
    states: int
    keeps_seen: bool

    @property
    def seen_word(self) -> int:
        """0: none is kept."""
        return REST if self.keeps_seen else 0

    @property
    def state_word(self) -> int:
        return REST + self.keeps_seen

    @property
    def value_word(self) -> int:
        return self.state_word + self.states

    @property
    def width(self) -> int:
        return self.value_word + self.dimension


def ids_of(cells: Array) -> Array:
    """Ids [n] int64 of cells [n, W] uint32."""
    return np.ascontiguousarray(cells[:, ID : ID + 2]).view(np.int64).reshape(-1)


def tables_of(cells: Array) -> Array:
    """Numbers of their tables in the group [n] int64."""
    return (cells[:, TABLE] & _TABLE_BITS).astype(np.int64)


def row_cells(layout: RowLayout, table: int, arrays: dict[str, Array], versions: Array, *, state: Array) -> Array:
    """Cells [n, W] uint32 of a record's `ids`, `values` and `last_seen`.

    Args:
        versions: [n] of the rows; state: [n, S] float32 or broadcast to it.
    """
    ids = np.ascontiguousarray(arrays["ids"], np.int64)
    cells = np.empty((len(ids), layout.width), np.uint32)
    cells[:, ID : ID + 2] = ids.view(np.uint32).reshape(-1, 2)
    cells[:, CELL_VERSION] = versions
    cells[:, TABLE] = table
    if layout.keeps_seen:
        cells[:, REST] = arrays["last_seen"]
    numbers = cells.view(np.float32)
    numbers[:, layout.state_word : layout.value_word] = state
    numbers[:, layout.value_word :] = arrays["values"]
    return cells


def candidate_cells(
    table: int, arrays: dict[str, Array], versions: Array, *, most_sightings: int, now_seconds: int
) -> Array:
    """Cells [c, 5] uint32 of a record's `candidate_ids`, `candidate_sightings` and `candidate_minutes`."""
    ids = np.ascontiguousarray(arrays["candidate_ids"], np.int64)
    # The job file may ask for fewer sightings now: the next one admits.
    sightings = np.minimum(arrays["candidate_sightings"].astype(np.uint32), most_sightings)
    # The difference counts, not the number; it may have been seen at the end of that minute.
    minute = now_seconds // 60
    ago = (minute - arrays["candidate_minutes"].astype(np.int64)) & MINUTES
    cells = np.empty((len(ids), CANDIDATE_WORDS), np.uint32)
    cells[:, ID : ID + 2] = ids.view(np.uint32).reshape(-1, 2)
    cells[:, CELL_VERSION] = versions
    cells[:, TABLE] = table | (sightings << _SIGHTINGS_SHIFT)
    cells[:, REST] = np.maximum((minute - ago) * 60 + 59, 0)
    return cells


def _by_table(cells: Array) -> Iterator[tuple[int, Array]]:
    """(table, its cells ordered by id)."""
    ids, tables = ids_of(cells), tables_of(cells)
    # As lexsort((ids, tables)): numpy sorts 64-bit numbers fast where the order of equals is free, small ones by
    # radix, and no id is in a table twice.
    order = np.argsort(ids)
    order = order[np.argsort(tables[order].astype(np.uint16), kind="stable")]
    ends = np.append(np.flatnonzero(np.diff(tables[order])) + 1, len(order)) if len(order) else np.empty(0, np.int64)
    start = 0
    for end in ends.tolist():
        yield int(tables[order[start]]), cells[order[start:end]]
        start = end


def arrays_by_table(
    layout: RowLayout, rows: Array, candidates: Array, *, has_candidates: bool
) -> Iterator[tuple[int, dict[str, Array]]]:
    """(number of the table in the group, arrays of a record) of a bucket's cells [n, W] and [c, 5].

    Arrays: `ids` [n] int64, `values` [n, D], `state` [n, S] float32; with eviction `last_seen` [n] uint32; with
    admission `candidate_ids` [c] int64, `candidate_sightings` [c] uint16, `candidate_minutes` [c] uint32.
    """
    rows_of = dict(_by_table(rows))
    waiting = dict(_by_table(candidates)) if has_candidates else {}
    for table in sorted(rows_of.keys() | waiting.keys()):
        cells = rows_of.get(table, rows[:0])
        numbers = cells.view(np.float32)
        arrays = {
            "ids": ids_of(cells),
            "values": np.ascontiguousarray(numbers[:, layout.value_word :]),
            "state": np.ascontiguousarray(numbers[:, layout.state_word : layout.value_word]),
        }
        if layout.keeps_seen:
            arrays["last_seen"] = np.ascontiguousarray(cells[:, REST])
        if has_candidates:
            cells = waiting.get(table, candidates[:0])
            arrays["candidate_ids"] = ids_of(cells)
            arrays["candidate_sightings"] = (cells[:, TABLE] >> _SIGHTINGS_SHIFT).astype(np.uint16)
            arrays["candidate_minutes"] = cells[:, REST] // np.uint32(60)
        yield table, arrays
