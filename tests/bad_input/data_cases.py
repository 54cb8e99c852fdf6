"""Click logs that cannot be trained on."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from datetime import date
from typing import Any

import pyarrow.parquet as pq

from tests.bad_input.case import DAYS, ROWS, Arguments, Case, Place, columns, run, with_field, with_files

PLACES = "Folders and partitions"
FILES = "Parquet files"
VALUES = "Columns and values"
TEXT = "Text files"
FIRST, SECOND, LAST = DAYS
HEADER = "label,I1,C1,C2,C3,history\n"
ROW = "0,1.5,7,0000000a,text,1|2\n"


def column(name: str, values: Any, day: str = FIRST) -> Arguments:
    """`elastrec run` on a log in which one column of a day is another."""
    return with_files(lambda place: place.write(day, **{name: values}))


def all_days(name: str, values: Any) -> Arguments:
    def spoil(place: Place) -> None:
        for day in DAYS:
            place.write(day, **{name: values})

    return with_files(spoil)


def bytes_of(change: Callable[[bytes], bytes], day: str = SECOND) -> Arguments:
    """`elastrec run` after one Parquet file's bytes were changed."""

    def spoil(place: Place) -> None:
        file = place.part(day)
        file.write_bytes(change(file.read_bytes()))

    return with_files(spoil)


def text(body: str | bytes, file_format: str = "csv", name: str = "part-0.csv", **csv: Any) -> Arguments:
    """`elastrec run` on text files, the first day's with this body, the others good."""

    def prepare(place: Place) -> list[str]:
        for day in DAYS:
            place.write_text(HEADER + ROW * ROWS if day != FIRST else body, day, name if day == FIRST else "part-0.csv")
        place.set("spec.data.format", file_format)
        place.set("spec.data.csv", csv)
        return run(place)

    return prepare


def _folder_is_a_file(place: Place) -> None:
    shutil.rmtree(place.log)
    place.log.write_text("not a folder")


def _day_is_a_file(place: Place) -> None:
    shutil.rmtree(place.part(SECOND).parent)
    place.part(SECOND).parent.write_text("not a folder")


def _only(place: Place, *days: str) -> None:
    for day in set(DAYS) - set(days):
        shutil.rmtree(place.part(day).parent)


def _gap(place: Place) -> list[str]:
    _only(place, FIRST, LAST)
    return [*run(place), "--from", FIRST, "--until", LAST]


def _dots(place: Place) -> list[str]:
    for day in DAYS:
        place.write_text((HEADER + ROW * ROWS).replace(",", ";"), day)
    place.set("spec.data.format", "csv")
    place.set("spec.data.csv", {"delimiter": ";", "decimal_point": ","})
    return run(place)


def _readme(place: Place) -> None:
    (place.part(SECOND).parent / "README.txt").write_text("How this log was made.")


def _other_key(place: Place) -> None:
    for day in DAYS:
        place.part(day).parent.rename(place.log / f"dt={day}")


def _dangling(place: Place) -> None:
    place.part(SECOND).unlink()
    place.part(SECOND).symlink_to(place.folder / "nowhere.parquet")


def _pages(body: bytes) -> bytes:
    # The footer, whose length stands before the last four bytes, says where the pages are; the pages are gone.
    footer = int.from_bytes(body[-8:-4], "little") + 8
    return body[:4] + bytes(len(body) - footer - 4) + body[-footer:]


def _doubled_column(place: Place) -> None:
    rows = pq.read_table(place.part(SECOND))
    pq.write_table(rows.append_column("C1", rows["C1"]), place.part(SECOND))


def _types_changed(place: Place) -> None:
    place.write(SECOND, C1=[f"item {i}" for i in range(ROWS)])


