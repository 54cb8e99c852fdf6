"""PartitionWriter: writes generated rows as Parquet, CSV or Criteo TSV. AtomicFile, ParquetFile: files that appear when
complete."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.fs as pafs
import pyarrow.parquet as pq
from numpy.typing import NDArray

from elastrec.platform.data.files import join, locate
from elastrec.platform.data.generating.clicks import Clicks
from elastrec.platform.specs.data import FileFormat
from elastrec.platform.specs.errors import DataError

if TYPE_CHECKING:
    from elastrec.platform.data.generating.generator import GenerateSpec

ROW_GROUP_ROWS = 16_384
"""Small, because shards have some ten thousand rows and are read in whole row groups."""

_SUFFIX = {FileFormat.PARQUET: "parquet", FileFormat.CSV: "csv", FileFormat.CRITEO_TSV: "tsv"}


class AtomicFile:
    """An output stream whose content appears under `uri` when `commit` is called."""

    def __init__(self, uri: str) -> None:
        self._filesystem, self._path = locate(uri)
        self._local = isinstance(self._filesystem, pafs.LocalFileSystem)
        folder, _, name = self._path.rpartition("/")
        # An object store shows an object only once its upload is complete.
        self._written = f"{folder}/_{name}.tmp" if self._local else self._path
        self.uri = uri
        try:
            if self._local:
                self._filesystem.create_dir(folder, recursive=True)
            self.stream = self._filesystem.open_output_stream(self._written)
        except OSError as error:
            raise DataError(f"{uri}: cannot be written ({error})") from error

    def commit(self) -> int:
        """Closes the file and gives it its name; returns its size in bytes."""
        self.stream.close()
        if self._local:
            self._filesystem.move(self._written, self._path)
        return int(self._filesystem.get_file_info(self._path).size)

    def discard(self) -> None:
        """Closes and removes the file."""
        self.stream.close()
        if self._local:
            self._filesystem.delete_file(self._written)


def parquet_writer(stream: pa.NativeFile, schema: pa.Schema) -> pq.ParquetWriter:
    """The Parquet settings of all files except clustered ones; the same rows give the same bytes."""
    return pq.ParquetWriter(stream, schema, compression="zstd", compression_level=1, write_statistics=False)


class ParquetFile(AtomicFile):
    """A Parquet file that appears under `uri` when `commit` is called.

    Args:
        open_writer: opens the writer of a stream.
    """

    def __init__(
        self,
        uri: str,
        schema: pa.Schema,
        open_writer: Callable[[pa.NativeFile, pa.Schema], pq.ParquetWriter] = parquet_writer,
    ) -> None:
        super().__init__(uri)
        self._writer = open_writer(self.stream, schema)

    def write(self, table: pa.Table, row_group_size: int = ROW_GROUP_ROWS) -> None:
        """Appends rows in row groups of this size."""
        self._writer.write_table(table, row_group_size=row_group_size)

    def commit(self) -> int:
        """As AtomicFile."""
        self._writer.close()
        return super().commit()

    def discard(self) -> None:
        """As AtomicFile."""
        self._writer.close()
        super().discard()


class PartitionWriter:
    """Writes chunks into `part-00000`, `part-00001`, ... of one folder."""

    def __init__(self, spec: GenerateSpec, folder: str) -> None:
        self._spec = spec
        self._folder = folder
        self._parts = 0
        self._rows = 0
        self._file: AtomicFile | None = None
        self.bytes = 0

    def write(self, clicks: Clicks) -> None:
        """Appends a chunk; begins a new file after `rows_per_file` rows.

        Raises:
            DataError: the place cannot be written.
        """
        table = as_table(clicks, text=self._spec.format is not FileFormat.PARQUET)
        done = 0
        while done < table.num_rows:
            if self._file is None:
                uri = join(self._folder, f"part-{self._parts:05d}.{_SUFFIX[self._spec.format]}")
                is_parquet = self._spec.format is FileFormat.PARQUET
                self._file = ParquetFile(uri, table.schema) if is_parquet else AtomicFile(uri)
                self._rows = 0
            part = table.slice(done, self._spec.rows_per_file - self._rows)
            self._append(self._file, part)
            done += part.num_rows
            self._rows += part.num_rows
            if self._rows == self._spec.rows_per_file:
                self._finish()

    def _append(self, file: AtomicFile, table: pa.Table) -> None:
        if isinstance(file, ParquetFile):
            file.write(table)
            return
        criteo = self._spec.format is FileFormat.CRITEO_TSV
        if criteo:
            table = _criteo(table)
        options = pa.csv.WriteOptions(
            include_header=not criteo and self._rows == 0,
            delimiter="\t" if criteo else ",",
            quoting_style="none",
            quoting_header="none",
        )
        pa.csv.write_csv(table, file.stream, options)

    def _finish(self) -> None:
        if self._file is not None:
            self.bytes += self._file.commit()
            self._file = None
            self._parts += 1

    def __enter__(self) -> PartitionWriter:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self._finish()
        elif self._file is not None:
            self._file.discard()


def as_table(clicks: Clicks, *, text: bool) -> pa.Table:
    """Generated rows as Arrow columns; lists joined by `|` for text files."""
    columns: dict[str, pa.Array] = {"label": pa.array(clicks.label)}
    if clicks.conversion is not None:
        columns["conversion"] = pa.array(clicks.conversion)
    for i, value_B in enumerate(clicks.dense):
        columns[f"I{i + 1}"] = pa.array(value_B, mask=value_B < 0)
    for i, id_B in enumerate(clicks.sparse):
        missing_B = id_B < 0
        columns[f"C{i + 1}"] = pa.array(id_B, mask=missing_B if missing_B.any() else None)
    for i, (id_L, offset_B) in enumerate(clicks.lists):
        offsets = pa.array(offset_B.astype(np.int32))
        if text:
            lists = pa.ListArray.from_arrays(offsets, pa.array(id_L).cast(pa.string()))
            columns[f"L{i + 1}"] = pc.binary_join(lists, "|")
        else:
            columns[f"L{i + 1}"] = pa.ListArray.from_arrays(offsets, pa.array(id_L))
    columns["session_id"] = pa.array(clicks.session_id)
    columns["timestamp"] = pa.array(clicks.timestamp)
    columns["label_delay_seconds"] = pa.array(clicks.delay_seconds)
    return pa.table(columns)


def _criteo(table: pa.Table) -> pa.Table:
    names = [name for name in table.column_names if name == "label" or name[0] in "IC"]
    table = table.select(names)
    for index, name in enumerate(names):
        if name[0] == "C":
            table = table.set_column(index, name, _hexadecimal(table[name].combine_chunks()))
    return table


_DIGITS = np.frombuffer(b"0123456789abcdef", np.uint8)


def _hexadecimal(ids: pa.Array) -> pa.Array:
    """Ids within 32 bits as 8 digits each."""
    id_B: NDArray[np.int64] = np.asarray(pc.fill_null(ids, 0))
    shifts = np.arange(28, -4, -4)
    digits = _DIGITS[(id_B[:, None] >> shifts) & 15]
    offsets = np.arange(0, 8 * len(id_B) + 1, 8, dtype=np.int32)
    texts = pa.StringArray.from_buffers(len(id_B), pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(digits)))
    return pc.if_else(ids.is_valid(), texts, pa.scalar(None, pa.string()))
