"""Conversion: the result gives the same batches as the source, and is written completely or not at all."""

from __future__ import annotations

import bz2
import gzip
from datetime import date
from pathlib import Path
from typing import Literal

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from elastrec.platform.data import convert as converting
from elastrec.platform.data.convert import ByFractions, ByRows, ByTime, convert
from elastrec.platform.data.finished import ParquetFile
from elastrec.platform.data.generating.generator import GenerateSpec, generate, training_data_for
from elastrec.platform.data.manifest import build_manifest
from elastrec.platform.data.reading import raw
from elastrec.platform.data.reading.files import text
from elastrec.platform.data.reading.reader import ShardReader
from elastrec.platform.specs.data import DenseFeature, SparseFeature, TrainingData
from elastrec.platform.specs.errors import DataError
from tests.platform.data.rows import write_lines


def _ratings(path: Path, *lines: str) -> TrainingData:
    write_lines(path, "user,item,stars,when", *lines)
    return TrainingData.model_validate(
        {
            "path": str(path),
            "format": "csv",
            "partitioning": "none",
            "sparse": ({"name": "user"}, {"name": "item", "encoding": "string"}),
            "timestamp": "when",
        }
    )


def _users(root: Path, folder: str) -> list[int | None]:
    return [u for part in sorted((root / folder).iterdir()) for u in pq.read_table(part)["user"].to_pylist()]


def test_a_log_cut_by_time_puts_later_rows_into_the_later_day(tmp_path: Path) -> None:
    source = _ratings(tmp_path / "r.csv", "1,a,4.0,500", "2,b,3.5,100", "3,c,5,400", "4,d,1,200", "5,e,4,300")
    out = tmp_path / "out"
    source = source.model_copy(update={"evaluation_path": source.path})
    report = convert(source, str(out), layout=ByFractions(by_time=True), label_rule="stars >= 4")
    assert TrainingData.model_validate(report.data.model_dump()) == report.data
    assert report.partitions == {"day=2026-01-01": 4, "day=2026-01-02": 1}
    assert _users(out, "day=2026-01-01") == [2, 3, 4, 5]
    assert _users(out, "day=2026-01-02") == [1]
    first = pq.read_table(out / "day=2026-01-01" / "part-00000.parquet")
    assert first["label"].to_pylist() == [0, 1, 0, 1]


def test_a_line_with_too_few_fields_is_refused_as_a_whole(tmp_path: Path) -> None:
    source = _ratings(tmp_path / "r.csv", "1,a,4,100", "2,b", "3,c,5,300")
    with pytest.raises(DataError, match=r"r.csv: row 1, the whole line: found 2 fields, expected 4 fields"):
        convert(source, str(tmp_path / "out"), layout=ByTime(), label_rule="stars >= 4")


def test_timestamps_choose_day_or_hour(tmp_path: Path) -> None:
    source = _ratings(tmp_path / "r.csv", "1,a,4,1767229200", "2,b,4,1767225600", "3,c,4,1767312000")
    days = convert(source, str(tmp_path / "d"), layout=ByTime(), label_rule="stars>=4")
    assert days.partitions == {"day=2026-01-01": 2, "day=2026-01-02": 1}
    hours = convert(source, str(tmp_path / "h"), layout=ByTime(unit="hour"), label_rule="stars>=4")
    assert list(hours.partitions) == ["day=2026-01-01/hour=00", "day=2026-01-01/hour=01", "day=2026-01-02/hour=00"]
    assert build_manifest(hours.data).rows == 3


def test_rows_and_shares_cut_in_the_order_of_the_file(tmp_path: Path) -> None:
    source = _ratings(tmp_path / "r.csv", *(f"{i},a,4,{i}" for i in range(10)))
    by_rows = convert(source, str(tmp_path / "a"), layout=ByRows(rows=4, start=date(2026, 3, 1)), label_rule="stars>=4")
    assert by_rows.partitions == {"day=2026-03-01": 4, "day=2026-03-02": 4, "day=2026-03-03": 2}
    shares = convert(source, str(tmp_path / "b"), layout=ByFractions(fractions=(0.5, 0.3, 0.2)), label_rule="stars>=4")
    assert list(shares.partitions.values()) == [5, 3, 2]
    assert _users(tmp_path / "b", "day=2026-01-02") == [5, 6, 7]


