"""Encoding each distinct row once gives the same rows as a plain reader."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elastrec.platform.data.deduplicating.deduplicated_batch import expand_batch, groups_of
from elastrec.platform.data.manifest import build_manifest
from elastrec.platform.data.reading import reader
from elastrec.platform.data.reading.reader import ShardReader
from elastrec.platform.data.reading.source import ManifestSource
from elastrec.platform.specs.data import TrainingData
from elastrec.platform.specs.errors import DataError
from tests.platform.data.jagged import assert_well_formed
from tests.splits import row_shard

ROWS, SESSION = 600, 6


def _data(path: Path, **other: object) -> TrainingData:
    return TrainingData.model_validate(
        {
            "path": str(path),
            "partitioning": "none",
            "evaluation_path": str(path),
            "dense": [{"name": "d"}],
            "sparse": [
                {"name": "item"},
                {"name": "cart", "is_list": True, "max_length": 3},
                {"name": "likes", "is_list": True},
                {"name": "town", "encoding": "string"},
                {"name": "tags", "is_list": True, "encoding": "string"},
            ],
            "session": "session",
            **other,
        }
    )


def _table(seed: int = 0) -> pa.Table:
    """Clustered rows: a session keeps its lists, each row has its own number as dense value."""
    rng = np.random.default_rng(seed)
    session_N = np.repeat(np.arange(ROWS // SESSION), SESSION)
    pools = [[rng.integers(-(2**63), 2**63 - 1, n).tolist() for n in rng.integers(0, 6, 40)] for _ in range(2)]
    picked = rng.integers(0, 40, (2, len(session_N) // SESSION))[:, session_N]
    towns = [None, "Ulm", "Köln"]
    return pa.table(
        {
            "label": pa.array(rng.integers(0, 2, ROWS), pa.int8()),
            "d": pa.array(np.arange(ROWS, dtype=np.float64)),
            "item": pa.array(rng.integers(0, 9, ROWS)),
            "cart": pa.array([pools[0][i] for i in picked[0]], pa.list_(pa.int64())),
            "likes": pa.array([pools[1][i] for i in picked[1]], pa.list_(pa.int64())),
            "town": pa.array([towns[i % 3] for i in session_N]),
            "tags": pa.array([["a", "b"][: i % 3] for i in session_N]),
            "session": pa.array(session_N),
        }
    )


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("log")
    table = _table()
    pq.write_table(table.slice(0, 400), folder / "a.parquet", row_group_size=96)
    pq.write_table(table.slice(400), folder / "b.parquet", row_group_size=96)
    return folder


GROUPS = [
    [["cart"]],
    [["likes", "cart"]],
    [["cart"], ["likes"]],
    [["town", "cart"], ["tags"]],
    [["item"], ["cart", "likes", "town", "tags"]],
    [["cart", "likes", "town", "tags", "item"]],
]


@pytest.mark.parametrize("groups", GROUPS, ids=str)
@pytest.mark.parametrize("window_rows", [262_144, 150])
def test_batches_expand_to_those_of_the_plain_reader(
    log: Path, groups: list[list[str]], window_rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "WINDOW_ROWS", window_rows)
    data = _data(log)
    manifest = build_manifest(data)
    sizes = {"cart": 1000, "town": 7}
    plain = ShardReader(data, manifest, hash_sizes=sizes)
    ours = ShardReader(data, manifest, groups=groups, hash_sizes=sizes)
    for start, length, offset in ((0, ROWS, 0), (130, 390, 77)):
        how = {"seed": 0, "shuffle": False, "offset": offset, "batch_size": 64}
        for mine, theirs in zip(
            ours.minibatches(start, length, **how), plain.minibatches(start, length, **how), strict=True
        ):
            for group in groups_of(mine.batch):
                assert_well_formed(group)
            assert expand_batch(mine.batch).equals(theirs.batch)
            assert mine.end_offset == theirs.end_offset


def _dense(batches: object) -> list[int]:
    return [round(float(np.expm1(d))) for batch in batches for d in batch.column("dense").flatten().to_pylist()]  # type: ignore[attr-defined]


@pytest.mark.parametrize("window_rows", [262_144, 150])
def test_a_shuffle_moves_sessions_and_loses_none_of_their_rows(
    log: Path, window_rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "WINDOW_ROWS", window_rows)
    data = _data(log)
    ours = ShardReader(data, build_manifest(data), groups=[["cart", "likes"]])
    how = {"shuffle": True, "batch_size": 60}
    batches = list(ours.read(0, ROWS, seed=1, **how))
    rows = _dense(batches)
    assert sorted(rows) == list(range(ROWS))
    assert rows != sorted(rows)
    assert rows == _dense(ours.read(0, ROWS, seed=1, **how)) != _dense(ours.read(0, ROWS, seed=2, **how))
    # Where no window cuts them, a session's rows stand side by side in order of time.
    beside = np.mean(np.diff(rows) == 1)
    assert beside >= (SESSION - 1) / SESSION - 0.01
    plain = dict(enumerate(_table().to_pylist()))
    for batch in batches:
        expanded = expand_batch(batch)
        for d, cart in zip(_dense([expanded]), expanded.column("cart").to_pylist(), strict=True):
            assert cart == plain[d]["cart"][-3:]


def test_files_of_a_shuffled_shard_may_have_sessions_of_different_types(tmp_path: Path) -> None:
    table = _table()
    place = table.schema.get_field_index("session")
    # A session of the first file continues in the second.
    for name, part, kind in (("a", table.slice(0, 399), pa.int32()), ("b", table.slice(399), pa.float64())):
        pq.write_table(part.set_column(place, "session", part["session"].cast(kind)), tmp_path / f"{name}.parquet")
    data = _data(tmp_path)
    ours = ShardReader(data, build_manifest(data), groups=[["cart", "likes"]])
    rows = _dense(ours.read(0, ROWS, seed=1, shuffle=True, batch_size=60))
    assert sorted(rows) == list(range(ROWS))
    assert int((np.diff(rows) == 1).sum()) >= (SESSION - 1) * ROWS // SESSION


@given(offset=st.integers(0, ROWS), size=st.integers(1, ROWS))
@settings(max_examples=8, deadline=None)
def test_a_shuffled_shard_continues_at_its_offset(log: Path, offset: int, size: int) -> None:
    data = _data(log)
    ours = ShardReader(data, build_manifest(data), groups=[["cart", "likes"]])
    whole = _dense(ours.read(0, ROWS, seed=3, shuffle=True, batch_size=100))
    assert _dense(ours.read(0, ROWS, seed=3, shuffle=True, offset=offset, batch_size=size)) == whole[offset:]


def test_two_shards_may_be_read_in_turns(log: Path) -> None:
    data = _data(log)
    manifest = build_manifest(data)
    ours = ShardReader(data, manifest, groups=[["cart", "likes"]])
    how = {"seed": 1, "shuffle": False, "batch_size": 50}
    turns = zip(ours.read(0, 300, **how), ours.read(300, 300, **how), strict=True)
    plain = ShardReader(data, manifest)
    expected = zip(plain.read(0, 300, **how), plain.read(300, 300, **how), strict=True)
    for mine, theirs in zip(turns, expected, strict=True):
        assert [expand_batch(each) for each in mine] == list(theirs)


def test_a_worker_reads_it_as_any_source(log: Path) -> None:
    data = _data(log)
    manifest = build_manifest(data)
    source = ManifestSource(ShardReader(data, manifest, groups=[["cart"]]))
    plain = ManifestSource(ShardReader(data, manifest))
    split = row_shard(0, 0, 300, seed=1).split
    for mine, theirs in zip(source.read(split, 10, b"", 128), plain.read(split, 10, b"", 128), strict=True):
        assert mine.end_offset == theirs.end_offset
        assert expand_batch(mine.batch).equals(theirs.batch)
    source.close()
    plain.close()


def test_repeats_are_found_in_the_raw_columns(log: Path) -> None:
    data = _data(log)
    ours = ShardReader(data, build_manifest(data), groups=[["cart", "likes"]])
    (batch,) = ours.read(0, 300, seed=0, shuffle=False, batch_size=300)
    assert groups_of(batch)[0].distinct_rows <= 300 / SESSION + 4


def test_bad_rows_are_named_counted_and_left_out(tmp_path: Path) -> None:
    table = _table()
    dense = np.arange(ROWS, dtype=np.float64)
    dense[5] = np.nan
    table = table.set_column(1, "d", pa.array(dense))
    likes = [[1.5] if row in (7, 20) else [1.0] for row in range(ROWS)]
    table = table.set_column(4, "likes", pa.array(likes, pa.list_(pa.float64())))
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=96)
    skipping = _data(tmp_path, bad_rows={"policy": "skip", "at_most": 3})
    plain = ShardReader(skipping, build_manifest(skipping))
    ours = ShardReader(skipping, build_manifest(skipping), groups=[["cart"], ["likes"]])
    how = {"seed": 0, "shuffle": False, "batch_size": 64}
    for mine, theirs in zip(ours.read(0, ROWS, **how), plain.read(0, ROWS, **how), strict=True):
        assert expand_batch(mine).equals(theirs)
    assert ours.skipped_rows == plain.skipped_rows == 3
    # A worker counts the rows that are missing in each minibatch.
    for each_reader in (ours, plain):
        ends = [0, *(each.end_offset for each in each_reader.minibatches(0, ROWS, **how))]
        rows = [each.batch.num_rows for each in each_reader.minibatches(0, ROWS, **how)]
        assert [e - b - kept for (b, e), kept in zip(pairwise(ends), rows, strict=True)] == [3] + [0] * (len(rows) - 1)
        assert len(rows) > 1
    strict = _data(tmp_path)
    manifest = build_manifest(strict, try_rows=False)
    with pytest.raises(DataError, match=r"a.parquet: row 5, column 'd': found nan"):
        list(ShardReader(strict, manifest, groups=[["likes"]]).read(0, ROWS, **how))
    with pytest.raises(DataError, match=r"a.parquet: row 7, column 'likes': found \[1.5\]"):
        list(ShardReader(strict, manifest, groups=[["likes"]]).read(6, 90, **how))


@pytest.mark.parametrize("groups", [[[]], [["cart"], ["cart"]], [["cart", "cart"]], [["d"]], [["nobody"]]], ids=str)
def test_wrong_groups_are_refused(log: Path, groups: list[list[str]]) -> None:
    data = _data(log)
    with pytest.raises(DataError, match="groups of one or more of item, cart, likes, town, tags"):
        ShardReader(data, build_manifest(data), groups=groups)


def test_a_missing_session_column_is_refused_when_it_is_needed(log: Path) -> None:
    data = _data(log, session="visit")
    with pytest.raises(DataError, match="visit"):
        list(ShardReader(data, build_manifest(data), groups=[["cart"]]).read(0, 10, seed=0, shuffle=True, batch_size=5))
