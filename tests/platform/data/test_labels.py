"""Several labels and a weight, from the file to the minibatch, with both readers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from elastrec.platform.data.convert import ByRows, convert
from elastrec.platform.data.generating.generator import GenerateSpec, generate, training_data_for
from elastrec.platform.data.manifest import build_manifest
from elastrec.platform.data.reading.batches import ids_of, targets_of
from elastrec.platform.data.reading.encode import RowEncoder
from elastrec.platform.data.reading.reader import ShardReader
from elastrec.platform.data.stream.messages import MessageForm
from elastrec.platform.specs.data import TrainingData
from elastrec.platform.specs.errors import DataError

ROWS = 500
LABELS = [{"name": "click"}, {"name": "price", "kind": "value"}]


def table() -> pa.Table:
    random = np.random.default_rng(3)
    return pa.table(
        {
            "click": random.integers(0, 2, ROWS),
            "price": random.normal(10, 5, ROWS).round(2),
            "share": random.integers(0, 4, ROWS) / 2,
            "x": random.normal(size=ROWS),
            "user": random.integers(0, 40, ROWS),
            "item": random.integers(0, 40, ROWS),
            "time": np.arange(ROWS),
        }
    )


def log(folder: Path, rows: pa.Table, form: str = "parquet", **data: Any) -> TrainingData:
    folder.mkdir(exist_ok=True)
    if form == "parquet":
        pq.write_table(rows, folder / "part.parquet", row_group_size=90)
    else:
        rows.to_pandas().to_csv(folder / "part.csv", index=False)
    return TrainingData.model_validate(
        {
            "path": str(folder),
            "format": form,
            "partitioning": "none",
            "labels": LABELS,
            "weight": "share",
            "dense": [{"name": "x", "transform": "none"}],
            "sparse": [{"name": "user"}, {"name": "item"}],
            **data,
        }
    )


def read(reader: ShardReader, *, shuffle: bool) -> list[tuple[tuple[float, ...], tuple[int, ...]]]:
    """(labels and weight, user and item) of each row in the order of reading."""
    found = []
    for batch in reader.read(0, ROWS, seed=7, shuffle=shuffle, batch_size=64):
        ids = ids_of(batch).values.reshape(2, -1)
        found += [
            (tuple(row), tuple(pair)) for row, pair in zip(targets_of(batch).tolist(), ids.T.tolist(), strict=True)
        ]
    return found


@pytest.mark.parametrize("shuffle", [False, True])
def test_labels_and_weight_stay_beside_their_row_in_every_way_of_reading(tmp_path: Path, shuffle: bool) -> None:
    rows = table()
    data = log(tmp_path / "parquet", rows)
    found = read(ShardReader(data, build_manifest(data)), shuffle=shuffle)
    wanted = {
        (float(np.float32(click)), float(np.float32(price)), share, user, item)
        for click, price, share, user, item in zip(
            *(rows[name].to_pylist() for name in ("click", "price", "share", "user", "item")), strict=True
        )
    }
    assert len(found) == ROWS and {(*targets, *ids) for targets, ids in found} == wanted
    text = log(tmp_path / "csv", rows, "csv")
    assert read(ShardReader(text, build_manifest(text)), shuffle=shuffle) == found


def test_the_deduplicated_form_has_them_too(tmp_path: Path) -> None:
    data = log(tmp_path / "log", table())
    manifest = build_manifest(data)
    plain = ShardReader(data, manifest).read(0, ROWS, seed=0, shuffle=False, batch_size=100)
    groups = ShardReader(data, manifest, groups=[["user"]])
    for batch, other in zip(plain, groups.read(0, ROWS, seed=0, shuffle=False, batch_size=100), strict=True):
        assert np.array_equal(targets_of(batch), targets_of(other))


@pytest.mark.parametrize(
    ("column", "value", "expected"),
    [
        ("click", 2, "0 or 1"),
        ("click", None, "0 or 1"),
        ("click", 1 + 1e-12, "0 or 1"),
        ("price", None, "a finite number"),
        ("price", np.nan, "a finite number"),
        ("price", 1e39, "a finite number"),
        ("share", -0.5, "a finite number from 0 on"),
        ("share", np.inf, "a finite number from 0 on"),
    ],
)
def test_a_bad_label_or_weight_makes_the_row_bad(tmp_path: Path, column: str, value: Any, expected: str) -> None:
    rows = table()
    values = [None if each is None else float(each) for each in rows[column].to_pylist()]
    values[33] = value
    changed = rows.set_column(rows.schema.get_field_index(column), column, pa.array(values, pa.float64()))
    data = log(tmp_path / "log", changed)
    with pytest.raises(DataError, match=f"row 33, column '{column}': found .*, expected {expected}"):
        read(ShardReader(data, build_manifest(data, try_rows=False)), shuffle=True)
    skipping = data.model_copy(update={"bad_rows": data.bad_rows.model_copy(update={"policy": "skip", "at_most": 1})})
    reader = ShardReader(skipping, build_manifest(skipping, try_rows=False))
    assert len(read(reader, shuffle=True)) == ROWS - 1 and reader.skipped_rows == 1


def test_every_bad_row_has_its_own_reason() -> None:
    data = TrainingData.model_validate(
        {"path": "x", "labels": LABELS, "dense": [{"name": "x"}], "sparse": [{"name": "u"}]}
    )
    rows = pa.table(
        {"click": [0, 3, 1, 1], "price": [1.0, 2.0, None, None], "x": ["1", "2", "no", "4"], "u": [1, 2, 3, 4]}
    )
    encoded = RowEncoder(data).encode(rows)
    reasons = encoded.bad_rows()
    assert {row: bad.column for row, bad in reasons.items()} == {1: "click", 2: "price", 3: "price"}
    assert encoded.first_bad == reasons[1] and encoded.bad_B.tolist() == [False, True, True, True]


def test_a_converted_log_has_the_same_labels_and_weights(tmp_path: Path) -> None:
    data = log(tmp_path / "log", table())
    converted = convert(data, str(tmp_path / "converted"), layout=ByRows(rows=ROWS)).data
    assert converted.labels == data.labels and converted.weight == "share"
    manifest = build_manifest(converted)
    assert read(ShardReader(converted, manifest), shuffle=True) == read(
        ShardReader(data, build_manifest(data)), shuffle=True
    )
    with pytest.raises(DataError, match=r"label rule: .* remove the rule, or data\.labels"):
        convert(data, str(tmp_path / "other"), layout=ByRows(rows=ROWS), label_rule="time>=4")


def test_a_message_holds_every_label_and_the_weight(tmp_path: Path) -> None:
    data = log(tmp_path / "log", table(), timestamp="time", session="user")
    form = MessageForm(data)
    rows = table().select(list(form.columns)).slice(0, 9)
    messages = form.messages(rows)
    assert form.table([form.row(message) for message in messages], pa.int64()).to_pylist() == rows.to_pylist()
    negative = rows.set_column(rows.schema.get_field_index("share"), "share", pa.array([-1.0] * 9))
    with pytest.raises(DataError, match="share"):
        form.row(form.messages(negative)[0])


def test_generated_conversions_follow_clicks_and_change_no_other_column(tmp_path: Path) -> None:
    plain = GenerateSpec(path=str(tmp_path / "plain"), days=1, rows_per_day=4_000, dense=2, sparse=6)
    spec = plain.model_copy(update={"path": str(tmp_path / "both"), "conversion_rate": 0.3})
    generate(plain)
    (day,) = generate(spec).days
    before, after = (pq.read_table(next(Path(path).rglob("*.parquet"))) for path in (plain.path, spec.path))
    assert after.drop_columns(["conversion"]).equals(before)
    label, conversion = (np.asarray(after[name]) for name in ("label", "conversion"))
    assert not conversion[label == 0].any() and 0.2 < conversion[label == 1].mean() < 0.4
    assert day.conversions == conversion.sum() and day.best_conversion_auc is not None
    assert day.best_conversion_auc > 0.65
    data = training_data_for(spec)
    assert [label.name for label in data.label_columns] == ["label", "conversion"]
    (batch,) = ShardReader(data, build_manifest(data)).read(0, 4_000, seed=0, shuffle=False, batch_size=4_000)
    assert np.array_equal(targets_of(batch)[:, 1], conversion)
