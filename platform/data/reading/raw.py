"""RawReader: rows of a manifest as the files hold them, by random access, one bounded piece at a time."""

from __future__ import annotations

import importlib
import traceback
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from elastrec.platform.data.deduplicating.stored_groups import StoredRows, columns_to_read, stored_names
from elastrec.platform.data.entries import DataFile, DataManifest
from elastrec.platform.data.reading.compressed_text import CompressedText
from elastrec.platform.data.reading.encode import BadRow, EncodedRows, RowEncoder
from elastrec.platform.data.reading.numbers import as_float64
from elastrec.platform.data.reading.planned_file import PlannedFile
from elastrec.platform.data.reading.text import (
    INDEX_ROWS,
    TextLayout,
    as_utf8,
    opened_text,
    parse_strings,
    parse_typed,
    row_starts,
)
from elastrec.platform.specs.data import TrainingData
from elastrec.platform.specs.errors import DataError

# A piece of text fits into the processor's cache, and is what lies between two rows whose places are known.
_PIECE_ROWS = INDEX_ROWS
# Neighbouring shards share a row group; keeping the last ones spares decoding it twice.
_CACHED_GROUPS = 4
_CACHED_BYTES = 64 * 2**20


@dataclass(frozen=True)
class RawRows:
    """Consecutive rows of one file; `first_row` counts within the file.

    Attributes:
        ragged: of lines with a wrong number of fields (all null in `table`), by position, that number.
        stored: holds what `RawReader` was asked to keep deduplicated; None for a plain file.
    """

    table: pa.Table
    file: DataFile
    first_row: int
    ragged: Mapping[int, int] = field(default_factory=dict)
    stored: StoredRows | None = None

    def explained(self, encoded: EncodedRows) -> EncodedRows:
        """Encoded rows whose first bad row is called ragged if that is why it is bad."""
        bad = encoded.first_bad
        if bad is None or bad.row not in self.ragged or self.file.text is None:
            return encoded
        found, expected = self.ragged[bad.row], len(self.file.text.columns)
        return replace(encoded, first_bad=BadRow(bad.row, "", f"{found} fields", f"{expected} fields"))


