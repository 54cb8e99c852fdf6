"""The files of an exported model: plain arrays and JSON that need no server, no torch and no pickle to be read.

elastrec.json          what is inside (ArtifactIndex)
job.json               the job file as it ran, passwords of URIs masked
dense/<i>.npy          one dense parameter, float32
tables/<i>-<s>.ids.npy     sorted ids of one shard, int64 [N] (`shards`)
tables/<i>-<s>.values.npy  their rows, float32 [N, R], in the order of the ids
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
from elastrec.platform.specs.text.uris import masked
from elastrec.trainers.export.shards import ArtifactTable, Ids, Rows, ShardWriter, TableShards

log = structlog.get_logger(__name__)

FORMAT_VERSION = 2
_READABLE = (1, FORMAT_VERSION)
"""Format 1 has one shard for each table."""
INDEX_FILE, JOB_FILE = "elastrec.json", "job.json"


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
    """Writes a final record's model into an empty folder, independently of the number of servers in the record.

    Memory use is about one shard; the disk contains one table's rows twice while they are sorted.

    Raises:
        CheckpointError: the record is damaged, or does not hold the job's model.
    """
    if record.manifest.base:
        raise CheckpointError(
            f"{record.uri}: holds only what has changed since {record.manifest.base}; export a full record"
        )
    for name in ("tables", "dense"):
        (folder / name).mkdir(parents=True)
    tables = _write_tables(
        folder / "tables", {name: job.spec.row_dimension(name) for name in job.spec.data.tables}, record
    )
    dense = []
    for position, summary in enumerate(record.manifest.model.dense):
        values = np.ascontiguousarray(record.dense(summary.name)["value"], np.float32)
        np.save(folder / "dense" / f"{position}.npy", values, allow_pickle=False)
        dense.append(ArtifactDense(name=summary.name, file=str(position), shape=tuple(values.shape)))
    index = ArtifactIndex(
        format_version=FORMAT_VERSION,
        job_name=job.metadata.name,
        job_id=job_id,
        record_uri=masked(record.uri),
        tables=tables,
        dense=dense,
    )
    # Everyone who may load the model reads this file.
    (folder / JOB_FILE).write_text(masked(job.model_dump_json(by_alias=True)))
    (folder / INDEX_FILE).write_bytes(msgspec.json.format(msgspec.json.encode(index)))
    log.info("artifact_written", job_id=job_id, record=record.uri, rows={table.name: table.rows for table in tables})
    return index


def _write_tables(folder: Path, dimensions: Mapping[str, int], record: Record) -> list[ArtifactTable]:
    counts = record.manifest.rows
    writers = {
        name: ShardWriter(folder, str(position), name, rows=counts.get(name, 0), dimension=dimension, source=record.uri)
        for position, (name, dimension) in enumerate(dimensions.items())
    }
    for name, columns in _rows_by_table(record, list(dimensions), ("ids", "tables", "values")):
        writers[name].add(columns["ids"].view(np.int64), columns["values"])
    return [writer.finish() for writer in writers.values()]


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
        if self.index.format_version not in _READABLE:
            raise CheckpointError(
                f"{folder}: format_version {self.index.format_version} is not allowed; allowed: 1 to {FORMAT_VERSION}; "
                "load it with the version of elastrec that wrote it"
            )
        self._tables = {table.name: TableShards(folder / "tables", table) for table in self.index.tables}
        self._dense = {
            dense.name: np.load(folder / "dense" / f"{dense.file}.npy", allow_pickle=False)
            for dense in self.index.dense
        }

    @property
    def dense(self) -> Mapping[str, np.ndarray[Any, Any]]:
        """Dense parameters by name."""
        return self._dense

    def rows(self, table: str, ids_U: Ids) -> tuple[Rows, np.ndarray[Any, np.dtype[np.bool_]]]:
        """Rows `[U, R]` of ids, and which of them the table holds; the others' rows are zero."""
        return self._tables[table].rows(ids_U)
