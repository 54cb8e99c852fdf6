"""Text files (CSV, Criteo TSV with or without a header, libsvm): their columns, and the positions of their rows.

Rows end with a line feed. Blank lines are not rows, nor are lines of libsvm files that begin with `#`. Random access
searches line feeds without parsing. With `csv.newlines_in_values`, a line feed inside quotation marks is part of a
field: the number of quotation marks before it in its row is odd.
"""

from __future__ import annotations

import codecs
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.csv
from numpy.typing import NDArray

from elastrec.platform.data.files import errors_naming, locate
from elastrec.platform.data.reading.files.compressed_text import CompressedText, codec_of
from elastrec.platform.data.reading.files.libsvm import libsvm_columns
from elastrec.platform.specs.data import CsvOptions, FileFormat, TrainingData
from elastrec.platform.specs.errors import DataError
from elastrec.platform.specs.text.some import repeated

CRITEO_COLUMNS = ("label", *(f"I{i}" for i in range(1, 14)), *(f"C{i}" for i in range(1, 27)))
INDEX_ROWS = 16_384
"""A manifest contains the position of each row with a multiple of this number; a read scans at most so many lines."""

_SCAN_BYTES = 16 * 2**20
_UNITS = {"utf-16-le": np.dtype("<u2"), "utf-16-be": np.dtype(">u2")}
_BYTE_ORDER_MARKS = {"utf-8": codecs.BOM_UTF8, "utf-16-le": codecs.BOM_UTF16_LE, "utf-16-be": codecs.BOM_UTF16_BE}
_LONGEST_HEADER_BYTES = 2**20
_LONGEST_ROW_BYTES = 2**26
_LOOKED_AT_BYTES = 4096
_CARRIAGE_RETURN = "a carriage return (\\r) without a line feed stands in a line; end every line with \\n or \\r\\n"


class TextLayout(msgspec.Struct, frozen=True, kw_only=True):
    """How one text file is read.

    Attributes:
        columns: names in file order; the label of a Criteo file has its name in the job file.
        row_offsets: byte position of the rows 0, INDEX_ROWS, 2 * INDEX_ROWS, ...
        end: byte position after the last row.
        codec: of compressed text, see `codec_of`; positions are those in the decompressed text.
        encoding: of the characters; `utf-16-le` or `utf-16-be` instead of `utf-16`.
        newlines_in_values: whether quoted fields may hold line breaks.
        is_libsvm: the rows are those of `elastrec.platform.data.reading.files.libsvm`, without delimiter.
    """

    delimiter: str
    columns: list[str]
    row_offsets: list[int]
    end: int
    codec: str = ""
    encoding: str = "utf-8"
    newlines_in_values: bool = False
    is_libsvm: bool = False

    def row_starts(self, block: bytes | memoryview) -> NDArray[np.int64]:
        """Positions in `block` (which begins with a row) where a row begins; int64 [R]."""
        raw = _units(block, self.encoding)
        starts = _line_starts(raw, _row_ends(raw, self.newlines_in_values))
        if self.is_libsvm and len(starts):
            starts = starts[raw[starts] != ord("#")]
        return starts * raw.itemsize

    def rows_end(self, block: bytes) -> int:
        """Where the last whole row of `block` ends."""
        if self.encoding not in _UNITS and not self.newlines_in_values:
            return block.rfind(b"\n") + 1
        raw = _units(block, self.encoding)
        ends = _row_ends(raw, self.newlines_in_values)
        return int(ends[-1] + 1) * raw.itemsize if len(ends) else 0