def test_batches_from_the_result_are_those_from_the_source(tmp_path: Path) -> None:
    for format in ("csv", "criteo_tsv"):
        criteo = {"dense": 13, "sparse": 26, "lists": 0} if format == "criteo_tsv" else {"dense": 2, "sparse": 3}
        spec = GenerateSpec.model_validate(
            {"path": str(tmp_path / format), "format": format, "days": 2, "rows_per_day": 700, **criteo}
        )
        generate(spec)
        source = training_data_for(spec)
        report = convert(source, str(tmp_path / f"{format}-out"), layout=ByRows(rows=700))
        ours, theirs = (
            list(ShardReader(of, build_manifest(of)).read(0, 1_400, seed=1, shuffle=True, batch_size=256))
            for of in (report.data, source)
        )
        assert ours == theirs


def _compress(file: Path, codec: str, suffix: str) -> None:
    if codec == "members":  # as `cat` of two files, and programs that compress with several threads, write it
        half = file.stat().st_size // 2
        body = gzip.compress(file.read_bytes()[:half]) + gzip.compress(file.read_bytes()[half:])
    elif codec == "bz2":
        body = bz2.compress(file.read_bytes())
    else:
        body = pa.Codec(codec).compress(file.read_bytes(), asbytes=True)
    file.with_name(file.name + suffix).write_bytes(body)
    file.unlink()


@pytest.mark.parametrize(
    ("codec", "suffix"), [("gzip", ".gz"), ("members", ".gz"), ("bz2", ".bz2"), ("zstd", ".zst"), ("lz4", ".lz4")]
)
@pytest.mark.parametrize("format", ["csv", "criteo_tsv"])
def test_compressed_text_is_converted_to_the_rows_of_plain_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, codec: str, suffix: str, format: str
) -> None:
    # Several pieces per file, and a header that ends inside what is looked at first.
    monkeypatch.setattr(text, "INDEX_ROWS", 64)
    monkeypatch.setattr(raw, "INDEX_ROWS", 64)
    monkeypatch.setattr(raw, "_PIECE_ROWS", 64)
    monkeypatch.setattr(text, "_SCAN_BYTES", 10_000)
    criteo = {"dense": 13, "sparse": 26, "lists": 0} if format == "criteo_tsv" else {"dense": 2, "sparse": 3}
    spec = GenerateSpec.model_validate(
        {"path": str(tmp_path / "log"), "format": format, "days": 2, "rows_per_day": 300, **criteo}
    )
    generate(spec)
    source = training_data_for(spec)
    plain = convert(source, str(tmp_path / "plain"), layout=ByRows(rows=200))
    for file in list((tmp_path / "log").rglob("part-*")):
        _compress(file, codec, suffix)
    with pytest.raises(DataError, match="or turn it into Parquet with `elastrec data convert`"):
        build_manifest(source)
    report = convert(source, str(tmp_path / "out"), layout=ByRows(rows=200))
    assert report.partitions == plain.partitions
    for folder in plain.partitions:
        file = Path(folder) / "part-00000.parquet"
        assert pq.read_table(tmp_path / "out" / file) == pq.read_table(tmp_path / "plain" / file)


def test_compressed_text_is_cut_by_time_in_two_passes(tmp_path: Path) -> None:
    source = _ratings(tmp_path / "r.csv", "1,a,4,500", "2,b,4,100", "3,c,4,400", "4,d,4,200", "5,e,4,300")
    _compress(tmp_path / "r.csv", "gzip", ".gz")
    source = source.model_copy(update={"path": f"{source.path}.gz"})
    convert(source, str(tmp_path / "out"), layout=ByFractions(by_time=True), label_rule="stars >= 4")
    assert _users(tmp_path / "out", "day=2026-01-02") == [1]


