"""A row is unchanged by its message; an invalid row is refused with the name of the column."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastrec.platform.data.stream.messages import MessageForm
from elastrec.platform.specs.data import TrainingData
from elastrec.platform.specs.errors import DataError
from tests.platform.data.stream.rows import small_log

DATA = TrainingData.model_validate(
    {
        "path": "log",
        "dense": [{"name": "unit price"}],
        "sparse": [{"name": "item"}, {"name": "history", "is_list": True}],
        "session": "visit",
        "timestamp": "when",
    }
)
IDS = st.integers(-(2**63), 2**63 - 1)
ROW = st.fixed_dictionaries(
    {
        "label": st.integers(0, 1),
        "unit price": st.none() | st.floats(allow_nan=False, allow_infinity=False),
        "item": st.none() | IDS,
        "history": st.lists(IDS, max_size=5),
        "when": st.integers(0, 2**33),
    }
)


@given(st.lists(ROW, min_size=1, max_size=8), st.booleans())
def test_rows_survive_encoding_and_decoding(rows: list[dict[str, Any]], text: bool) -> None:
    form = MessageForm(DATA)
    session = pa.string() if text else pa.int64()
    for index, row in enumerate(rows):
        row["visit"] = f"s{index}" if text else index
    table = pa.Table.from_pylist(rows, schema=form.schema(session))
    # A slice has offsets that do not begin at 0.
    for part in (table, table.slice(len(rows) // 2)):
        assert form.table([form.row(message) for message in form.messages(part)], session).equals(part)


def test_a_message_is_a_map_that_any_language_can_read_and_write() -> None:
    form = MessageForm(DATA)
    row = {"label": 1, "when": 5, "visit": 9, "item": -3, "history": [1, 2], "unit price": 2, "of another job": "x"}
    read = form.table([form.row(msgspec.msgpack.encode(row))], pa.int64()).to_pylist()
    assert read == [{"label": 1, "unit price": 2.0, "item": -3, "history": [1, 2], "when": 5, "visit": 9}]
    empty = form.table([form.row(msgspec.msgpack.encode({"label": 0, "when": 5, "visit": 9}))], pa.int64())
    assert form.messages(empty) == [msgspec.msgpack.encode({"label": 0, "when": 5, "visit": 9})]


def test_a_timestamp_that_is_a_feature_too_is_beside_its_seconds() -> None:
    form = MessageForm(TrainingData.model_validate({**DATA.model_dump(), "dense": [{"name": "age", "column": "when"}]}))
    row = {"label": 1, "when": 5.25, "when_seconds": 5, "visit": 9, "item": -3, "history": [1, 2]}
    read = form.table([form.row(msgspec.msgpack.encode(row))], pa.int64())
    assert read.to_pylist() == [row]
    assert form.timestamp == "when_seconds"
    assert form.row(form.messages(read)[0]) == form.row(msgspec.msgpack.encode(row))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"label": 2}, r"\$\.label"),
        ({"label": None}, r"\$\.label"),
        ({"visit": None}, r"\$\.visit"),
        ({"visit": 2**63}, r"\$\.visit"),
        ({"when": "today"}, r"\$\.when"),
        ({"when": 10**15}, r"\$\.when"),
        # Their days are outside the calendar in some time zones.
        ({"when": -62_135_596_800}, r"\$\.when"),
        ({"when": 253_402_300_799}, r"\$\.when"),
        ({"item": 1.5}, r"\$\.item"),
        ({"item": 2**63}, r"\$\.item"),
        ({"history": [1, None]}, r"\$\.history\[1\]"),
        ({"history": None}, r"\$\.history"),
        ({"unit price": "1"}, r"\$\.unit price"),
        ({"unit price": float("nan")}, r"\$\.unit price"),
        ({"unit price": float("inf")}, r"\$\.unit price"),
        ({"unit price": float("-inf")}, r"\$\.unit price"),
    ],
    ids=str,
)
def test_a_field_of_another_kind_is_refused_by_name(change: dict[str, Any], said: str) -> None:
    row = {"label": 1, "when": 5, "visit": 9, **change}
    with pytest.raises(DataError, match=said):
        MessageForm(DATA).row(msgspec.msgpack.encode(row))


DEEP = b"\x84\xa5label\x01\xa4when\x05\xa5visit\x09\xa1x" + 100_000 * b"\x91" + b"\xc0"


@pytest.mark.parametrize(
    ("message", "said"),
    [
        (None, "no value"),
        (b"", ""),
        (b"\xc1", ""),
        (b"{}", ""),
        (msgspec.msgpack.encode({"label": 1})[:-1], ""),
        (DEEP, "recursion"),
    ],
    ids=["none", "empty", "reserved byte", "JSON", "cut off", "nested"],
)
def test_a_message_that_is_not_a_row_is_refused(message: bytes | None, said: str) -> None:
    with pytest.raises(DataError, match=f"is no row: .*{said}"):
        MessageForm(DATA).row(message)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"session": None}, "data.session: is absent"),
        ({"timestamp": None}, "data.timestamp: is absent"),
        ({"session": "history"}, "'history' is a list"),
    ],
)
def test_a_stream_needs_sessions_and_times(tmp_path: Path, change: dict[str, Any], said: str) -> None:
    data = small_log(tmp_path / "log", rows=10).model_copy(update=change)
    with pytest.raises(DataError, match=said):
        MessageForm(data)
