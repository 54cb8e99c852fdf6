"""Conversion between cells and the columns of records."""

from __future__ import annotations

from typing import Any

import numpy as np

from elastrec.checkpoints import Attribute
from elastrec.checkpoints.rows import SEEN_WORD, STATE_WORD, VALUE_WORD, cell_columns, cell_names
from elastrec.trainers.parameter_server.storage.kernels.arrays import CELL_VERSION, ID, REST, TABLE
from elastrec.trainers.parameter_server.storage.layout import CANDIDATE_WORDS, RowLayout

Array = np.ndarray[Any, Any]
Columns = dict[str, Array]

_SIGHTINGS_SHIFT = 16
DELETED_WORDS = 4


def cell_words(layout: RowLayout) -> dict[str, Attribute]:
    """Attributes of a record's section with cells of this layout."""
    return {SEEN_WORD: layout.seen_word, STATE_WORD: layout.state_word, VALUE_WORD: layout.value_word}


def row_columns(layout: RowLayout, cells: Array) -> Columns:
    """The columns of cells [n, W] uint32 of rows, in their order.

    Returns `ids` [n] int64, `tables` [n] uint16 (numbers in the group), `versions` [n] uint32, `state` [n, S] and
    `values` [n, D] float32; with eviction also `last_seen` [n] uint32 (seconds).
    """
    return cell_columns(cells, layout.seen_word, layout.state_word, layout.value_word)


def candidate_columns(cells: Array) -> Columns:
    """As `row_columns`, for candidates [c, 5]: `ids`, `tables`, `versions`, `last_seen`, `sightings` uint16."""
    sightings = (cells[:, TABLE] >> _SIGHTINGS_SHIFT).astype(np.uint16)
    return {**cell_names(cells), "last_seen": np.ascontiguousarray(cells[:, REST]), "sightings": sightings}


def deleted_columns(cells: Array) -> Columns:
    """`ids`, `tables` and `versions` of tombstones [d, 4]."""
    return cell_names(cells)


def _cells(columns: Columns, width: int) -> Array:
    ids = np.ascontiguousarray(columns["ids"], np.int64)
    cells = np.empty((len(ids), width), np.uint32)
    cells[:, ID : ID + 2] = ids.view(np.uint32).reshape(-1, 2)
    cells[:, CELL_VERSION] = columns["versions"]
    cells[:, TABLE] = columns["tables"]
    return cells


def row_cells(layout: RowLayout, columns: Columns) -> Array:
    """Cells [n, W] uint32 of the columns that `row_columns` returns."""
    cells = _cells(columns, layout.width)
    if layout.keeps_seen:
        cells[:, REST] = columns["last_seen"]
    numbers = cells.view(np.float32)
    numbers[:, layout.state_word : layout.value_word] = columns["state"]
    numbers[:, layout.value_word :] = columns["values"]
    return cells


def candidate_cells(columns: Columns, most_sightings: int) -> Array:
    """Cells [c, 5] uint32 of the columns that `candidate_columns` returns.

    Args:
        most_sightings: upper limit. If the job file now requires fewer sightings than a candidate has, its next
            sighting admits it.
    """
    cells = _cells(columns, CANDIDATE_WORDS)
    cells[:, TABLE] |= np.minimum(columns["sightings"].astype(np.uint32), most_sightings) << _SIGHTINGS_SHIFT
    cells[:, REST] = columns["last_seen"]
    return cells


def deleted_cells(columns: Columns) -> Array:
    """Cells [d, 4] uint32 of the columns that `deleted_columns` returns."""
    return _cells(columns, DELETED_WORDS)