def test_compressed_text_that_was_cut_off_is_refused(tmp_path: Path) -> None:
    source = _ratings(tmp_path / "in" / "r.csv", *(f"{i},a,4,{i}" for i in range(1000)))
    _compress(tmp_path / "in" / "r.csv", "gzip", ".gz")
    file = tmp_path / "in" / "r.csv.gz"
    file.write_bytes(file.read_bytes()[:-200])
    source = source.model_copy(update={"path": str(file)})
    with pytest.raises(DataError, match=r"r\.csv\.gz: cannot be read .*; compress or copy it again"):
        convert(source, str(tmp_path / "out"), layout=ByRows(rows=2), label_rule="stars>=4")
    assert [path.name for path in tmp_path.iterdir()] == ["in"]


def test_converting_again_changes_nothing_and_other_data_is_not_overwritten(tmp_path: Path) -> None:
    source = _ratings(tmp_path / "r.csv", "1,a,4,1", "2,b,3,2")
    out = str(tmp_path / "out")
    report = convert(source, out, layout=ByRows(rows=2), label_rule="stars>=4")
    stamp = (tmp_path / "out" / "_converted.json").stat().st_mtime_ns
    assert convert(source, out, layout=ByRows(rows=2), label_rule="stars>=4") == report
    assert (tmp_path / "out" / "_converted.json").stat().st_mtime_ns == stamp
    with pytest.raises(DataError, match=r"converted with another layout ByRows\(.*rows=2.*\(now ByRows"):
        convert(source, out, layout=ByRows(rows=1), label_rule="stars>=4")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "file").write_text("x")
    with pytest.raises(DataError, match="were not converted"):
        convert(source, str(tmp_path / "mine"), layout=ByRows(rows=2), label_rule="stars>=4")


def test_a_failure_leaves_no_trace(tmp_path: Path) -> None:
    source = _ratings(tmp_path / "in" / "r.csv", "1,a,4,1", "x,b,3,2")
    with pytest.raises(DataError, match=r"r\.csv: row 1, column 'user': found 'x'"):
        convert(source, str(tmp_path / "out"), layout=ByRows(rows=2), label_rule="stars>=4")
    assert [path.name for path in tmp_path.iterdir()] == ["in"]


def test_a_file_that_cannot_be_written_is_closed_and_its_first_error_is_the_one_that_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class FullDisk:
        def __init__(self, *_: object, **__: object) -> None: ...

        def write_table(self, *_: object, **__: object) -> None:
            raise OSError("no space for rows")

        def close(self) -> None:
            raise OSError("no space for the end of the file")

    opened: list[ParquetFile] = []

    class Opened(ParquetFile):
        def __init__(self, uri: str, schema: pa.Schema) -> None:
            super().__init__(uri, schema)
            opened.append(self)

    monkeypatch.setattr(pq, "ParquetWriter", FullDisk)
    monkeypatch.setattr(converting, "ParquetFile", Opened)
    source = _ratings(tmp_path / "in" / "r.csv", "1,a,4,1", "2,b,3,2")
    # The error that is still there refers to the file.
    with pytest.raises(OSError, match="no space for rows") as failed:
        convert(source, str(tmp_path / "out"), layout=ByRows(rows=2), label_rule="stars>=4")
    assert failed.value and [file.stream.closed for file in opened] == [True]
    assert [path.name for path in tmp_path.iterdir()] == ["in"]


