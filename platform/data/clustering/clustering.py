"""cluster: Parquet partitions with each session's rows side by side, in order of time (RecD's O2, §4.1).

A partition appears as a whole or not at all on a local file system; elsewhere `_clustered.json` is written last. Row
groups and files end at the end of a session, so that each contains whole sessions. Equal input gives equal bytes.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

from elastrec.platform.data.clustering.sorting import (
    ClusterKeys,
    SortSource,
    open_source,
    session_starts,
    sorted_by_session,
)
from elastrec.platform.data.deduplicating.stored_groups import Groups, stored_schema, without_repeats
from elastrec.platform.data.files import join, list_files
from elastrec.platform.data.finished import (
    ROW_GROUP_ROWS,
    ParquetFile,
    Progress,
    finished_report,
    staged_folder,
    write_report,
)
from elastrec.platform.data.partitions import Partition, chosen_folders, folder_keys
from elastrec.platform.data.reading.encode import RowEncoder
from elastrec.platform.specs.base import Spec
from elastrec.platform.specs.data import FileFormat, TrainingData
from elastrec.platform.specs.errors import DataError

RECORD_NAME = "_clustered.json"
_ROWS_PER_FILE = 4_194_304
_ZSTD: dict[str, Any] = {"compression": "zstd", "compression_level": 3}


Engine = Literal["local", "spark"]


class ClusterReport(Spec):
    """One clustered partition; the content of `_clustered.json`."""

    partition: str
    """`day=2026-01-31`, or empty for unpartitioned data."""
    source: str
    source_digest: str
    session: str
    timestamp: str | None
    row_group_rows: int
    rows: int
    sessions: int
    rows_without_session: int
    source_bytes: int
    bytes: int
    dictionary_columns: tuple[str, ...]
    """Parquet paths of the columns whose dictionary encoding was smaller than none on the first row group."""
    deduplicated: tuple[tuple[str, ...], ...] = ()
    """Groups of features; each distinct row of a row group is stored once."""

    @property
    def samples_per_session(self) -> float:
        """Rows with a session per session; 0 where there is none."""
        return (self.rows - self.rows_without_session) / self.sessions if self.sessions else 0.0


def cluster(
    data: TrainingData,
    destination: str,
    *,
    partitions: Sequence[Partition] | None = None,
    row_group_rows: int = ROW_GROUP_ROWS,
    memory_bytes: int = 2**30,
    engine: Engine = "local",
    spark_master: str = "",
    groups: Groups = (),
    progress: Progress | None = None,
) -> list[ClusterReport]:
    """Cluster partitions (default: all) of a Parquet click log; existing ones are left as they are.

    Args:
        row_group_rows: a row group has at most so many rows, or one session that is longer.
        memory_bytes: for decoded rows; what does not fit is spilled to the folder of temporary files.
        engine: the implementation of the sort; the files are the same. `spark` needs the extra of that name, and spills
            beside the destination.
        spark_master: Spark's address; empty: that of the environment, otherwise this machine.
        groups: features that change together; each distinct row of a row group is stored once: see
            `elastrec.platform.data.deduplicating.stored_groups`. A job reads the same rows, but faster.

    Raises:
        DataError: the data is not Parquet or has no session column, a file or column is unusable, or the destination
        contains other files.
    """
    keys = _checked_keys(data, destination, row_group_rows, memory_bytes)
    key_names = sorted(name for group in groups for name in group if name in keys.names)
    if key_names:
        raise DataError(f"groups: {key_names} is not allowed; allowed: features, not the columns of the order")

    def sort(source: SortSource, scratch: str) -> Iterator[pa.Table]:
        if engine == "local":
            return sorted_by_session(source, keys, memory_bytes=memory_bytes, progress=progress)
        from elastrec.platform.data.clustering.spark_sorting import sorted_by_spark

        return sorted_by_spark(source, keys, scratch, master=spark_master, memory_bytes=memory_bytes, progress=progress)

    return [
        _cluster_partition(data, keys, destination, folder, roots, row_group_rows, groups, sort)
        for folder, roots in chosen_folders(data, partitions)
    ]


def clustered_data(data: TrainingData, destination: str) -> TrainingData:
    """The data section of a job that reads what `cluster` wrote."""
    return data.model_copy(update={"path": join(destination), "partition_folder": None})


def without_keys(groups: Groups, keys: ClusterKeys) -> Groups:
    """Groups as `cluster` takes them: a feature that is the session or the timestamp, too, is left out."""
    kept = (tuple(name for name in group if name not in keys.names) for group in groups)
    return tuple(group for group in kept if group)


class ClusterWriter:
    """Writes rows in the order of sessions into `part-00000.parquet`, ...; groups and files end with a session.

    Args:
        keys: recorded in each file's metadata; only their columns get statistics.
        groups: features of which each distinct row is written once.

    Raises:
        DataError: a group has columns that are not in the schema.
    """

    def __init__(
        self, folder: str, schema: pa.Schema, keys: ClusterKeys, row_group_rows: int, groups: Groups = ()
    ) -> None:
        self._folder = folder
        self._keys = keys
        self._groups = groups
        self._schema = schema.with_metadata({"elastrec.clustered_by": keys.session})
        if groups:
            self._schema = stored_schema(self._schema, groups)
        self._group_rows = row_group_rows
        self._held: list[pa.Table] = []
        self._file: ParquetFile | None = None
        self._file_rows = 0
        self._parts = 0
        self.bytes = self.rows = self.sessions = self.rows_without_session = 0
        self.dictionary_columns: tuple[str, ...] | None = None

    def write(self, table: pa.Table) -> None:
        """Writes whole sessions, in order, none of which was written before."""
        null_rows = table[self._keys.session].null_count
        self.rows += table.num_rows
        self.rows_without_session += null_rows
        self.sessions += int(session_starts(table[self._keys.session]).sum()) - null_rows
        self._held.append(table)
        if sum(held.num_rows for held in self._held) <= self._group_rows:
            return
        rows = pa.concat_tables(self._held)
        done = 0
        for begin, end in row_groups(rows[self._keys.session], self._group_rows):
            # The last group may still grow with the next table.
            if end < rows.num_rows or end - begin >= self._group_rows:
                self._write_group(rows.slice(begin, end - begin))
                done = end
        self._held = [rows.slice(done)] if done < rows.num_rows else []

    def finish(self) -> None:
        """Write the remaining rows and show the last file."""
        if self._held:
            self._write_group(pa.concat_tables(self._held))
            self._held = []
        self._close()

    def discard(self) -> None:
        """Closes and removes the file that was being written."""
        if self._file is not None:
            self._file.discard()
        self._file = None

    def _write_group(self, table: pa.Table) -> None:
        if self._groups:
            table = without_repeats(table, self._groups)
        if self.dictionary_columns is None:
            self.dictionary_columns = dictionary_columns(table)
        if self._file is None:
            settings = clustered_settings(self.dictionary_columns, self._keys)
            self._file = ParquetFile(join(self._folder, f"part-{self._parts:05d}.parquet"), self._schema, settings)
            self._file_rows = 0
        self._file.write(table.replace_schema_metadata(self._schema.metadata), table.num_rows)
        self._file_rows += table.num_rows
        if self._file_rows >= _ROWS_PER_FILE:
            self._close()

    def _close(self) -> None:
        if self._file is not None:
            self.bytes += self._file.commit()
            self._parts += 1
            self._file = None


def clustered_settings(dictionaries: Sequence[str], keys: ClusterKeys) -> dict[str, Any]:
    """Of `pq.ParquetWriter`: dictionary encoding for the named columns only, statistics of the keys."""
    return {**_ZSTD, "use_dictionary": list(dictionaries), "write_statistics": list(keys.names)}


def row_groups(sessions: pa.ChunkedArray | pa.Array, target: int) -> Iterator[tuple[int, int]]:
    """(begin, end) of groups of whole sessions with at most `target` rows each, or one session that is longer."""
    rows = len(sessions)
    ends = np.append(np.flatnonzero(session_starts(sessions))[1:], rows)
    begin = 0
    while begin < rows:
        fitting = int(np.searchsorted(ends, begin + target, side="right"))
        end = int(ends[fitting - 1]) if fitting and ends[fitting - 1] > begin else int(ends[fitting])
        yield begin, end
        begin = end


def dictionary_columns(sample: pa.Table) -> tuple[str, ...]:
    """Parquet paths of the columns that become smaller by dictionary encoding, tried one by one on a sample.

    Lists that repeat from row to row do not: zstd compresses repeated plain ids, but not packed indices.
    """
    chosen: list[str] = []
    for name in sample.column_names:
        column = sample.select([name])
        sizes = []
        for use in (False, True):
            sink = io.BytesIO()
            size = max(1, column.num_rows)
            pq.write_table(column, sink, use_dictionary=use, write_statistics=False, row_group_size=size, **_ZSTD)
            sizes.append(sink.tell())
        if sizes[1] < sizes[0]:
            leaves = pq.ParquetFile(sink).schema
            chosen += [leaves.column(i).path for i in range(len(leaves))]
    return tuple(chosen)


def _checked_keys(data: TrainingData, destination: str, row_group_rows: int, memory_bytes: int) -> ClusterKeys:
    if data.format is not FileFormat.PARQUET:
        raise DataError(
            f"data.format: {data.format} is not allowed; allowed: parquet; turn the log into Parquet with "
            "`elastrec data convert`"
        )
    keys = ClusterKeys.of(data)
    if row_group_rows < 1:
        raise DataError(f"row_group_rows: {row_group_rows} is not allowed; allowed: 1 and above")
    if memory_bytes < 2**20:
        raise DataError(f"memory_bytes: {memory_bytes} is not allowed; allowed: {2**20} (1Mi) and above")
    source, target = join(data.path), join(destination)
    if f"{target}/".startswith(f"{source}/") or f"{source}/".startswith(f"{target}/"):
        raise DataError(f"destination: {destination} lies within {data.path} or around it; choose another folder")
    return keys


def _cluster_partition(
    data: TrainingData,
    keys: ClusterKeys,
    destination: str,
    folder: str,
    roots: Sequence[str],
    row_group_rows: int,
    groups: Groups,
    sort: Callable[[SortSource, str], Iterator[pa.Table]],
) -> ClusterReport:
    target = join(destination, folder) if folder else join(destination)
    files = [pair for root in roots for pair in list_files(root, data.include)]
    # The folder below which the files' names differ.
    root = join(roots[0] if len(roots) == 1 else data.path)
    if not files:
        raise DataError(f"{root}: the folder holds no files; expected Parquet files")
    _check_folder_keys(data, [uri for uri, _ in files])
    digest = xxhash.xxh3_128()
    for uri, info in files:
        digest.update(f"{uri[len(root) :]}\0{info.size}\0{info.mtime_ns}\n".encode())
    inputs = {
        "source_digest": digest.hexdigest(),
        "session": keys.session,
        "timestamp": keys.timestamp,
        "row_group_rows": row_group_rows,
        "deduplicated": groups,
    }
    existing = finished_report(target, RECORD_NAME, ClusterReport, "clustered", inputs)
    if existing is not None:
        return existing
    source = open_source([uri for uri, _ in files], keys)
    if not source.rows:
        raise DataError(f"{root}: its files hold no rows; write them or remove the folder")
    if groups:
        stored_schema(source.schema, groups)
    with staged_folder(target) as staging:
        writer = ClusterWriter(staging, source.schema, keys, row_group_rows, groups)
        try:
            for table in sort(source, f"{target.rstrip('/')}.sorting"):
                writer.write(table)
            writer.finish()
        except BaseException:
            writer.discard()
            raise
        report = ClusterReport(
            partition=folder,
            source=root,
            source_bytes=sum(info.size for _, info in files),
            rows=writer.rows,
            sessions=writer.sessions,
            rows_without_session=writer.rows_without_session,
            bytes=writer.bytes,
            dictionary_columns=writer.dictionary_columns or (),
            **inputs,
        )
        write_report(staging, RECORD_NAME, report)
    return report


def _check_folder_keys(data: TrainingData, uris: Sequence[str]) -> None:
    """Checks that no column is lost when files of several folders are sorted together.

    Raises:
        DataError: a column that the job reads is a key in the names of folders.
    """
    needed = {*RowEncoder(data).columns, *(name for name in (data.session, data.timestamp) if name)}
    for uri in uris:
        named = sorted(needed & set(folder_keys(data, uri)))
        if named:
            raise DataError(
                f"{uri}: the columns {named} are in the names of folders, which clustered files do not have; write "
                "them into the files first, with `elastrec data convert`"
            )
