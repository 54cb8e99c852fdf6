"""Manifests: their contents, and refusals before anything starts."""

from __future__ import annotations

import os
from datetime import date
from pathlib import Path

import pyarrow as pa
import pytest

from elastrec.platform.data import manifest
from elastrec.platform.data.entries import DataManifest
from elastrec.platform.data.manifest import build_manifest, read_manifest, write_new_manifest
from elastrec.platform.data.partitions import Partition
from elastrec.platform.data.reading.encode import RowEncoder
from elastrec.platform.specs.data import TrainingData
from elastrec.platform.specs.errors import DataError, NoRowsError
from tests.first_decode import types_collected
from tests.platform.data.rows import data, table, write_lines, write_parquet


def _days(root: Path, *days: str, rows: int = 10) -> None:
    for i, day in enumerate(days):
        write_parquet(root / f"day={day}" / "part-0.parquet", table(rows, i * rows))


def test_a_written_manifest_is_read_unchanged(tmp_path: Path) -> None:
    _days(tmp_path / "log", "2026-01-01", "2026-01-02")
    manifest = build_manifest(data(tmp_path / "log", partitioning="day"))
    uri = write_new_manifest(manifest, str(tmp_path / "deep" / "manifest"))
    assert uri == write_new_manifest(manifest, str(tmp_path / "deep" / "manifest"))
    assert read_manifest(uri) == manifest
    assert manifest.rows == 20
    assert manifest.partitions == ["day=2026-01-01", "day=2026-01-02"]
    assert [str(path) for path in (tmp_path / "deep").iterdir()] == [uri]


def test_rows_are_numbered_over_the_files_in_order(tmp_path: Path) -> None:
    _days(tmp_path, "2026-01-01", "2026-01-02", "2026-01-03")
    manifest = build_manifest(data(tmp_path, partitioning="day"))
    found = [(Path(file.uri).parent.name, first, count) for file, first, count in manifest.locate_rows(8, 15)]
    assert found == [("day=2026-01-01", 8, 2), ("day=2026-01-02", 0, 10), ("day=2026-01-03", 0, 3)]
    for start, length in ((-1, 2), (0, 0), (25, 6)):
        with pytest.raises(DataError, match="outside"):
            manifest.locate_rows(start, length)


def test_the_digest_depends_on_a_files_rows_and_not_on_its_folder(tmp_path: Path) -> None:
    _days(tmp_path / "a", "2026-01-01")
    before = build_manifest(data(tmp_path / "a", partitioning="day"))
    (tmp_path / "a").rename(tmp_path / "b")
    moved = build_manifest(data(tmp_path / "b", partitioning="day"))
    assert moved.digest == before.digest
    _days(tmp_path / "b", "2026-01-01", rows=11)
    assert build_manifest(data(tmp_path / "b", partitioning="day")).digest != before.digest


@pytest.mark.parametrize(("longer", "later_ns"), [(True, 0), (False, 10**9)])
def test_the_digest_changes_with_a_files_size_and_time_though_its_rows_stay(
    tmp_path: Path, longer: bool, later_ns: int
) -> None:
    log = data(tmp_path / "log", format="csv")
    file = tmp_path / "log" / "part-0.csv"
    write_lines(file, "label,number,row,many", "0,1,1,1", "1,2,2,2")
    before, times = build_manifest(log), file.stat()
    write_lines(file, "label,number,row,many", "0,1,1,1", "1,20,2,2" if longer else "1,9,2,2")
    os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns + later_ns))
    after = build_manifest(log)
    assert (after.rows, after.bytes - before.bytes) == (before.rows, int(longer))
    assert after.digest != before.digest


def test_a_duplicate_column_in_a_parquet_file_is_refused_by_name(tmp_path: Path) -> None:
    rows = table(10)
    write_parquet(tmp_path / "a.parquet", rows.append_column("row", rows.column("number")))
    with pytest.raises(DataError, match=r"a.parquet: the columns \['row'\] are in the file more than once"):
        build_manifest(data(tmp_path))


def test_the_work_per_file_does_not_grow_with_the_square_of_its_columns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoders: list[TrainingData] = []

    class Counted(RowEncoder):
        def __init__(self, of: TrainingData) -> None:
            encoders.append(of)
            super().__init__(of)

    monkeypatch.setattr(manifest, "RowEncoder", Counted)
    counts = []
    for columns in (5, 50):
        names = [f"C{i}" for i in range(columns)]
        write_parquet(tmp_path / f"{columns}" / "a.parquet", pa.table({name: [0, 1] for name in ("label", *names)}))
        log = {"path": str(tmp_path / f"{columns}"), "partitioning": "none", "sparse": [{"name": n} for n in names]}
        encoders.clear()
        build_manifest(TrainingData.model_validate(log), try_rows=False)
        counts.append(len(encoders))
    assert counts[0] == counts[1]


