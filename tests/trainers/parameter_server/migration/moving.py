"""Servers on real sockets that exchange buckets while a worker trains."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from elastrec.platform.specs.buckets import balanced_owners
from elastrec.platform.specs.job import TrainingJob
from elastrec.platform.transport import ArrayStream, RpcClient, RpcServer
from elastrec.platform.transport.messages.directive import RoutingTable, TakeFrom, TakeOrder, WorkerProcess
from elastrec.trainers.embedding.client import ParameterClient, RoutingChangedError
from elastrec.trainers.parameter_server.dense.store import DenseBucket
from elastrec.trainers.parameter_server.messages import Parameter
from elastrec.trainers.parameter_server.migration.giving import Giver
from elastrec.trainers.parameter_server.migration.messages import ANSWERS
from elastrec.trainers.parameter_server.migration.taking import Taker
from elastrec.trainers.parameter_server.plan import plan_of_job
from elastrec.trainers.parameter_server.serving.server import ParameterServer
from tests.splits import origin_of
from tests.trainers.parameter_server.filled import contents
from tests.trainers.parameter_server.running import TOKEN, training_job

BUCKETS = 64
JOB = training_job(
    optimizers={"rows": {"kind": "adagrad"}, "dense": {"kind": "adam", "learning_rate": 0.05}},
    resources={"virtual_buckets": BUCKETS},
)
LAYOUT = [Parameter("over.weight", (29, 7)), Parameter("over.bias", (29,)), Parameter("scale", (1,))]
START = np.linspace(-1, 1, 29 * 8 + 1).astype(np.float32)
WORKER = WorkerProcess("w", "i")
SHAPES = (2, 4, 3, 1, 2)
"""Numbers of servers, one after the other."""


class Cluster:
    """Servers behind real sockets; `routing` is in force."""

    def __init__(self, count: int, job: TrainingJob, members: Sequence[WorkerProcess]) -> None:
        self.members = members
        names = [f"ps-{index}" for index in range(count)]
        self.servers = {name: ParameterServer(name, job.spec, granted_cores=2) for name in names}
        self.givers = {name: Giver(server) for name, server in self.servers.items()}
        self.rpcs = {
            name: RpcServer(
                {}, token=TOKEN, array_handlers={**server.array_handlers(), **self.givers[name].array_handlers()}
            )
            for name, server in self.servers.items()
        }
        for rpc in self.rpcs.values():
            rpc.serve_in_background()
        self.routing = RoutingTable(epoch=0, owners=[], servers=[], addresses=[])
        self.streams: list[ArrayStream] = []

    def table(self, count: int, before: Sequence[int]) -> RoutingTable:
        """The first so many servers own everything; as few buckets as possible move."""
        kept: list[int | None] = [owner if owner < count else None for owner in before]
        owners = balanced_owners(BUCKETS, count, kept)
        names = list(self.servers)[:count]
        return RoutingTable(
            epoch=self.routing.epoch + 1, owners=owners, servers=names,
            addresses=[self.rpcs[name].address for name in names], dense_owners=list(owners),
        )  # fmt: skip

    def start(self, count: int) -> None:
        self.routing = self.table(count, [])
        for name in self.routing.servers:
            self.servers[name].start_empty(self.routing, 1)

    def orders(self, after: RoutingTable) -> dict[str, TakeOrder]:
        """What each server is to take from which other ones."""
        before, found = self.routing, {}
        for taker, name in enumerate(after.servers):
            sources = []
            for giver, other in enumerate(before.servers):
                buckets = [b for b in range(BUCKETS) if before.owners[b] == giver and after.owners[b] == taker]
                if other != name and buckets:
                    sources.append(TakeFrom(other, self.rpcs[other].address, buckets, buckets))
            if sources:
                found[name] = TakeOrder(f"move-{after.epoch}", sources)
        return found

    def connect(self, address: str) -> ArrayStream:
        self.streams.append(RpcClient(address, TOKEN).open_stream(ANSWERS))
        return self.streams[-1]

    def move(
        self, count: int, rounds: int = 3, between: Callable[[], None] = lambda: None, *, is_heard_of: bool = True
    ) -> None:
        """Distributes all buckets over a number of servers while they serve.

        Args:
            is_heard_of: whether servers get the directive that the change is over.
        """
        for name, server in self.servers.items():
            if name not in self.routing.servers and server.model is not None:
                server.forget()
        after = self.table(count, self.routing.owners)
        takers = [Taker(self.servers[name], order, 1, self.connect) for name, order in self.orders(after).items()]
        for _ in range(rounds):
            for taker in takers:
                taker.copy_round()
            between()
        for taker in takers:
            taker.take_over(after)
        for name, server in self.servers.items():
            if name in after.servers:
                server.adopt(after, 1, self.members, -1, moves=True)
            # One that has given everything away goes on until the next move: workers learn from it where that went.
            if is_heard_of:
                server.drop_left_before(after.epoch, "")
        self.routing = after

    def held(self) -> list[DenseBucket]:
        stores = [server.dense for server in self.servers.values() if server.dense is not None]
        found = [bucket for store in stores for bucket in store.copies(np.flatnonzero(store.owned).tolist())]
        return sorted(found, key=lambda bucket: bucket.number)

    def close(self) -> None:
        for stream in self.streams:
            stream.close()
        for rpc in self.rpcs.values():
            rpc.shutdown()


@contextmanager
def cluster(
    servers: int = max(SHAPES),
    start: int = SHAPES[0],
    *,
    job: TrainingJob = JOB,
    members: Sequence[WorkerProcess] = (WORKER,),
) -> Iterator[Cluster]:
    made = Cluster(servers, job, members)
    try:
        made.start(start)
        yield made
    finally:
        made.close()


class Worker:
    """Steps whose gradients follow from what was pulled, so that equal parameters need equal histories."""

    def __init__(self, routing: RoutingTable, *, name: str = "w", job: TrainingJob = JOB) -> None:
        self.client = ParameterClient(
            plan_of_job(job.spec), worker=name, incarnation="i", token=TOKEN, layout=LAYOUT, patience_seconds=30.0
        )
        self.client.connect(routing, 1)
        self.client.init_dense(START)
        self.steps = 0

    def step(self) -> None:
        while True:
            try:
                ids = np.concatenate([np.arange(300), self.steps % 7 + 13 * np.arange(300)]).astype(np.int64)
                routed = self.client.router.route(ids, np.array([0, 300]), np.array([300, 600]), np.arange(2))
                pulled = self.client.pull(routed, dense=True)
                dense, rows = pulled.dense().copy(), pulled.rows()
                gradient = np.sin(dense) + self.steps
                self.client.push(
                    pulled, [np.cos(part) for part in rows], [gradient[:100], gradient[100:]], 20, origin_of(self.steps)
                )
                break
            except RoutingChangedError as error:
                self.follow(error)
        self.steps += 1
        while True:
            try:
                return self.client.flush()
            except RoutingChangedError as error:
                self.follow(error)

    def follow(self, error: RoutingChangedError) -> None:
        if error.routing is None:
            raise error
        self.client.connect(error.routing, 1)


def same(mine: Cluster, theirs: Cluster) -> None:
    """The same rows, state, versions aside, dense values, state and steps, and marks of the same pushes."""
    left, right = (contents(list(each.servers.values()), versions=False) for each in (mine, theirs))
    assert len(left) > 1000
    assert left == right
    assert len(mine.held()) == BUCKETS
    for one, other in zip(mine.held(), theirs.held(), strict=True):
        assert (one.number, one.steps) == (other.number, other.steps)
        np.testing.assert_array_equal(one.values, other.values)
        np.testing.assert_array_equal(one.state, other.state)


def check_as_without_moves(worker: Worker, moved: Cluster) -> None:
    """Ends the worker; one that takes the same steps on a server that keeps everything has the same parameters."""
    with cluster(1, 1) as still:
        control = Worker(still.routing)
        for _ in range(worker.steps):
            control.step()
        worker.client.close()
        control.client.close()
        same(moved, still)
