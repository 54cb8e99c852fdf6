"""The fast way through a window gives what the general way gives, and leaves alone what it cannot do."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elastrec.platform.data import ShardReader, build_manifest, dense_of, ids_of, label_of
from elastrec.platform.data.reading import reader
from elastrec.platform.data.reading.laid_out import flat_ids
from elastrec.platform.specs.data import TrainingData
from elastrec.platform.specs.errors import DataError
from tests.platform.data.rows import write_lines, write_parquet

INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
TRANSFORMS = ("log1p", "standardize", "none")


def _data(path: Path, dense: int, sparse: int, **more: object) -> TrainingData:
    return TrainingData.model_validate(
        {
            "path": str(path),
            "partitioning": "none",
            "dense": [
                {"name": f"d{i}", "transform": TRANSFORMS[i % 3], "missing": 0.5 * (i // 2), "mean": 3.0, "scale": 2.0}
                for i in range(dense)
            ],
            "sparse": [{"name": f"s{i}"} for i in range(sparse)],
            **more,
        }
    )


def _column(rng: np.random.Generator, kind: str, rows: int, holes: float) -> pa.Array:
    dtype = np.dtype(kind)
    if dtype.kind == "f":
        values = (rng.normal(scale=10.0 ** int(rng.integers(0, 6)), size=rows)).astype(dtype)
    else:
        info = np.iinfo(dtype)
        # Small counts, large ones, or anything at all.
        high = [min(100, info.max), min(10**6, info.max), int(info.max)][rng.integers(3)]
        low = info.min if high == info.max else 0
        values = rng.integers(low, high, rows, dtype=dtype, endpoint=True)
    return pa.array(values, mask=rng.random(rows) < holes)


def _table(rng: np.random.Generator, kinds: list[str], dense: int, rows: int, holes: float) -> pa.Table:
    names = [f"d{i}" if i < dense else f"s{i - dense}" for i in range(len(kinds))]
    columns = {name: _column(rng, kind, rows, holes) for name, kind in zip(names, kinds, strict=True)}
    return pa.table({"label": pa.array(rng.integers(0, 2, rows).astype(np.int8)), **columns})


def _both(of: TrainingData, read: dict[str, Any], **more: Any) -> tuple[list[Any], list[Any]]:
    """Batches with their positions, of the fast and of the general way."""
    fast, general = (ShardReader(of, build_manifest(of, try_rows=False), **more) for _ in range(2))
    assert fast._plain is not None
    general._plain = None
    return list(fast.read_with_offsets(**read)), list(general.read_with_offsets(**read))


def _same(ours: list[Any], theirs: list[Any]) -> None:
    assert [position for _, position in ours] == [position for _, position in theirs]
    for (batch, _), (other, _) in zip(ours, theirs, strict=True):
        assert batch.schema == other.schema
        assert batch == other
        batch.validate(full=True)
        assert np.array_equal(label_of(batch), label_of(other))
        assert np.array_equal(dense_of(batch), dense_of(other))
        found, expected = ids_of(batch), ids_of(other)
        assert (found.keys, found.scalar) == (expected.keys, expected.scalar)
        assert np.array_equal(found.values, expected.values) and np.array_equal(found.lengths, expected.lengths)
        assert (found.values.dtype, found.lengths.dtype) == (np.int64, np.int32)


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    dense=st.lists(st.sampled_from((*INTEGERS, "float32", "float64")), max_size=4),
    sparse=st.lists(st.sampled_from(INTEGERS), min_size=1, max_size=4),
    files=st.lists(st.tuples(st.integers(1, 90), st.integers(1, 40)), min_size=1, max_size=3),
    holes=st.sampled_from([0.0, 0.2, 1.0]),
    batch_size=st.integers(1, 70),
    window=st.integers(1, 120),
    shuffle=st.booleans(),
    hashed=st.booleans(),
    at=st.floats(0, 1),
)
def test_any_numbers_come_out_as_the_general_way_gives_them(
    seed: int,
    dense: list[str],
    sparse: list[str],
    files: list[tuple[int, int]],
    holes: float,
    batch_size: int,
    window: int,
    shuffle: bool,
    hashed: bool,
    at: float,
) -> None:
    rng = np.random.default_rng(seed)
    folder = Path(tempfile.mkdtemp())
    try:
        for number, (rows, row_group) in enumerate(files):
            # A day may come with other types than the day before.
            kinds = [str(rng.permutation(dense + sparse)[0]) if number and i >= len(dense) else kind
                     for i, kind in enumerate(dense + sparse)]  # fmt: skip
            kinds = [kind if i < len(dense) or not kind.startswith("f") else "int64" for i, kind in enumerate(kinds)]
            rows_of_file = _table(rng, kinds, len(dense), rows, holes)
            write_parquet(folder / f"{number}.parquet", rows_of_file, row_group)
        of = _data(folder, len(dense), len(sparse))
        total = sum(rows for rows, _ in files)
        start = int(rng.integers(0, total))
        length = int(rng.integers(1, total - start, endpoint=True))
        read = {"start": start, "length": length, "seed": seed, "shuffle": shuffle, "offset": int(at * length)}
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(reader, "WINDOW_ROWS", window)
            patch.setattr("elastrec.platform.data.reading.plain_window._DENSE_ROWS", 16)
            sizes = {"s0": 7} if hashed else {}
            _same(*_both(of, {**read, "batch_size": batch_size}, hash_sizes=sizes))
    finally:
        shutil.rmtree(folder)


def _log(path: Path, rows: int = 300) -> tuple[pa.Table, TrainingData]:
    table = _table(np.random.default_rng(3), ["int32", "float64", "int64", "int64"], 2, rows, 0.1)
    return table, _data(path, 2, 2, bad_rows={"policy": "skip", "at_most": 9})


def _with(table: pa.Table, name: str, row: int, value: float) -> pa.Table:
    values = table[name].to_pylist()
    values[row] = value
    return table.set_column(table.schema.get_field_index(name), name, pa.array(values, table[name].type))


@pytest.mark.parametrize(("name", "value"), [("label", 2), ("label", None), ("d1", float("nan")), ("d1", float("inf"))])
def test_a_window_with_a_bad_row_goes_the_general_way_and_the_next_one_the_fast_way_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: float
) -> None:
    monkeypatch.setattr(reader, "WINDOW_ROWS", 100)
    table, of = _log(tmp_path)
    write_parquet(tmp_path / "a.parquet", _with(table, name, 130, value), 30)
    read = {"start": 0, "length": 300, "seed": 1, "shuffle": False, "batch_size": 50}
    ours, theirs = _both(of, read)
    _same(ours, theirs)
    assert [batch.num_rows for batch, _ in ours] == [50, 50, 49, 50, 50, 50]
    assert [flat_ids(batch) is not None for batch, _ in ours] == [True, True, False, False, True, True]
    shards = ShardReader(of, build_manifest(of, try_rows=False))
    assert sum(batch.num_rows for batch in shards.read(**read)) == 299  # type: ignore[arg-type]
    assert shards.skipped_rows == 1
    strict = of.model_copy(update={"bad_rows": of.bad_rows.model_copy(update={"policy": "fail"})})
    with pytest.raises(DataError, match=rf"a\.parquet: row 130, column '{name}'"):
        list(ShardReader(strict, build_manifest(strict, try_rows=False)).read(**read))  # type: ignore[arg-type]


def test_the_lines_of_text_files_are_left_to_the_general_way_none_of_them_twice(tmp_path: Path) -> None:
    lines = [f"{row % 2},{row % 5 or ''},{row / 4},{row},{row % 7 or ''}" for row in range(300)]
    lines[7], lines[8], lines[9] = "1,1,1", "2,1,1,1,1", "1,1,1,x,1"
    write_lines(tmp_path / "a.csv", "label,d0,d1,s0,s1", *lines)
    of = _data(tmp_path, 2, 2, format="csv", bad_rows={"policy": "skip", "at_most": 9})
    read = {"start": 0, "length": 300, "seed": 1, "shuffle": True, "batch_size": 50}
    _same(*_both(of, read))
    shards = ShardReader(of, build_manifest(of, try_rows=False))
    rows = [row for batch in shards.read(**read) for row in batch.column("s0").to_pylist()]  # type: ignore[arg-type]
    assert sorted(rows) == [*range(7), *range(10, 300)]
    assert (shards._plain, shards.skipped_rows) == (None, 3)


def test_columns_that_are_no_numbers_are_left_to_the_general_way_for_good(tmp_path: Path) -> None:
    table, of = _log(tmp_path)
    texts = table.set_column(1, "d0", table["d0"].cast(pa.string()))
    write_parquet(tmp_path / "a.parquet", texts, 30)
    shards = ShardReader(of, build_manifest(of))
    batches = list(shards.read(0, 300, seed=1, shuffle=True, batch_size=50))
    assert shards._plain is None
    write_parquet(tmp_path / "a.parquet", table, 30)
    plain = ShardReader(of, build_manifest(of))
    assert list(plain.read(0, 300, seed=1, shuffle=True, batch_size=50)) == batches
    assert plain._plain is not None


@pytest.mark.parametrize("more", [{"encoding": "hexadecimal"}, {"encoding": "string"}, {"is_list": True}])
def test_features_that_are_no_scalar_integers_never_go_the_fast_way(tmp_path: Path, more: dict[str, object]) -> None:
    table, of = _log(tmp_path)
    write_parquet(tmp_path / "a.parquet", table)
    manifest = build_manifest(of)
    assert ShardReader(of, manifest)._plain is not None
    other = TrainingData.model_validate({**of.model_dump(), "sparse": [{"name": "s0"}, {"name": "s1", **more}]})
    assert ShardReader(other, manifest)._plain is None


def test_a_minibatch_across_two_windows_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "WINDOW_ROWS", 100)
    table, of = _log(tmp_path)
    write_parquet(tmp_path / "a.parquet", table, 30)
    ours, theirs = _both(of, {"start": 0, "length": 300, "seed": 1, "shuffle": True, "batch_size": 64})
    _same(ours, theirs)
    # Of windows of 100 rows, minibatches 1 and 3 begin in one and end in the next.
    assert [flat_ids(batch) is not None for batch, _ in ours] == [True, False, True, False, True]


def test_row_groups_are_decoded_together_and_only_those_shared_with_a_neighbour_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table, of = _log(tmp_path)
    write_parquet(tmp_path / "a.parquet", table, 30)
    shards = ShardReader(of, build_manifest(of))
    decoded: list[list[int]] = []
    original = shards._raw._decoded

    def note(file: Any, groups: list[int]) -> pa.Table:
        decoded.append(groups)
        return original(file, groups)

    monkeypatch.setattr(shards._raw, "_decoded", note)
    for start, length in ((0, 130), (130, 60), (190, 110)):
        list(shards.read(start, length, seed=1, shuffle=True, batch_size=50))
    assert decoded == [[0, 1, 2, 3], [4], [5], [6], [7, 8, 9]]


@pytest.mark.parametrize("read", [{"shuffle": False}, {"shuffle": True}])
@pytest.mark.filterwarnings("error")
def test_a_value_beyond_float32_is_a_bad_row_on_the_fast_way_too(tmp_path: Path, read: dict[str, bool]) -> None:
    of = _data(tmp_path, 3, 1, bad_rows={"policy": "skip", "at_most": 1})
    rows = pa.table(
        {"label": [0, 1, 0], **{f"d{i}": [1.0, 1e300 if i == 2 else 2.0, 3.0] for i in range(3)}, "s0": [1, 2, 3]}
    )
    write_parquet(tmp_path / "a.parquet", rows)
    shards = ShardReader(of, build_manifest(of))
    assert shards._plain is not None
    batches = list(shards.read(0, 3, seed=0, batch_size=3, **read))
    assert sorted(row for batch in batches for row in batch.column("s0").to_pylist()) == [1, 3]
    assert all(np.isfinite(dense_of(batch)).all() for batch in batches)
    assert shards.skipped_rows == 1
    strict = _data(tmp_path, 3, 1)
    with pytest.raises(DataError, match=r"a\.parquet: row 1, column 'd2': found 1e\+300, expected .* float32"):
        list(ShardReader(strict, build_manifest(of)).read(0, 3, seed=0, batch_size=3, **read))


def test_a_damaged_row_group_is_named_also_when_it_is_decoded_with_others(tmp_path: Path) -> None:
    table, of = _log(tmp_path)
    write_parquet(tmp_path / "a.parquet", table, 100)
    group = pq.ParquetFile(tmp_path / "a.parquet").metadata.row_group(1)
    with (tmp_path / "a.parquet").open("r+b") as file:
        file.seek(group.column(3).dictionary_page_offset)
        file.write(b"\xff" * 16)
    shards = ShardReader(of, build_manifest(of))
    assert sum(batch.num_rows for batch in shards.read(0, 100, seed=1, shuffle=True, batch_size=50)) == 100
    with pytest.raises(DataError, match=r"a\.parquet: row group 1 cannot be read"):
        list(shards.read(0, 300, seed=1, shuffle=True, batch_size=50))


def test_numba_is_not_loaded_before_a_window_is_read() -> None:
    code = "import sys, elastrec.platform.data; print('numba' in sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert loaded.stdout.strip() == "False"
