"""Features with steps: results compared with plain Python; each step gets only distinct rows."""

from __future__ import annotations

import math
from bisect import bisect_right
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from elastrec.platform.data.convert import ByRows, convert
from elastrec.platform.data.deduplicating.deduplicated_batch import expand_batch
from elastrec.platform.data.features.steps import MISSING_ID, Bucketize, Column, FillNull, Hash, Keep, Vocabulary
from elastrec.platform.data.manifest import build_manifest
from elastrec.platform.data.reading.encode import RowEncoder
from elastrec.platform.data.reading.reader import ShardReader
from elastrec.platform.specs.errors import DataError
from tests.platform.data.features.section import COLUMNS, data_of, row, table_of_rows


def _signed(value: int) -> int:
    return value - 2**64 if value >= 2**63 else value


def _hash(id_: int, seed: int = 0) -> int:
    return xxhash.xxh3_64_intdigest(id_.to_bytes(8, "little", signed=True), seed=seed)


def _text(text: str) -> int:
    return _signed(xxhash.xxh3_64_intdigest(text.encode()))


def _cross(*ids: int) -> int:
    seed = 0
    for id_ in ids:
        seed = _hash(id_, seed)
    return _signed(seed)


def expected(raw: dict[str, Any]) -> tuple[list[float], dict[str, object]]:
    """Dense values float32 and ids of one row of the section `section.SECTION`, step by step."""
    price = raw["price"]
    clipped = None if price is None else min(max(price, 0.0), 1000.0)
    dense = [
        0.0 if clipped is None else (float(np.log1p(clipped)) - 2.5) / 1.25,
        float(price is None),
        float(raw["town"] is None),
        math.copysign(float(np.log1p(abs(raw["age"] or 0))), raw["age"] or 0),
    ]
    price_range = bisect_right([1, 10, 100], 0.0 if price is None else price)
    user = MISSING_ID if raw["user"] is None else _hash(raw["user"], 7) % 50
    towns = {"Ulm": 0, "Köln": 1, "Bonn": 2}
    town = towns.get(raw["town"] or "Bonn", 3)
    agent = MISSING_ID if raw["agent"] is None else _text(raw["agent"])
    device = MISSING_ID if raw["device"] is None else {10: 0, 255: 1}.get(int(raw["device"], 16), 9)
    sparse = {
        "price_range": price_range,
        "user": user,
        "town": town,
        "device": device,
        "town_and_range": _hash(_cross(town, price_range)) % 1000,
        "user_and_agent": _cross(user, agent),
        "seen": raw["seen"],
        "first_seen": raw["seen"][:2] or [-1],
        "tags": [{"new": 0, "sale": 1}.get(tag, 2) for tag in raw["tags"]][-3:],
        "scores": [bisect_right([0, 0.5], score) for score in raw["scores"]],
    }
    return np.array(dense, np.float32).tolist(), sparse


@given(st.lists(row, min_size=1, max_size=8))
@settings(max_examples=80, deadline=None)
def test_every_step_of_a_data_section_equals_plain_python(rows: list[dict[str, Any]]) -> None:
    encoded = RowEncoder(data_of("x")).encode(table_of_rows(rows))
    assert not encoded.bad_B.any()
    for raw, found in zip(rows, encoded.batch.to_pylist(), strict=True):
        dense, sparse = expected(raw)
        assert found.pop("label") == raw["label"]
        assert found.pop("dense") == dense
        assert found == sparse


def test_a_column_of_several_features_is_read_once_for_each_way_to_read_it() -> None:
    encoder = RowEncoder(data_of("x"))
    assert sorted(encoder.columns) == sorted(COLUMNS)
    seen = [reading for reading in encoder.readings if reading.column == "seen"]
    assert len(seen) == 1


def test_a_bad_value_is_named_by_its_column_once() -> None:
    log = table_of_rows([dict.fromkeys(COLUMNS) | {"label": 0, "device": "xyz"}])
    log = log.set_column(1, "price", pa.array(["much"]))
    encoded = RowEncoder(data_of("x")).encode(log)
    assert encoded.bad_rows()[0].column == "price"
    # `price_range` fills what is empty, `price` does not: the two read the column in two ways.
    assert [mark.column for mark in encoded.marks] == ["price", "price", "device"]


def test_a_hash_size_of_a_table_is_applied_after_all_steps() -> None:
    data = data_of("x")
    rows = table_of_rows([dict.fromkeys(COLUMNS) | {"label": 0, "user": 4, "town": "Ulm", "agent": "a"}])
    whole = RowEncoder(data).encode(rows).batch
    cut = RowEncoder(data, {"user": 10, "user_and_agent": 7}).encode(rows).batch
    assert cut["user"][0].as_py() == whole["user"][0].as_py() % 10
    # A cross takes the ids of its parts after their steps, whatever the size of the parts' tables.
    assert cut["user_and_agent"][0].as_py() == whole["user_and_agent"][0].as_py() % 7