@pytest.mark.parametrize(
    "layout", [ByTime(), ByFractions(by_time=True), ByFractions(fractions=(0.5, 0.5)), ByRows(rows=3)]
)
def test_a_file_of_bad_rows_only_is_left_out_and_a_log_of_them_is_refused(
    tmp_path: Path, layout: ByTime | ByFractions | ByRows
) -> None:
    for name, label in (("a", "9"), ("b", "1"), ("c", "9")):
        write_lines(tmp_path / "log" / f"{name}.csv", "label,user,when", f"{label},1,100", f"{label},2,200")
    source = TrainingData.model_validate(
        {
            "path": str(tmp_path / "log"), "format": "csv", "partitioning": "none", "label": "label",
            "sparse": ({"name": "user"},), "timestamp": "when", "bad_rows": {"policy": "skip", "at_most": 9},
        }
    )  # fmt: skip
    report = convert(source, str(tmp_path / "out"), layout=layout)
    assert (report.rows, report.skipped_rows) == (2, 4)
    (tmp_path / "log" / "b.csv").unlink()
    with pytest.raises(DataError, match="log: all 4 rows are bad, so there is nothing to write"):
        convert(source, str(tmp_path / "none"), layout=layout)
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize(
    "layout",
    [
        ByFractions(fractions=(0.5, 0.5), start=date(9999, 12, 30)),
        ByRows(rows=1, start=date(9999, 12, 30)),
        ByFractions(fractions=(1e308, 1e308)),
    ],
)
def test_days_after_the_last_date_and_shares_without_a_sum_are_refused(
    tmp_path: Path, layout: ByFractions | ByRows
) -> None:
    source = _ratings(tmp_path / "r.csv", "1,a,4,100", "2,b,5,200")
    source = source.model_copy(update={"evaluation_path": source.path})
    with pytest.raises(DataError, match=r"(start: 9999-12-30 with 2 days|fractions: .*) is not allowed; allowed: "):
        convert(source, str(tmp_path / "out"), layout=layout, label_rule="stars >= 4")


@pytest.mark.parametrize(
    ("layout", "says"),
    [
        (
            ByFractions(fractions=(0.5, 0.3)),
            r"fractions: 0\.5,0\.3 with the sum 0\.8 is not .* these are 0\.625,0\.375$",
        ),
        (ByFractions(fractions=(0.99, 0.01)), r"fractions: 0\.01 of 10 rows is not .* 2026-01-02 would have no row;"),
        (ByFractions(fractions=(0.99, 0.01), by_time=True), r"fractions: 0\.01 of 10 rows is not allowed"),
        (
            ByFractions(by_time=True),
            r"0\.8 in order of time .* 2026-01-01 .*: 9 of 10 rows have the timestamp 100,",
        ),
        (ByFractions(fractions=(0.7, 0.3)), "0\\.3 is not allowed, because all rows of 2026-01-02 are bad;"),
    ],
    ids=["the sum", "rows", "rows by time", "equal timestamps", "bad rows"],
)
def test_fractions_with_which_a_day_has_no_row_leave_nothing(tmp_path: Path, layout: ByFractions, says: str) -> None:
    lines = [f"{user},a,{'' if user >= 7 else 4},{200 if user == 9 else 100}" for user in range(10)]
    source = _ratings(tmp_path / "in" / "r.csv", *lines)
    source = source.model_copy(update={"bad_rows": source.bad_rows.model_copy(update={"policy": "skip", "at_most": 9})})
    with pytest.raises(DataError, match=says):
        convert(source, str(tmp_path / "out"), layout=layout, label_rule="stars>=4")
    assert [path.name for path in tmp_path.iterdir()] == ["in"]


@pytest.mark.parametrize(("rows", "day"), [(1, "2026-01-08"), (7, "2026-01-02")])
def test_a_number_of_rows_with_which_all_rows_of_a_day_are_bad_leaves_nothing(
    tmp_path: Path, rows: int, day: str
) -> None:
    """A job that trains on the days around it would miss it."""
    lines = [f"{user},a,{'' if user >= 7 else 4},100" for user in range(9)]
    source = _ratings(tmp_path / "in" / "r.csv", *lines)
    source = source.model_copy(update={"bad_rows": source.bad_rows.model_copy(update={"policy": "skip", "at_most": 9})})
    says = (
        f"rows: {rows} per day is not allowed, because all rows of {day} are bad; allowed: numbers of rows with which "
        "each day has good rows; correct the rows, or use other numbers of rows"
    )
    with pytest.raises(DataError, match=says):
        convert(source, str(tmp_path / "out"), layout=ByRows(rows=rows), label_rule="stars>=4")
    assert [path.name for path in tmp_path.iterdir()] == ["in"]


