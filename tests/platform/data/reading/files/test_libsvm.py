"""libsvm text: columns equal those of a parser in plain Python, and unreadable lines are bad rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elastrec.platform.data.convert import ByRows, convert
from elastrec.platform.data.features.steps import MISSING_ID
from elastrec.platform.data.manifest import build_manifest
from elastrec.platform.data.reading.files import text
from elastrec.platform.data.reading.reader import ShardReader
from elastrec.platform.specs.data import TrainingData
from elastrec.platform.specs.errors import DataError
from tests.platform.data.rows import write_lines


def _data(path: Path, **more: object) -> TrainingData:
    return TrainingData.model_validate(
        {
            "path": str(path),
            "format": "libsvm",
            "partitioning": "none",
            "dense": [{"name": "price", "column": "7", "transform": "none"}],
            "sparse": [
                {"name": "words", "column": "indices", "is_list": True},
                {"name": "query", "column": "qid"},
                {"name": "shop", "column": "2"},
            ],
            **more,
        }
    )


def _rows(of: TrainingData, seed: int = 0) -> list[dict[str, Any]]:
    manifest = build_manifest(of, try_rows=False)
    read = ShardReader(of, manifest).read(0, manifest.rows, seed=seed, shuffle=seed > 0, batch_size=7)
    return [row for batch in read for row in batch.to_pylist()]


Row = tuple[int, int | None, dict[int, float]]
NUMBERS = st.one_of(st.integers(-9, 2**31), st.floats(-1e6, 1e6, width=32))
ROWS: st.SearchStrategy[Row] = st.tuples(
    st.sampled_from([-1, 0, 1]), st.none() | st.integers(0, 99), st.dictionaries(st.integers(0, 12), NUMBERS)
)


def _line(row: Row, spaces: str) -> str:
    label, query, values = row
    pairs = [*([f"qid:{query}"] if query is not None else []), *(f"{index}:{value}" for index, value in values.items())]
    return spaces.join([f"{label:+d}" if label else "0", *pairs])


@settings(max_examples=60, deadline=None)
@given(rows=st.lists(ROWS, min_size=1, max_size=30), spaces=st.sampled_from([" ", "  ", "\t"]), ends=st.booleans())
def test_columns_contain_the_values_of_each_line(
    tmp_path_factory: pytest.TempPathFactory, rows: list[Row], spaces: str, ends: bool
) -> None:
    path = tmp_path_factory.mktemp("log")
    # Ids are whole numbers: the others are cut.
    rows = [(label, query, values | ({2: int(values[2])} if 2 in values else {})) for label, query, values in rows]
    lines = [_line(row, spaces) + (" # why" if ends else "") for row in rows]
    write_lines(path / "a.txt", "# a comment", *(each for line in lines for each in (line, "")))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(text, "INDEX_ROWS", 4)
        patch.setattr(text, "_SCAN_BYTES", 50)
        patch.setattr("elastrec.platform.data.reading.raw.INDEX_ROWS", 4)
        found = _rows(_data(path))
    assert len(found) == len(rows)
    for (label, query, values), row in zip(rows, found, strict=True):
        assert row["label"] == max(label, 0)
        assert row["dense"] == [float(np.float32(values.get(7, 0.0)))]
        assert row["words"] == list(values)
        assert row["query"] == (MISSING_ID if query is None else query)
        assert row["shop"] == (int(values[2]) if 2 in values else MISSING_ID)


BAD = {
    "1 7:x": "the whole line: found '7:x', expected INDEX:VALUE",
    "1 7": "the whole line: found '7', expected INDEX:VALUE",
    "1 -3:4": "the whole line: found '-3:4', expected INDEX:VALUE",
    "1 7:1 2:1 7:2": "the whole line: found the index 7 twice, expected each index once",
    "good 7:1": "column 'label': found 'good', expected 0 or 1",
    "2 7:1": "column 'label': found '2', expected 0 or 1",
    " # only words": "column 'label': found None, expected 0 or 1",
    "1 2:1.5": "column '2': found 1.5, expected 64-bit integers",
}


@pytest.mark.parametrize("line", BAD)
def test_a_bad_line_is_named_counted_and_left_out(tmp_path: Path, line: str) -> None:
    write_lines(tmp_path / "a.txt", "1 7:1", line, "0 7:3")
    with pytest.raises(DataError) as caught:
        _rows(_data(tmp_path))
    assert f"a.txt: row 1, {BAD[line]}" in str(caught.value)
    skipping = _data(tmp_path, bad_rows={"policy": "skip", "at_most": 1})
    assert [row["dense"] for row in _rows(skipping)] == [[1.0], [3.0]]


def test_a_label_that_is_a_number_stays_negative(tmp_path: Path) -> None:
    write_lines(tmp_path / "a.txt", "-1 7:1", "-2.5 7:2")
    labels = [{"name": "gain", "kind": "value"}]
    assert [row["label"] for row in _rows(_data(tmp_path, labels=labels))] == [-1.0, -2.5]


def test_an_unknown_column_is_refused_with_the_existing_ones(tmp_path: Path) -> None:
    write_lines(tmp_path / "a.txt", "1 7:1")
    with pytest.raises(
        DataError, match=r"\['age'\] are missing; found: label, qid, indices, values; .*index of a value"
    ):
        build_manifest(_data(tmp_path, dense=[{"name": "age"}], sparse=[{"name": "qid"}]))


def test_a_converted_log_gives_the_same_rows(tmp_path: Path) -> None:
    write_lines(
        tmp_path / "log" / "a.txt", *(f"{row % 2} qid:{row} 2:{row} 7:{row / 4} {row + 20}:1" for row in range(1, 40))
    )
    of = _data(tmp_path / "log")
    converted = convert(of, str(tmp_path / "converted"), layout=ByRows(rows=39)).data
    assert _rows(converted, seed=1) == _rows(of, seed=1)
    assert set(pq.read_table(next((tmp_path / "converted").rglob("*.parquet"))).column_names) >= {
        "indices",
        "qid",
        "2",
        "7",
    }
