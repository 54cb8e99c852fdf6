"""The files of an exported model: plain arrays and JSON that need no server, no torch and no pickle to be read.

elastrec.json          what is inside (ArtifactIndex)
job.json               the job file as it ran
dense/<i>.npy          one dense parameter, float32
tables/<i>.ids.npy     sorted ids, int64 [N]
tables/<i>.values.npy  their rows, float32 [N, R], in the order of the ids; memory-mapped when scoring
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import structlog

from elastrec.checkpoints import Record, SectionKind
from elastrec.platform.specs.errors import CheckpointError
from elastrec.platform.specs.job import TrainingJob

log = structlog.get_logger(__name__)

FORMAT_VERSION = 1
INDEX_FILE, JOB_FILE = "elastrec.json", "job.json"

Ids = np.ndarray[Any, np.dtype[np.int64]]
Rows = np.ndarray[Any, np.dtype[np.float32]]


class ArtifactTable(msgspec.Struct, frozen=True, kw_only=True):
    """One embedding table: `tables/{file}.ids.npy` and `.values.npy`."""

    name: str
    file: str
    rows: int
    dimension: int


class ArtifactDense(msgspec.Struct, frozen=True, kw_only=True):
    """One dense parameter: `dense/{file}.npy`."""

    name: str
    file: str
    shape: tuple[int, ...]


class ArtifactIndex(msgspec.Struct, frozen=True, kw_only=True):
    """Contents of an exported model."""

    format_version: int
    job_name: str
    job_id: str
    record_uri: str
    tables: list[ArtifactTable]
    dense: list[ArtifactDense]


def write_artifact(folder: Path, job: TrainingJob, job_id: str, record: Record) -> ArtifactIndex:
    """Writes a final record's model into an empty folder; how many servers wrote the record does not matter.

    Memory in use stays near 8 bytes per row, and 24 per row of the largest table: rows go straight to their place on
    disk.

    Raises:
        CheckpointError: the record is damaged, or does not hold the job's model.
    """
    if record.manifest.base:
        raise CheckpointError(
            f"{record.uri}: holds only what has changed since {record.manifest.base}; export a full record"
        )
    for name in ("tables", "dense"):
        (folder / name).mkdir(parents=True)
    tables = _write_tables(folder / "tables", job.spec.data.tables, job.spec.model.row_dimension, record)
    dense = []
    for position, summary in enumerate(record.manifest.model.dense):
        values = np.ascontiguousarray(record.dense(summary.name)["value"], np.float32)
        np.save(folder / "dense" / f"{position}.npy", values, allow_pickle=False)
        dense.append(ArtifactDense(name=summary.name, file=str(position), shape=tuple(values.shape)))
    index = ArtifactIndex(
        format_version=FORMAT_VERSION,
        job_name=job.metadata.name,
        job_id=job_id,
        record_uri=record.uri,
        tables=tables,
        dense=dense,
    )
    (folder / JOB_FILE).write_text(job.model_dump_json(by_alias=True))
    (folder / INDEX_FILE).write_bytes(msgspec.json.format(msgspec.json.encode(index)))
    log.info("artifact_written", job_id=job_id, record=record.uri, rows={table.name: table.rows for table in tables})
    return index


def _write_tables(folder: Path, names: Sequence[str], dimension: int, record: Record) -> list[ArtifactTable]:
    """Reads the record twice: what ids there are, then their rows, which find their places among the sorted ids."""
    found: dict[str, list[Ids]] = {name: [] for name in names}
    for name, columns in _rows_by_table(record, names, ("ids", "tables")):
        found[name].append(columns["ids"].view(np.int64).copy())
    tables, values, places = [], {}, {}
    for position, name in enumerate(names):
        ids = np.concatenate([np.empty(0, np.int64), *found.pop(name)])
        order = np.argsort(ids, kind="stable")
        places[name] = np.empty(len(ids), np.int64)
        places[name][order] = np.arange(len(ids))
        ids = ids[order]
        if (np.diff(ids) == 0).any():
            raise CheckpointError(f"{record.uri}: table {name!r} holds an id twice; the record contradicts itself")
        np.save(folder / f"{position}.ids.npy", ids, allow_pickle=False)
        tables.append(ArtifactTable(name=name, file=str(position), rows=len(ids), dimension=dimension))
        file = folder / f"{position}.values.npy"
        if len(ids):
            values[name] = np.lib.format.open_memmap(file, mode="w+", dtype=np.float32, shape=(len(ids), dimension))
        else:
            np.save(file, np.empty((0, dimension), np.float32), allow_pickle=False)
    begin = dict.fromkeys(names, 0)
    for name, columns in _rows_by_table(record, names, ("ids", "tables", "values")):
        rows = columns["values"]
        if rows.ndim != 2 or rows.shape[1] != dimension:
            raise CheckpointError(
                f"{record.uri}: table {name!r} has rows of shape {rows.shape[1:]}, the job file says {dimension}"
            )
        end = begin[name] + len(rows)
        values[name][places[name][begin[name] : end]] = rows
        begin[name] = end
    for written in values.values():
        written.flush()
    return tables


def _rows_by_table(
    record: Record, names: Sequence[str], columns: Sequence[str]
) -> Iterator[tuple[str, dict[str, np.ndarray[Any, Any]]]]:
    """(table, columns of some of its rows), in the same order each time."""
    for share in record.shares():
        if share.tables and not set(share.tables) & set(names):
            continue
        for rows in share.read((SectionKind.ROWS,), columns):
            held = rows.columns["tables"]
            for number in np.unique(held).tolist():
                if rows.tables[number] in names:
                    yield rows.tables[number], rows.entries(held == number)


class Artifact:
    """An exported model's arrays; tables are memory maps.

    Raises:
        CheckpointError: the folder holds no exported model, one of a newer format, or a file is missing.
    """

    def __init__(self, folder: Path) -> None:
        try:
            self.index = msgspec.json.decode((folder / INDEX_FILE).read_bytes(), type=ArtifactIndex)
            self.job = TrainingJob.model_validate_json((folder / JOB_FILE).read_bytes())
        except (OSError, ValueError) as error:
            raise CheckpointError(f"{folder}: holds no exported model that can be read: {error}") from error
        if self.index.format_version != FORMAT_VERSION:
            raise CheckpointError(
                f"{folder}: format_version {self.index.format_version} is not allowed; allowed: {FORMAT_VERSION}; "
                "load it with the version of elastrec that wrote it"
            )
        self._tables = {table.name: self._load_table(folder, table) for table in self.index.tables}
        self._dense = {
            dense.name: np.load(folder / "dense" / f"{dense.file}.npy", allow_pickle=False)
            for dense in self.index.dense
        }

    @staticmethod
    def _load_table(folder: Path, table: ArtifactTable) -> tuple[Ids, Rows]:
        ids = np.load(folder / "tables" / f"{table.file}.ids.npy", allow_pickle=False)
        # An empty file cannot be mapped.
        mode: Any = "r" if table.rows else None
        values = np.load(folder / "tables" / f"{table.file}.values.npy", mmap_mode=mode, allow_pickle=False)
        return ids, values

    @property
    def dense(self) -> Mapping[str, np.ndarray[Any, Any]]:
        """Dense parameters by name."""
        return self._dense

    def rows(self, table: str, ids_U: Ids) -> tuple[Rows, np.ndarray[Any, np.dtype[np.bool_]]]:
        """Rows `[U, R]` of ids, and which of them the table holds; the others' rows are zero."""
        ids, values = self._tables[table]
        if not len(ids):
            return np.zeros((len(ids_U), values.shape[1]), np.float32), np.zeros(len(ids_U), np.bool_)
        position = np.minimum(np.searchsorted(ids, ids_U), len(ids) - 1)
        held = ids[position] == ids_U
        rows = np.asarray(values[position])
        rows[~held] = 0.0
        return rows, held
