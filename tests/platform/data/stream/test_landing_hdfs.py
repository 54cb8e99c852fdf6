"""Landing in HDFS, where files are visible while they are written: a reader sees whole files only.

The file system is a folder behind pyarrow's interface, which behaves like HDFS in this respect and is not a local one.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pytest

from elastrec.platform.data import files, finished
from elastrec.platform.data.files import write_bytes
from elastrec.platform.data.finished import ParquetFile
from elastrec.platform.data.stream import claim, landing
from elastrec.platform.data.stream.claim import CLAIM_NAME
from elastrec.platform.data.stream.landing import RECORD_NAME, land
from elastrec.platform.specs.errors import DataError
from elastrec.platform.specs.text.whole_file import temporary_name
from tests.platform.data.stream.test_landing import ALL, DATA, Broker, broker, items

__all__ = ["broker"]


@pytest.fixture
def hdfs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> pafs.FileSystem:
    filesystem = pafs.SubTreeFileSystem(str(tmp_path), pafs.LocalFileSystem())
    for module in (files, finished, claim, landing):
        monkeypatch.setattr(module, "locate", lambda uri: (filesystem, uri.removeprefix("hdfs://nodes/")))
    return filesystem


def landed() -> None:
    land(DATA, "clicks", "hdfs://nodes/clicks", servers="none")


def test_a_reader_sees_whole_files_only(
    broker: Broker, hdfs: pafs.FileSystem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(landing, "ROW_GROUP_ROWS", 1)
    write: Callable[..., None] = ParquetFile.write
    seen: list[int] = []

    def observed(file: ParquetFile, *rows: object) -> None:
        write(file, *rows)
        shown = [path for path in tmp_path.glob("clicks/day=*/*") if path.name[0] not in "._"]
        seen.append(sum(pq.read_metadata(path).num_rows for path in shown))

    monkeypatch.setattr(ParquetFile, "write", observed)
    landed()
    # Six rows of the first partition of the topic are visible while those of the second one are written.
    assert seen == [0] * 6 + [6] * 6
    assert items(tmp_path / "clicks") == ALL


def test_files_that_a_killed_call_was_writing_are_removed(
    broker: Broker, hdfs: pafs.FileSystem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.broken_at = 3
    with monkeypatch.context() as patch, pytest.raises(ConnectionError):
        patch.setattr(landing, "ROW_GROUP_ROWS", 1)
        # The process has no time for it.
        patch.setattr(landing._DayFiles, "discard", lambda files: None)
        landed()
    assert [*tmp_path.glob("clicks/day=*/_kafka-00001-*.tmp")]
    broker.broken_at = None
    landed()
    assert items(tmp_path / "clicks") == ALL
    assert not [*tmp_path.glob("clicks/day=*/[._]*")]


def test_a_first_call_that_was_killed_while_it_wrote_its_claim_is_repeated(
    broker: Broker, hdfs: pafs.FileSystem, tmp_path: Path
) -> None:
    (tmp_path / "clicks").mkdir()
    (tmp_path / "clicks" / temporary_name(CLAIM_NAME)).write_bytes(b"half")
    landed()
    assert items(tmp_path / "clicks") == ALL


def test_a_record_that_cannot_be_written_leaves_the_one_before(hdfs: pafs.FileSystem, tmp_path: Path) -> None:
    uri = f"hdfs://nodes/clicks/{RECORD_NAME}"
    write_bytes(uri, b"first")
    with pytest.raises(TypeError):
        write_bytes(uri, None)  # type: ignore[arg-type]
    assert (tmp_path / "clicks" / RECORD_NAME).read_bytes() == b"first"
    (tmp_path / "clicks" / "taken" / "inside").mkdir(parents=True)
    with pytest.raises(DataError, match="taken: cannot be written"):
        write_bytes("hdfs://nodes/clicks/taken", b"second")
    assert {path.name for path in (tmp_path / "clicks").iterdir()} == {RECORD_NAME, "taken"}
