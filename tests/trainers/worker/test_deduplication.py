"""A worker on deduplicated batches: the same loss, weights, counts and predictions as on plain ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from elastrec.platform.transport.messages.directive import Mode
from elastrec.trainers.check import check
from elastrec.trainers.parameter_server.messages import GetStats
from elastrec.trainers.parameter_server.storage.copying import CANDIDATES, ROWS
from elastrec.trainers.worker.predictions import read_predictions
from tests.trainers.parameter_server.storage.copies import columns_of
from tests.trainers.worker.sessions import session_job
from tests.trainers.worker.setting import Setting

BATCH, STEPS = 48, 200
GROUPS = {"groups": [["user", "cart"], ["likes"]]}


class Own(nn.Module):
    """A model that knows torchrec's types only."""

    seen: list[type] = []

    def __init__(self, embedding_bag_collection: nn.Module, schema: Any) -> None:
        super().__init__()
        self.tables = embedding_bag_collection
        self.output = nn.Linear(len(schema.sparse_names) * schema.embedding_dimension, 1)

    def forward(self, dense_features: Any, sparse_features: Any) -> Any:
        self.seen.append(type(sparse_features))
        lengths = sparse_features["cart"].lengths()
        return self.output(self.tables(sparse_features).values()).squeeze(1) + 0.01 * lengths


class OwnMoved(Own):
    """As models that torchrec's examples put on a device."""

    def forward(self, dense_features: Any, sparse_features: Any) -> Any:
        return super().forward(dense_features, sparse_features.to(torch.device("cpu")))


class OwnLists(nn.Module):
    """A model that knows torchrec's types only, and pools the lists of one feature itself: the mean of squares."""

    def __init__(self, embedding_bag_collection: nn.Module, schema: Any) -> None:
        super().__init__()
        self.tables = embedding_bag_collection
        self.output = nn.Linear(len(schema.sparse_names) * schema.embedding_dimension, 1)

    def forward(self, dense_features: Any, sparse_features: Any) -> Any:
        rows, lengths = self.tables.rows(sparse_features, "cart"), sparse_features["cart"].lengths()
        squares = torch.segment_reduce(100 * rows**2, "mean", lengths=lengths.to(torch.int64), initial=0)
        return self.output(torch.cat([self.tables(sparse_features).values(), squares], dim=1)).squeeze(1)


Make = Callable[..., Setting]


