"""A model trained with parameter servers takes the same steps as with torchrec's own collection."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torchrec import EmbeddingBagCollection, EmbeddingBagConfig, KeyedJaggedTensor, PoolingType
from torchrec.models.dlrm import DLRM
from torchrec.optim.rowwise_adagrad import RowWiseAdagrad

from elastrec.platform.specs.job import Consistency, JobSpec
from elastrec.platform.specs.optimizers import OptimizerKind, OptimizerSpec
from elastrec.platform.transport import RpcServer
from elastrec.platform.transport.messages.directive import RoutingTable
from elastrec.trainers.embedding.client import ParameterClient
from elastrec.trainers.embedding.dense import FlatParameters
from elastrec.trainers.embedding.module import RemoteEmbeddingBagCollection
from elastrec.trainers.models.parts import first_and_others
from elastrec.trainers.parameter_server.hashing import initial_rows
from elastrec.trainers.parameter_server.plan import plan_of_job
from elastrec.trainers.parameter_server.serving.server import ParameterServer
from elastrec.trainers.parameter_server.warm_up import warm_kernels
from tests.splits import origin_of

VOCABULARY, DIMENSION, BATCH, DENSE = 50, 8, 32, 4
TOKEN = "token-of-the-test"
POOLING = {"user": PoolingType.SUM, "item": PoolingType.MEAN}
FEATURES = {"user": ["user"], "item": ["clicked", "item"]}


def job_spec(rows: OptimizerSpec, dense: OptimizerSpec, **tables: dict[str, int]) -> JobSpec:
    return JobSpec.model_validate(
        {
            "model": {"architecture": "dlrm", "embedding_dimension": DIMENSION},
            "data": {
                "path": "clicks",
                "dense": [{"name": f"n{i}"} for i in range(DENSE)],
                "sparse": [
                    {"name": "user"},
                    {"name": "clicked", "table": "item", "is_list": True, "pooling": "mean"},
                    {"name": "item", "table": "item", "pooling": "mean"},
                ],
            },
            "tables": tables,
            "optimizers": {"rows": rows.model_dump(), "dense": dense.model_dump()},
            "training": {"batch_size": BATCH, "consistency": Consistency(mode="bsp").model_dump(), "seed": 5},
        }
    )


_warm_kernels_once = functools.cache(warm_kernels)


@contextmanager
def running_servers(spec: JobSpec, count: int) -> Iterator[RoutingTable]:
    # As a server's process does: the first request must not wait until kernels are compiled.
    _warm_kernels_once()
    names = [f"ps-{index}" for index in range(count)]
    servers = [ParameterServer(name, spec, capacity_rows=10_000) for name in names]
    rpcs = [RpcServer({}, token=TOKEN, array_handlers=server.array_handlers()) for server in servers]
    for rpc in rpcs:
        rpc.serve_in_background()
    routing = RoutingTable(
        epoch=3,
        owners=[bucket % count for bucket in range(spec.resources.virtual_buckets)],
        servers=names,
        addresses=[rpc.address for rpc in rpcs],
    )
    for server in servers:
        server.start_empty(routing, 1)
    try:
        yield routing
    finally:
        for rpc in rpcs:
            rpc.shutdown()


def configs(spec: JobSpec) -> list[EmbeddingBagConfig]:
    return [
        EmbeddingBagConfig(
            name=name,
            embedding_dim=spec.row_dimension(name),
            num_embeddings=VOCABULARY,
            feature_names=FEATURES[name],
            pooling=POOLING[name],
        )
        for name in POOLING
    ]


def batches(count: int) -> list[tuple[torch.Tensor, KeyedJaggedTensor, torch.Tensor]]:
    random = np.random.default_rng(3)
    made = []
    for _ in range(count):
        lengths = np.concatenate([np.ones(BATCH), random.integers(0, 6, BATCH), random.integers(0, 2, BATCH)])
        ids = random.zipf(1.3, int(lengths.sum())) % VOCABULARY
        sparse = KeyedJaggedTensor(
            keys=["user", "clicked", "item"],
            values=torch.from_numpy(ids.astype(np.int64)),
            lengths=torch.from_numpy(lengths.astype(np.int32)),
        )
        dense = torch.from_numpy(random.normal(size=(BATCH, DENSE)).astype(np.float32))
        made.append((dense, sparse, torch.from_numpy((random.random(BATCH) < 0.4).astype(np.float32))))
    return made


class SideBySide(nn.Module):
    """Embeddings of any dimensions and dense features, concatenated, behind one linear layer."""

    def __init__(self, collection: nn.Module, width: int) -> None:
        super().__init__()
        self.collection = collection
        self.output = nn.Linear(width + DENSE, 1)

    def forward(self, dense: torch.Tensor, sparse: KeyedJaggedTensor) -> torch.Tensor:
        out: torch.Tensor = self.output(torch.cat([self.collection(sparse).values(), dense], dim=1))
        return out


def network(collection: nn.Module, spec: JobSpec) -> nn.Module:
    torch.manual_seed(1)
    if spec.tables:
        return SideBySide(collection, sum(spec.row_dimension(name) * len(FEATURES[name]) for name in FEATURES))
    return DLRM(collection, DENSE, dense_arch_layer_sizes=[16, DIMENSION], over_arch_layer_sizes=[16, 1])


def dense_names(model: nn.Module) -> list[nn.Parameter]:
    return [parameter for name, parameter in model.named_parameters() if "embedding_bags" not in name]


def train_with_torchrec(spec: JobSpec, steps: int) -> list[float]:
    rows, dense = spec.optimizers.rows, spec.optimizers.dense
    collection = EmbeddingBagCollection(tables=configs(spec))
    model = network(collection, spec)
    plan = plan_of_job(spec)
    for name, bag in collection.embedding_bags.items():
        table = plan.by_name[name]
        ids, reach = np.arange(VOCABULARY), table.initial_range
        values = initial_rows(ids, name, seed=5, initial_range=reach, dimension=table.dimension)
        bag.weight.data.copy_(torch.from_numpy(values))
    tables = [bag.weight for bag in collection.embedding_bags.values()]
    if rows.kind is OptimizerKind.ADAGRAD:
        row_optimizer: torch.optim.Optimizer = RowWiseAdagrad(tables, lr=rows.learning_rate, eps=rows.epsilon)
    else:
        row_optimizer = torch.optim.SGD(tables, lr=rows.learning_rate)
    dense_optimizer = {
        OptimizerKind.ADAM: torch.optim.Adam,
        OptimizerKind.ADAGRAD: torch.optim.Adagrad,
        OptimizerKind.SGD: torch.optim.SGD,
    }[dense.kind](dense_names(model), lr=dense.learning_rate)
    losses = []
    for numbers, sparse, labels in batches(steps):
        loss = nn.functional.binary_cross_entropy_with_logits(model(numbers, sparse).squeeze(1), labels)
        row_optimizer.zero_grad()
        dense_optimizer.zero_grad()
        loss.backward()
        row_optimizer.step()
        dense_optimizer.step()
        losses.append(loss.item())
    return losses


def train_remotely(spec: JobSpec, servers: int, steps: int) -> list[float]:
    with running_servers(spec, servers) as routing:
        client = ParameterClient(plan_of_job(spec), worker="w", incarnation="i", token=TOKEN)
        client.connect(routing, 1)
        collection = RemoteEmbeddingBagCollection(configs(spec), client)
        model = network(collection, spec)
        flat = FlatParameters(model)
        client.layout = flat.layout
        client.init_dense(flat.values)
        losses = []
        for numbers, sparse, labels in batches(steps):
            pulled = collection.prefetch(sparse, dense=True)
            pulled.dense(out=flat.values)
            flat.zero_gradients()
            loss = nn.functional.binary_cross_entropy_with_logits(model(numbers, sparse).squeeze(1), labels)
            loss.backward()
            left = collection.take_row_gradients()
            client.push(left.pulled, left.gradients, flat.gradients, BATCH, origin_of(len(losses)))
            losses.append(loss.item())
        client.flush()
        client.close()
    return losses


@pytest.mark.parametrize("servers", [1, 2, 3])
@pytest.mark.parametrize(
    ("rows", "dense"),
    [(OptimizerKind.ADAGRAD, OptimizerKind.ADAM), (OptimizerKind.SGD, OptimizerKind.ADAGRAD)],
)
def test_training_over_servers_takes_torchrecs_steps(servers: int, rows: OptimizerKind, dense: OptimizerKind) -> None:
    spec = job_spec(OptimizerSpec(kind=rows, learning_rate=0.05), OptimizerSpec(kind=dense, learning_rate=0.01))
    expected = train_with_torchrec(spec, steps=20)
    trained = train_remotely(spec, servers, steps=20)
    np.testing.assert_allclose(trained, expected, atol=1e-5)


@pytest.mark.parametrize("servers", [1, 3])
def test_tables_of_different_dimensions_take_torchrecs_steps(servers: int) -> None:
    rows, dense = (OptimizerSpec(kind=kind, learning_rate=0.05) for kind in (OptimizerKind.ADAGRAD, OptimizerKind.ADAM))
    spec = job_spec(rows, dense, item={"dimension": 3})
    assert [group.dimension for group in plan_of_job(spec).groups] == [DIMENSION, 3]
    np.testing.assert_allclose(train_remotely(spec, servers, steps=20), train_with_torchrec(spec, 20), atol=1e-5)


class Plain(nn.Module):
    """A collection without `pool_apart`."""

    def __init__(self, collection: RemoteEmbeddingBagCollection) -> None:
        super().__init__()
        self.collection = collection

    def forward(self, features: KeyedJaggedTensor) -> Any:
        return self.collection(features)


@pytest.mark.parametrize("servers", [1, 2])
@pytest.mark.parametrize("tables", [{}, {"item": {"dimension": 4}}], ids=["one dimension", "two dimensions"])
def test_separately_pooled_rows_equal_the_plain_output_and_get_the_same_gradients(
    servers: int, tables: dict[str, dict[str, int]]
) -> None:
    spec = job_spec(OptimizerSpec(kind="sgd", learning_rate=0.1), OptimizerSpec(kind="sgd"), **tables)
    with running_servers(spec, servers) as routing:
        client = ParameterClient(plan_of_job(spec), worker="w", incarnation="i", token=TOKEN)
        try:
            client.connect(routing, 1)
            collection = RemoteEmbeddingBagCollection(configs(spec), client)
            dense, sparse, _ = batches(1)[0]
            weights = torch.randn(3 + sum(collection(sparse).length_per_key()) - 3 + DENSE)
            found = []
            for given in (Plain(collection), collection):
                firsts, others = first_and_others(given, sparse, dense)
                ((firsts * weights[:3]).sum() + (others.square() * weights[3:]).sum()).backward()
                left = collection.take_row_gradients()
                found.append((firsts.detach(), others.detach(), left.gradients))
        finally:
            client.close()
    plain, apart = found
    assert torch.equal(plain[0], apart[0]) and torch.equal(plain[1], apart[1])
    assert torch.equal(apart[1][:, -DENSE:], dense)
    for expected, gradient in zip(plain[2], apart[2], strict=True):
        np.testing.assert_array_equal(expected, gradient)
        assert gradient.any()
