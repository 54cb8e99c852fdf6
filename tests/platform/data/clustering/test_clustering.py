"""Clustering by session: the same rows, with sessions together, written completely or not at all."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elastrec.platform.data.clustering import clustering
from elastrec.platform.data.clustering.clustering import cluster, clustered_data, row_groups
from elastrec.platform.data.clustering.sorting import (
    ClusterKeys,
    open_source,
    range_count,
    session_starts,
    sorted_by_session,
)
from elastrec.platform.data.finished import ParquetFile
from elastrec.platform.data.manifest import build_manifest
from elastrec.platform.data.partitions import Partition
from elastrec.platform.specs.data import TrainingData
from elastrec.platform.specs.errors import DataError

DAY = "day=2026-01-31"


def _data(path: Path, **other: object) -> TrainingData:
    content = {
        "path": str(path),
        "dense": [{"name": "d"}],
        "sparse": [{"name": "item"}, {"name": "history", "is_list": True}],
        "session": "session",
        "timestamp": "when",
    }
    return TrainingData.model_validate(content | other)


def _log(rows: int, sessions: int, seed: int = 0) -> pa.Table:
    rng = np.random.default_rng(seed)
    session_B = rng.integers(0, sessions, rows)
    histories = [rng.integers(0, 10**9, rng.integers(0, 9)).tolist() for _ in range(sessions)]
    return pa.table(
        {
            "label": pa.array(rng.integers(0, 2, rows), pa.int8()),
            "d": pa.array(rng.random(rows)),
            "item": pa.array(rng.integers(0, 1000, rows)),
            "history": pa.array([histories[s] for s in session_B], pa.list_(pa.int64())),
            "session": pa.array(session_B),
            "when": pa.array(np.sort(rng.integers(0, 1000, rows))),
        }
    )


def _write(table: pa.Table, root: Path, folder: str = DAY, files: int = 2) -> None:
    (root / folder).mkdir(parents=True, exist_ok=True)
    step = -(-table.num_rows // files)
    for index in range(files):
        pq.write_table(table.slice(index * step, step), root / folder / f"part-{index}.parquet", row_group_size=500)


def _rows(root: Path, folder: str = DAY) -> pa.Table:
    files = sorted((root / folder).glob("part-*.parquet"))
    return pa.concat_tables([pq.read_table(file) for file in files]).replace_schema_metadata(None)


def _digest(folder: Path) -> str:
    whole = hashlib.sha256()
    for file in sorted(folder.glob("part-*")):
        whole.update(file.read_bytes())
    return whole.hexdigest()


def test_rows_are_sorted_by_session_then_time_and_none_is_lost(tmp_path: Path) -> None:
    table = _log(3_000, 200)
    _write(table, tmp_path / "log")
    (report,) = cluster(_data(tmp_path / "log"), str(tmp_path / "out"), row_group_rows=256)
    expected = table.append_column("row", pa.array(np.arange(3_000)))
    expected = expected.sort_by([("session", "ascending"), ("when", "ascending"), ("row", "ascending")])
    assert _rows(tmp_path / "out").equals(expected.drop_columns(["row"]))
    assert (report.rows, report.sessions) == (3_000, pc.count_distinct(table["session"]).as_py())
    assert build_manifest(clustered_data(_data(tmp_path / "log"), str(tmp_path / "out"))).rows == 3_000


def test_no_session_is_split_between_row_groups(tmp_path: Path) -> None:
    _write(_log(3_000, 60), tmp_path / "log")
    cluster(_data(tmp_path / "log"), str(tmp_path / "out"), row_group_rows=128)
    parquet = pq.ParquetFile(tmp_path / "out" / DAY / "part-00000.parquet")
    groups = [set(parquet.read_row_group(i)["session"].to_pylist()) for i in range(parquet.num_row_groups)]
    assert len(groups) > 10
    assert sum(map(len, groups)) == len(set.union(*groups))


@given(st.lists(st.none() | st.integers(0, 5), max_size=60), st.integers(1, 12))
@settings(max_examples=60, deadline=None)
def test_row_groups_have_whole_sessions_and_the_smallest_possible_size(sessions: list[int | None], target: int) -> None:
    column = pa.array(sorted(sessions, key=lambda s: (s is None, s)), pa.int64())
    groups = list(row_groups(column, target))
    starts_B = session_starts(column)
    assert [row for begin, end in groups for row in range(begin, end)] == list(range(len(column)))
    for begin, end in groups:
        assert starts_B[begin]
        assert end - begin <= target or not starts_B[begin + 1 : end].any()


def test_little_memory_gives_the_same_bytes_as_much(tmp_path: Path) -> None:
    _write(_log(60_000, 4_000), tmp_path / "log", files=3)
    data = _data(tmp_path / "log")
    cluster(data, str(tmp_path / "much"), row_group_rows=1_000)
    cluster(data, str(tmp_path / "little"), row_group_rows=1_000, memory_bytes=2**20)
    assert _digest(tmp_path / "much" / DAY) == _digest(tmp_path / "little" / DAY)


def test_text_sessions_are_spilled_as_well(tmp_path: Path) -> None:
    table = _log(20_000, 1_000)
    table = table.set_column(4, "session", pc.binary_join_element_wise("s", table["session"].cast(pa.string()), ""))
    _write(table, tmp_path / "log")
    cluster(_data(tmp_path / "log"), str(tmp_path / "out"), memory_bytes=2**20)
    sessions = _rows(tmp_path / "out")["session"]
    assert sessions.to_pylist() == sorted(table["session"].to_pylist())


def test_spilled_rows_are_in_files_without_names_of_which_a_killed_process_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _write(_log(20_000, 1_000), tmp_path / "log")
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    keys = ClusterKeys("session", "when")
    source = open_source(sorted(map(str, (tmp_path / "log" / DAY).iterdir())), keys)
    assert range_count(source, 2**20) > 1
    tables = sorted_by_session(source, keys, memory_bytes=2**20)
    rows = next(tables).num_rows
    # All of the rows are spilled now, and those of the other ranges are still needed.
    assert not [*temporary.iterdir()]
    assert rows + sum(table.num_rows for table in tables) == 20_000


def test_a_second_run_changes_nothing_and_answers_the_same(tmp_path: Path) -> None:
    _write(_log(1_000, 50), tmp_path / "log")
    first = cluster(_data(tmp_path / "log"), str(tmp_path / "out"))
    file = tmp_path / "out" / DAY / "part-00000.parquet"
    before = file.stat().st_mtime_ns
    assert cluster(_data(tmp_path / "log"), str(tmp_path / "out")) == first
    assert file.stat().st_mtime_ns == before


def test_another_day_is_added_beside_those_that_are_done(tmp_path: Path) -> None:
    _write(_log(500, 50), tmp_path / "log")
    _write(_log(500, 50, seed=1), tmp_path / "log", "day=2026-02-01")
    cluster(_data(tmp_path / "log"), str(tmp_path / "out"), partitions=[Partition.parse("2026-01-31")])
    assert not (tmp_path / "out" / "day=2026-02-01").exists()
    reports = cluster(_data(tmp_path / "log"), str(tmp_path / "out"))
    assert [report.partition for report in reports] == [DAY, "day=2026-02-01"]


def test_a_source_that_changed_is_not_mixed_with_what_was_clustered(tmp_path: Path) -> None:
    _write(_log(500, 50), tmp_path / "log")
    cluster(_data(tmp_path / "log"), str(tmp_path / "out"))
    _write(_log(600, 50, seed=1), tmp_path / "log")
    with pytest.raises(DataError, match="clustered with another source_digest"):
        cluster(_data(tmp_path / "log"), str(tmp_path / "out"))


def test_a_killed_run_leaves_no_files_and_the_next_one_succeeds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _write(_log(5_000, 50), tmp_path / "log")

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(clustering.ClusterWriter, "finish", killed)
        cluster(_data(tmp_path / "log"), str(tmp_path / "out"), row_group_rows=100)
    assert list((tmp_path / "out").iterdir()) == []
    assert cluster(_data(tmp_path / "log"), str(tmp_path / "out"))[0].rows == 5_000


def test_an_interrupted_run_has_closed_its_file_before_another_one_can_begin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _write(_log(rows=5_000, sessions=500), tmp_path / "log")
    opened: list[ParquetFile] = []

    class Opened(ParquetFile):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            opened.append(self)

    class Stopped(BaseException):
        pass

    def stops(*arguments: Any, **limits: Any) -> Iterator[pa.Table]:
        yield from sorted_by_session(*arguments, **limits)
        raise Stopped

    monkeypatch.setattr(clustering, "ParquetFile", Opened)
    monkeypatch.setattr(clustering, "sorted_by_session", stops)
    # The error that is still there refers to the writer.
    with pytest.raises(Stopped) as stopped:
        cluster(_data(tmp_path / "log"), str(tmp_path / "clustered"), row_group_rows=500)
    assert stopped.value and opened and all(each.stream.closed for each in opened)


def test_rows_without_a_session_are_last_and_belong_to_no_session(tmp_path: Path) -> None:
    table = _log(100, 10)
    holes = pa.array([i % 10 == 0 for i in range(100)])
    sessions = pc.if_else(holes, pa.scalar(None, pa.int64()), table["session"].combine_chunks())
    _write(table.set_column(4, "session", sessions), tmp_path / "log")
    (report,) = cluster(_data(tmp_path / "log"), str(tmp_path / "out"))
    assert report.rows_without_session == 10
    assert report.samples_per_session == 90 / report.sessions
    assert _rows(tmp_path / "out")["session"].to_pylist()[-10:] == [None] * 10


def test_a_log_of_one_session_is_one_row_group(tmp_path: Path) -> None:
    _write(_log(1_000, 1), tmp_path / "log")
    cluster(_data(tmp_path / "log"), str(tmp_path / "out"), row_group_rows=100)
    assert pq.ParquetFile(tmp_path / "out" / DAY / "part-00000.parquet").num_row_groups == 1


def test_files_end_with_a_session_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clustering, "_ROWS_PER_FILE", 300)
    _write(_log(1_000, 40), tmp_path / "log")
    cluster(_data(tmp_path / "log"), str(tmp_path / "out"), row_group_rows=100)
    files = sorted((tmp_path / "out" / DAY).glob("part-*.parquet"))
    sessions = [set(pq.read_table(file)["session"].to_pylist()) for file in files]
    assert len(files) == 3
    assert sum(map(len, sessions)) == len(set.union(*sessions))


def test_repeated_lists_are_written_without_a_dictionary_and_repeated_names_with_one(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    histories = rng.integers(0, 500, (100, 60))
    session_B = np.repeat(np.arange(100), 20)
    table = _log(2_000, 100)
    table = table.set_column(3, "history", pa.array(list(histories[session_B]), pa.list_(pa.int64())))
    table = table.set_column(4, "session", pa.array(session_B))
    table = table.append_column("country", pa.array([f"country-{i}" for i in rng.integers(0, 7, 2_000)]))
    _write(table, tmp_path / "log")
    (report,) = cluster(_data(tmp_path / "log"), str(tmp_path / "out"))
    assert "history.list.element" not in report.dictionary_columns
    assert "country" in report.dictionary_columns
    metadata = pq.ParquetFile(tmp_path / "out" / DAY / "part-00000.parquet").metadata.row_group(0)
    dictionaries = {
        metadata.column(i).path_in_schema: metadata.column(i).has_dictionary_page for i in range(metadata.num_columns)
    }
    assert {path for path, used in dictionaries.items() if used} == set(report.dictionary_columns)


def test_columns_that_the_job_does_not_name_are_kept(tmp_path: Path) -> None:
    table = _log(200, 10).append_column("note", pa.array(["x"] * 200))
    _write(table, tmp_path / "log")
    cluster(_data(tmp_path / "log"), str(tmp_path / "out"))
    assert "note" in _rows(tmp_path / "out").column_names


def test_unpartitioned_data_is_clustered_into_the_destination_itself(tmp_path: Path) -> None:
    _write(_log(200, 10), tmp_path / "log", "")
    data = _data(tmp_path / "log", partitioning="none", evaluation_path="none")
    assert cluster(data, str(tmp_path / "out"))[0].partition == ""
    assert (tmp_path / "out" / "part-00000.parquet").is_file()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"session": None}, "data.session: is absent"),
        ({"session": "visit"}, "data.session: 'visit' is not allowed; allowed: label, d, item"),
        ({"timestamp": "clock"}, "data.timestamp: 'clock' is not allowed"),
        ({"session": "history"}, "is a list<element: int64>; allowed: numbers, text or times"),
        ({"format": "csv"}, "allowed: parquet"),
    ],
)
def test_data_that_cannot_be_clustered_is_refused(tmp_path: Path, change: dict[str, object], message: str) -> None:
    _write(_log(20, 5), tmp_path / "log")
    with pytest.raises(DataError, match=message.replace("(", r"\(")):
        cluster(_data(tmp_path / "log", **change), str(tmp_path / "out"))
    assert not (tmp_path / "out" / DAY).exists()


def test_a_destination_that_would_harm_other_files_is_refused(tmp_path: Path) -> None:
    _write(_log(20, 5), tmp_path / "log")
    data = _data(tmp_path / "log")
    with pytest.raises(DataError, match="lies within"):
        cluster(data, str(tmp_path / "log" / "clustered"))
    (tmp_path / "out" / DAY).mkdir(parents=True)
    (tmp_path / "out" / DAY / "mine.txt").write_text("keep")
    with pytest.raises(DataError, match="not clustered"):
        cluster(data, str(tmp_path / "out"))
    assert (tmp_path / "out" / DAY / "mine.txt").read_text() == "keep"


def test_a_broken_or_empty_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "log" / DAY).mkdir(parents=True)
    (tmp_path / "log" / DAY / "part-0.parquet").write_bytes(b"PAR1 no")
    with pytest.raises(DataError, match=r"part-0.parquet: cannot be read as a Parquet file"):
        cluster(_data(tmp_path / "log"), str(tmp_path / "out"))
    _write(_log(20, 5).slice(0, 0), tmp_path / "empty")
    with pytest.raises(DataError, match="hold no rows"):
        cluster(_data(tmp_path / "empty"), str(tmp_path / "out"))


def test_files_whose_columns_have_another_type_are_brought_to_one_or_refused(tmp_path: Path) -> None:
    table = _log(100, 10)
    _write(table, tmp_path / "log", files=1)
    narrow = table.set_column(2, "item", table["item"].cast(pa.int32()))
    pq.write_table(narrow, tmp_path / "log" / DAY / "part-9.parquet")
    assert cluster(_data(tmp_path / "log"), str(tmp_path / "out"))[0].rows == 200
    text = table.set_column(2, "item", table["item"].cast(pa.string()))
    pq.write_table(text, tmp_path / "log" / DAY / "part-9.parquet")
    with pytest.raises(DataError, match="do not fit"):
        cluster(_data(tmp_path / "log"), str(tmp_path / "other"))
