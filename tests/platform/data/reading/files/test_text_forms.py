"""Text files of any encoding, tokens for empty fields, decimal commas, and ignored files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from elastrec.platform.data.clustering.clustering import cluster
from elastrec.platform.data.manifest import build_manifest
from elastrec.platform.data.reading.files import text
from elastrec.platform.data.reading.reader import ShardReader
from elastrec.platform.specs.data import TrainingData
from elastrec.platform.specs.errors import DataError
from tests.platform.data.rows import data, table, write_parquet

LINES = ["label,number,row,word", *(f"{i % 2},{i}.5,{i},Zoë {i}" for i in range(300))]


def log(path: Path, **more: Any) -> TrainingData:
    sparse = [{"name": "row"}, {"name": "word", "encoding": "string"}]
    return data(path, **{"format": "csv", "sparse": sparse, **more})


def write(path: Path, lines: list[str], encoding: str, end: str = "\n") -> None:
    path.mkdir(parents=True, exist_ok=True)
    (path / "a.csv").write_bytes("".join(line + end for line in lines).encode(encoding))


def read(of: TrainingData, seed: int = 1) -> list[Any]:
    manifest = build_manifest(of)
    shuffle = seed > 0
    return list(ShardReader(of, manifest).read(0, manifest.rows, seed=seed, shuffle=shuffle, batch_size=64))


@pytest.mark.parametrize("end", ["\n", "\r\n", "\n\n"])
@pytest.mark.parametrize("written", ["utf-8", "utf-8-sig", "latin-1", "cp1252", "utf-16", "utf-16-le", "utf-16-be"])
def test_rows_of_any_encoding_are_those_of_utf8(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written: str, end: str
) -> None:
    monkeypatch.setattr(text, "_SCAN_BYTES", 1000)
    write(tmp_path / "plain", LINES, "utf-8")
    write(tmp_path / "written", LINES, written, end)
    encoding = "utf-8" if written.startswith("utf-8") else written
    assert read(log(tmp_path / "written", csv={"encoding": encoding})) == read(log(tmp_path / "plain"))


def test_text_in_another_encoding_is_refused_with_the_name_of_the_field(tmp_path: Path) -> None:
    write(tmp_path, LINES, "latin-1")
    with pytest.raises(DataError, match=r"cannot be read as UTF-8.*csv\.encoding"):
        read(log(tmp_path))
    write(tmp_path, LINES, "utf-16")
    with pytest.raises(DataError, match=r"zero bytes.*csv\.encoding: utf-16"):
        read(log(tmp_path))
    write(tmp_path, LINES, "utf-16-le")
    with pytest.raises(DataError, match=r"no byte order mark.*utf-16-le or utf-16-be"):
        read(log(tmp_path, csv={"encoding": "utf-16"}))
    write(tmp_path, ["label,number,row,word", "0,1,1,\x81"], "latin-1")
    with pytest.raises(DataError, match=r"cannot be read as cp1252.*csv\.encoding"):
        read(log(tmp_path, csv={"encoding": "cp1252"}))


@pytest.mark.parametrize("encoding", ["klingon", "utf-7", "cp037", "rot13"])
def test_an_encoding_that_cannot_be_read_by_lines_is_refused(encoding: str) -> None:
    with pytest.raises(ValueError, match="ASCII stands for itself"):
        log(Path("clicks"), csv={"encoding": encoding})


def test_tokens_stand_for_empty_fields_of_numbers_ids_and_text(tmp_path: Path) -> None:
    rows = ["label,number,row,word", "0,{0},{0},{0}", "1,2,3,x"]
    write(tmp_path / "empty", [row.format("") for row in rows], "utf-8")
    expected = read(log(tmp_path / "empty"), seed=0)
    for token in ("NA", r"\N", "null"):
        write(tmp_path / "token", [row.format(token) for row in rows], "utf-8")
        assert read(log(tmp_path / "token", csv={"null_tokens": ["NA", r"\N", "null"]}), seed=0) == expected
        with pytest.raises(DataError, match=r"row 0, column 'number'"):
            read(log(tmp_path / "token"))


def test_numbers_with_a_decimal_comma_are_read_and_one_with_a_dot_is_a_bad_row(tmp_path: Path) -> None:
    write(tmp_path, ["label;number;row;word", "0;1,5;1;a", "1;-2,25;2;b"], "utf-8")
    comma = {"delimiter": ";", "decimal_point": ","}
    (batch,) = read(log(tmp_path, csv=comma), seed=0)
    assert batch.column("dense").to_pylist() == [[1.5], [-2.25]]
    write(tmp_path, ["label;number;row;word", "0;1,5;1;a", "1;1.500;2;b"], "utf-8")
    with pytest.raises(DataError, match=r"row 1, column 'number': found '1.500 \(with a dot\)'"):
        read(log(tmp_path, csv=comma), seed=0)
    skipping = log(tmp_path, csv=comma, bad_rows={"policy": "skip", "at_most": 1})
    (batch,) = read(skipping, seed=0)
    assert batch.column("dense").to_pylist() == [[1.5]]
    with pytest.raises(ValueError, match="delimiter and decimal_point are both ','"):
        log(tmp_path, csv={"decimal_point": ","})


@pytest.mark.parametrize("others", ["5", "five"])
def test_lists_of_numbers_may_have_decimal_commas(tmp_path: Path, others: str) -> None:
    # A number that is text is read in another way, with all rows of its piece.
    lists = ["1,5|2|-0,5", "", "1", "0.5"]
    write(tmp_path, ["label;number;row", *(f"0;1;{each}" for each in lists), f"1;{others};2"], "utf-8")
    of = data(
        tmp_path,
        format="csv",
        csv={"delimiter": ";", "decimal_point": ","},
        dense=[{"name": "number"}],
        sparse=[{"name": "row", "is_list": True}],
        features={"row": [{"step": "bucketize", "boundaries": [0, 1.5]}]},
        bad_rows={"policy": "skip", "at_most": 2},
    )
    [batch] = read(of, seed=0)
    assert batch["row"].to_pylist() == [[2, 2, 0], [], [1], *([[2]] if others == "5" else [])]


def test_only_files_that_match_a_pattern_are_read(tmp_path: Path) -> None:
    write_parquet(tmp_path / "log" / "part-0.parquet", table(10))
    for stray in ("README.txt", "part-1.parquet.tmp"):
        (tmp_path / "log" / stray).write_text("not rows")
    with pytest.raises(DataError, match=r"README.txt: cannot be read as a Parquet.*data\.include.*\['\*\.parquet'\]"):
        build_manifest(data(tmp_path / "log"))
    of = data(tmp_path / "log", include=["*.parquet"], session="row")
    assert build_manifest(of).rows == 10
    assert cluster(of, str(tmp_path / "clustered"))[0].rows == 10
    with pytest.raises(DataError, match=r"none of its 3 files, such as README.txt, matches data.include \['\*.csv'\]"):
        build_manifest(data(tmp_path / "log", include=["*.csv"]))


QUOTED = st.lists(st.sampled_from(["a", '"', "\n", "\r\n", ",", "é", " "]), max_size=6).map("".join)


@settings(max_examples=60, deadline=None)
@given(words=st.lists(QUOTED.map(lambda word: f"w{word}"), min_size=1, max_size=40), wide=st.booleans())
def test_quoted_fields_may_contain_line_breaks_if_the_job_allows_them(
    tmp_path_factory: pytest.TempPathFactory, words: list[str], wide: bool
) -> None:
    path = tmp_path_factory.mktemp("log")
    encoding = "utf-16-le" if wide else "utf-8"
    rows = [f'{i % 2},{i},{i},"{word.replace(chr(34), chr(34) * 2)}"' for i, word in enumerate(words)]
    write(path, ["label,number,row,word", *rows], encoding)
    of = log(path, csv={"newlines_in_values": True, "encoding": encoding})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(text, "INDEX_ROWS", 4)
        patch.setattr("elastrec.platform.data.reading.raw.INDEX_ROWS", 4)
        patch.setattr(text, "_SCAN_BYTES", 64)
        manifest = build_manifest(of)
        assert manifest.rows == len(words)
        shards = ShardReader(of, manifest)
        found = [
            row
            for batch in shards.read(0, len(words), seed=0, shuffle=False, batch_size=9)
            for row in batch.to_pylist()
        ]
        (last,) = shards.read(len(words) - 1, 1, seed=0, shuffle=False, batch_size=1)
    ids = [xxhash.xxh3_64_intdigest(word.encode()) for word in words]
    assert [(row["row"], row["word"] % 2**64) for row in found] == list(enumerate(ids))
    assert last.to_pylist() == found[-1:]


def test_a_quotation_mark_that_is_not_closed_is_refused_with_its_row(tmp_path: Path) -> None:
    write(tmp_path, ["label,number,row,word", "0,1,1,a", '0,1,2,"b', "0,1,3,c"], "utf-8")
    with pytest.raises(DataError, match=r"a\.csv: row 1: .*quotation mark in it is not closed"):
        build_manifest(log(tmp_path, csv={"newlines_in_values": True}))


def test_a_line_break_in_a_quoted_field_is_refused_with_the_field_that_allows_it(tmp_path: Path) -> None:
    write(tmp_path, ["label,number,row,word", "0,1,1,a", '0,1,2,"b', 'c"', "0,1,3,c"], "utf-8")
    with pytest.raises(DataError, match=r"a\.csv: .*line break.*csv\.newlines_in_values: true"):
        read(log(tmp_path))


def test_a_quoted_line_break_is_refused_beside_bad_rows_that_are_skipped(tmp_path: Path) -> None:
    lines = ['0,1,2,"b', 'c",5', "0,1,3,c", "0,1"]
    write(tmp_path, ["label,number,row,word", *lines, "0,1,4,d"], "utf-8")
    with pytest.raises(DataError, match=r"a\.csv: .*line break.*csv\.newlines_in_values: true"):
        read(log(tmp_path, bad_rows={"policy": "skip", "at_most": 9}))


@pytest.mark.parametrize("line", ["0,1,2,b\r0,1,3,c", "0,1,2\r,b"])
def test_a_carriage_return_inside_a_line_is_refused(tmp_path: Path, line: str) -> None:
    write(tmp_path, ["label,number,row,word", "0,1,1,a", line], "utf-8")
    with pytest.raises(DataError, match=r"a\.csv: rows 0 to 1: 2 lines gave 3 rows: a carriage return"):
        read(log(tmp_path, bad_rows={"policy": "skip", "at_most": 9}))


def test_lines_that_end_with_carriage_returns_only_are_refused(tmp_path: Path) -> None:
    write(tmp_path, ["label,number,row,word", "0,1,1,a"], "utf-8", end="\r")
    with pytest.raises(DataError, match=r"a\.csv: the first line is 2 lines; a carriage return"):
        read(log(tmp_path))


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16-le"])
def test_the_first_line_may_contain_quoted_delimiters_and_line_breaks(tmp_path: Path, encoding: str) -> None:
    header, row = 'label,number,row,word,"a, ""b""\nc"', '1,2,3,"x, y\nz",5'
    names = ["label", "number", "row", "word", "more"]
    write(tmp_path / "named", [header, row], encoding)
    write(tmp_path / "nameless", [row], encoding)
    csv = {"newlines_in_values": True, "encoding": encoding}
    for of in (
        log(tmp_path / "named", csv=csv),
        log(tmp_path / "nameless", csv={**csv, "has_header": False, "column_names": names}),
    ):
        [batch] = read(of)
        assert batch["row"].to_pylist() == [3]
        assert batch["word"].to_pylist()[0] % 2**64 == xxhash.xxh3_64_intdigest(b"x, y\nz")