CASES = [
    Case(PLACES, "the folder does not exist", with_files(lambda place: shutil.rmtree(place.log)),
         ("data.path", "clicks", "does not exist", "correct the path")),
    Case(PLACES, "a file in the folder's place", with_files(_folder_is_a_file),
         ("data.path", "clicks", "is a file", "a folder")),
    Case(PLACES, "a scheme that no file system knows", with_field("spec.data.path", "ftp://host/clicks"),
         ("ftp://host/clicks", "s3://bucket/folder")),
    Case(PLACES, "no day at all", with_files(lambda place: _only(place)),
         ("spec.data.path", "0 partitions", "at least two", "generate or convert")),
    Case(PLACES, "one day only", with_files(lambda place: _only(place, FIRST)),
         ("spec.data.path", "1 partition)", "at least two")),
    Case(PLACES, "a day in the middle is missing", _gap,
         ("day=2026-01-02 is missing", "partitions there: from day=2026-01-01 to day=2026-01-03")),
    Case(PLACES, "a day without files", with_files(lambda place: place.part(SECOND).unlink()),
         ("day=2026-01-02", "holds no files", "parquet")),
    Case(PLACES, "a file in a day's place", lambda place: [_day_is_a_file(place), *run(place), "--from", FIRST,
         "--until", LAST][1:], ("day=2026-01-02", "is a file", "a folder")),
    Case(PLACES, "a day that no calendar has",
         with_files(lambda place: place.part(SECOND).parent.rename(place.log / "day=2026-02-30")),
         ("day=2026-02-30", "out of range", "2026-01-31")),
    Case(PLACES, "a day without hyphens",
         with_files(lambda place: place.part(SECOND).parent.rename(place.log / "day=20260102")),
         ("clicks/day=20260102", "not of the form day=%Y-%m-%d", "rename", "data.partition_folder")),
    Case(PLACES, "rows without a day",
         with_files(lambda place: place.part(SECOND).parent.rename(place.log / "day=__HIVE_DEFAULT_PARTITION__")),
         ("clicks/day=__HIVE_DEFAULT_PARTITION__", "rows without a day", "move the folder")),
    Case(PLACES, "folders of another key", with_files(_other_key),
         ("clicks", "dt=2026-01-01", "data.partition_folder", "day=%Y-%m-%d")),
    Case(PLACES, "days where hours are promised", with_field("spec.data.partitioning", "hour"),
         ("clicks", "day=2026-01-31/hour=07", "there are day=2026-01-01", "data.partitioning (hour)")),
    Case(FILES, "an empty file", bytes_of(lambda body: b""), ("part-0.parquet", "the file is empty", "remove it")),
    Case(FILES, "a file that holds no rows beside the others", with_files(_readme),
         ("README.txt", "cannot be read as a Parquet file", "data.include", "['*.parquet']")),
    Case(FILES, "patterns that no file matches", with_field("spec.data.include", ["*.csv"]),
         ("day=2026-01-0", "part-0.parquet", "data.include", "'*.csv'", "correct the patterns")),
    Case(FILES, "a file that was cut off", bytes_of(lambda body: body[: len(body) // 2]),
         ("part-0.parquet", "cannot be read as a Parquet file", "write it again")),
    Case(FILES, "a file whose footer is damaged", bytes_of(lambda body: body[:-300] + bytes(292) + body[-8:]),
         ("part-0.parquet", "cannot be read as a Parquet file", "write it again")),
    Case(FILES, "a file whose pages are damaged", bytes_of(_pages, FIRST),
         ("part-0.parquet", "cannot be read")),
    Case(FILES, "two columns of one name", with_files(_doubled_column),
         ("part-0.parquet", "'C1'", "more than once", "write the file again")),
    Case(FILES, "text in a Parquet folder", bytes_of(lambda body: b"label,C1\n0,1\n"),
         ("part-0.parquet", "cannot be read as a Parquet file", "correct data.format")),
    Case(FILES, "a file without rows",
         with_files(lambda place: place.write(SECOND, **{name: [] for name in columns()})),
         ("part-0.parquet", "no rows", "remove it")),
    Case(FILES, "a link to nowhere", with_files(_dangling), ("day=2026-01-02", "holds no files", "parquet")),
    Case(VALUES, "the label is missing", column("label", None, SECOND),
         ("part-0.parquet", "'label'", "missing", "correct the names")),
    Case(VALUES, "a feature is missing on one day", column("C2", None, LAST),
         ("part-0.parquet", "'C2'", "missing", "found: label")),
    Case(VALUES, "a label in words", all_days("label", ["yes"] * ROWS),
         ("row 0", "'label'", "'yes'", "0 or 1", "fix")),
    Case(VALUES, "a label of 2", column("label", [0, 2] * (ROWS // 2)), ("row 1", "'label'", "2", "0 or 1")),
    Case(VALUES, "a label of 0.5", column("label", [0.5] * ROWS), ("row 0", "'label'", "0.5", "0 or 1")),
    Case(VALUES, "a row without label", column("label", [0, 1, None, *[0] * (ROWS - 3)]),
         ("row 2", "'label'", "None", "0 or 1")),
    Case(VALUES, "one label in all rows to evaluate on", column("label", [0] * ROWS, LAST),
         ("data.label: 'label' (it is 0 in all 8 rows to evaluate on, day=2026-01-03)", "both 0 and 1",
          "--evaluate-from DATE")),
    Case(VALUES, "a list as label", column("label", [[0]] * ROWS, SECOND), ("'label'", "list", "expected numbers")),
    Case(VALUES, "NaN among the numbers", column("I1", [1.0, float("nan"), *[0.0] * (ROWS - 2)]),
         ("row 1", "'I1'", "nan", "number", "skip")),
    Case(VALUES, "infinity among the numbers", column("I1", [float("inf"), *[0.0] * (ROWS - 1)]),
         ("row 0", "'I1'", "inf", "number")),
    Case(VALUES, "a number too large for float32",
         lambda place: [place.write(FIRST, I1=[0.0, 1e300, *[0.0] * (ROWS - 2)]),
                        place.set("spec.data.dense.0.transform", "none"), *run(place)][2:],
         ("part-0.parquet", "row 1", "'I1'", "1e+300", "float32", "skip")),
    Case(VALUES, "a value for empty fields that is too large for float32",
         lambda place: [place.set("spec.data.dense.0", {"name": "I1", "transform": "none", "missing": 1e300}),
                        *run(place)][1:],
         ("spec.data.dense.0", "1e+300", "float32")),
    Case(VALUES, "text among the numbers", all_days("I1", ["1.5", "n/a", *["0"] * (ROWS - 2)]),
         ("row 1", "'I1'", "'n/a'", "number")),
    Case(VALUES, "an id with a fraction", column("C1", [1.5] * ROWS), ("row 0", "'C1'", "1.5", "integer")),
    Case(VALUES, "an id that a float cannot hold", column("C1", [2.0**60] * ROWS), ("row 0", "'C1'", "integer")),
    Case(VALUES, "an id beyond 64 bits", all_days("C1", [str(2**64)] * ROWS),
         ("row 0", "'C1'", "18446744073709551616", "integer")),
    Case(VALUES, "17 hexadecimal digits", column("C2", ["0" * 16 + "1"] * ROWS), ("row 0", "'C2'", "hexadecimal")),
    Case(VALUES, "a letter that is no hexadecimal digit", column("C2", ["0000000g"] * ROWS),
         ("row 0", "'C2'", "'0000000g'", "hexadecimal")),
    Case(VALUES, "numbers where text is promised", column("C3", list(range(ROWS)), SECOND),
         ("'C3'", "int64", "expected text", "encoding: integer")),
    Case(VALUES, "single values where a list is promised", column("history", list(range(ROWS))),
         ("'history'", "int64", "expected a list", "is_list: false")),
    Case(VALUES, "lists where single values are promised", column("C1", [[1]] * ROWS),
         ("'C1'", "list", "expected integers")),
    Case(VALUES, "dates where ids belong", column("C1", [date(2026, 1, 1)] * ROWS, SECOND),
         ("'C1'", "date32", "expected integers")),
    Case(VALUES, "numbers on one day, text on the next", with_files(_types_changed),
         ("part-0.parquet", "'C1'", "string", "int64", "day=2026-01-01")),
    Case(VALUES, "every row is bad although bad rows are skipped",
         lambda place: [place.write(FIRST, label=[7] * ROWS),
                        place.set("spec.data.bad_rows", {"policy": "skip", "at_most": 100}), *run(place)][2:],
         ("row 0", "'label'", "7", "0 or 1")),
    Case(TEXT, "a row with too few fields", text(HEADER + ROW + "0,1.5\n" + ROW),
         ("row 1", "whole line", "2 fields", "6 fields", "fix the file")),
    Case(TEXT, "a row with too many fields", text(HEADER + ROW.strip() + ",9\n" + ROW),
         ("row 0", "whole line", "7 fields", "6 fields", "fix the file")),
    Case(TEXT, "another delimiter", text((HEADER + ROW).replace(",", ";")),
         ("'label'", "missing", "label;I1", "correct")),
    Case(TEXT, "no header where one is promised", text(ROW * ROWS), ("part-0.csv", "missing", "has_header")),
    Case(TEXT, "a header that names a column twice", text("label,I1,C1,C1,C3,history\n" + ROW),
         ("'C1'", "more than once")),
    Case(TEXT, "fewer names than fields", text(ROW, has_header=False, column_names=["label", "I1"]),
         ("part-0.csv", "6 fields", "2 names", "csv.column_names")),
    Case(TEXT, "Latin-1 text", text((HEADER + "0,1,7,a,Zo\xeb,1\n").encode("latin-1")), ("part-0.csv", "UTF-8")),
    Case(TEXT, "UTF-16 text", text((HEADER + ROW).encode("utf-16")), ("part-0.csv", "UTF-8")),
    Case(TEXT, "UTF-16 without a byte order mark", text((HEADER + ROW).encode("utf-16-le"), encoding="utf-16"),
         ("part-0.csv", "byte order mark", "utf-16-le or utf-16-be")),
    Case(TEXT, "bytes that are not of the encoding that is said", text((HEADER + "0,1,7,a,\x81,1\n").encode("latin-1"),
         encoding="cp1252"), ("part-0.csv", "cp1252", "csv.encoding")),
    Case(TEXT, "tokens for empty fields that are not named", text(HEADER + "0,NA,7,a,text,1\n"),
         ("part-0.csv", "row 0", "'I1'", "'NA'")),
    Case(TEXT, "a decimal point where a comma is said", _dots,
         ("part-0.csv", "row 0", "'I1'", "'1.5 (with a dot)'")),
    Case(TEXT, "compressed text", text(b"\x1f\x8b\x08", name="part-0.csv.gz"),
         ("part-0.csv.gz", "compressed", "unpack it")),
    Case(TEXT, "a header and no rows", text(HEADER), ("part-0.csv", "no rows", "remove it")),
    Case(TEXT, "a line break inside quotes", text(HEADER + '0,1,7,a,"two\nlines",1\n' + ROW),
         ("part-0.csv", "line break", "csv.newlines_in_values: true", "remove it")),
    Case(TEXT, "a carriage return inside a line", text(HEADER + "0,1,7,a,two\rlines,1\n" + ROW),
         ("part-0.csv", "2 lines gave 3 rows", "carriage return", "end every line with")),
    Case(TEXT, "lines that end with carriage returns", text((HEADER + ROW).replace("\n", "\r")),
         ("part-0.csv", "first line is 2 lines", "carriage return", "end every line with")),
    Case(TEXT, "a quotation mark that is not closed",
         text(HEADER + '0,1,7,a,"two\nlines,1\n' + ROW, newlines_in_values=True),
         ("part-0.csv", "row 0", "quotation mark", "not closed")),
    Case(TEXT, "names of columns for a libsvm file", text("1 3:2\n0 3:1\n", "libsvm"),
         ("'I1'", "missing", "found: label, qid, indices, values", "the index of a value")),
    Case(TEXT, "a Criteo row of 5 fields", text("0\t1\t2\t3\t4\n", "criteo_tsv"),
         ("40 fields", "found 5 fields", "format: csv")),
    Case(TEXT, "commas where Criteo's tabs are promised", text(HEADER + ROW, "criteo_tsv"),
         ("separated by commas", "criteo_tsv by tabs", "format: csv", "data.label: label")),
]  # fmt: skip
