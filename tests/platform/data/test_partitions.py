"""Folders of partitions: names, keys, and errors with the path."""

from __future__ import annotations

from datetime import date
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastrec.platform.data.clustering.clustering import cluster, clustered_data
from elastrec.platform.data.convert import ByRows, convert
from elastrec.platform.data.manifest import build_manifest
from elastrec.platform.data.partitions import Partition, existing_partitions
from elastrec.platform.data.reading.reader import ShardReader
from elastrec.platform.specs.data import TrainingData
from elastrec.platform.specs.errors import DataError
from elastrec.platform.specs.partition_folders import PartitionFolders
from tests.platform.data.rows import data, table, write_lines, write_parquet

FIRST, SECOND = Partition(date(2026, 1, 1)), Partition(date(2026, 1, 2))


def log(root: Path, *folders: str, rows: int = 5) -> None:
    for index, folder in enumerate(folders):
        write_parquet(root / folder / "part-0.parquet", table(rows, index * rows))


def rows_of(of: TrainingData, *columns: str) -> list[tuple[Any, ...]]:
    manifest = build_manifest(of)
    (batch,) = ShardReader(of, manifest).read(0, manifest.rows, seed=0, shuffle=False, batch_size=manifest.rows)
    return list(zip(*(batch.column(name).to_pylist() for name in columns), strict=True))


def test_partitions_are_read_from_their_usual_spellings() -> None:
    assert (
        Partition.parse("2026-01-31T07") == Partition.parse("day=2026-01-31/hour=07") == Partition(date(2026, 1, 31), 7)
    )
    for wrong in ("2026-13-01", "yesterday", "2026-01-01T24"):
        with pytest.raises(DataError, match="not allowed"):
            Partition.parse(wrong)


def test_existing_partitions_of_hours_are_sorted(tmp_path: Path) -> None:
    for folder in ("day=2026-01-02/hour=00", "day=2026-01-01/hour=23", "other"):
        (tmp_path / folder).mkdir(parents=True)
    found = existing_partitions(data(tmp_path, partitioning="hour"))
    assert [str(p) for p in found] == ["day=2026-01-01/hour=23", "day=2026-01-02/hour=00"]


@pytest.mark.parametrize(
    ("pattern", "first", "second"),
    [
        ("dt=%Y-%m-%d", "dt=2026-01-01", "dt=2026-01-02"),
        ("date=%Y%m%d", "date=20260101", "date=20260102"),
        ("%Y/%m/%d", "2026/01/01", "2026/01/02"),
        ("year=%Y/month=%-m/day=%-d", "year=2026/month=1/day=1", "year=2026/month=1/day=2"),
        ("clicks/dt=%Y-%m-%d", "clicks/dt=2026-01-01", "clicks/dt=2026-01-02"),
    ],
)
def test_days_of_any_folder_names_are_found_and_read(tmp_path: Path, pattern: str, first: str, second: str) -> None:
    log(tmp_path, first, second, "models/v1")
    of = data(tmp_path, partitioning="day", partition_folder=pattern)
    assert existing_partitions(of) == [FIRST, SECOND]
    assert [row for (row,) in rows_of(of, "row")] == list(range(10))
    manifest = build_manifest(of, [SECOND])
    assert (manifest.rows, manifest.partitions) == (5, ["day=2026-01-02"])


def test_hours_without_a_leading_zero_are_partitions(tmp_path: Path) -> None:
    log(tmp_path, "dt=2026-01-01/hour=7", "dt=2026-01-01/hour=10")
    of = data(tmp_path, partitioning="hour", partition_folder="dt=%Y-%m-%d/hour=%-H")
    assert existing_partitions(of) == [Partition(date(2026, 1, 1), 7), Partition(date(2026, 1, 1), 10)]
    assert build_manifest(of, [Partition(date(2026, 1, 1), 7)]).rows == 5


