"""The processes of `migration`: role `server` of each parameter server, and `worker` of one that trains without pause.

The worker's model is a logistic regression on rows and a dense bias. It needs little time compared with the servers,
and has a loss and an AUC. Each step depends only on its number, so equal histories give equal parameters.
"""

from __future__ import annotations

import json
import logging
import sys
import threading
import time
from typing import Any

import msgspec
import numpy as np

from benchmarks.common.child import serve
from elastrec.platform.specs.job import JobSpec, Metadata, TrainingJob
from elastrec.platform.transport.messages.directive import RoutingTable, TakeOrder, WorkerProcess

TOKEN, BUCKETS, FEATURES, DIMENSION, BATCH = "benchmark", 256, 8, 64, 256
WORKER = WorkerProcess("w", "i")
_FILLED_AT_ONCE = 200_000
_SCORED, _ZIPF, _BIAS = 16, 1.05, 256

Array = np.ndarray[Any, Any]


def job() -> TrainingJob:
    """Tables of `DIMENSION` numbers in `BUCKETS` virtual buckets."""
    spec = {
        "model": {"architecture": "dlrm", "embedding_dimension": DIMENSION},
        "data": {
            "path": "none",
            "dense": [{"name": "d"}],
            "sparse": [{"name": f"c{number}"} for number in range(FEATURES)],
        },
        "optimizers": {"rows": {"kind": "adagrad", "learning_rate": 0.05}, "dense": {"kind": "adam"}},
        "resources": {"virtual_buckets": BUCKETS},
    }
    return TrainingJob(metadata=Metadata(name="benchmark"), spec=JobSpec.model_validate(spec))


class Server:
    """One parameter server with both sides of migration, as its pod has them; the parent says what a master would."""

    def __init__(self, name: str) -> None:
        from elastrec.platform.transport import RpcClient, RpcServer
        from elastrec.trainers.parameter_server.migration.giving import Giver
        from elastrec.trainers.parameter_server.migration.messages import ANSWERS
        from elastrec.trainers.parameter_server.migration.mover import Mover
        from elastrec.trainers.parameter_server.serving.server import ParameterServer
        from elastrec.trainers.parameter_server.warm_up import warm_kernels

        warm_kernels()
        self.server = ParameterServer(name, job().spec, granted_cores=1)
        handlers = {**self.server.array_handlers(), **Giver(self.server).array_handlers()}
        self.rpc = RpcServer({}, token=TOKEN, array_handlers=handlers)
        self.rpc.serve_in_background()
        self.mover = Mover(self.server, lambda address: RpcClient(address, TOKEN).open_stream(ANSWERS), lambda: None)

    def answer(self, request: dict[str, Any]) -> Any:
        do = request.pop("do")
        routing = msgspec.convert(request.pop("routing", None), RoutingTable | None)
        order = msgspec.convert(request.pop("order", None), TakeOrder | None)
        return getattr(self, do)(*[each for each in (order, routing) if each is not None], **request)

    def start(self, routing: RoutingTable) -> None:
        self.server.start_empty(routing, 1)

    def fill(self, rows: int) -> int:
        """Rows of so many ids of each table, where they are this server's; bytes of them."""
        from elastrec.trainers.parameter_server.hashing import buckets_of

        (store,), place = self.server.stores, self.server.place
        assert place is not None
        for table in range(FEATURES):
            name = self.server.plan.tables[table].name
            for first in range(0, rows, _FILLED_AT_ONCE):
                ids = np.arange(first, min(first + _FILLED_AT_ONCE, rows), dtype=np.int64)
                ids = ids[place.owned[buckets_of(ids, name, BUCKETS)]]
                counts = np.zeros(FEATURES, np.int32)
                counts[table] = len(ids)
                # A gradient of nothing: the row is as a worker finds it that sees its id for the first time.
                store.push(counts, ids, np.empty(0, np.int32), np.zeros((len(ids), DIMENSION), np.float32), 0.0)
        return sum(table.bytes for table in self.server.usage())

    def follow(self, order: TakeOrder) -> None:
        self.mover.follow(order, 1)

    def copied(self) -> str:
        return self.mover.copied

    def take_over(self, order: TakeOrder, routing: RoutingTable) -> bool:
        return self.mover.take_over(order, 1, routing, lambda: True)

    def adopt(self, routing: RoutingTable) -> None:
        self.server.adopt(routing, 1, [WORKER], -1, moves=True)

    def drop_left(self) -> None:
        self.server.drop_left()

    def save(self, uri: str) -> Any:
        from elastrec.trainers.parameter_server.records.share import save_part

        return msgspec.to_builtins(save_part(self.server, uri))

    def restore(self, routing: RoutingTable, uri: str, generation: int) -> None:
        from elastrec.trainers.parameter_server.records.share import restore

        restore(self.server, uri, routing, generation)


