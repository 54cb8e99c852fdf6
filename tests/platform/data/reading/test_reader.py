"""ShardReader: exact rows, order by seed, resumption, and bad rows."""

from __future__ import annotations

from itertools import chain
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from elastrec.platform.data.features.steps import MISSING_ID
from elastrec.platform.data.manifest import build_manifest
from elastrec.platform.data.reading import reader
from elastrec.platform.data.reading.files import text
from elastrec.platform.data.reading.reader import ShardReader
from elastrec.platform.specs.data import TrainingData
from elastrec.platform.specs.errors import DataError, SpecError
from tests.platform.data.rows import data, table, write_lines, write_parquet


def _reader(of: TrainingData, **more: object) -> ShardReader:
    return ShardReader(of, build_manifest(of), **more)  # type: ignore[arg-type]


def _rows(shards: ShardReader, start: int, length: int, **more: object) -> list[list[int]]:
    asked = {"seed": 1, "shuffle": True, "batch_size": 32, **more}
    return [batch.column("row").to_pylist() for batch in shards.read(start, length, **asked)]  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> TrainingData:
    root = tmp_path_factory.mktemp("log")
    write_parquet(root / "a.parquet", table(250))
    write_parquet(root / "b.parquet", table(170, 250), row_group=64)
    return data(root)


@settings(max_examples=40, deadline=None)
@given(start=st.integers(0, 419), length=st.integers(1, 420), seed=st.integers(0, 9), at=st.integers(0, 12))
def test_any_range_gives_its_rows_once_and_resumes_in_the_same_order(
    log: TrainingData, start: int, length: int, seed: int, at: int
) -> None:
    length = min(length, 420 - start)
    shards = _reader(log)
    batches = _rows(shards, start, length, seed=seed)
    assert sorted(chain.from_iterable(batches)) == list(range(start, start + length))
    assert all(len(batch) == 32 for batch in batches[:-1])
    at = min(at, len(batches))
    assert _rows(shards, start, length, seed=seed, offset=min(at * 32, length)) == batches[at:]


def test_the_order_depends_only_on_the_seed(log: TrainingData) -> None:
    assert _rows(_reader(log), 10, 300, seed=7) == _rows(_reader(log), 10, 300, seed=7)
    assert _rows(_reader(log), 10, 300, seed=7) != _rows(_reader(log), 10, 300, seed=8)
    assert list(chain.from_iterable(_rows(_reader(log), 10, 300, shuffle=False))) == list(range(10, 310))


def test_a_shard_larger_than_a_window_is_shuffled_resumed_and_complete(
    log: TrainingData, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "WINDOW_ROWS", 50)
    shards = _reader(log)
    batches = _rows(shards, 5, 333)
    assert sorted(chain.from_iterable(batches)) == list(range(5, 338))
    assert [len(batch) for batch in batches] == [32] * 10 + [13]
    for at in range(len(batches)):
        assert _rows(shards, 5, 333, offset=32 * at) == batches[at:]
    assert list(chain.from_iterable(_rows(shards, 5, 333, shuffle=False))) == list(range(5, 338))


