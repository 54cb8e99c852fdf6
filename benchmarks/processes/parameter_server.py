"""The three processes of `parameter_server`: roles `server`, `worker` and `torchrec`."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from elastrec.platform.specs.job import JobSpec

DENSE, FEATURES, ROW, TOKEN = 13, 26, 16, "benchmark"
NAMES = [f"c{index}" for index in range(FEATURES)]
_ROW_RATE, _DENSE_RATE = 0.02, 0.001


def job_of(network: str) -> JobSpec:
    """The job file of the remote side; Wide & Deep has its wide weight in the row."""
    return JobSpec.model_validate(
        {
            "model": {"architecture": network, "embedding_dimension": ROW - (network == "wide_and_deep")},
            "data": {
                "path": "none",
                "dense": [{"name": f"d{index}"} for index in range(DENSE)],
                "sparse": [{"name": name} for name in NAMES],
            },
            "optimizers": {
                "rows": {"kind": "adagrad", "learning_rate": _ROW_RATE},
                "dense": {"kind": "adam", "learning_rate": _DENSE_RATE},
            },
        }
    )


def serve(answers: Callable[[dict[str, Any]], Any], hello: Any) -> None:
    """Answers lines of JSON until the parent closes the pipe."""
    print(json.dumps(hello), flush=True)
    for line in sys.stdin:
        print(json.dumps(answers(json.loads(line))), flush=True)


def run_server(network: str, rows: int) -> None:
    import structlog

    from elastrec.platform.transport import RpcServer
    from elastrec.platform.transport.messages.directive import RoutingTable
    from elastrec.platform.transport.server import end_process
    from elastrec.trainers.parameter_server.serving.server import ParameterServer
    from elastrec.trainers.parameter_server.warm_up import warm_kernels

    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    warm_kernels()
    server = ParameterServer("ps-0", job_of(network))
    spent: dict[str, float] = {}

    def timed(name: str, handler: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            before = time.thread_time()
            answer = handler(*arguments)
            spent[name] = spent.get(name, 0.0) + time.thread_time() - before
            return answer

        return call

    handlers = {kind: timed(f"server: {kind.__name__}", handler) for kind, handler in server.array_handlers().items()}
    rpc = RpcServer({}, token=TOKEN, array_handlers=handlers)
    rpc.serve_in_background()
    server.start_empty(RoutingTable(epoch=1, owners=[0] * 256, servers=["ps-0"], addresses=[rpc.address]), 1)
    ids = np.arange(rows // FEATURES, dtype=np.int64)
    for table in range(FEATURES):
        counts = np.zeros(FEATURES, np.int32)
        counts[table] = len(ids)
        server.stores[0].push(counts, ids, np.empty(0, np.int32), np.zeros((len(ids), ROW), np.float32), 0.0)

    def answer(request: dict[str, Any]) -> dict[str, float]:
        seconds = dict(spent)
        if request["reset"]:
            spent.clear()
        return seconds

    serve(answer, {"address": rpc.address})
    end_process(0)


def _batches(batch: int, rows: int) -> list[Any]:
    """(dense, KeyedJaggedTensor, labels) from one id per feature, Zipf over shuffled ids."""
    import torch
    from torchrec import KeyedJaggedTensor

    random = np.random.default_rng(0)
    vocabulary = rows // FEATURES
    cumulated = np.cumsum(np.arange(1, vocabulary + 1, dtype=np.float64) ** -1.1)
    # Frequent ids lie anywhere in a table, as hashed ids do.
    shuffled = random.permutation(vocabulary)
    batches = []
    for _ in range(max(8, 32768 // batch)):
        ranks = np.searchsorted(cumulated, random.random(FEATURES * batch) * cumulated[-1])
        sparse = KeyedJaggedTensor.from_lengths_sync(
            NAMES,
            torch.from_numpy(shuffled[np.minimum(ranks, vocabulary - 1)]),
            torch.ones(FEATURES * batch, dtype=torch.int32),
        )
        dense = torch.from_numpy(random.normal(size=(batch, DENSE)).astype(np.float32))
        batches.append((dense, sparse, torch.from_numpy((random.random(batch) < 0.3).astype(np.float32))))
    return batches


def _tables(rows: int) -> list[Any]:
    from torchrec import EmbeddingBagConfig

    return [
        EmbeddingBagConfig(name=name, embedding_dim=ROW, num_embeddings=rows // FEATURES, feature_names=[name])
        for name in NAMES
    ]


def _network(network: str, collection: Any) -> Any:
    """The same module around either collection."""
    import torch
    from torchrec.models.dlrm import DLRM

    from elastrec.trainers.models.schema import FeatureSchema
    from elastrec.trainers.models.wide_and_deep import WideAndDeep

    torch.manual_seed(0)
    if network == "dlrm":
        return DLRM(collection, DENSE, [512, 256, 64, ROW], [512, 256, 1])
    names = tuple(f"d{index}" for index in range(DENSE))
    return WideAndDeep(collection, FeatureSchema(names, tuple(NAMES), ROW - 1))


def run_worker(network: str, batch: int, rows: int, address: str) -> None:
    import torch
    from torch import nn

    from elastrec.platform.transport.messages.directive import RoutingTable
    from elastrec.trainers.embedding.client import ParameterClient
    from elastrec.trainers.embedding.dense import FlatParameters
    from elastrec.trainers.embedding.module import RemoteEmbeddingBagCollection
    from elastrec.trainers.parameter_server.messages import Origin
    from elastrec.trainers.parameter_server.plan import plan_of_job

    torch.set_num_threads(1)
    client = ParameterClient(plan_of_job(job_of(network)), worker="w", incarnation="i", token=TOKEN)
    client.connect(RoutingTable(epoch=1, owners=[0] * 256, servers=["ps-0"], addresses=[address]), 1)
    collection = RemoteEmbeddingBagCollection(_tables(rows), client)
    model = _network(network, collection)
    flat = FlatParameters(model)
    client.layout = flat.layout
    client.init_dense(flat.values)
    loss_of = nn.BCEWithLogitsLoss()
    batches = _batches(batch, rows)
    at = 0
    ahead = collection.prefetch(batches[0][1], dense=True)

    def train(request: dict[str, Any]) -> dict[str, float]:
        """Takes the steps of the worker's loop, with the next pull during the computation of a batch.

        At the end of a slice, the next pull is still in progress, and the last push is sent with it, so a slice costs
        as much as its steps.
        """
        nonlocal at, ahead
        clock = time.thread_time
        ask = load = compute = push = 0.0
        began = clock()
        for _ in range(request["steps"]):
            numbers, sparse, labels = batches[at % len(batches)]
            pulled, at = ahead, at + 1
            moments = [clock()]
            ahead = collection.prefetch(batches[at % len(batches)][1], dense=True)
            moments.append(clock())
            pulled.dense(out=flat.values)
            pulled.rows()
            moments.append(clock())
            flat.zero_gradients()
            loss_of(model(numbers, sparse).squeeze(-1), labels).backward()
            moments.append(clock())
            left = collection.take_row_gradients()
            origin = Origin("training", 0, 1, at - 1, at, is_first=at == 1, is_last=False)
            client.push(left.pulled, left.gradients, flat.gradients, batch, origin, hold=True)
            moments.append(clock())
            spent = np.diff(moments)
            ask, load, compute, push = ask + spent[0], load + spent[1], compute + spent[2], push + spent[3]
        return {
            "worker: route and ask": ask,
            "worker: wait and load": load,
            "worker: forward and backward": compute,
            "worker: push": push,
            "main_thread": clock() - began,
        }

    serve(train, {})
    client.close()


def run_torchrec(network: str, batch: int, rows: int) -> None:
    import torch
    from torch import nn
    from torchrec.modules.fused_embedding_modules import FusedEmbeddingBagCollection
    from torchrec.optim.rowwise_adagrad import RowWiseAdagrad

    torch.set_num_threads(1)
    collection = FusedEmbeddingBagCollection(
        _tables(rows),
        optimizer_type=RowWiseAdagrad,
        optimizer_kwargs={"lr": _ROW_RATE},
        device=torch.device("cpu"),
    )
    model = _network(network, collection)
    dense = [value for name, value in model.named_parameters() if "embedding_bag" not in name]
    # torch's fastest Adam on CPU.
    optimizer = torch.optim.Adam(dense, lr=_DENSE_RATE, fused=True)
    loss_of = nn.BCEWithLogitsLoss()
    batches = _batches(batch, rows)
    at = 0

    def train(request: dict[str, Any]) -> dict[str, float]:
        nonlocal at
        clock = time.thread_time
        compute = update = 0.0
        for _ in range(request["steps"]):
            numbers, sparse, labels = batches[at % len(batches)]
            at += 1
            began = clock()
            optimizer.zero_grad()
            loss_of(model(numbers, sparse).squeeze(-1), labels).backward()
            computed = clock()
            optimizer.step()
            compute, update = compute + computed - began, update + clock() - computed
        return {"forward, backward and row updates": compute, "dense optimizer": update}

    serve(train, {})


if __name__ == "__main__":
    role, network, batch, rows = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    if role == "server":
        run_server(network, rows)
    elif role == "worker":
        run_worker(network, batch, rows, sys.argv[5])
    else:
        run_torchrec(network, batch, rows)