@pytest.fixture
def trained(scripted_master: Callable[..., Any], tmp_path: Path) -> Iterator[Make]:
    made: list[Setting] = []

    def make(deduplication: Any, steps: int = STEPS, servers: int = 1, **spec: Any) -> Setting:
        folder = tmp_path / str(len(made))
        job = session_job(folder, steps * BATCH, BATCH, deduplication=deduplication, **spec)
        here = Setting(job, scripted_master, folder, servers)
        made.append(here)
        here.master.add_shards("train", steps * BATCH, steps * BATCH // 4)
        here.start_worker()
        here.master.wait_for(lambda: len(here.master.done) == 4 or bool(here.errors))
        assert not here.errors
        return here

    yield make
    for each in made:
        each.close()


def _loss(here: Setting) -> float:
    beats = [beat.metrics for beat in here.master.heartbeats]
    return sum(each.loss_sum for each in beats) / sum(each.samples for each in beats)


def _dense(here: Setting) -> np.ndarray[Any, Any]:
    return np.concatenate([server.dense.values for server in here.servers])


def _tables(here: Setting, name: str) -> dict[tuple[str, int], Any]:
    """What all servers hold, by table and id: a column of rows, or of candidates."""
    found = {}
    for store in (store for server in here.servers for store in server.stores):
        names = [table.name for table in store.plan.tables[store.group.first_table :]]
        columns = columns_of(store, CANDIDATES if name == "sightings" else ROWS)
        if columns:
            keys = zip(columns["tables"].tolist(), columns["ids"].tolist(), strict=True)
            found |= {(names[table], i): value for (table, i), value in zip(keys, columns[name], strict=True)}
    return found


@pytest.mark.parametrize("servers", [1, 2])
def test_two_hundred_steps_give_the_same_loss_and_weights(trained: Make, servers: int) -> None:
    plain, ours = trained("off", servers=servers), trained(GROUPS, servers=servers)
    assert (
        ours.workers[0]._sources["training"].reader.groups and not plain.workers[0]._sources["training"].reader.groups
    )
    for here in (plain, ours):
        here.finish()
    assert _loss(ours) == pytest.approx(_loss(plain), abs=1e-6)
    assert _loss(ours) < 0.67
    np.testing.assert_allclose(_dense(ours), _dense(plain), atol=1e-4)
    expected, rows = _tables(plain, "values"), _tables(ours, "values")
    assert rows.keys() == expected.keys()
    found = np.concatenate([rows[key] for key in expected])
    np.testing.assert_allclose(found, np.concatenate(list(expected.values())), atol=1e-4)


def test_bytes_from_the_reader_are_counted_deduplicated_and_plain(trained: Make) -> None:
    plain, ours = (trained(how, steps=12) for how in ("off", GROUPS))
    for here in (plain, ours):
        here.finish()
    before, after = ([beat.metrics for beat in here.master.heartbeats] for here in (plain, ours))
    sent = sum(each.bytes_read for each in before)
    assert sent and sum(each.bytes_read_plain for each in before) == sent
    # Arrow keeps the last offset of each list column with a batch, which is all that may differ.
    assert sum(each.bytes_read_plain for each in after) == pytest.approx(sent, rel=0.01)
    assert sum(each.bytes_read for each in after) < 0.6 * sent
    assert sum(each.bytes_pulled for each in after) == sum(each.bytes_pulled for each in before) > 0


@pytest.mark.parametrize(
    ("architecture", "options"),
    [
        ("din", {"attention": {"cart": "item", "likes": "user"}, "layer_sizes": [16]}),
        ("bst", {"sequences": ["likes", "cart"], "layer_sizes": [16]}),
    ],
)
@pytest.mark.parametrize("groups", [[["user", "cart"], ["likes"]], [["cart", "likes"]], [["cart"]]], ids=str)
def test_models_of_sequences_give_the_same_loss_and_weights(
    trained: Make, architecture: str, options: dict[str, Any], groups: list[list[str]]
) -> None:
    model = {"architecture": architecture, "embedding_dimension": 8, "options": options}
    # Adam divides by gradients that are zero but for rounding, such as those of the attention's key biases.
    plain_steps = {part: {"kind": "sgd", "learning_rate": 0.1} for part in ("rows", "dense")}
    plain, ours = (trained(how, steps=20, model=model, optimizers=plain_steps) for how in ("off", {"groups": groups}))
    for here in (plain, ours):
        here.finish()
    assert _loss(ours) == pytest.approx(_loss(plain), abs=1e-6)
    np.testing.assert_allclose(_dense(ours), _dense(plain), atol=1e-4)
    rows = _tables(plain, "values")
    assert all(np.allclose(values, rows[key], atol=1e-4) for key, values in _tables(ours, "values").items())


def test_ids_are_admitted_after_as_many_rows_as_on_plain_batches(trained: Make) -> None:
    tables = {name: {"admit_after": 20} for name in ("user", "items", "likes")}
    plain, ours = (trained(how, steps=8, tables=tables) for how in ("off", GROUPS))
    for here in (plain, ours):
        here.finish()
    waiting = _tables(plain, "sightings")
    assert waiting and waiting == _tables(ours, "sightings")
    assert _tables(plain, "values") and _tables(plain, "values").keys() == _tables(ours, "values").keys()


def test_predictions_and_stored_predictions_equal_those_of_plain_batches(trained: Make) -> None:
    kept = []
    for how in ("off", GROUPS):
        here = trained(how, steps=8)
        here.master.done.clear()
        here.master.add_shards("evaluate", 8 * BATCH, 4 * BATCH)
        here.master.command(Mode.EVALUATE)
        here.master.wait_for(lambda here=here: len(here.master.done) == 2 or bool(here.errors))
        here.finish()
        assert not here.errors
        kept.append(read_predictions(here.workers[0]._predictions_uri))
    for plain, ours in zip(*kept, strict=True):
        assert ours.batch.equals(plain.batch)
        np.testing.assert_allclose(ours.prediction, plain.prediction, atol=1e-5)
        np.testing.assert_allclose(ours.pooled, plain.pooled, atol=1e-4)


def test_a_model_that_knows_torchrec_only_trains_the_same(trained: Make) -> None:
    model = {"architecture": f"{__name__}:Own", "embedding_dimension": 8}
    plain, ours = (trained(how, steps=12, model=model) for how in ("off", GROUPS))
    for here in (plain, ours):
        here.finish()
    assert set(Own.seen) == {KeyedJaggedTensor}
    assert _loss(ours) == pytest.approx(_loss(plain), abs=1e-6)
    np.testing.assert_allclose(_dense(ours), _dense(plain), atol=1e-5)


@pytest.mark.parametrize("model", [Own, OwnMoved])
def test_a_models_copy_of_the_features_is_pulled_once_and_its_rows_are_counted_once(
    trained: Make, model: type[nn.Module]
) -> None:
    spec = {
        "model": {"architecture": f"{__name__}:{model.__name__}", "embedding_dimension": 8},
        "tables": {name: {"admit_after": 20} for name in ("user", "items", "likes")},
    }
    plain, ours = (trained(how, steps=8, **spec) for how in ("off", GROUPS))
    for here in (plain, ours):
        here.finish()
        assert here.servers[0].stats(GetStats()).pulls == 8
    waiting = _tables(plain, "sightings")
    assert waiting and waiting == _tables(ours, "sightings")


@pytest.mark.parametrize("likes_pooling", ["mean", "attention"])
def test_a_model_that_pools_lists_itself_trains_the_same(trained: Make, likes_pooling: str) -> None:
    model = {"architecture": f"{__name__}:OwnLists", "embedding_dimension": 8, "unpooled_features": ["cart"]}
    plain, ours = (trained(how, steps=12, model=model, likes_pooling=likes_pooling) for how in ("off", GROUPS))
    for here in (plain, ours):
        assert check(here.job) == []
        here.finish()
    assert _loss(ours) == pytest.approx(_loss(plain), abs=1e-6)
    np.testing.assert_allclose(_dense(ours), _dense(plain), atol=1e-5)


def test_overlapped_pulls_use_the_prefetched_rows_of_each_batch(trained: Make) -> None:
    training = {"batch_size": BATCH, "shuffle": False, "consistency": {"mode": "async"}, "overlap_pull": True}
    here = trained(GROUPS, steps=12, training=training)
    here.finish()
    assert here.servers[0].stats(GetStats()).pulls == 12
