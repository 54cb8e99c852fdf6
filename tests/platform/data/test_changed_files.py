"""A file that has changed since the manifest was made is refused, even if it has the same number of rows."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from elastrec.platform.data.entries import DataManifest
from elastrec.platform.data.manifest import build_manifest
from elastrec.platform.data.reading.reader import ShardReader
from elastrec.platform.specs.data import TrainingData
from elastrec.platform.specs.errors import DataError
from tests.platform.data.rows import data, table, write_lines, write_parquet

ROWS = 200
CHANGED = "the file changed after the job was planned: it was modified at .*, the manifest says .*; start the job again"


def write(file: Path, rows: pa.Table) -> None:
    """In place: a file that is open for reading changes under its reader."""
    if file.suffix == ".parquet":
        write_parquet(file, rows, row_group=64)
    else:
        columns = [rows.column(name).to_pylist() for name in ("label", "number", "row")]
        write_lines(
            file, "label,number,row,many", *(f"{a},{b:04.0f},{c:04},1" for a, b, c in zip(*columns, strict=True))
        )


@pytest.fixture(params=["parquet", "csv"])
def file(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    file = tmp_path / "log" / f"part-0.{request.param}"
    write(file, table(ROWS))
    return file


@pytest.fixture
def log(file: Path) -> TrainingData:
    return data(file.parent, format=file.suffix.lstrip("."))


def read(reader: ShardReader, start: int = 64, rows: int = 64) -> list[int]:
    return [
        row
        for batch in reader.read(start, rows, seed=0, shuffle=False, batch_size=32)
        for row in batch.column("row").to_pylist()
    ]


def rewrite(file: Path, *, in_place: bool) -> None:
    """As many rows, in the same number of bytes, with other values."""
    before = file.stat()
    if not in_place:
        file.unlink()
    write(file, table(ROWS).take(list(range(ROWS - 1, -1, -1))))
    assert file.suffix == ".parquet" or file.stat().st_size == before.st_size
    # Whatever the resolution of the file system's times is.
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns + 10**9))


@pytest.mark.parametrize("in_place", [True, False])
def test_a_file_rewritten_with_as_many_rows_is_refused_by_a_new_reader(
    file: Path, log: TrainingData, in_place: bool
) -> None:
    manifest = build_manifest(log)
    rewrite(file, in_place=in_place)
    with pytest.raises(DataError, match=f"{file.name}: {CHANGED if file.suffix == '.csv' else 'the file changed'}"):
        read(ShardReader(log, manifest))
    assert read(ShardReader(log, build_manifest(log))) == list(range(ROWS - 65, ROWS - 129, -1))


@pytest.mark.parametrize("in_place", [True, False])
def test_a_rewritten_file_is_refused_by_the_reader_that_has_it_open(
    file: Path, log: TrainingData, in_place: bool
) -> None:
    reader = ShardReader(log, build_manifest(log))
    assert read(reader, start=0) == list(range(64))
    rewrite(file, in_place=in_place)
    with pytest.raises(DataError, match=f"{file.name}: the file changed after the job was planned"):
        read(reader)
    reader.close()


def _touched(file: Path) -> None:
    os.utime(file, ns=(0, 10**18))


def _longer(file: Path) -> None:
    times = file.stat()
    with file.open("ab") as opened:
        opened.write(b"\n")
    os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (_touched, "it was modified at 2001-09-09T01:46:40"),
        (_longer, "it has [0-9]+ bytes, the manifest says [0-9]+"),
        (Path.unlink, "cannot be read"),
    ],
)
def test_changed_files_are_named(file: Path, log: TrainingData, change: Callable[[Path], object], says: str) -> None:
    manifest = build_manifest(log)
    change(file)
    with pytest.raises(DataError, match=f"{file.name}.*{says}"):
        read(ShardReader(log, manifest))


def test_a_manifest_without_times_is_compared_by_size(file: Path, log: TrainingData) -> None:
    planned = build_manifest(log)
    before = planned.files[0]
    known = {name: getattr(before, name) for name in before.__struct_fields__ if name != "modified_ns"}
    assert before.modified_ns == file.stat().st_mtime_ns and before.bytes == file.stat().st_size
    manifest = DataManifest(
        files=[type(before)(**known)],
        rows=planned.rows,
        bytes=planned.bytes,
        digest=planned.digest,
        schema_fingerprint=planned.schema_fingerprint,
        partitions=[],
    )
    _touched(file)
    assert read(ShardReader(log, manifest)) == list(range(64, 128))


def test_a_copy_that_keeps_size_and_time_is_read(file: Path, log: TrainingData, tmp_path: Path) -> None:
    manifest = build_manifest(log)
    shutil.copy2(file, tmp_path / "copy")
    (tmp_path / "copy").replace(file)
    assert read(ShardReader(log, manifest)) == list(range(64, 128))