@pytest.mark.parametrize(
    ("unit", "bad", "name"),
    [
        ("day", (2, 3), "2026-01-02"),
        ("day", (4,), "2026-01-03"),
        ("hour", (2,), "day=2026-01-02/hour=00"),
        ("hour", (1, 3), "day=2026-01-01/hour=05"),
    ],
)
@pytest.mark.parametrize("rows_read", [1, 100])
def test_a_day_or_hour_of_the_timestamps_whose_rows_are_all_bad_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unit: Literal["day", "hour"], bad: tuple[int, ...], name: str,
    rows_read: int,
) -> None:  # fmt: skip
    """A job that trains on the days around it would miss it."""
    monkeypatch.setattr(text, "INDEX_ROWS", rows_read)
    monkeypatch.setattr(raw, "INDEX_ROWS", rows_read)
    monkeypatch.setattr(raw, "_PIECE_ROWS", rows_read)
    hours = (0, 5, 24, 30, 49)
    lines = [f"{row},a,{'' if row in bad else 4},{1767225600 + 3600 * hour}" for row, hour in enumerate(hours)]
    source = _ratings(tmp_path / "in" / "r.csv", *lines)
    source = source.model_copy(update={"bad_rows": source.bad_rows.model_copy(update={"policy": "skip", "at_most": 9})})
    says = (
        f"by time: a partition per {unit} is not allowed, because all rows of {name} are bad; allowed: a log in which "
        f"each {unit} has good rows; correct the rows, or remove them"
    )
    with pytest.raises(DataError, match=says):
        convert(source, str(tmp_path / "out"), layout=ByTime(unit=unit), label_rule="stars>=4")
    assert [path.name for path in tmp_path.iterdir()] == ["in"]


@pytest.mark.parametrize(
    "layout", [ByTime(), ByRows(rows=9), ByFractions(fractions=(1.0,), by_time=True)], ids=lambda each: each.kind
)
def test_a_bad_row_needs_no_time(tmp_path: Path, layout: ByTime | ByRows | ByFractions) -> None:
    lines = ["1,a,4,1767225600", "2,b", "3,c,,", "5,e,,soon", "6,f,3,1767225601"]
    source = _ratings(tmp_path / "r.csv", *lines)
    source = source.model_copy(update={"bad_rows": source.bad_rows.model_copy(update={"policy": "skip", "at_most": 3})})
    report = convert(source, str(tmp_path / "out"), layout=layout, label_rule="stars>=4")
    assert (report.partitions, report.skipped_rows) == ({"day=2026-01-01": 2}, 3)
    # The day of a good row without a time is unknown.
    for time in ("", "soon"):
        _ratings(tmp_path / "r.csv", *lines, f"7,g,4,{time}")
        with pytest.raises(DataError, match=r"r\.csv: row 5, column 'when': found (None|soon), expected seconds since"):
            convert(source, str(tmp_path / "other"), layout=layout, label_rule="stars>=4")


def test_a_log_none_of_whose_rows_has_a_time_is_not_divided_in_order_of_time(tmp_path: Path) -> None:
    source = _ratings(tmp_path / "r.csv", "1,a,4,", "2,b,3,")
    layout = ByFractions(fractions=(0.5, 0.5), by_time=True)
    with pytest.raises(DataError, match=r"row 0, column 'when': found None, expected seconds since the epoch"):
        convert(source, str(tmp_path / "out"), layout=layout, label_rule="stars>=4")


@pytest.mark.parametrize("unit", ["day", "hour"])
@pytest.mark.parametrize("stray", ["0", "4102444800", "1766620800"])
def test_a_bad_row_far_from_all_days_of_the_log_is_only_a_bad_row(
    tmp_path: Path, unit: Literal["day", "hour"], stray: str
) -> None:
    """Of 1970, of 2100, or a week before: no job misses that day."""
    days = [f"{day},a,4,{1767225600 + 86400 * day}" for day in (0, 1, 4)]
    source = _ratings(tmp_path / "r.csv", days[0], f"9,b,,{stray}", *days[1:])
    source = source.model_copy(update={"bad_rows": source.bad_rows.model_copy(update={"policy": "skip", "at_most": 1})})
    report = convert(source, str(tmp_path / "out"), layout=ByTime(unit=unit), label_rule="stars>=4")
    hour = "/hour=00" if unit == "hour" else ""
    assert report.partitions == {f"day=2026-01-0{day}{hour}": 1 for day in (1, 2, 5)}
    assert report.skipped_rows == 1
    none = source.model_copy(update={"bad_rows": source.bad_rows.model_copy(update={"at_most": 0})})
    with pytest.raises(DataError, match=r"1 bad rows, data\.bad_rows\.at_most allows 0"):
        convert(none, str(tmp_path / "none"), layout=ByTime(unit=unit), label_rule="stars>=4")