@pytest.mark.parametrize(
    ("values", "message"),
    [(["0a", "xyz"], "'xyz' is not allowed.*hexadecimal"), (["0a", "0A"], "'0a' and '0A' are not allowed together")],
)
def test_vocabularies_with_invalid_or_equal_ids_are_refused(values: list[str], message: str) -> None:
    data = data_of("x", features={"device": [{"step": "vocabulary", "values": values}]})
    with pytest.raises(DataError, match=rf"data\.features\.device: .*{message}"):
        RowEncoder(data)


def _clustered(rows: int, session: int) -> list[dict[str, Any]]:
    """Rows of sessions; what belongs to the user stays, what belongs to the item changes."""
    rng = np.random.default_rng(3)
    found = []
    for number in range(rows):
        user = number // session
        found.append(
            {
                "label": number % 2, "price": float(number), "age": user % 90, "user": user,
                "town": ["Ulm", None, "Köln"][user % 3], "device": f"{user % 5:x}", "agent": "ab"[: user % 3] or None,
                "seen": list(range(user, user + user % 4)), "tags": ["new", "old"][: user % 3],
                "scores": rng.random(2).tolist(),
            }
        )  # fmt: skip
    return found


USER = ["user", "town", "device", "user_and_agent", "first_seen", "tags"]


@pytest.mark.parametrize("texts_and_nulls", [True, False])
def test_each_step_runs_once_for_each_distinct_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, texts_and_nulls: bool
) -> None:
    rows, session = 240, 6
    log = table_of_rows(_clustered(rows, session))
    group = USER if texts_and_nulls else ["user", "first_seen"]
    pq.write_table(log, tmp_path / "a.parquet", row_group_size=120)
    data = data_of(tmp_path)
    manifest = build_manifest(data)
    plain = list(ShardReader(data, manifest).read(0, rows, seed=0, shuffle=False, batch_size=50))
    ours = ShardReader(data, manifest, groups=[group])
    seen: dict[str, int] = {}
    for step in (Hash, Vocabulary, FillNull, Keep, Bucketize):
        before = step.__call__

        def counted(self: object, column: Column, before: Any = before) -> Column:
            key = f"{type(self).__name__} {self}"
            seen[key] = seen.get(key, 0) + column.rows
            return before(self, column)  # type: ignore[no-any-return]

        monkeypatch.setattr(step, "__call__", counted)
    batches = list(ours.read(0, rows, seed=0, shuffle=False, batch_size=50))
    assert [expand_batch(batch) for batch in batches] == plain
    distinct = rows // session
    hashed = {rows for key, rows in seen.items() if "size=50" in key}
    cut = {rows for key, rows in seen.items() if "is_first=True" in key}
    # Within a group, one hash serves the feature and its cross; a cross outside the group hashes every row.
    assert hashed == {distinct if "user_and_agent" in group else distinct + rows}
    assert cut == {distinct}
    if texts_and_nulls:
        town = {rows for key, rows in seen.items() if key.startswith("Vocabulary") and "other=9" in key}
        assert town == {distinct}


@pytest.mark.parametrize("format", ["parquet", "csv"])
def test_a_converted_log_gives_the_batches_of_the_log(tmp_path: Path, format: str) -> None:
    rows = _clustered(120, 4)
    log = table_of_rows(rows)
    (tmp_path / "log").mkdir()
    if format == "csv":
        text = log.to_pandas()
        for name in ("seen", "tags", "scores"):
            text[name] = ["|".join(map(str, cell)) for cell in text[name]]
        text.to_csv(tmp_path / "log" / "a.csv", index=False)
    else:
        pq.write_table(log, tmp_path / "log" / "a.parquet")
    data = data_of(tmp_path / "log", format=format)
    converted = convert(data, str(tmp_path / "converted"), layout=ByRows(rows=120)).data
    read = [
        list(ShardReader(of, build_manifest(of)).read(0, 120, seed=1, shuffle=True, batch_size=64))
        for of in (data, converted)
    ]
    assert read[0] == read[1]
    written = pq.read_table(next((tmp_path / "converted").rglob("*.parquet")))
    assert sorted(written.column_names) == sorted(COLUMNS)
    assert written["price"].to_pylist() == [raw["price"] for raw in rows], "values before any step"
    assert written["user"].to_pylist() == [raw["user"] for raw in rows]
    assert written["seen"].to_pylist() == [raw["seen"] for raw in rows]
    # `no_town` looks only at what is missing; the ids of `town` hold that, too.
    assert written["town"].null_count == log["town"].null_count