class Worker:
    """Trains in a separate thread, step after step, with the current routing.

    Args:
        rows: number of ids of each table.
    """

    def __init__(self, rows: int) -> None:
        from elastrec.trainers.embedding.client import ParameterClient
        from elastrec.trainers.parameter_server.messages import Parameter
        from elastrec.trainers.parameter_server.plan import plan_of_job

        self._rows, self._steps = rows, 0
        self._ends: list[float] = []
        self._losses: list[float] = []
        self._client = ParameterClient(
            plan_of_job(job().spec), worker=WORKER.pod, incarnation=WORKER.incarnation, token=TOKEN,
            layout=[Parameter("bias", (_BIAS,))], patience_seconds=60.0,
        )  # fmt: skip
        self._split, self._first = 0, 0
        self._most, self._thread = 0, threading.Thread()
        self._failure: Exception | None = None
        self._starts = np.arange(FEATURES, dtype=np.int64) * BATCH

    def answer(self, request: dict[str, Any]) -> Any:
        do = request.pop("do")
        routing = msgspec.convert(request.pop("routing", None), RoutingTable | None)
        return getattr(self, do)(*([] if routing is None else [routing]), **request)

    def connect(self, routing: RoutingTable, generation: int) -> None:
        # Restored servers know of no push before: the steps that follow are those of another split.
        self._split, self._first = generation, self._steps
        self._client.connect(routing, generation)
        self._client.init_dense(np.zeros(_BIAS, np.float32))

    def go(self, steps: int) -> None:
        """Trains from now on, up to a step."""
        self._most = steps
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> int:
        """Ends after the step that is under way; how many there were."""
        self._most = 0
        return self.wait()

    def wait(self) -> int:
        """Waits until the requested number of steps was taken; returns their number."""
        self._thread.join()
        if self._failure is not None:
            raise self._failure
        return self._steps

    def story(self) -> dict[str, Any]:
        """When each step ended, on the machine's clock, and its loss."""
        return {"ends": self._ends, "losses": self._losses}

    def _run(self) -> None:
        try:
            while self._steps < self._most:
                self._losses.append(self._step())
                self._steps += 1
                self._ends.append(time.monotonic())
        except Exception as error:
            self._failure = error

    def _batch(self, number: int) -> tuple[Array, Array]:
        """Ids [F * B] and labels [B] of one step."""
        random = np.random.default_rng(number)
        # Log-uniform ranks: the first ids of a table often, each of the others seldom.
        ranks = np.exp(random.random((FEATURES, BATCH)) ** _ZIPF * np.log(self._rows)).astype(np.int64) - 1
        truth = np.sin(ranks * 0.7 + np.arange(FEATURES)[:, None]).sum(axis=0)
        return ranks.reshape(-1), (random.random(BATCH) < 1 / (1 + np.exp(-truth))).astype(np.float32)

    def _forward(self, number: int, *, read_only: bool) -> tuple[Any, Array, Array, Array]:
        ids, labels = self._batch(number)
        routed = self._client.router.route(ids, self._starts, self._starts + BATCH, np.arange(FEATURES))
        pulled = self._client.pull(routed, read_only=read_only, dense=True)
        (rows,), bias = pulled.rows(), pulled.dense()
        # The ids of a batch are rows in the order of their routing: sums are taken in that of the batch.
        parts = rows.sum(axis=1)[routed.inverse].reshape(FEATURES, BATCH).astype(np.float64)
        logits = parts.sum(axis=0) / 8 + float(bias.astype(np.float64).mean())
        return pulled, routed.inverse, 1 / (1 + np.exp(-logits)), labels

    def _step(self) -> float:
        from elastrec.trainers.embedding.client import RoutingChangedError
        from elastrec.trainers.parameter_server.messages import Origin

        number = self._steps - self._first
        origin = Origin("training", self._split, 1, number, number + 1, is_first=number == 0, is_last=False)
        while True:
            try:
                pulled, inverse, scores, labels = self._forward(self._steps, read_only=False)
                (rows,) = pulled.rows()
                errors = np.tile(scores - labels, FEATURES)
                of_rows = np.bincount(inverse, errors, minlength=len(rows)) / 8 / BATCH
                gradient = np.repeat(of_rows.astype(np.float32)[:, None], DIMENSION, axis=1)
                dense = np.full(_BIAS, (scores - labels).mean() / _BIAS, np.float32)
                self._client.push(pulled, [gradient], [dense], BATCH, origin)
                break
            except RoutingChangedError as error:
                self._follow(error)
        while True:
            try:
                self._client.flush()
                break
            except RoutingChangedError as error:
                self._follow(error)
        return float(-np.log(np.where(labels > 0, scores, 1 - scores) + 1e-12).mean())

    def _follow(self, error: Any) -> None:
        """As the worker's loop does: gets the newer routing table from the server."""
        if error.routing is None:
            raise error
        self._client.connect(error.routing, 1)

    def auc(self) -> float:
        """On steps that are never trained."""
        from sklearn.metrics import roc_auc_score

        found = [self._forward(-1 - number + 2**31, read_only=True)[2:] for number in range(_SCORED)]
        scores, labels = (np.concatenate(each) for each in zip(*found, strict=True))
        return float(roc_auc_score(labels, scores))


def main() -> None:
    import structlog

    from elastrec.platform.transport.server import end_process

    structlog.configure(
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING),
    )
    role, argument = sys.argv[1], json.loads(sys.argv[2])
    if role == "server":
        server = Server(argument)
        serve(server.answer, {"address": server.rpc.address})
    else:
        serve(Worker(argument).answer, {})
    end_process(0)


if __name__ == "__main__":
    main()
