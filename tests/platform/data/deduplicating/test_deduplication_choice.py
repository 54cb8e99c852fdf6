"""The choice of features to deduplicate, by the repetition in the batches of the job, with reasons."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from elastrec.platform.data.deduplicating.deduplicated_batch import groups_of
from elastrec.platform.data.deduplicating.deduplication_choice import ChosenGroups, choose_groups
from elastrec.platform.data.manifest import build_manifest
from elastrec.platform.data.reading.reader import ShardReader
from elastrec.platform.specs.data import TrainingData
from elastrec.platform.specs.deduplication import Deduplication
from elastrec.platform.specs.errors import DataError
from elastrec.platform.specs.job import Training

AUTO = Deduplication()
ORDER = Training(batch_size=160, batches_per_shard=10, seed=1)


def log(folder: Path, *, clustered: bool = True, sessions: int = 100, size: int = 16, **other: Any) -> TrainingData:
    """Two long lists that stay for a session, a short one that stays, a long one that changes in every row."""
    rng = np.random.default_rng(0)
    rows = sessions * size
    session_B = np.repeat(np.arange(sessions), size)
    if not clustered:
        session_B = rng.permutation(session_B)
    stays = {name: rng.integers(0, 2**40, (sessions, n)) for name, n in (("cart", 30), ("likes", 20), ("last", 2))}
    table = pa.table(
        {
            "label": pa.array(rng.integers(0, 2, rows), pa.int8()),
            "item": pa.array(rng.integers(0, 2**40, rows)),
            "visit": pa.array(session_B),
            "shown": pa.array(list(rng.integers(0, 2**40, (rows, 10)))),
            **{name: pa.array(list(values[session_B])) for name, values in stays.items()},
        }
    )
    folder.mkdir()
    pq.write_table(table, folder / "a.parquet")
    lists = [{"name": name, "is_list": True} for name in ("cart", "shown", "likes", "last")]
    content = {"path": str(folder), "partitioning": "none", "sparse": [{"name": "item"}, *lists], "session": "visit"}
    return TrainingData.model_validate({**content, "evaluation_path": str(folder), **other})


def chosen(data: TrainingData, wanted: Deduplication = AUTO, order: Training = ORDER, **more: Any) -> ChosenGroups:
    return choose_groups(data, build_manifest(data), wanted, order, **more)


def test_long_unchanging_lists_form_a_group_and_the_others_have_a_reason(tmp_path: Path) -> None:
    found = chosen(log(tmp_path / "log"))
    assert found.groups == (("cart", "likes"),)
    why = {choice.name: choice.why for choice in found.choices}
    assert why["item"] == "factor 1.00 is not above 1.5" == why["shown"]
    assert "pooled without computing" in why["last"]
    assert "changes together with likes" in why["cart"]
    text = str(found)
    assert "2 features in 1 groups; measured on 1,600 rows" in text
    assert all(name in text for name in ("item", "cart", "shown", "likes", "last", "group 0", "plain"))


def test_short_lists_are_chosen_where_the_model_computes_on_them(tmp_path: Path) -> None:
    found = chosen(log(tmp_path / "log"), computed_pooling=frozenset({"last"}))
    assert found.groups == (("cart", "likes", "last"),)


def test_the_factor_is_that_of_the_batches_which_workers_read(tmp_path: Path) -> None:
    data = log(tmp_path / "log", size=7)
    order = ORDER.model_copy(update={"batch_size": 50, "batches_per_shard": 14})
    found = chosen(data, order=order)
    reader = ShardReader(data, build_manifest(data), groups=[["cart"]])
    plain = kept = 0
    for batch in reader.read(0, 700, seed=1, shuffle=True, batch_size=50):
        (group,) = groups_of(batch)
        plain += len(group.expand()[0])
        kept += len(group.values)
    # The reader draws another order of sessions, which cuts others at the edges of batches.
    assert found.factors[1].measured == pytest.approx(plain / kept, rel=0.05)


@pytest.mark.parametrize("shuffle", [True, False])
def test_an_unclustered_log_stays_plain(tmp_path: Path, shuffle: bool) -> None:
    order = ORDER.model_copy(update={"batch_size": 32, "batches_per_shard": 50, "shuffle": shuffle})
    found = chosen(log(tmp_path / "log", clustered=False), order=order)
    assert found.groups == ()
    assert "off, no feature is worth it" in str(found)


def test_a_clustered_log_without_a_session_column_is_shuffled_by_rows_and_stays_plain(tmp_path: Path) -> None:
    data = log(tmp_path / "log", session=None)
    assert chosen(data, order=ORDER.model_copy(update={"batch_size": 32, "batches_per_shard": 50})).groups == ()
    assert chosen(data, order=ORDER.model_copy(update={"shuffle": False})).groups == (("cart", "likes"),)


def test_named_features_are_grouped_and_named_groups_are_kept(tmp_path: Path) -> None:
    data = log(tmp_path / "log")
    found = chosen(data, Deduplication(features=("last", "shown", "cart")))
    assert found.groups == (("cart", "last"), ("shown",)) or found.groups == (("last", "cart"), ("shown",))
    asked = Deduplication(groups=(("item", "cart"),))
    found = chosen(data, asked)
    assert found.groups == (("item", "cart"),)
    assert {choice.name: choice.why for choice in found.choices}["likes"] == "the job file leaves it out"


def test_a_missing_session_column_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"the columns \[.day.\] are missing; correct data.session"):
        chosen(log(tmp_path / "log", session="day"))