class RawReader:
    """Reads ranges of a manifest's rows with the columns that the job needs (all columns before a user's transform).

    Numbers of text files come as float64 where every field of the piece is a number, else as text, so that the encoder
    can tell which row is bad. With a user's transform, label, weight and dense columns of text files are always float64
    (NaN where the field is no number) and the others text.

    Of compressed text, each read unpacks what lies before its rows in the file: for readers from front to back only.

    Args:
        extra: further columns to read.
        keep: features that stay in `RawRows.stored`, where the file holds their distinct rows only; everything else is
            expanded, and all is before a user's transform.

    Raises:
        DataError: the user's transform cannot be imported.
    """

    def __init__(
        self,
        data: TrainingData,
        manifest: DataManifest,
        *,
        extra: Sequence[str] = (),
        keep: frozenset[str] = frozenset(),
    ) -> None:
        self._data = data
        self._manifest = manifest
        encoder = RowEncoder(data)
        self._columns = tuple(dict.fromkeys((*encoder.columns, *extra)))
        ids = [reading for reading in encoder.readings if reading.kind == "ids"]
        # A user's transform gets plain text, and may make columns that the file does not have.
        plain = data.transform is not None
        texts = [r.column for r in ids if r.encoding != "integer" and not r.is_list and not plain]
        self._texts = list(dict.fromkeys(texts))
        numbers = {reading.column for reading in encoder.readings if reading.kind == "numbers"}
        numbers -= {reading.column for reading in encoder.readings if reading.kind == "ids" or reading.is_list}
        self._numbers = frozenset({target.name for target in data.targets} | numbers)
        self._transform = load_transform(data.transform) if data.transform else None
        self._keep = keep if data.transform is None else frozenset()
        self._open: tuple[str, PlannedFile, pq.ParquetFile] | None = None
        self._groups: OrderedDict[tuple[str, int], pa.Table] = OrderedDict()

    def read(self, start: int, length: int, *, transformed: bool = True, together: bool = False) -> Iterator[RawRows]:
        """Pieces of the range, in order.

        Args:
            together: row groups that are wanted as a whole come as one piece, which is faster than one by one and
                needs as much memory as all rows of the range.

        Raises:
            DataError: the range is outside the manifest, a file changed or vanished, or the transform's result is
                unusable.
        """
        for file, first, count in self._manifest.locate_rows(start, length):
            if file.text is not None:
                pieces = self._text(file, first, count)
            elif together and not file.deduplicated and self._transform is None:
                pieces = self._parquet_together(file, first, count)
            else:
                pieces = self._parquet(file, first, count)
            for piece in pieces:
                if file.keys:
                    piece = replace(piece, table=self._with_keys(piece.table, file))
                if transformed and self._transform is not None:
                    piece = replace(piece, table=apply_transform(self._data, self._transform, piece.table))
                yield piece

    def _with_keys(self, table: pa.Table, file: DataFile) -> pa.Table:
        """The rows with the columns that only the names of the file's folders hold."""
        for key, value in file.keys.items():
            if self._transform is not None or key in self._columns:
                table = table.append_column(key, pa.repeat(pa.scalar(value, pa.string()), table.num_rows))
        return table

    def _stored_columns(self, file: DataFile) -> list[str]:
        """What is needed of the columns that the file itself holds."""
        return [name for name in self._columns if name not in file.keys]

    def close(self) -> None:
        """Forget open files and cached row groups."""
        self._open = None
        self._groups.clear()

    def _parquet(self, file: DataFile, first: int, count: int) -> Iterator[RawRows]:
        begin = 0
        for index, rows in enumerate(file.row_group_rows):
            low, high = max(first, begin), min(first + count, begin + rows)
            if low < high:
                table = self._group(file, index)
                if file.deduplicated:
                    stored = StoredRows(table, file.deduplicated, low - begin, high - low)
                    yield RawRows(self._expanded(stored, file), file, low, stored=stored)
                else:
                    yield RawRows(table.slice(low - begin, high - low), file, low)
            begin += rows

    def _parquet_together(self, file: DataFile, first: int, count: int) -> Iterator[RawRows]:
        """As `_parquet`, but one piece of all row groups that lie side by side, wanted as a whole and not cached."""
        begin, run, run_rows = 0, list[int](), 0
        for index, rows in enumerate(file.row_group_rows):
            low, high = max(first, begin), min(first + count, begin + rows)
            if rows and high - low == rows and (file.uri, index) not in self._groups:
                run.append(index)
                run_rows += rows
            else:
                if run:
                    yield RawRows(self._decoded(file, run), file, begin - run_rows)
                    run, run_rows = [], 0
                if low < high:
                    yield RawRows(self._group(file, index).slice(low - begin, high - low), file, low)
            begin += rows
        if run:
            yield RawRows(self._decoded(file, run), file, begin - run_rows)

    def _expanded(self, stored: StoredRows, file: DataFile) -> pa.Table:
        try:
            return stored.plain(self._keep)
        except DataError as error:
            raise DataError(f"{file.uri}: {error}") from error

    def _group(self, file: DataFile, index: int) -> pa.Table:
        key = (file.uri, index)
        if key in self._groups:
            self._groups.move_to_end(key)
            return self._groups[key]
        table = self._decoded(file, [index])
        if table.nbytes <= _CACHED_BYTES // _CACHED_GROUPS:
            self._groups[key] = table
            while len(self._groups) > _CACHED_GROUPS:
                self._groups.popitem(last=False)
        return table

    def _decoded(self, file: DataFile, groups: list[int]) -> pa.Table:
        try:
            if self._open is None or self._open[0] != file.uri:
                planned = PlannedFile(file)
                parquet = pq.ParquetFile(
                    planned.stream,
                    # Of use where each read is a request; of a local file it is one more copy.
                    pre_buffer=not planned.is_local,
                    # Distinct texts are hashed once each.
                    read_dictionary=stored_names(
                        [name for name in self._texts if name not in file.keys], file.deduplicated
                    ),
                )
                self._open = (file.uri, planned, parquet)
            _, planned, parquet = self._open
            if parquet.metadata.num_rows != file.rows:
                raise DataError(
                    f"{file.uri}: holds {parquet.metadata.num_rows} rows, the manifest says {file.rows}; the file "
                    "changed after the job began: start the job again"
                )
            columns = columns_to_read(
                None if self._transform is not None else self._stored_columns(file), file.deduplicated
            )
            table = parquet.read_row_groups(groups, columns=columns, use_threads=pa.cpu_count() > 1)
            planned.check_read()
            return table
        except (pa.ArrowException, OSError) as error:
            opened, self._open = self._open, None
            if opened is not None:
                opened[1].check_read()  # damaged, or written anew while it is read
            if len(groups) > 1:
                # One by one, the damaged one says its number.
                return pa.concat_tables([self._decoded(file, [index]) for index in groups])
            raise DataError(f"{file.uri}: row group {groups[0]} cannot be read ({error})") from error

    def _text(self, file: DataFile, first: int, count: int) -> Iterator[RawRows]:
        layout = file.text
        assert layout is not None
        columns = layout.columns if self._transform is not None else self._stored_columns(file)
        try:
            planned = PlannedFile(file)
            with opened_text(planned.stream, layout.codec) as stream:
                while count:
                    taken = min(count, _PIECE_ROWS - first % _PIECE_ROWS)
                    block = _lines(stream, layout, first, taken, file)
                    planned.check_read()
                    try:
                        table, ragged = self._parse(block, layout, columns, taken)
                    except DataError as error:
                        raise DataError(f"{file.uri}: rows {first} to {first + taken - 1}: {error}") from error
                    yield RawRows(table, file, first, ragged)
                    first, count = first + taken, count - taken
        except OSError as error:
            raise DataError(f"{file.uri}: cannot be read ({error})") from error

    def _parse(
        self, block: memoryview, layout: TextLayout, columns: list[str], rows: int
    ) -> tuple[pa.Table, Mapping[int, int]]:
        ragged: Mapping[int, int] = {}
        text, csv = as_utf8(block, layout.encoding), self._data.csv
        try:
            table = parse_typed(text, layout, columns, self._numbers, csv)
        except pa.ArrowInvalid:
            table, ragged = parse_strings(text, layout, columns, rows, self._numbers, csv)
            if self._transform is not None:
                for name in sorted(self._numbers & set(columns)):
                    value_B, missing_B, wrong_B = as_float64(table[name].combine_chunks(), name)
                    value_B = np.where(wrong_B, np.nan, value_B)
                    index = table.schema.get_field_index(name)
                    table = table.set_column(index, name, pa.array(value_B, mask=missing_B))
        if table.num_rows != rows:
            raise DataError(
                f"{rows} lines gave {table.num_rows} rows: a quoted field must not hold a line break; remove it, or "
                "write the rows as Parquet"
            )
        return table, ragged


