"""The processes of `many_servers`: role `server` many times, and `worker` once."""

from __future__ import annotations

import json
import math
import sys
import time
from itertools import pairwise
from typing import Any

import numpy as np

from benchmarks.common.child import serve
from benchmarks.processes.parameter_server import DENSE, FEATURES, ROW, TOKEN, job_of

VOCABULARY = 20_000
"""Ids of each table."""
_BATCHES = 16


def routing_of(addresses: list[str]) -> Any:
    """Buckets dealt out in turn."""
    from elastrec.platform.transport.messages.directive import RoutingTable

    count = len(addresses)
    return RoutingTable(
        epoch=1,
        owners=[bucket % count for bucket in range(256)],
        servers=[f"ps-{number}" for number in range(count)],
        addresses=addresses,
    )


def run_server(number: int, is_local: bool, sides: list[int]) -> None:
    """Runs one server for each side that has at least that many; sides alternate, so the largest side determines the
    number of processes.

    Args:
        number: number of this process among the servers of a side.
        sides: numbers of servers.
    """
    import structlog

    from elastrec.platform.transport import RpcServer
    from elastrec.platform.transport.server import end_process
    from elastrec.trainers.parameter_server.serving.server import ParameterServer
    from elastrec.trainers.parameter_server.warm_up import warm_kernels

    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    warm_kernels()
    addresses = {}
    for count in sides:
        server = ParameterServer(f"ps-{number}", job_of("dlrm"), capacity_rows=2 * FEATURES * VOCABULARY)
        rpc = RpcServer({}, token=TOKEN, array_handlers=server.array_handlers(), local_streams=is_local)
        rpc.serve_in_background()
        server.start_empty(routing_of(["nowhere:1"] * number + [rpc.address] + ["nowhere:1"] * (count - number - 1)), 1)
        addresses[count] = rpc.address
    serve(lambda request: {}, addresses)
    end_process(0)


def dense_shapes() -> list[tuple[int, ...]]:
    """Of the parameters of torchrec's DLRM with `DENSE` numbers and `FEATURES` rows of `ROW` numbers."""
    bottom = [DENSE, 512, 256, 64, ROW]
    top = [ROW + math.comb(FEATURES + 1, 2), 512, 256, 1]
    return [
        shape
        for layers in (bottom, top)
        for inputs, outputs in pairwise(layers)
        for shape in ((outputs, inputs), (outputs,))
    ]


def minibatches(batch: int) -> list[np.ndarray]:
    """Ids [FEATURES * batch] of minibatches, feature by feature, Zipf over shuffled ids."""
    random = np.random.default_rng(0)
    cumulated = np.cumsum(np.arange(1, VOCABULARY + 1, dtype=np.float64) ** -1.1)
    shuffled = random.permutation(VOCABULARY)
    ranks = [np.searchsorted(cumulated, random.random(FEATURES * batch) * cumulated[-1]) for _ in range(_BATCHES)]
    return [shuffled[np.minimum(each, VOCABULARY - 1)] for each in ranks]


class Side:
    """The steps of a worker's loop with a number of servers, without the forward and backward pass of the network.

    Gradients are made once, because their values do not affect the costs.
    """

    def __init__(self, addresses: list[str], batches: list[np.ndarray]) -> None:
        from elastrec.trainers.embedding.client import ParameterClient
        from elastrec.trainers.parameter_server.messages import Parameter
        from elastrec.trainers.parameter_server.plan import plan_of_job

        layout = [Parameter(f"p{number}", shape) for number, shape in enumerate(dense_shapes())]
        self._client = ParameterClient(
            plan_of_job(job_of("dlrm")), worker="w", incarnation="i", token=TOKEN, layout=layout
        )
        self._client.connect(routing_of(addresses), 1)
        sizes = [math.prod(shape) for shape in dense_shapes()]
        self._values = np.zeros(sum(sizes), np.float32)
        self._client.init_dense(self._values)
        self._gradient = [np.full(size, 1e-6, np.float32) for size in sizes]
        self._batches = batches
        self._batch = len(batches[0]) // FEATURES
        self._rows = np.full((len(batches[0]), ROW), 1e-6, np.float32)
        self._starts = np.arange(FEATURES, dtype=np.int64) * self._batch
        self._tables = np.arange(FEATURES, dtype=np.int64)
        self._taken = 0
        self._ahead = self._pull(0)

    def _pull(self, number: int) -> Any:
        ids = self._batches[number % len(self._batches)]
        routed = self._client.router.route(ids, self._starts, self._starts + self._batch, self._tables)
        return self._client.pull(routed, dense=True)

    def step(self) -> None:
        from elastrec.trainers.parameter_server.messages import Origin

        pulled, number = self._ahead, self._taken
        self._ahead, self._taken = self._pull(number + 1), number + 1
        pulled.dense(out=self._values)
        (rows,) = pulled.rows()
        origin = Origin("training", 0, 1, number, number + 1, is_first=number == 0, is_last=False)
        self._client.push(pulled, [self._rows[: len(rows)]], self._gradient, self._batch, origin, hold=True)

    def close(self) -> None:
        self._client.close()


def run_worker(batch: int, addresses: dict[str, list[str]]) -> None:
    batches = minibatches(batch)
    sides = {count: Side(each, batches) for count, each in addresses.items()}

    def train(request: dict[str, Any]) -> dict[str, float]:
        """CPU seconds of the process and of its main thread."""
        side = sides[str(request["servers"])]
        process, main = time.process_time(), time.thread_time()
        for _ in range(request["steps"]):
            side.step()
        return {"cpu": time.process_time() - process, "main_thread": time.thread_time() - main}

    serve(train, {})
    for side in sides.values():
        side.close()


if __name__ == "__main__":
    if sys.argv[1] == "server":
        run_server(int(sys.argv[2]), json.loads(sys.argv[3]), json.loads(sys.argv[4]))
    else:
        run_worker(int(sys.argv[2]), json.loads(sys.argv[3]))