def test_a_day_of_the_timestamps_with_good_and_bad_rows_is_kept_whole(tmp_path: Path) -> None:
    source = _ratings(tmp_path / "r.csv", "1,a,4,1767225600", "2,b,,1767225601", "3,c,,1767312000", "4,d,4,1767312001")
    source = source.model_copy(update={"bad_rows": source.bad_rows.model_copy(update={"policy": "skip", "at_most": 9})})
    report = convert(source, str(tmp_path / "out"), layout=ByTime(), label_rule="stars>=4")
    assert (report.partitions, report.skipped_rows) == ({"day=2026-01-01": 1, "day=2026-01-02": 1}, 2)


def test_skipped_rows_are_counted_and_left_out(tmp_path: Path) -> None:
    source = _ratings(tmp_path / "r.csv", "1,a,4,1", "x,b,3,2", "3,c,,3", "4,d,1,4")
    source = source.model_copy(update={"bad_rows": source.bad_rows.model_copy(update={"policy": "skip", "at_most": 2})})
    report = convert(source, str(tmp_path / "out"), layout=ByRows(rows=10), label_rule="stars>=4")
    assert (report.rows, report.skipped_rows) == (2, 2)
    assert _users(tmp_path / "out", "day=2026-01-01") == [1, 4]


@pytest.mark.parametrize(
    ("layout", "rule", "says"),
    [
        (ByRows(rows=0), "stars>=4", "rows: 0"),
        (ByFractions(fractions=(1.0, -1.0)), "stars>=4", "fractions"),
        (ByRows(rows=1), "stars ~ 4", "label rule: 'stars ~ 4'"),
        (ByRows(rows=1), "user>=4", "is a feature"),
        (ByRows(rows=1), "votes>=4", r"\['votes'\] are missing"),
    ],
)
def test_layouts_and_rules_that_do_not_fit_are_refused(
    tmp_path: Path, layout: ByRows | ByFractions, rule: str, says: str
) -> None:
    source = _ratings(tmp_path / "r.csv", "1,a,4,1")
    with pytest.raises(DataError, match=says):
        convert(source, str(tmp_path / "out"), layout=layout, label_rule=rule)


def test_splitting_by_time_needs_a_timestamp(tmp_path: Path) -> None:
    source = _ratings(tmp_path / "r.csv", "1,a,4,soon")
    with pytest.raises(DataError, match=r"row 0, column 'when': found soon"):
        convert(source, str(tmp_path / "out"), layout=ByTime(), label_rule="stars>=4")
    with pytest.raises(DataError, match=r"data\.timestamp: is needed"):
        convert(
            source.model_copy(update={"timestamp": None}), str(tmp_path / "out"), layout=ByTime(), label_rule="stars>=4"
        )


def test_a_session_that_is_a_feature_of_texts_too_is_written_as_that_feature(tmp_path: Path) -> None:
    source = _ratings(tmp_path / "r.csv", "1,a,4,1767229200", "2,b,4,1767225600", "3,a,4,1767225600")
    source = source.model_copy(update={"session": "item"})
    report = convert(source, str(tmp_path / "out"), layout=ByTime(), label_rule="stars>=4")
    items = pq.read_table(tmp_path / "out" / "day=2026-01-01" / "part-00000.parquet")["item"].to_pylist()
    assert items[0] == items[2] != items[1]
    assert next(ShardReader(report.data, build_manifest(report.data)).read(0, 3, seed=0, shuffle=False, batch_size=3))