def test_a_missing_partition_is_named_beside_those_that_exist(tmp_path: Path) -> None:
    _days(tmp_path, "2026-01-01", "2026-01-02")
    with pytest.raises(DataError, match=r"day=2026-01-03 is missing.*from day=2026-01-01 to day=2026-01-02"):
        build_manifest(data(tmp_path, partitioning="day"), [Partition(date(2026, 1, 3))])


def test_hidden_and_unfinished_files_are_ignored(tmp_path: Path) -> None:
    _days(tmp_path, "2026-01-01")
    (tmp_path / "day=2026-01-01" / "_SUCCESS").write_text("")
    (tmp_path / "day=2026-01-01" / ".part.tmp").write_text("half")
    assert len(build_manifest(data(tmp_path, partitioning="day")).files) == 1


def test_columns_are_checked_in_every_file(tmp_path: Path) -> None:
    write_parquet(tmp_path / "a.parquet", table(5))
    write_parquet(tmp_path / "b.parquet", table(5).drop_columns(["many"]))
    with pytest.raises(DataError, match=r"b\.parquet.*\['many'\] are missing; found: label, number, row"):
        build_manifest(data(tmp_path))
    wrong = table(5)
    wrong = wrong.set_column(1, "number", pa.array([[1.0]] * 5))
    write_parquet(tmp_path / "b.parquet", wrong)
    with pytest.raises(DataError, match=r"b\.parquet.*'number': found list<.*>, expected numbers"):
        build_manifest(data(tmp_path))


def test_a_list_instead_of_a_value_is_refused_and_vice_versa(tmp_path: Path) -> None:
    write_parquet(tmp_path / "a.parquet", table(5))
    with pytest.raises(DataError, match=r"'many': found list<.*>, expected integers"):
        build_manifest(data(tmp_path, sparse=({"name": "many"},)))
    with pytest.raises(DataError, match=r"'row': found int64, expected a list"):
        build_manifest(data(tmp_path, sparse=({"name": "row", "is_list": True},)))


def test_empty_broken_and_compressed_files_are_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    path.write_bytes(b"")
    with pytest.raises(DataError, match=r"a\.parquet: the file is empty"):
        build_manifest(data(tmp_path))
    path.write_bytes(b"PAR1 not really")
    with pytest.raises(DataError, match=r"a\.parquet: cannot be read as a Parquet"):
        build_manifest(data(tmp_path))
    write_parquet(path, table(0))
    with pytest.raises(DataError, match="holds no rows"):
        build_manifest(data(tmp_path))
    (tmp_path / "b").mkdir()
    write_lines(tmp_path / "b" / "a.csv.gz", "x")
    with pytest.raises(DataError, match="no random access"):
        build_manifest(data(tmp_path / "b", format="csv"))
    write_lines(tmp_path / "c" / "a.csv", "label,number,row,many")
    with pytest.raises(DataError, match="holds no rows"):
        build_manifest(data(tmp_path / "c", format="csv"))


def test_a_file_without_rows_is_left_out_where_others_of_its_partition_have_rows(tmp_path: Path) -> None:
    _days(tmp_path, "2026-01-01", "2026-01-02")
    alone = build_manifest(data(tmp_path, partitioning="day"))
    write_parquet(tmp_path / "day=2026-01-01" / "an-empty-task.parquet", table(0))
    assert build_manifest(data(tmp_path, partitioning="day")) == alone
    write_parquet(tmp_path / "day=2026-01-03" / "an-empty-task.parquet", table(0))
    with pytest.raises(NoRowsError, match=r"day=2026-01-03/an-empty-task\.parquet: the file holds no rows"):
        build_manifest(data(tmp_path, partitioning="day"))


def test_columns_of_a_file_without_rows_are_checked(tmp_path: Path) -> None:
    write_parquet(tmp_path / "a.parquet", table(5))
    write_parquet(tmp_path / "b.parquet", table(0).drop_columns(["many"]))
    with pytest.raises(DataError, match=r"b\.parquet.*\['many'\] are missing"):
        build_manifest(data(tmp_path))


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="nowhere"):
        build_manifest(data(tmp_path / "nowhere"))
    with pytest.raises(DataError, match="nowhere does not exist"):
        build_manifest(data(tmp_path / "nowhere", partitioning="day"))


def test_a_manifest_of_another_kind_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "manifest.json"
    path.write_text("{}")
    with pytest.raises(DataError, match="no data manifest"):
        read_manifest(str(path))


def test_the_first_manifest_can_be_read_by_several_threads(tmp_path: Path) -> None:
    empty = DataManifest(files=[], rows=0, bytes=0, digest="", schema_fingerprint="", partitions=[])
    uri = write_new_manifest(empty, str(tmp_path / "manifest"))
    imports = "from elastrec.platform.data.manifest import read_manifest\n"
    assert types_collected(imports, f"read_manifest({uri!r})") == ("[]", "")
