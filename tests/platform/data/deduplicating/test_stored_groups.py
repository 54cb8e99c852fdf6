"""Files with each distinct row of a group stored once give the same rows and batches as plain files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastrec.platform.data.clustering.clustering import RECORD_NAME, ClusterReport, cluster, clustered_data
from elastrec.platform.data.clustering.inspection import inspect_data
from elastrec.platform.data.deduplicating.deduplicated_batch import expand_batch
from elastrec.platform.data.deduplicating.deduplication_choice import choose_groups
from elastrec.platform.data.deduplicating.stored_groups import (
    StoredRows,
    columns_to_read,
    plain_schema,
    stored_groups,
    without_repeats,
)
from elastrec.platform.data.manifest import build_manifest
from elastrec.platform.data.reading.reader import ShardReader
from elastrec.platform.specs.data import TrainingData
from elastrec.platform.specs.deduplication import Deduplication
from elastrec.platform.specs.errors import DataError
from elastrec.platform.specs.job import Training

GROUPS = (("cart", "likes"), ("shop",))


def write_log(folder: Path, rows: int = 3_000) -> TrainingData:
    """Sessions whose carts and shops mostly stay; texts, nulls and empty lists among them."""
    rng = np.random.default_rng(3)
    session_B = rng.integers(0, 300, rows)
    pool: list[list[int] | None] = [None, [], *(rng.integers(-(2**62), 2**62, 20).tolist() for _ in range(300))]
    choice_B = (session_B + (rng.random(rows) < 0.1)) % len(pool)
    table = pa.table(
        {
            "label": rng.integers(0, 2, rows),
            "price": pa.array(rng.random(rows), mask=rng.random(rows) < 0.1),
            "item": rng.integers(0, 1_000, rows),
            "cart": pa.array([pool[c] for c in choice_B.tolist()], pa.list_(pa.int64())),
            "likes": pa.array([(pool[c] or [7])[:3] for c in choice_B.tolist()], pa.list_(pa.int64())),
            "shop": pa.array([None if c % 9 == 0 else f"shop {c}" for c in choice_B.tolist()]),
            "visit": session_B,
            "when": np.arange(rows),
        }
    )
    (folder / "day=2026-01-01").mkdir(parents=True)
    pq.write_table(table, folder / "day=2026-01-01" / "part-0.parquet")
    return TrainingData.model_validate(
        {
            "path": str(folder),
            "dense": [{"name": "price"}],
            "sparse": [
                {"name": "item"}, {"name": "cart", "is_list": True, "max_length": 15},
                {"name": "likes", "is_list": True}, {"name": "shop", "encoding": "string"},
            ],
            "session": "visit",
            "timestamp": "when",
        }
    )  # fmt: skip


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, TrainingData]:
    root = tmp_path_factory.mktemp("stored")
    data = write_log(root / "log")
    cluster(data, str(root / "plain"), row_group_rows=500)
    (report,) = cluster(data, str(root / "once"), row_group_rows=500, groups=GROUPS)
    assert report.deduplicated == GROUPS
    return {name: clustered_data(data, str(root / name)) for name in ("plain", "once")}


def batches(reader: ShardReader, start: int, length: int, **order: Any) -> list[tuple[pa.RecordBatch, int]]:
    return [
        (expand_batch(each.batch), each.end_offset)
        for each in reader.minibatches(start, length, batch_size=256, **{"seed": 5, **order})
    ]


SHARDS = [(0, 3_000), (0, 700), (700, 1_311), (2_999, 1)]


@pytest.mark.parametrize("shard", SHARDS, ids=str)
@pytest.mark.parametrize("shuffle", [False, True])
def test_a_plain_reader_gives_the_same_batches_for_any_shard(
    logs: dict[str, TrainingData], shard: tuple[int, int], shuffle: bool
) -> None:
    readers = {name: ShardReader(data, build_manifest(data)) for name, data in logs.items()}
    found = {name: batches(reader, *shard, shuffle=shuffle) for name, reader in readers.items()}
    assert found["once"] == found["plain"]
    raw = {name: pa.concat_tables(list(reader.read_raw(*shard))) for name, reader in readers.items()}
    assert raw["once"].equals(raw["plain"])


@pytest.mark.parametrize("shard", SHARDS, ids=str)
@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize(
    "groups",
    [[["cart", "likes"]], [["likes"], ["cart"]], [["cart", "item"], ["shop"]], [["shop", "cart", "likes"]], [["item"]]],
    ids=str,
)
def test_a_deduplicating_reader_gives_the_same_batches_for_all_groups(
    logs: dict[str, TrainingData], shard: tuple[int, int], shuffle: bool, groups: list[list[str]]
) -> None:
    plain, once = (
        batches(
            ShardReader(data, build_manifest(data), groups=groups),
            *shard,
            shuffle=shuffle,
            offset=shard[1] // 3,
        )
        for data in logs.values()
    )
    assert once == plain


def test_the_manifest_numbers_the_same_rows_and_the_same_features_are_chosen(logs: dict[str, TrainingData]) -> None:
    plain, once = (build_manifest(data) for data in logs.values())
    assert [(file.rows, file.row_group_rows) for file in once.files] == [
        (file.rows, file.row_group_rows) for file in plain.files
    ]
    assert once.schema_fingerprint == plain.schema_fingerprint and once.files[0].deduplicated == GROUPS
    chosen = [
        choose_groups(
            data, manifest, Deduplication(),
            Training(batch_size=256, batches_per_shard=4), computed_pooling=frozenset(),
        ).groups
        for data, manifest in ((logs["plain"], plain), (logs["once"], once))
    ]  # fmt: skip
    assert chosen[0] == chosen[1] != ()


def test_the_file_has_fewer_ids_and_the_report_lists_the_groups(logs: dict[str, TrainingData]) -> None:
    stored = {}
    for name, data in logs.items():
        (file,) = Path(data.path).glob("day=*/part-*")
        metadata = pq.ParquetFile(file).metadata
        values = 0
        for group in range(metadata.num_row_groups):
            columns = [metadata.row_group(group).column(i) for i in range(metadata.num_columns)]
            values += sum(c.total_uncompressed_size for c in columns if "cart" in c.path_in_schema)
        stored[name] = values
    assert stored["once"] * 3 < stored["plain"]
    record = next(Path(logs["once"].path).glob(f"day=*/{RECORD_NAME}"))
    assert ClusterReport.model_validate_json(record.read_bytes()).deduplicated == GROUPS


@pytest.mark.parametrize("kind", [pa.int64(), pa.string()], ids=str)
def test_lists_of_a_fixed_size_are_read_again(tmp_path: Path, kind: pa.DataType) -> None:
    values = pa.array(np.repeat(np.arange(20).reshape(10, 2), 4, axis=0).reshape(-1)).cast(kind)
    lists = pa.FixedSizeListArray.from_arrays(values, 2)
    rows = pa.table({"label": [0, 1] * 20, "cart": lists, "visit": np.repeat(np.arange(10), 4)})
    (tmp_path / "log").mkdir()
    pq.write_table(rows, tmp_path / "log" / "part-0.parquet")
    encoding = "string" if pa.types.is_string(kind) else "integer"
    data = TrainingData.model_validate(
        {
            "path": str(tmp_path / "log"), "partitioning": "none", "session": "visit",
            "sparse": [{"name": "cart", "is_list": True, "encoding": encoding}],
        }
    )  # fmt: skip
    cluster(data, str(tmp_path / "once"), groups=(("cart",),))
    once = clustered_data(data, str(tmp_path / "once"))
    plain = batches(ShardReader(data, build_manifest(data)), 0, 40, shuffle=False)
    for groups in ([], [["cart"]]):
        assert batches(ShardReader(once, build_manifest(once), groups=groups), 0, 40, shuffle=False) == plain


@pytest.mark.parametrize(
    "views", [{pa.string()}, {pa.binary()}, {pa.string(), pa.binary()}], ids=["string", "binary", "both"]
)
def test_texts_in_views_are_stored_like_other_texts(tmp_path: Path, views: set[pa.DataType]) -> None:
    """Polars writes them; one of two files has views, and the session and a column that no feature reads do, too."""

    def written(folder: str, view_of: dict[pa.DataType, pa.DataType]) -> TrainingData:
        data = TrainingData.model_validate(
            {
                "path": str(tmp_path / folder), "partitioning": "none", "session": "visit",
                "sparse": [
                    {"name": "town", "encoding": "string"}, {"name": "tags", "is_list": True, "encoding": "string"},
                ],
            }
        )  # fmt: skip
        (tmp_path / folder).mkdir()
        for part, text in enumerate((pa.string(), pa.binary())):
            kind = view_of.get(text, text)
            place_B = np.repeat(np.arange(10), 4) + 10 * part
            texts = pa.array([f"{place:03}" for place in place_B])
            words = pa.array(np.arange(0, 41)).cast(pa.int32())
            columns = {
                "label": pa.array([0, 1] * 20), "town": texts.cast(kind), "visit": texts.cast(kind),
                "tags": pa.ListArray.from_arrays(words, texts.cast(kind)), "note": texts.cast(kind),
            }  # fmt: skip
            pq.write_table(pa.table(columns), tmp_path / folder / f"part-{part}.parquet")
        return data

    view_of = {text: {pa.string(): pa.string_view(), pa.binary(): pa.binary_view()}[text] for text in views}
    found = []
    for folder, kinds in (("plain", {}), ("views", view_of)):
        data = written(folder, kinds)
        found.append(batches(ShardReader(data, build_manifest(data), groups=[["tags"]]), 0, 80, shuffle=False))
        cluster(data, str(tmp_path / f"{folder}-once"), groups=(("town", "tags"),))
        once = clustered_data(data, str(tmp_path / f"{folder}-once"))
        found.append(batches(ShardReader(once, build_manifest(once), groups=[["town"]]), 0, 80, shuffle=False))
    assert found[0] == found[2] and found[1] == found[3]
    assert inspect_data(data, build_manifest(data), batch_rows=40).rows == 80


def test_files_with_other_groups_are_refused_and_those_with_the_same_are_kept(tmp_path: Path) -> None:
    data, target = write_log(tmp_path / "log", rows=100), str(tmp_path / "out")
    first = cluster(data, target, groups=GROUPS)
    assert cluster(data, target, groups=GROUPS) == first
    with pytest.raises(DataError, match="another deduplicated"):
        cluster(data, target)


@pytest.mark.parametrize(
    ("groups", "said"),
    [
        ((("cart", "none"),), r"\['none'\] is not allowed"),
        ((("cart",), ("cart",)), r"\['cart'\] is not allowed"),
        (((),), r"groups: \[\[\]\]"),
        ((("visit",),), r"\['visit'\] is not allowed; .* not the columns of the order"),
    ],
    ids=str,
)
def test_invalid_groups_write_nothing(tmp_path: Path, groups: Any, said: str) -> None:
    data = write_log(tmp_path / "log", rows=50)
    with pytest.raises(DataError, match=said):
        cluster(data, str(tmp_path / "out"), groups=groups)
    assert not list((tmp_path / "out").glob("*"))


def test_deduplicated_files_are_not_clustered_again(logs: dict[str, TrainingData], tmp_path: Path) -> None:
    with pytest.raises(DataError, match="cluster the log that it was made from"):
        cluster(logs["once"], str(tmp_path / "out"))


def test_a_file_that_points_to_no_row_is_refused(logs: dict[str, TrainingData], tmp_path: Path) -> None:
    (file,) = Path(logs["once"].path).glob("day=*/part-*")
    table = pq.read_table(file)
    back = np.asarray(table["back:1"]).copy()
    folder = tmp_path / "day=2026-01-01"
    folder.mkdir()
    data = logs["once"].model_copy(update={"path": str(tmp_path)})
    for wrong in (-1, 10**6):
        back[5] = wrong
        changed = table.set_column(table.schema.get_field_index("back:1"), "back:1", pa.array(back))
        pq.write_table(changed, folder / "part-0.parquet")
        with pytest.raises(DataError, match=r"part-0\.parquet: back:1: refers to a row that does not exist"):
            build_manifest(data)


VALUES = st.sampled_from([None, 0, 1, -1, 2**63 - 1])
LISTS = st.none() | st.lists(st.sampled_from([None, 0, 1]), max_size=3)
FLOATS = st.sampled_from([None, 0.0, -0.0, float("nan"), 1.5])
TEXTS = st.none() | st.sampled_from(["", "a", "b"])


@given(
    st.lists(st.tuples(VALUES, LISTS, FLOATS, TEXTS, st.lists(TEXTS, max_size=2)), min_size=1, max_size=20), st.data()
)
def test_every_column_is_restored_with_nulls_texts_and_bits_of_floats(rows: Any, data: Any) -> None:
    kinds = [pa.int64(), pa.list_(pa.int64()), pa.float32(), pa.string(), pa.large_list(pa.string())]
    names = ["a", "b", "c", "d", "e"]
    columns = [pa.array(list(column), kind) for column, kind in zip(zip(*rows, strict=True), kinds, strict=True)]
    table = pa.Table.from_arrays(columns, names=names)
    cut = data.draw(st.integers(0, 5))
    groups = tuple(group for group in (tuple(names[:cut]), tuple(names[cut:])) if group)
    stored = without_repeats(table, groups)
    assert stored_groups(stored.schema.metadata) == groups and plain_schema(stored.schema, groups).names == names
    assert set(columns_to_read(names, groups) or ()) == set(stored.column_names)
    first = data.draw(st.integers(0, table.num_rows))
    part = StoredRows(stored, groups, first, table.num_rows - first).plain()
    for name in names:
        expected = table[name].slice(first).combine_chunks()
        assert part[name].combine_chunks().equals(expected) or name == "c"
    bits = [np.asarray(each["c"].combine_chunks().fill_null(9.0)).view(np.int32) for each in (part, table.slice(first))]
    assert bits[0].tolist() == bits[1].tolist()