def test_every_window_of_a_shard_has_a_permutation_of_its_own(
    log: TrainingData, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "WINDOW_ROWS", 50)
    whole = _rows(_reader(log), 0, 200, batch_size=200)[0]
    windows = np.array(whole).reshape(4, 50)
    assert sorted(set((windows // 50).ravel())) == [0, 1, 2, 3]
    assert (windows // 50 == windows[:, :1] // 50).all(), "a window's rows stay together"
    assert len({tuple(order) for order in (windows % 50).tolist()}) == 4


def test_columns_have_the_documented_form(log: TrainingData) -> None:
    batch = next(_reader(log).read(3, 4, seed=0, shuffle=False, batch_size=4))
    assert batch.schema.names == ["label", "dense", "row", "many"]
    assert batch.schema.types == [pa.float32(), pa.list_(pa.float32(), 1), pa.int64(), pa.list_(pa.int64())]
    assert batch.column("label").to_pylist() == [1, 0, 0, 1]
    assert batch.column("dense").to_pylist() == [[3], [4], [5], [6]]
    assert batch.column("many").to_pylist() == [[], [4], [5, 5], []]


def test_text_gives_the_same_batches_as_parquet(
    log: TrainingData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text, "INDEX_ROWS", 7)
    monkeypatch.setattr("elastrec.platform.data.reading.raw.INDEX_ROWS", 7)
    monkeypatch.setattr(text, "_SCAN_BYTES", 100)
    rows = table(420)
    joined = ["|".join(map(str, ids)) for ids in rows["many"].to_pylist()]
    pa.csv.write_csv(rows.set_column(3, "many", pa.array(joined)), tmp_path / "a.csv")
    textual = _reader(data(tmp_path, format="csv"))
    binary = _reader(log)
    for start, length in ((0, 420), (13, 1), (100, 200), (419, 1)):
        ours, theirs = (list(r.read(start, length, seed=5, shuffle=True, batch_size=64)) for r in (textual, binary))
        assert ours == theirs


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_blank_lines_byte_order_marks_and_windows_line_ends_are_ignored(tmp_path: Path, end: str) -> None:
    write_lines(
        tmp_path / "a.csv", "\ufefflabel,number,row,many", "", "1,5.0,7.0,1|2", "", "0,,8,", "", "1,2,9,3", end=end
    )
    shards = _reader(data(tmp_path, format="csv"))
    assert shards.manifest.rows == 3
    assert _rows(shards, 0, 3, shuffle=False) == [[7, 8, 9]]
    assert _rows(shards, 1, 1, shuffle=False) == [[8]]


def test_a_last_line_without_line_feed_and_files_without_header_are_read(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("1;5;7;1|2\n0;;8;")
    shards = _reader(
        data(
            tmp_path,
            format="csv",
            csv={"delimiter": ";", "has_header": False, "column_names": ["label", "number", "row", "many"]},
        )
    )
    assert _rows(shards, 0, 2, shuffle=False) == [[7, 8]]


def _criteo(path: Path) -> TrainingData:
    return TrainingData.model_validate(
        {
            "path": str(path),
            "format": "criteo_tsv",
            "partitioning": "none",
            "dense": [{"name": f"I{i}"} for i in range(1, 14)],
            "sparse": [{"name": f"C{i}", "encoding": "hexadecimal"} for i in range(1, 27)],
        }
    )


def test_every_spelling_of_a_criteo_file_gives_the_same_batch(tmp_path: Path) -> None:
    numbers = ["1", "", *(str(i) for i in range(11))]
    codes = ["68fd1e64", "", *(f"{i:08x}" for i in range(24))]
    names = [*(f"I{i}" for i in range(1, 14)), *(f"C{i}" for i in range(1, 27))]
    floats = [f"{n}.0" if n else "" for n in numbers]
    write_lines(tmp_path / "plain.tsv", "\t".join(["1", *numbers, *codes]))
    write_lines(tmp_path / "header.tsv", "\t".join(["label", *names]), "\t".join(["1", *floats, *codes]))
    write_lines(tmp_path / "ids.tsv", "\t".join(["Id", "Label", *names]), "\t".join(["10000", "1", *numbers, *codes]))
    batches = [
        next(_reader(_criteo(tmp_path / name)).read(0, 1, seed=0, shuffle=True, batch_size=1))
        for name in ("plain.tsv", "header.tsv", "ids.tsv")
    ]
    assert batches[0] == batches[1] == batches[2]
    assert batches[0].column("C1").to_pylist() == [0x68FD1E64]
    assert batches[0].column("C2").to_pylist() == [MISSING_ID]
    assert batches[0].column("dense").to_pylist()[0][:2] == [pytest.approx(np.log(2)), 0.0]


def test_a_criteo_file_with_another_number_of_fields_is_refused(tmp_path: Path) -> None:
    write_lines(tmp_path / "a.tsv", "\t".join(["1"] * 39))
    with pytest.raises(DataError, match=r"a\.tsv: a Criteo row has 40 fields.*found 39"):
        build_manifest(_criteo(tmp_path))


@pytest.mark.parametrize(
    ("first", "remedy"),
    [("label,I1,C1", "data.label: label"), ("Id,Label,I1", "data.label: Label"), (",".join("1" * 40), "column_names")],
)
def test_a_criteo_file_with_commas_is_refused_with_the_correct_setting(tmp_path: Path, first: str, remedy: str) -> None:
    write_lines(tmp_path / "a.csv", first)
    with pytest.raises(DataError, match=rf"a\.csv: .*commas.*criteo_tsv by tabs; use format: csv with .*{remedy}"):
        build_manifest(_criteo(tmp_path))


def _bad_file(path: Path) -> Path:
    write_lines(
        path / "a.csv", "label,number,row,many", "1,1,0,", "2,1,1,", "0,abc,2,", "0,nan,3,", "0,1,x,", "0,1,5,1|y",
        "0,1", ",1,7,", "1,1,8,4",
    )  # fmt: skip
    return path


def test_a_bad_row_fails_with_file_row_column_found_and_expected(tmp_path: Path) -> None:
    of = data(_bad_file(tmp_path), format="csv")
    with pytest.raises(DataError, match=r"a\.csv: row 1, column 'label'"):
        build_manifest(of)
    shards = ShardReader(of, build_manifest(of, try_rows=False))
    for start, says in (
        (1, "row 1, column 'label': found '?2.*expected 0 or 1"),
        (2, "row 2, column 'number': found 'abc', expected a finite number"),
        (3, "row 3, column 'number': found '?nan"),
        (4, "row 4, column 'row': found 'x', expected 64-bit integers"),
        (5, r"row 5, column 'many': found '1\|y', expected a list of 64-bit integers"),
        (6, "row 6, the whole line: found 2 fields, expected 4 fields"),
        (7, "row 7, column 'label': found None"),
    ):
        with pytest.raises(DataError, match=rf"a\.csv: {says}"):
            _rows(shards, start, 1)
    assert _rows(shards, 8, 1) == [[8]]


def test_skipped_rows_are_counted_once_and_positions_are_kept(tmp_path: Path) -> None:
    of = data(_bad_file(tmp_path), format="csv", bad_rows={"policy": "skip", "at_most": 7})
    shards = _reader(of)
    pairs = [
        (each.batch.column("row").to_pylist(), each.end_offset)
        for each in shards.minibatches(0, 9, seed=0, shuffle=False, batch_size=3)
    ]
    assert pairs == [([0], 3), ([], 6), ([8], 9)]
    assert _rows(shards, 0, 9, shuffle=False, batch_size=3) == [[0], [8]]
    assert shards.skipped_rows == 7
    with capture_logs() as lines:
        again = _reader(of)
        for start, length in ((2, 2), (0, 9), (0, 9)):
            _rows(again, start, length)
    assert [(line["rows"], line["so_far"]) for line in lines] == [(2, 2), (5, 7)]
    assert "row 2, column 'number': found 'abc'" in lines[0]["first"]
    strict = _reader(of.model_copy(update={"bad_rows": of.bad_rows.model_copy(update={"at_most": 6})}))
    with pytest.raises(DataError, match=r"7 bad rows, data\.bad_rows\.at_most allows 6"):
        _rows(strict, 0, 9)


def test_the_users_transform_sees_raw_rows(log: TrainingData) -> None:
    doubled = log.model_copy(update={"transform": "tests.platform.data.transforms:negative_numbers"})
    batch = next(_reader(doubled).read(3, 2, seed=0, shuffle=False, batch_size=2))
    assert batch.column("dense").to_pylist() == [[-3], [-4]]


@pytest.mark.parametrize(
    ("name", "says"),
    [("half", "made 50 rows of 100"), ("without_label", r"no columns \['label'\]"), ("nothing", "returned NoneType")],
)
def test_an_unusable_result_of_the_transform_is_refused(log: TrainingData, name: str, says: str) -> None:
    of = log.model_copy(update={"transform": f"tests.platform.data.transforms:{name}"})
    with pytest.raises(DataError, match=says):
        build_manifest(of)


def test_a_transform_that_cannot_be_imported_is_named(log: TrainingData) -> None:
    with pytest.raises(DataError, match=r"data\.transform: no_such_module:f cannot be imported"):
        _reader(log.model_copy(update={"transform": "no_such_module:f"}))


def test_a_file_that_changed_after_the_manifest_is_noticed(tmp_path: Path) -> None:
    write_parquet(tmp_path / "a.parquet", table(50))
    shards = _reader(data(tmp_path))
    write_parquet(tmp_path / "a.parquet", table(40))
    with pytest.raises(DataError, match="changed"):
        _rows(shards, 0, 10)


def test_unknown_tables_are_refused(log: TrainingData) -> None:
    with pytest.raises(SpecError, match=r"\['other'\].*row, many"):
        _reader(log, hash_sizes={"other": 5})


def test_a_column_with_the_wrong_encoding_is_refused_before_anything_starts(tmp_path: Path) -> None:
    write_lines(tmp_path / "a.csv", "label,number,row,many", *("1,2,68fd1e64,",) * 3)
    of = data(tmp_path, format="csv", bad_rows={"policy": "skip", "at_most": 1_000})
    with pytest.raises(DataError, match="column 'row': found '68fd1e64', expected 64-bit integers"):
        build_manifest(of)
