"""Deduplicated bags on real parameter servers: the same training with fewer ids to route and pool."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from elastrec.platform.specs.optimizers import OptimizerKind, OptimizerSpec
from elastrec.trainers.deduplication import (
    AttentionBags,
    DeduplicatedBags,
    DeduplicatedFeatures,
)
from elastrec.trainers.embedding.client import ParameterClient
from elastrec.trainers.embedding.dense import FlatParameters
from elastrec.trainers.embedding.module import RemoteEmbeddingBagCollection
from elastrec.trainers.models import FeatureSchema
from elastrec.trainers.models.dlrm import Dlrm
from elastrec.trainers.parameter_server.plan import plan_of_job
from tests.splits import origin_of
from tests.trainers.deduplication.grouping import grouped
from tests.trainers.embedding.test_parity_with_torchrec import DENSE, DIMENSION, configs, job_spec, running_servers

ROWS, SESSION, STEPS, TOKEN = 48, 6, 8, "token-of-the-test"
NAMES = ("user", "clicked", "item")


def _batches() -> list[tuple[torch.Tensor, KeyedJaggedTensor, torch.Tensor]]:
    """User and clicked stay for a session, the item is new in every row."""
    random = np.random.default_rng(3)
    made = []
    for _ in range(STEPS):
        pool = [random.integers(0, 50, n) for n in random.integers(0, 6, ROWS // SESSION)]
        clicked = [pool[row // SESSION] for row in range(ROWS)]
        user = np.repeat(random.integers(0, 50, ROWS // SESSION), SESSION)
        values = np.concatenate([user, *clicked, random.integers(0, 50, ROWS)])
        lengths = np.concatenate([np.ones(ROWS, int), [len(each) for each in clicked], np.ones(ROWS, int)])
        sparse = KeyedJaggedTensor(
            keys=list(NAMES), values=torch.from_numpy(values), lengths=torch.from_numpy(lengths.astype(np.int32))
        )
        dense = torch.from_numpy(random.normal(size=(ROWS, DENSE)).astype(np.float32))
        made.append((dense, sparse, torch.from_numpy((random.random(ROWS) < 0.4).astype(np.float32))))
    return made


def _deduplicated(sparse: KeyedJaggedTensor) -> DeduplicatedFeatures:
    item = sparse.split([1, 1, 1])[2]
    return DeduplicatedFeatures(item, (grouped(sparse, ["user", "clicked"]),))


def _train(servers: int, deduplicate: bool, attention: tuple[str, ...] = ()) -> tuple[list[float], dict[str, int]]:
    """Losses, and what crossed the wire or the router."""
    rule = OptimizerSpec(kind=OptimizerKind.ADAGRAD, learning_rate=0.05)
    spec = job_spec(rule, rule)
    counts = {"routed": 0, "pulled": 0}
    with running_servers(spec, servers) as routing:
        client = ParameterClient(plan_of_job(spec), worker="w", incarnation="i", token=TOKEN)
        client.connect(routing, 1)
        collection = RemoteEmbeddingBagCollection(configs(spec), client, attention)
        bags: nn.Module = DeduplicatedBags(collection)
        torch.manual_seed(1)
        if attention:
            bags = AttentionBags(bags, attention)
        schema = FeatureSchema(tuple(f"n{i}" for i in range(DENSE)), NAMES, DIMENSION)
        model: Any = Dlrm(bags, schema, bottom_layer_sizes=(8,), top_layer_sizes=(8,))
        flat = FlatParameters(model)
        client.layout = flat.layout
        client.init_dense(flat.values)
        losses = []
        for numbers, sparse, labels in _batches():
            features = _deduplicated(sparse) if deduplicate else sparse
            pulled = collection.prefetch(features.stacked if deduplicate else sparse, dense=True)
            counts["routed"] += len(pulled.routed.inverse)
            counts["pulled"] += sum(len(rows) for rows in pulled.rows())
            pulled.dense(out=flat.values)
            flat.zero_gradients()
            loss = nn.functional.binary_cross_entropy_with_logits(model(numbers, features), labels)
            loss.backward()
            left = collection.take_row_gradients()
            client.push(left.pulled, left.gradients, flat.gradients, ROWS, origin_of(len(losses)))
            losses.append(loss.item())
        client.flush()
        client.close()
    return losses, counts


@pytest.mark.parametrize("attention", [(), ("clicked",), NAMES], ids=str)
@pytest.mark.parametrize("servers", [1, 2])
def test_training_over_servers_is_the_same_with_fewer_ids_to_route(servers: int, attention: tuple[str, ...]) -> None:
    plain, plain_counts = _train(servers, False, attention)
    ours, counts = _train(servers, True, attention)
    assert plain[-1] != plain[0]
    np.testing.assert_allclose(ours, plain, atol=1e-6)
    assert counts["routed"] < plain_counts["routed"] / 2
    # The client asks for each id of a batch once in any case.
    assert counts["pulled"] == plain_counts["pulled"]