def scan_text(data: TrainingData, uri: str) -> tuple[TextLayout, int]:
    """The layout of a text file and its number of rows, in one streaming pass.

    Raises:
        DataError: the file is empty, its first line is no header where one is promised, or a quotation mark is not
            closed.
    """
    filesystem, path = locate(uri)
    codec = codec_of(uri)
    try:
        with opened_text(filesystem.open_input_file(path), codec) as file:
            head = file.read(_LONGEST_HEADER_BYTES)
            encoding, mark = _encoding(data, uri, head)
            delimiter, columns, position = _header(data, uri, head, encoding, mark)
            layout = TextLayout(
                delimiter=delimiter,
                columns=columns,
                row_offsets=[],
                end=0,
                codec=codec,
                encoding=encoding,
                newlines_in_values=data.format is FileFormat.CSV and data.csv.newlines_in_values,
                is_libsvm=data.format is FileFormat.LIBSVM,
            )
            offsets: list[int] = []
            rows = 0
            pending_start = position
            tail = head[position:]  # not a seek: compressed text is read from front to back
            while True:
                chunk = file.read(_SCAN_BYTES)
                block = tail + chunk
                if not chunk and not block:
                    break
                complete = block if not chunk else block[: layout.rows_end(block)]
                starts = layout.row_starts(complete)
                first = -rows % INDEX_ROWS
                offsets.extend((starts[first::INDEX_ROWS] + pending_start).tolist())
                rows += len(starts)
                pending_start += len(complete)
                tail = block[len(complete) :]
                is_open = not chunk and layout.newlines_in_values and _is_open(_units(block, encoding))
                if is_open or len(tail) > _LONGEST_ROW_BYTES:
                    first_row = rows - 1 if is_open else rows
                    raise DataError(
                        f"{uri}: row {first_row}: is longer than {_LONGEST_ROW_BYTES:,} bytes, or a quotation mark in "
                        "it is not closed; correct the file (a quotation mark inside a quoted field is written twice)"
                    )
                if not chunk:
                    break
    except OSError as error:
        remedy = "; compress or copy it again" if codec else ""
        raise DataError(f"{uri}: cannot be read ({error}){remedy}") from error
    return msgspec.structs.replace(layout, row_offsets=offsets, end=pending_start), rows


def opened_text(stream: pa.NativeFile, codec: str) -> pa.NativeFile | CompressedText:
    """The plain bytes of an open file; closed with it."""
    return CompressedText(stream, codec) if codec else stream