def test_a_timestamp_that_is_a_feature_too_keeps_the_unit_of_the_log(tmp_path: Path) -> None:
    source = _ratings(tmp_path / "r.csv", "1,a,1,1767225600000", "2,b,0,1767312000000").model_copy(
        update={
            "label": "stars",
            "dense": (DenseFeature(name="age", column="when", transform="none"),),
            "sparse": (SparseFeature(name="when_id", column="when"),),
            "session": "when_seconds",
            "timestamp_unit": "milliseconds",
        }
    )
    path = tmp_path / "r.csv"
    path.write_text(path.read_text().replace("item", "when_seconds"))
    report = convert(source, str(tmp_path / "out"), layout=ByTime())
    assert report.partitions == {"day=2026-01-01": 1, "day=2026-01-02": 1}
    first, second = (
        next(ShardReader(each, build_manifest(each)).read(0, 2, seed=0, shuffle=False, batch_size=2))
        for each in (source, report.data)
    )
    assert first.equals(second)
    assert first["when_id"].to_pylist() == [1767225600000, 1767312000000]
    written = pq.read_table(tmp_path / "out" / "day=2026-01-01" / "part-00000.parquet")
    assert report.data.timestamp == "when_seconds_"
    assert written["when_seconds_"].to_pylist() == [1767225600]
    again = convert(report.data, str(tmp_path / "again"), layout=ByTime())
    assert again.data.timestamp == report.data.timestamp


def test_files_of_a_log_may_have_other_types_of_numbers(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.mkdir()
    large = 2**63 + 1
    for name, kind, item, visit in (("a", pa.int32(), 5, 1.5), ("b", pa.uint64(), large, 2), ("c", pa.int8(), None, 3)):
        columns = {"label": [0, 1], "item": pa.array([item, 7], kind), "visit": [visit, 9]}
        pq.write_table(pa.table(columns), log / f"{name}.parquet")
    source = TrainingData(
        path=str(log),
        partitioning="none",
        dense=(DenseFeature(name="count", column="item"),),
        sparse=(SparseFeature(name="item"),),
        session="visit",
    )
    report = convert(source, str(tmp_path / "out"), layout=ByRows(rows=6))
    assert report.partitions == {"day=2026-01-01": 6}
    first, second = (
        next(ShardReader(each, build_manifest(each)).read(0, 6, seed=0, shuffle=False, batch_size=6))
        for each in (source, report.data)
    )
    assert first.equals(second)
    parts = sorted((tmp_path / "out" / "day=2026-01-01").iterdir())
    assert [visit for part in parts for visit in pq.read_table(part)["visit"].to_pylist()] == [1.5, 9, 2, 9, 3, 9]


@pytest.mark.parametrize("field", ["timestamp", "session"])
def test_a_missing_time_or_session_column_is_named_with_the_existing_ones(tmp_path: Path, field: str) -> None:
    source = _ratings(tmp_path / "r.csv", "1,a,4,1767229200").model_copy(update={field: "visit"})
    with pytest.raises(DataError, match=rf"data\.{field}: 'visit' is not in .* there are: user, item"):
        convert(source, str(tmp_path / "out"), layout=ByRows(rows=1), label_rule="stars>=4")


def test_the_job_of_a_conversion_keeps_how_the_log_wrote_its_ids(tmp_path: Path) -> None:
    source = _ratings(tmp_path / "r.csv", "1,a,4,1", "2,b,3,2")
    report = convert(source, str(tmp_path / "out"), layout=ByRows(rows=2), label_rule="stars>=4")
    user, item = report.data.sparse
    assert (user.encoding, user.raw_encoding) == ("integer", None)
    assert (item.encoding, item.raw_encoding) == ("integer", "string")
    again = convert(report.data, str(tmp_path / "again"), layout=ByRows(rows=1))
    assert again.data.sparse == report.data.sparse
    plain = report.data.model_copy(update={"sparse": (user, item.model_copy(update={"raw_encoding": None}))})
    assert build_manifest(plain).schema_fingerprint == build_manifest(report.data).schema_fingerprint