@given(
    day=st.dates(date(1970, 1, 1), date(2100, 1, 1)),
    hour=st.integers(0, 23),
    pattern=st.sampled_from(["%Y-%m-%d/%H", "y=%Y/m=%-m/d=%-d/h=%-H", "dt=%Y%m%d%H", "year=%Y/date=%Y-%m-%d/hour=%H"]),
)
def test_the_name_of_a_folder_contains_its_hour(day: date, hour: int, pattern: str) -> None:
    folders = PartitionFolders(pattern, has_hours=True)
    assert folders.read(tuple(folders.path(day, hour).split("/"))) == (day, hour)


def test_folders_with_two_days_are_refused() -> None:
    with pytest.raises(ValueError, match="the year 2025 differs from 2026 above it"):
        PartitionFolders("y=%Y/dt=%Y-%m-%d", has_hours=False).read(("y=2026", "dt=2025-01-01"))


def test_a_key_with_any_value_is_a_column_and_its_folders_of_one_day_are_one_partition(tmp_path: Path) -> None:
    days = ("dt=2026-01-01", "dt=2026-01-02")
    log(
        tmp_path,
        *(f"country={country}/{day}" for country in ("DE", "F%3AR") for day in days),
        "country=IT/dt=2026-01-02",
    )
    country = {"name": "country", "encoding": "string"}
    of = data(
        tmp_path,
        partitioning="day",
        partition_folder="country=*/dt=%Y-%m-%d",
        sparse=[{"name": "row"}, country],
    )
    assert existing_partitions(of) == [FIRST, SECOND]
    manifest = build_manifest(of, [FIRST])
    assert (manifest.partitions, manifest.rows) == (["day=2026-01-01"], 10)
    assert [file.keys for file in manifest.files] == [{"country": "DE"}, {"country": "F:R"}]
    found = dict(rows_of(of, "row", "country"))
    same = {row // 5: found[row] for row in found}
    # Five files: the countries of files 0 and 1 are equal, and so are those of 2 and 3.
    assert same[0] == same[1] != same[2] == same[3] != same[4]
    with pytest.raises(DataError, match=r"day=2026-01-03 is missing \(.*country=\*/dt=2026-01-03\)"):
        build_manifest(of, [Partition(date(2026, 1, 3))])


def test_keys_below_a_partition_are_columns_of_numbers_or_text_and_an_empty_one_is_missing(tmp_path: Path) -> None:
    log(tmp_path, *(f"day=2026-01-01/slot={slot}" for slot in ("3", "__HIVE_DEFAULT_PARTITION__")))
    of = data(tmp_path, partitioning="day", dense=[{"name": "slot", "transform": "none", "missing": -1.0}])
    manifest = build_manifest(of)
    (batch,) = ShardReader(of, manifest).read(0, 10, seed=0, shuffle=False, batch_size=10)
    assert sorted(batch.column("dense").to_pylist()) == [[-1.0]] * 5 + [[3.0]] * 5


def test_a_column_of_the_file_takes_precedence_over_a_key_of_its_folder(tmp_path: Path) -> None:
    log(tmp_path, "row=7")
    assert [row for (row,) in rows_of(data(tmp_path), "row")] == list(range(5))


def test_keys_are_columns_of_text_files_and_of_a_users_transform(tmp_path: Path) -> None:
    write_lines(tmp_path / "slot=4" / "a.csv", "label,row", "0,1", "1,2")
    of = data(tmp_path, format="csv", dense=[], sparse=[{"name": "row"}, {"name": "slot"}])
    assert rows_of(of, "row", "slot") == [(1, 4), (2, 4)]
    doubled = data(
        tmp_path, format="csv", dense=[], sparse=[{"name": "slot"}], transform="tests.platform.data.test_partitions:ten"
    )
    assert rows_of(doubled, "slot") == [(40,), (40,)]


def ten(batch: pa.RecordBatch) -> pa.RecordBatch:
    """A user's transform of a key."""
    slots = pa.array([int(text) * 10 for text in batch.column("slot").to_pylist()])
    return batch.set_column(batch.schema.get_field_index("slot"), "slot", slots)


def test_a_log_of_keys_is_converted_with_their_values_and_clustered_only_without_them(tmp_path: Path) -> None:
    log(tmp_path / "log", "country=DE/dt=2026-01-01", "country=FR/dt=2026-01-01")
    keyed = {"partitioning": "day", "partition_folder": "country=*/dt=%Y-%m-%d", "session": "row"}
    country = {"name": "country", "encoding": "string"}
    of = data(tmp_path / "log", **keyed, sparse=[{"name": "row"}, country])
    report = convert(of, str(tmp_path / "converted"), layout=ByRows(rows=10))
    assert report.data.partition_folder is None
    assert rows_of(report.data, "row", "country") == rows_of(of, "row", "country")
    with pytest.raises(DataError, match=r"country=DE.*\['country'\] are in the names of folders.*data convert"):
        cluster(of, str(tmp_path / "clustered"))
    plain = data(tmp_path / "log", **keyed, sparse=[{"name": "row"}])
    (clustered,) = cluster(plain, str(tmp_path / "clustered"))
    assert (clustered.partition, clustered.rows) == ("day=2026-01-01", 10)
    assert [row for (row,) in rows_of(clustered_data(plain, str(tmp_path / "clustered")), "row")] == list(range(10))


@pytest.mark.parametrize(
    ("name", "said"),
    [
        (
            "day=20260102",
            r"day=20260102: is not the folder of a day \(day=20260102 is not of the form day=%Y-%m.*day=2026-01-31",
        ),
        ("day=2026-02-30", r"day=2026-02-30: is not the folder of a day \(day.*out of range"),
        ("day=__HIVE_DEFAULT_PARTITION__", "day=__HIVE_DEFAULT_PARTITION__: holds rows without a day.*move the folder"),
    ],
)
def test_an_odd_folder_is_named_by_its_path(tmp_path: Path, name: str, said: str) -> None:
    log(tmp_path, "day=2026-01-01", name)
    with pytest.raises(DataError, match=said):
        existing_partitions(data(tmp_path, partitioning="day"))
    assert build_manifest(data(tmp_path, partitioning="day"), [FIRST]).rows == 5


def test_the_error_about_other_partition_keys_names_the_field_that_sets_them(tmp_path: Path) -> None:
    log(tmp_path, "dt=2026-01-01")
    with pytest.raises(
        DataError, match=r"there are dt=2026-01-01: correct data.partitioning.* or data.partition_folder"
    ):
        build_manifest(data(tmp_path, partitioning="day"))


@pytest.mark.parametrize(
    ("section", "said"),
    [
        ({"partition_folder": "dt=%Y-%m"}, "%Y, %m and %d"),
        ({"partition_folder": "dt=%Y-%m-%d/hour=%H"}, "this one says day hour month year"),
        ({"partition_folder": "dt=%Y-%m-%d", "partitioning": "hour"}, "%Y, %m, %d and %H"),
        ({"partition_folder": "dt=%Y-%j-%d"}, "the directives.*found %j"),
        ({"partition_folder": "dt=%Y-%m-%d/part=*"}, "last level says the day"),
        ({"partition_folder": "*/dt=%Y-%m-%d"}, "the whole value of a key"),
        ({"partition_folder": "/dt=%Y-%m-%d"}, "none of them empty"),
        ({"partition_folder": "dt=%Y-%m-%d", "partitioning": "none"}, "partitioning: day or hour"),
        ({"timezone": "America/Los_Angelos"}, "did you mean 'America/Los_Angeles'"),
        ({"timezone": "../../etc/passwd"}, "an IANA time zone"),
    ],
)
def test_a_wrong_pattern_or_zone_is_refused_with_what_is_allowed(section: dict[str, str], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        data(Path("clicks"), **{"partitioning": "day", **section})