def _lines(
    stream: pa.NativeFile | CompressedText, layout: TextLayout, first: int, rows: int, file: DataFile
) -> memoryview:
    """Exactly the lines of `rows` rows from row `first` on."""
    low, high = first // INDEX_ROWS, -(-(first + rows) // INDEX_ROWS)
    begin = layout.row_offsets[low]
    end = layout.row_offsets[high] if high < len(layout.row_offsets) else layout.end
    stream.seek(begin)
    block = stream.read(end - begin)
    starts = row_starts(block, layout.encoding)
    skip = first - low * INDEX_ROWS
    if len(block) != end - begin or len(starts) < skip + rows:
        raise DataError(f"{file.uri}: is shorter than the manifest says; the file changed: start the job again")
    stop = starts[skip + rows] if skip + rows < len(starts) else len(block)
    return memoryview(block)[starts[skip] : stop]


Transform = Callable[[pa.RecordBatch], pa.RecordBatch]


def load_transform(path: str) -> Transform:
    """Import `package.module:function`.

    Raises:
        DataError: there is no such module or function.
    """
    module, _, name = path.partition(":")
    try:
        function = getattr(importlib.import_module(module), name)
    except (Exception, SystemExit) as error:  # the user's module may do anything
        raise DataError(
            f"data.transform: {path} cannot be imported ({type(error).__name__}: {error}); it must be importable in "
            "every pod (PYTHONPATH)"
        ) from error
    if not callable(function):
        raise DataError(f"data.transform: {path} is a {type(function).__name__}; expected a function")
    return function


def apply_transform(data: TrainingData, transform: Transform, table: pa.Table) -> pa.Table:
    """Run the user's function over the rows as one record batch.

    Raises:
        DataError: the function failed (with its traceback), or the result is no record batch, has another number of
            rows or lacks columns.
    """
    batch = table.combine_chunks().to_batches()[0]
    try:
        result = transform(batch)
    except Exception as error:
        raise DataError(
            f"data.transform: {data.transform} failed on {batch.num_rows} rows: {type(error).__name__}: {error}\n"
            + traceback.format_exc()
        ) from error
    if not isinstance(result, pa.RecordBatch):
        raise DataError(f"data.transform: {data.transform} returned {type(result).__name__}, expected a RecordBatch")
    if result.num_rows != batch.num_rows:
        raise DataError(
            f"data.transform: {data.transform} made {result.num_rows} rows of {batch.num_rows}; the number must stay"
        )
    returned = set(result.schema.names)
    missing = [name for name in RowEncoder(data).columns if name not in returned]
    if missing:
        raise DataError(
            f"data.transform: {data.transform} returned no columns {missing}; returned: {result.schema.names}"
        )
    return pa.Table.from_batches([result])
