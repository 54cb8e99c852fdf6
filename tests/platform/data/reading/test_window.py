"""Windows: shuffling and cutting any columns into minibatches, compared with a plain re-implementation."""

from __future__ import annotations

import itertools
import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elastrec.platform.data.manifest import build_manifest
from elastrec.platform.data.reading import encode, raw, reader
from elastrec.platform.data.reading.batches import Minibatch, dense_of, ids_of, targets_of
from elastrec.platform.data.reading.encode import RowEncoder
from elastrec.platform.data.reading.reader import ShardReader
from elastrec.platform.specs.data import TrainingData
from elastrec.platform.specs.errors import DataError
from tests.platform.data.rows import write_lines, write_parquet

INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
TRANSFORMS = ("log1p", "standardize", "none")
OTHERS = ("hexadecimal", "string", "list")


def _data(path: Path, dense: int, sparse: list[str], **more: object) -> TrainingData:
    kinds: dict[str, dict[str, object]] = {"hexadecimal": {"encoding": "hexadecimal"}, "list": {"is_list": True}}
    kinds["string"] = {"encoding": "string"}
    return TrainingData.model_validate(
        {
            "path": str(path),
            "partitioning": "none",
            "dense": [
                {"name": f"d{i}", "transform": transform, "missing": 0.5 * (i // 2)}
                | ({"mean": 3.0, "scale": 2.0} if transform == "standardize" else {})
                for i, transform in zip(range(dense), itertools.cycle(TRANSFORMS), strict=False)
            ],
            "sparse": [{"name": f"s{i}", **kinds.get(kind, {})} for i, kind in enumerate(sparse)],
            **more,
        }
    )


def _column(rng: np.random.Generator, kind: str, rows: int, holes: float) -> pa.Array:
    mask = rng.random(rows) < holes
    if kind == "list":
        values = [rng.integers(-5, 2**40, rng.integers(0, 4)).tolist() for _ in range(rows)]
        return pa.array([None if gap else ids for ids, gap in zip(values, mask, strict=True)], pa.list_(pa.int64()))
    if kind in OTHERS:
        return pa.array([f"{number:08x}" for number in rng.integers(0, 2**32, rows)], mask=mask)
    dtype = np.dtype(kind)
    if dtype.kind == "f":
        return pa.array(rng.normal(scale=10.0 ** int(rng.integers(0, 6)), size=rows).astype(dtype), mask=mask)
    info = np.iinfo(dtype)
    # Small counts, large ones, or anything at all.
    high = [min(100, info.max), min(10**6, info.max), int(info.max)][rng.integers(3)]
    low = info.min if high == info.max else 0
    return pa.array(rng.integers(low, high, rows, dtype=dtype, endpoint=True), mask=mask)


def _table(rng: np.random.Generator, kinds: list[str], dense: int, rows: int, holes: float, bad: float) -> pa.Table:
    names = [f"d{i}" if i < dense else f"s{i - dense}" for i in range(len(kinds))]
    columns = {name: _column(rng, kind, rows, holes) for name, kind in zip(names, kinds, strict=True)}
    labels = np.where(rng.random(rows) < bad, 2, rng.integers(0, 2, rows)).astype(np.int8)
    return pa.table({"label": pa.array(labels), **columns})


def _expected(
    of: TrainingData, tables: list[pa.Table], sizes: dict[str, int], window: int, read: dict[str, Any]
) -> list[tuple[pa.RecordBatch, int]]:
    """Batches and positions as `ShardReader` documents them, from whole tables."""
    encoded = [RowEncoder(of, sizes).encode(table) for table in tables]
    batch = pa.concat_batches([each.batch for each in encoded])
    bad_N = np.concatenate([each.bad_B for each in encoded])
    starts = np.arange(0, read["length"], window)
    numbers = np.arange(len(starts))
    if read["shuffle"] and len(starts) > 1:
        numbers = np.random.default_rng(read["seed"]).permutation(len(starts))
    order = []
    for number in numbers.tolist():
        rows = min(window, read["length"] - starts[number])
        within = np.random.default_rng([read["seed"], number]).permutation(rows) if read["shuffle"] else np.arange(rows)
        order.append(read["start"] + starts[number] + within)
    order_N = np.concatenate(order)[read["offset"] :]
    found, position = [], read["offset"]
    for first in range(0, len(order_N), read["batch_size"]):
        cut = order_N[first : first + read["batch_size"]]
        position += len(cut)
        found.append((batch.take(pa.array(cut[~bad_N[cut]])), position))
    return found


def _check(ours: list[Minibatch], theirs: list[tuple[pa.RecordBatch, int]], length: int) -> None:
    assert [each.end_offset for each in ours] == [position for _, position in theirs]
    assert [each.ends_split for each in ours] == [position == length for _, position in theirs]
    for each, (other, _) in zip(ours, theirs, strict=True):
        batch = each.batch
        batch.validate(full=True)
        assert batch.schema == other.schema
        assert batch == other
        assert np.array_equal(targets_of(batch)[:, 0], targets_of(other)[:, 0])
        assert np.array_equal(dense_of(batch), dense_of(other))
        for found in (ids_of(batch), each.ids or ids_of(batch)):
            expected = ids_of(other)
            assert (found.keys, found.scalar) == (expected.keys, expected.scalar)
            assert np.array_equal(found.values, expected.values) and np.array_equal(found.lengths, expected.lengths)
            assert (found.values.dtype, found.lengths.dtype) == (np.int64, np.int32)


@settings(max_examples=80, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    dense=st.lists(st.sampled_from((*INTEGERS, "float32", "float64")), max_size=4),
    sparse=st.lists(st.sampled_from((*INTEGERS, *OTHERS)), min_size=1, max_size=4),
    files=st.lists(st.tuples(st.integers(1, 90), st.integers(1, 40)), min_size=1, max_size=3),
    holes=st.sampled_from([0.0, 0.2, 1.0]),
    bad=st.sampled_from([0.0, 0.0, 0.1, 0.7]),
    batch_size=st.integers(1, 70),
    window=st.integers(1, 120),
    shuffle=st.booleans(),
    hashed=st.booleans(),
    at=st.floats(0, 1),
)
def test_a_window_equals_a_plain_implementation_for_any_columns(
    seed: int,
    dense: list[str],
    sparse: list[str],
    files: list[tuple[int, int]],
    holes: float,
    bad: float,
    batch_size: int,
    window: int,
    shuffle: bool,
    hashed: bool,
    at: float,
) -> None:
    rng = np.random.default_rng(seed)
    folder = Path(tempfile.mkdtemp())
    try:
        tables = []
        for number, (rows, row_group) in enumerate(files):
            # A day may come with other types of numbers than the day before.
            others = [kind if kind in OTHERS else INTEGERS[rng.integers(8)] for kind in sparse]
            kinds = [*rng.permutation(dense).tolist(), *others] if number else [*dense, *sparse]
            tables.append(_table(rng, kinds, len(dense), rows, holes, bad))
            write_parquet(folder / f"{number}.parquet", tables[-1], row_group)
        of = _data(folder, len(dense), sparse, bad_rows={"policy": "skip", "at_most": 10**6})
        total = sum(rows for rows, _ in files)
        start = int(rng.integers(0, total))
        length = int(rng.integers(1, total - start, endpoint=True))
        read: dict[str, Any] = {"start": start, "length": length, "seed": seed, "shuffle": shuffle}
        read |= {"offset": int(at * length), "batch_size": batch_size}
        sizes = {"s0": 7} if hashed else {}
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(reader, "WINDOW_ROWS", window)
            patch.setattr(raw, "_DECODED_ROWS", 50)
            patch.setattr(encode, "_DENSE_ROWS", 16)
            ours = list(ShardReader(of, build_manifest(of, try_rows=False), hash_sizes=sizes).minibatches(**read))
        _check(ours, _expected(of, tables, sizes, window, read), length)
    finally:
        shutil.rmtree(folder)


def _log(path: Path, rows: int = 300) -> tuple[pa.Table, TrainingData]:
    table = _table(np.random.default_rng(3), ["int32", "float64", "int64", "int64"], 2, rows, 0.1, 0.0)
    return table, _data(path, 2, ["int64", "int64"], bad_rows={"policy": "skip", "at_most": 9})


def _with(table: pa.Table, name: str, row: int, value: float) -> pa.Table:
    values = table[name].to_pylist()
    values[row] = value
    return table.set_column(table.schema.get_field_index(name), name, pa.array(values, table[name].type))


@pytest.mark.parametrize(("name", "value"), [("label", 2), ("label", None), ("d1", float("nan")), ("d1", float("inf"))])
def test_a_bad_row_is_named_and_counted_and_the_rest_of_its_minibatch_is_kept(
    tmp_path: Path, name: str, value: float
) -> None:
    table, of = _log(tmp_path)
    write_parquet(tmp_path / "a.parquet", _with(table, name, 130, value), 30)
    read: dict[str, Any] = {"start": 0, "length": 300, "seed": 1, "shuffle": False, "batch_size": 50}
    shards = ShardReader(of, build_manifest(of, try_rows=False))
    ours = list(shards.minibatches(**read))
    assert [each.batch.num_rows for each in ours] == [50, 50, 49, 50, 50, 50]
    assert all(each.ids is not None for each in ours)
    assert shards.skipped_rows == 1
    strict = of.model_copy(update={"bad_rows": of.bad_rows.model_copy(update={"policy": "fail"})})
    with pytest.raises(DataError, match=rf"a\.parquet: row 130, column '{name}'"):
        list(ShardReader(strict, build_manifest(strict, try_rows=False)).read(**read))


def test_bad_lines_of_text_files_are_left_out_and_none_is_read_twice(tmp_path: Path) -> None:
    lines = [f"{row % 2},{row % 5 or ''},{row / 4},{row},{row % 7 or ''}" for row in range(300)]
    lines[7], lines[8], lines[9] = "1,1,1", "2,1,1,1,1", "1,1,1,x,1"
    write_lines(tmp_path / "a.csv", "label,d0,d1,s0,s1", *lines)
    of = _data(tmp_path, 2, ["int64", "int64"], format="csv", bad_rows={"policy": "skip", "at_most": 9})
    shards = ShardReader(of, build_manifest(of, try_rows=False))
    read = shards.read(0, 300, seed=1, shuffle=True, batch_size=50)
    rows = [row for batch in read for row in batch.column("s0").to_pylist()]
    assert sorted(rows) == [*range(7), *range(10, 300)]
    assert shards.skipped_rows == 3


def test_ids_are_returned_if_the_batch_has_them_side_by_side(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "WINDOW_ROWS", 100)
    table, of = _log(tmp_path)
    write_parquet(tmp_path / "a.parquet", table, 30)
    read = {"start": 0, "length": 300, "seed": 1, "shuffle": True, "batch_size": 64, "offset": 0}
    ours = list(ShardReader(of, build_manifest(of)).minibatches(**read))  # type: ignore[arg-type]
    _check(ours, _expected(of, [table], {}, 100, read), 300)
    # Of windows of 100 rows, minibatches 1 and 3 begin in one and end in the next.
    assert [each.ids is not None for each in ours] == [True, False, True, False, True]
    for each in (ours[0], ours[2]):
        assert each.ids is not None
        addresses = [each.batch.column(name).buffers()[1].address for name in ("s0", "s1")]
        assert addresses == [each.ids.values.ctypes.data, each.ids.values[64:].ctypes.data]
        for array in (each.ids.values, each.ids.lengths, dense_of(each.batch)):
            with pytest.raises(ValueError, match="read-only"):
                array[0] = 0


def test_row_groups_are_decoded_together_and_only_those_shared_with_a_neighbour_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table, of = _log(tmp_path)
    write_parquet(tmp_path / "a.parquet", table, 30)
    shards = ShardReader(of, build_manifest(of))
    decoded: list[list[int]] = []
    original = shards._raw._decoded

    def note(file: Any, groups: list[int]) -> pa.Table:
        decoded.append(list(groups))
        return original(file, groups)

    monkeypatch.setattr(shards._raw, "_decoded", note)
    monkeypatch.setattr(raw, "_DECODED_ROWS", 100)
    for start, length in ((0, 130), (130, 60), (190, 110)):
        list(shards.read(start, length, seed=1, shuffle=True, batch_size=50))
    assert decoded == [[0, 1, 2], [3], [4], [5], [6], [7, 8, 9]]


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.filterwarnings("error")
def test_a_value_beyond_float32_is_a_bad_row(tmp_path: Path, shuffle: bool) -> None:
    of = _data(tmp_path, 3, ["int64"], bad_rows={"policy": "skip", "at_most": 1})
    rows = pa.table(
        {"label": [0, 1, 0], **{f"d{i}": [1.0, 1e300 if i == 2 else 2.0, 3.0] for i in range(3)}, "s0": [1, 2, 3]}
    )
    write_parquet(tmp_path / "a.parquet", rows)
    shards = ShardReader(of, build_manifest(of))
    batches = list(shards.read(0, 3, seed=0, batch_size=3, shuffle=shuffle))
    assert sorted(row for batch in batches for row in batch.column("s0").to_pylist()) == [1, 3]
    assert all(np.isfinite(dense_of(batch)).all() for batch in batches)
    assert shards.skipped_rows == 1
    strict = _data(tmp_path, 3, ["int64"])
    with pytest.raises(DataError, match=r"a\.parquet: row 1, column 'd2': found 1e\+300, expected .* float32"):
        list(ShardReader(strict, build_manifest(strict)).read(0, 3, seed=0, batch_size=3, shuffle=shuffle))


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
