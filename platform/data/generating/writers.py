"""PartitionWriter: writes generated rows as Parquet, CSV or Criteo TSV."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from elastrec.platform.data.files import join
from elastrec.platform.data.finished import AtomicFile, ParquetFile
from elastrec.platform.data.generating.clicks import Clicks
from elastrec.platform.specs.data import FileFormat

if TYPE_CHECKING:
    from elastrec.platform.data.generating.generator import GenerateSpec

_SUFFIX = {FileFormat.PARQUET: "parquet", FileFormat.CSV: "csv", FileFormat.CRITEO_TSV: "tsv"}


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


def _hexadecimal(ids: pa.Array) -> pa.Array:
    """Ids within 32 bits as 8 digits each."""
    digits = np.asarray(pc.fill_null(ids, 0)).astype(">u4").tobytes().hex().encode()
    offsets = np.arange(0, len(digits) + 1, 8, dtype=np.int32)
    texts = pa.StringArray.from_buffers(len(ids), pa.py_buffer(offsets), pa.py_buffer(digits))
    return pc.if_else(ids.is_valid(), texts, pa.scalar(None, pa.string()))