def _units(block: bytes | memoryview, encoding: str) -> NDArray[Any]:
    """The code units of a text."""
    dtype = _UNITS.get(encoding, np.dtype(np.uint8))
    return np.frombuffer(block, dtype, len(block) // dtype.itemsize)


def _row_ends(raw: NDArray[Any], newlines_in_values: bool) -> NDArray[np.int64]:
    """The line feeds that end a row."""
    feeds = np.flatnonzero(raw == ord("\n"))
    if not newlines_in_values:
        return feeds
    marks = np.flatnonzero(raw == ord('"'))
    return feeds[np.searchsorted(marks, feeds) % 2 == 0]


def _is_open(raw: NDArray[Any]) -> bool:
    """Whether the last quoted field has no end."""
    return bool(np.count_nonzero(raw == ord('"')) % 2)


def _line_starts(raw: NDArray[Any], ends: NDArray[np.int64]) -> NDArray[np.int64]:
    """The beginnings of lines that are not blank."""
    if not len(raw):
        return np.empty(0, np.int64)
    if not len(ends) or ends[-1] != len(raw) - 1:
        ends = np.append(ends, len(raw))
    starts = np.concatenate(([0], ends[:-1] + 1))
    lengths = ends - starts
    blank = (lengths == 0) | ((lengths == 1) & (raw[np.minimum(starts, len(raw) - 1)] == ord("\r")))
    return starts[~blank] if blank.any() else starts


def parse_strings(
    block: bytes | memoryview,
    layout: TextLayout,
    columns: list[str],
    rows: int,
    numbers: frozenset[str],
    csv: CsvOptions,
) -> tuple[pa.Table, dict[int, int]]:
    """Columns of whole lines as strings, and the number of fields of each line with a wrong number, which is all null.

    Args:
        numbers: columns whose decimal points are replaced by dots.

    Raises:
        DataError: the text is not UTF-8, or the parser finds more or fewer rows.
    """
    broken: dict[int, int] = {}

    def note(row: pa.csv.InvalidRow) -> str:
        broken[row.number - 1] = row.actual_columns
        return "skip"

    types = {name: pa.string() for name in columns}
    try:
        table = _parse(block, layout, columns, types, note, csv)
    except pa.ArrowInvalid as error:
        raise DataError(
            f"the text cannot be read as UTF-8 ({error}); write it again in UTF-8, or say its "
            "encoding with csv.encoding"
        ) from error
    if table.num_rows + len(broken) != rows:
        raise rows_differ(rows, table.num_rows + len(broken))
    if csv.decimal_point != ".":
        for name in sorted(numbers & set(columns)):
            table = table.set_column(
                table.schema.get_field_index(name), name, with_dots(table[name], csv.decimal_point)
            )
    if broken:
        source = np.zeros(rows, np.int64)
        source[list(broken)] = -1
        good = source >= 0
        source[good] = np.arange(table.num_rows)
        table = table.take(pa.array(source, mask=~good))
    return table, broken


def parse_typed(
    block: bytes | memoryview, layout: TextLayout, columns: list[str], numbers: frozenset[str], csv: CsvOptions
) -> pa.Table:
    """Columns of whole lines, `numbers` as float64 and the others as strings; faster than `parse_strings`.

    Raises:
        pyarrow.ArrowInvalid: a field is not a number, or a line has a wrong number of fields.
    """
    types = {name: pa.float64() if name in numbers else pa.string() for name in columns}
    return _parse(block, layout, columns, types, None, csv)


def _parse(
    block: bytes | memoryview,
    layout: TextLayout,
    columns: list[str],
    types: dict[str, pa.DataType],
    handler: object,
    csv: CsvOptions,
) -> pa.Table:
    return pa.csv.read_csv(
        pa.BufferReader(block),
        # One block: the numbers of broken lines are only known if the parser runs in order.
        read_options=pa.csv.ReadOptions(
            column_names=layout.columns, use_threads=False, block_size=max(len(block) + 1, 1024)
        ),
        parse_options=pa.csv.ParseOptions(
            delimiter=layout.delimiter,
            invalid_row_handler=handler,
            newlines_in_values=layout.newlines_in_values,
        ),
        convert_options=pa.csv.ConvertOptions(
            include_columns=columns,
            column_types=types,
            null_values=["", *csv.null_tokens],
            strings_can_be_null=True,
            decimal_point=csv.decimal_point,
        ),
    )


def with_dots(column: pa.ChunkedArray, point: str) -> pa.ChunkedArray:
    """Numbers with a dot as decimal point instead of `point`; text with a dot becomes an invalid number."""
    dotted = pa.compute.match_substring(column, ".")
    marked = pa.compute.binary_join_element_wise(column, pa.scalar(" (with a dot)"), "")
    return pa.compute.if_else(dotted, marked, pa.compute.replace_substring(column, point, "."))


def as_utf8(block: bytes | memoryview, encoding: str) -> bytes | memoryview:
    """Whole lines in UTF-8.

    Raises:
        DataError: the bytes are not text in this encoding.
    """
    if encoding == "utf-8":
        return block
    try:
        return bytes(block).decode(encoding).encode()
    except UnicodeError as error:
        raise DataError(
            f"the text cannot be read as {encoding} ({error}); correct csv.encoding, or write the file again"
        ) from error


def _encoding(data: TrainingData, uri: str, head: bytes) -> tuple[str, int]:
    """The encoding of a file, and the length of the byte order mark before its first line."""
    encoding = data.csv.encoding
    if encoding == "utf-16":
        encoding = next((name for name in _UNITS if head.startswith(_BYTE_ORDER_MARKS[name])), "")
        if not encoding:
            raise DataError(
                f"{uri}: has no byte order mark, by which csv.encoding: utf-16 is read; say utf-16-le or utf-16-be"
            )
    elif encoding not in _UNITS and b"\0" in head[:_LOOKED_AT_BYTES]:
        raise DataError(
            f"{uri}: is no text in UTF-8 (it holds zero bytes); write it again in UTF-8, or set csv.encoding: utf-16"
        )
    mark = _BYTE_ORDER_MARKS.get(encoding, b"")
    return encoding, len(mark) if mark and head.startswith(mark) else 0


def _header(data: TrainingData, uri: str, head: bytes, encoding: str, mark: int) -> tuple[str, list[str], int]:
    raw = _units(head[mark:], encoding)
    starts = _line_starts(raw, _row_ends(raw, newlines_in_values=False)) * raw.itemsize
    if not len(starts):
        raise DataError(f"{uri}: the file is empty; remove it or write its rows")
    if data.format is FileFormat.LIBSVM:
        return "", libsvm_columns(data), mark
    begin = mark + int(starts[0])
    criteo = data.format is FileFormat.CRITEO_TSV
    ends = _row_ends(_units(head[begin:], encoding), not criteo and data.csv.newlines_in_values)
    end = begin + int(ends[0]) * raw.itemsize if len(ends) else len(head)
    line = head[begin:end].decode(encoding, errors="replace").rstrip("\r")
    if criteo and "\t" not in line and "," in line:
        raise _no_tabs(uri, line)
    delimiter = "\t" if criteo else data.csv.delimiter
    with errors_naming(uri):
        cells = _cells(line, delimiter)
    if criteo:
        return delimiter, *_criteo_columns(data, uri, cells, begin, end + raw.itemsize)
    if not data.csv.has_header:
        named = list(data.csv.column_names or ())
        if len(cells) != len(named):
            raise DataError(
                f"{uri}: the first line has {len(cells)} fields, csv.column_names has {len(named)} names; "
                f"correct csv.column_names or csv.delimiter (now {delimiter!r})"
            )
        return delimiter, named, begin
    if doubled := repeated(cells):
        raise DataError(f"{uri}: the header names {doubled} more than once; every column needs its own name")
    return delimiter, cells, end + raw.itemsize


def _cells(line: str, delimiter: str) -> list[str]:
    """The fields of a file's first line, separated as those of all other lines.

    Raises:
        DataError: it has several lines for the parser.
    """
    text = f"{line}\n".encode()
    try:
        parsed = pa.csv.read_csv(
            pa.BufferReader(text),
            read_options=pa.csv.ReadOptions(use_threads=False, block_size=max(len(text), 1024)),
            parse_options=pa.csv.ParseOptions(delimiter=delimiter, newlines_in_values=True),
        )
    except pa.ArrowInvalid as error:
        raise DataError(f"the first line cannot be read ({error}); {_CARRIAGE_RETURN}") from error
    if parsed.num_rows:
        raise DataError(f"the first line is {1 + parsed.num_rows} lines; {_CARRIAGE_RETURN}")
    return [cell.strip().strip('"') for cell in parsed.column_names]


def rows_differ(lines: int, rows: int) -> DataError:
    """The error for lines that the parser reads as more or fewer rows."""
    reason = (
        "a quoted field holds a line break; set csv.newlines_in_values: true, or remove it"
        if rows < lines
        else _CARRIAGE_RETURN
    )
    return DataError(f"{lines} lines gave {rows} rows: {reason}")


def _no_tabs(uri: str, line: str) -> DataError:
    """The error for a Criteo log that was saved with commas, with the correct settings."""
    cells = [cell.strip().strip('"') for cell in line.split(",")]
    label = next((cell for cell in cells if cell.lower() == "label"), None)
    remedy = (
        "csv.has_header: false and csv.column_names: [label, I1, ..., I13, C1, ..., C26]"
        if label is None
        else f"data.label: {label}"
    )
    return DataError(
        f"{uri}: the fields of the first line are separated by commas, those of format: criteo_tsv by tabs; "
        f"use format: csv with {remedy}"
    )


def _criteo_columns(data: TrainingData, uri: str, cells: list[str], first: int, second: int) -> tuple[list[str], int]:
    label = data.label_columns[0].name
    if any(cell.lower() == "label" for cell in cells):
        return [label if cell.lower() == "label" else cell for cell in cells], second
    if len(cells) != len(CRITEO_COLUMNS):
        raise DataError(
            f"{uri}: a Criteo row has {len(CRITEO_COLUMNS)} fields (label, I1..I13, C1..C26) and no header, or a "
            f"header that names a label; found {len(cells)} fields; use format: csv for other layouts"
        )
    return [label, *CRITEO_COLUMNS[1:]], first
