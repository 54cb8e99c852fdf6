"""RawReader: random access to the raw rows of a manifest, in pieces of bounded size."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from elastrec.platform.data.deduplicating.stored_groups import StoredRows, columns_to_read, stored_names
from elastrec.platform.data.entries import DataFile, DataManifest, overlaps
from elastrec.platform.data.features.plan import Reading
from elastrec.platform.data.files import errors_naming
from elastrec.platform.data.reading.encode import BadRow, EncodedRows
from elastrec.platform.data.reading.files.compressed_text import CompressedText
from elastrec.platform.data.reading.files.libsvm import parse_libsvm
from elastrec.platform.data.reading.files.planned_file import PlannedFile
from elastrec.platform.data.reading.files.text import (
    INDEX_ROWS,
    TextLayout,
    as_utf8,
    opened_text,
    parse_strings,
    parse_typed,
    rows_differ,
    with_dots,
)
from elastrec.platform.data.reading.numbers import as_float64, schema_without_views
from elastrec.platform.data.reading.transform import Transform
from elastrec.platform.specs.data import TrainingData
from elastrec.platform.specs.errors import DataError

# A piece of text fits into the processor's cache, and is the text between two rows with known positions.
_PIECE_ROWS = INDEX_ROWS
# Rows of the row groups that one call decodes, which is faster than one by one.
_DECODED_ROWS = 8 * _PIECE_ROWS
# Consecutive shards share a row group, which need not be decoded twice if it is cached.
_CACHED_GROUPS = 4
_CACHED_BYTES = 64 * 2**20


@dataclass(frozen=True)
class RawRows:
    """Consecutive rows of one file; `first_row` counts within the file.

    Attributes:
        bad_lines: by position, what was found in an unreadable line, whose label is null, and what was expected.
        stored: the features that `RawReader` keeps deduplicated; None for a plain file.
    """

    table: pa.Table
    file: DataFile
    first_row: int
    bad_lines: Mapping[int, tuple[str, str]] = field(default_factory=dict)
    stored: StoredRows | None = None

    def first_bad(self, encoded: EncodedRows) -> BadRow | None:
        """The first bad row of these rows, and whether its line or a column is the reason; None: there is none."""
        bad = encoded.first_bad
        if bad is None or bad.row not in self.bad_lines:
            return bad
        return BadRow(bad.row, "", *self.bad_lines[bad.row])


class RawReader:
    """Reads ranges of a manifest's rows with the columns that the job needs (all columns for a user's transform).

    Numbers in text files are read as float64 if every field of the piece is a number, otherwise as text, so that the
    encoder can find the bad rows. With a user's transform, label, weight and dense columns of text files are always
    float64 (NaN where a field is not a number) and the others text.

    A read of compressed text decompresses the file from its beginning, so that ranges must be read in order.

    Args:
        readings: the ways in which the features read their columns.
        targets: whether labels and weights are read, too; a user's transform gets all columns in any case.
        extra: further columns to read.
        keep: features that remain deduplicated, in `RawRows.stored`, if the file stores only their distinct rows. All
            others are expanded, and so are all before a user's transform.

    Raises:
        DataError: the user's transform cannot be imported.
    """

    def __init__(
        self,
        data: TrainingData,
        manifest: DataManifest,
        readings: Collection[Reading],
        *,
        targets: bool = True,
        extra: Sequence[str] = (),
        keep: frozenset[str] = frozenset(),
    ) -> None:
        self._data = data
        self._manifest = manifest
        wanted = data.targets if targets else ()
        needed = dict.fromkeys([*(each.name for each in wanted), *(each.column for each in readings)])
        self._columns = tuple(dict.fromkeys((*needed, *extra)))
        # A user's transform gets plain text, and may make columns that the file does not have.
        self._transform = Transform(data.transform, needed) if data.transform else None
        ids = [each for each in readings if each.kind == "ids" and not each.is_list and each.encoding != "integer"]
        self._texts = list(dict.fromkeys(each.column for each in ids)) if self._transform is None else []
        numbers = {each.column for each in readings if each.kind == "numbers"}
        numbers -= {each.column for each in readings if each.kind == "ids" or each.is_list}
        # Lists of numbers are text, whose decimal points the parser of text files does not know.
        lists = {each.column for each in readings if each.kind == "numbers" and each.is_list}
        self._number_lists = lists - {each.column for each in readings if each.kind == "ids"}
        self._numbers = frozenset({target.name for target in data.targets} | numbers)
        self._keep = keep if data.transform is None else frozenset()
        self._open: tuple[str, PlannedFile, pq.ParquetFile] | None = None
        self._groups: OrderedDict[tuple[str, int], pa.Table] = OrderedDict()

    def read(self, start: int, length: int, *, transformed: bool = True, by_group: bool = True) -> Iterator[RawRows]:
        """Pieces of the range, in order.

        Args:
            by_group: pieces of Parquet files are row groups; otherwise, a piece may consist of several small ones.

        Raises:
            DataError: the range is outside the manifest, a file changed or vanished, or the transform's result is
                unusable.
        """
        for file, first, count in self._manifest.locate_rows(start, length):
            if file.text is not None:
                pieces = self._text(file, first, count)
            else:
                alone = by_group or file.deduplicated or self._transform is not None
                pieces = self._parquet(file, first, count, 0 if alone else _DECODED_ROWS)
            for piece in pieces:
                if file.keys:
                    piece = replace(piece, table=self._with_keys(piece.table, file))
                if transformed and self._transform is not None:
                    piece = replace(piece, table=self._transform(piece.table))
                yield piece

    def _with_keys(self, table: pa.Table, file: DataFile) -> pa.Table:
        """The rows with the columns from the names of the file's folders."""
        for key, value in file.keys.items():
            if self._transform is not None or key in self._columns:
                table = table.append_column(key, pa.repeat(pa.scalar(value, pa.string()), table.num_rows))
        return table

    def _stored_columns(self, file: DataFile) -> list[str]:
        """The needed columns that are in the file."""
        return [name for name in self._columns if name not in file.keys]

    def close(self) -> None:
        """Closes the open file and drops cached row groups."""
        self._open = None
        self._groups.clear()

    def _parquet(self, file: DataFile, first: int, count: int, most: int) -> Iterator[RawRows]:
        """Rows of a Parquet file, row group by row group; adjacent whole ones of up to `most` rows are one piece.

        Row groups of which only a part is needed are cached for the next shard.
        """
        run: list[int] = []
        run_first = first
        for index, begin, low, high in overlaps(file.row_group_rows, first, count):
            is_whole = high - low == file.row_group_rows[index] and (file.uri, index) not in self._groups
            if run and not (is_whole and high - run_first <= most):
                table = self._decoded(file, run)
                yield self._piece(table, file, run_first, 0, table.num_rows)
                run = []
            if is_whole:
                run_first = run_first if run else low
                run.append(index)
            else:
                yield self._piece(self._group(file, index), file, low, low - begin, high - low)
        if run:
            table = self._decoded(file, run)
            yield self._piece(table, file, run_first, 0, table.num_rows)

    def _piece(self, table: pa.Table, file: DataFile, first_row: int, begin: int, rows: int) -> RawRows:
        """Rows [begin, begin + rows) of a table of row groups."""
        if not file.deduplicated:
            return RawRows(table.slice(begin, rows), file, first_row)
        stored = StoredRows(table, file.deduplicated, begin, rows)
        with errors_naming(file.uri):
            return RawRows(stored.plain(self._keep), file, first_row, stored=stored)

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
                    # Useful if each read is a request; for a local file it is another copy.
                    pre_buffer=not planned.is_local,
                    # Each distinct text is hashed once.
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
            plain = schema_without_views(table.schema)
            return table if plain == table.schema else table.cast(plain)
        except (pa.ArrowException, OSError) as error:
            opened, self._open = self._open, None
            if opened is not None:
                opened[1].check_read()  # it may have been rewritten
            if len(groups) > 1:
                # One by one, so that the error names the damaged one.
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
                    with errors_naming(f"{file.uri}: rows {first} to {first + taken - 1}"):
                        table, bad_lines = self._parse(block, layout, columns, taken)
                    yield RawRows(table, file, first, bad_lines)
                    first, count = first + taken, count - taken
        except OSError as error:
            raise DataError(f"{file.uri}: cannot be read ({error})") from error

    def _parse(
        self, block: memoryview, layout: TextLayout, columns: list[str], rows: int
    ) -> tuple[pa.Table, Mapping[int, tuple[str, str]]]:
        bad_lines: Mapping[int, tuple[str, str]] = {}
        text, csv = as_utf8(block, layout.encoding), self._data.csv
        if layout.is_libsvm:
            return parse_libsvm(text, self._data, columns)
        try:
            table = parse_typed(text, layout, columns, self._numbers, csv)
        except pa.ArrowInvalid:
            table, fields = parse_strings(text, layout, columns, rows, self._numbers, csv)
            expected = f"{len(layout.columns)} fields"
            bad_lines = {row: (f"{count} fields", expected) for row, count in fields.items()}
            if self._transform is not None:
                for name in sorted(self._numbers & set(columns)):
                    value_B, missing_B, wrong_B = as_float64(table[name].combine_chunks(), name)
                    value_B = np.where(wrong_B, np.nan, value_B)
                    index = table.schema.get_field_index(name)
                    table = table.set_column(index, name, pa.array(value_B, mask=missing_B))
        if csv.decimal_point not in (".", csv.list_separator) and self._transform is None:
            for name in sorted(self._number_lists & set(columns)):
                dotted = with_dots(table[name], csv.decimal_point)
                table = table.set_column(table.schema.get_field_index(name), name, dotted)
        if table.num_rows != rows:
            raise rows_differ(rows, table.num_rows)
        return table, bad_lines


def _lines(
    stream: pa.NativeFile | CompressedText, layout: TextLayout, first: int, rows: int, file: DataFile
) -> memoryview:
    """Exactly the lines of `rows` rows from row `first` on."""
    low, high = first // INDEX_ROWS, -(-(first + rows) // INDEX_ROWS)
    begin = layout.row_offsets[low]
    end = layout.row_offsets[high] if high < len(layout.row_offsets) else layout.end
    stream.seek(begin)
    block = stream.read(end - begin)
    starts = layout.row_starts(block)
    skip = first - low * INDEX_ROWS
    if len(block) != end - begin or len(starts) < skip + rows:
        raise DataError(f"{file.uri}: is shorter than the manifest says; the file changed: start the job again")
    stop = starts[skip + rows] if skip + rows < len(starts) else len(block)
    return memoryview(block)[starts[skip] : stop]
