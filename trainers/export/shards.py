"""An embedding table as files of bounded size: written in any order of rows, with look-ups that read only requested
rows.

A table of N rows has ⌈N / SHARD_ROWS⌉ shards. An id's shard follows from the id alone; within a shard the ids are
sorted. Both of a shard's files are memory-mapped when scoring.

Legend of shapes: U ids that are looked up, R numbers of a row, S shards.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from elastrec.platform.specs.errors import CheckpointError

SHARD_ROWS = 1_048_576
_PAGE_BYTES = 4096
_COPIED_BYTES = 2**20
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)

Ids = np.ndarray[Any, np.dtype[np.int64]]
Rows = np.ndarray[Any, np.dtype[np.float32]]


class ArtifactTable(msgspec.Struct, frozen=True, kw_only=True):
    """One embedding table: `tables/{file}-{shard}.ids.npy` and `.values.npy` for each of its shards.

    Attributes:
        shards: 0: one, without its number in the names, as format 1 has it.
    """

    name: str
    file: str
    rows: int
    dimension: int
    shards: int = 0

    def paths(self, folder: Path, shard: int) -> tuple[Path, Path]:
        """Where the ids and the values of one shard are."""
        name = f"{self.file}-{shard:05d}" if self.shards else self.file
        return folder / f"{name}.ids.npy", folder / f"{name}.values.npy"


def shard_of(ids_U: Ids, shards: int) -> Ids:
    """The shard of each id, [U] int64: the upper half of id · 2^64 / φ (Fibonacci hashing), modulo S."""
    if shards == 1:
        return np.zeros(len(ids_U), np.int64)
    mixed_U = (ids_U.view(np.uint64) * _GOLDEN) >> np.uint64(32)
    return (mixed_U % np.uint64(shards)).astype(np.int64)


def _by_shard(ids_U: Ids, shards: int) -> Iterator[tuple[int, Ids]]:
    """Each shard that has some of the ids, and which of them, in their order."""
    shard_U = shard_of(ids_U, shards)
    order = np.argsort(shard_U, kind="stable")
    ends = np.cumsum(np.bincount(shard_U, minlength=shards))
    for shard in np.flatnonzero(np.diff(ends, prepend=0)).tolist():
        yield shard, order[ends[shard - 1] if shard else 0 : ends[shard]]


class ShardWriter:
    """Writes one table; memory use is about one shard.

    Args:
        folder: of the tables.
        rows: that will be added.
        dimension: R.
        source: of the rows, for messages.
        shard_rows: approximate number of rows of a shard.
    """

    def __init__(
        self,
        folder: Path,
        file: str,
        name: str,
        *,
        rows: int,
        dimension: int,
        source: str,
        shard_rows: int = SHARD_ROWS,
    ) -> None:
        self._folder = folder
        self._where = f"{source}: table {name!r}"
        self._table = ArtifactTable(
            name=name, file=file, rows=rows, dimension=dimension, shards=max(1, -(-rows // shard_rows))
        )
        self._added = 0

    def add(self, ids: Ids, values: Rows) -> None:
        """Adds rows `[n, R]` of ids [n] that were not added before.

        Raises:
            CheckpointError: rows of another dimension.
        """
        if values.ndim != 2 or values.shape[1] != self._table.dimension:
            raise CheckpointError(
                f"{self._where} has rows of shape {values.shape[1:]}, the job file says {self._table.dimension}"
            )
        self._added += len(ids)
        for shard, rows in _by_shard(ids, self._table.shards):
            for_ids, for_values = self._unsorted(shard)
            with for_ids.open("ab") as file:
                ids[rows].tofile(file)
            with for_values.open("ab") as file:
                values[rows].tofile(file)

    def finish(self) -> ArtifactTable:
        """Sorts the shards, one after the other.

        Raises:
            CheckpointError: an id was added twice, or the number of rows differs from `rows`.
        """
        table = self._table
        if self._added != table.rows:
            raise CheckpointError(f"{self._where} has {self._added} rows, its record says {table.rows}")
        for shard in range(table.shards):
            self._sort(shard)
        return table

    def _sort(self, shard: int) -> None:
        table, unsorted = self._table, self._unsorted(shard)
        ids = np.fromfile(unsorted[0], np.int64) if unsorted[0].exists() else np.empty(0, np.int64)
        order = np.argsort(ids, kind="stable")
        ids = ids[order]
        if (np.diff(ids) == 0).any():
            raise CheckpointError(f"{self._where} holds an id twice; the record contradicts itself")
        for_ids, for_values = table.paths(self._folder, shard)
        np.save(for_ids, ids, allow_pickle=False)
        values = np.fromfile(unsorted[1], np.float32) if len(ids) else np.empty(0, np.float32)
        _save_in_order(for_values, values.reshape(-1, table.dimension), order)
        for path in unsorted:
            path.unlink(missing_ok=True)

    def _unsorted(self, shard: int) -> tuple[Path, Path]:
        ids, values = self._table.paths(self._folder, shard)
        return ids.with_suffix(".unsorted"), values.with_suffix(".unsorted")


def _save_in_order(path: Path, values: Rows, order: Ids) -> None:
    """`np.save` of `values[order]`, without a copy of them all."""
    step = max(1, _COPIED_BYTES // (values.itemsize * values.shape[1]))
    with path.open("wb") as file:
        np.lib.format.write_array_header_1_0(file, np.lib.format.header_data_from_array_1_0(values))
        for first in range(0, len(order), step):
            file.write(values[order[first : first + step]].data)


class TableShards:
    """The rows of one table.

    Raises:
        OSError, ValueError: a file is missing or no array.
    """

    def __init__(self, folder: Path, table: ArtifactTable) -> None:
        self._dimension = table.dimension
        self._shards = [_mapped(table.paths(folder, shard)) for shard in range(max(1, table.shards))]

    def rows(self, ids_U: Ids) -> tuple[Rows, np.ndarray[Any, np.dtype[np.bool_]]]:
        """Rows `[U, R]` of ids, and which of them the table holds; the others' rows are zero."""
        if len(self._shards) == 1:
            return self._of_shard(0, ids_U)
        values = np.zeros((len(ids_U), self._dimension), np.float32)
        held_U = np.zeros(len(ids_U), np.bool_)
        for shard, wanted in _by_shard(ids_U, len(self._shards)):
            values[wanted], held_U[wanted] = self._of_shard(shard, ids_U[wanted])
        return values, held_U

    def _of_shard(self, shard: int, ids_U: Ids) -> tuple[Rows, np.ndarray[Any, np.dtype[np.bool_]]]:
        ids, values = self._shards[shard]
        if not len(ids):
            return np.zeros((len(ids_U), self._dimension), np.float32), np.zeros(len(ids_U), np.bool_)
        position = np.minimum(np.searchsorted(ids, ids_U), len(ids) - 1)
        held_U = ids[position] == ids_U
        rows = np.asarray(values[position])
        rows[~held_U] = 0.0
        return rows, held_U


def _mapped(paths: tuple[Path, Path]) -> tuple[Ids, Rows]:
    # An array without elements cannot be mapped, and what fits a page need not be.
    modes: list[Any] = ["r" if path.stat().st_size > _PAGE_BYTES else None for path in paths]
    ids, values = (np.load(path, mmap_mode=mode, allow_pickle=False) for path, mode in zip(paths, modes, strict=True))
    return np.asarray(ids), np.asarray(values)
