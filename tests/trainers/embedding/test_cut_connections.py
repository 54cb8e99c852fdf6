"""Connections cut between any two messages, changes of epochs, restarts of workers: each push is applied once.

At every position of a short training, the message is lost before its server receives it, or its answer afterwards. The
server is unreachable for longer than the client waits, so that the worker gets an error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
import numpy as np
import pytest

from elastrec.platform.specs.errors import TransportError
from elastrec.platform.transport import RpcServer
from elastrec.platform.transport.messages.directive import RoutingTable, WorkerProcess
from elastrec.trainers.embedding.client import ParameterClient, RoutingChangedError
from elastrec.trainers.parameter_server.messages import WHOLE, GetStats, Parameter
from elastrec.trainers.parameter_server.plan import plan_of_job
from elastrec.trainers.parameter_server.serving.server import ParameterServer
from elastrec.trainers.parameter_server.warm_up import warm_kernels
from tests.splits import origin_of
from tests.trainers.parameter_server.moving import hand_over
from tests.trainers.parameter_server.running import DIMENSION, TOKEN, job_spec, routing_of

SGD = {"rows": {"kind": "sgd", "learning_rate": 1.0}, "dense": {"kind": "sgd", "learning_rate": 1.0}}
LAYOUT = [Parameter("w", (6,))]
STEPS, SERVERS, BATCH = 3, 2, 20
IDS = np.arange(16)
PATIENCE_SECONDS = 0.03


@pytest.fixture(autouse=True, scope="module")
def _warm() -> None:
    """A kernel that compiles in the middle of a push would look like a server out of reach."""
    warm_kernels()


class Cut:
    """Drops the messages of one server from the n-th on, until `repaired`.

    Args:
        after: whether the first message is received and only its answer is lost.
    """

    def __init__(self, server: int, message: int, *, after: bool) -> None:
        self.server, self.message, self.after = server, message, after
        self.seen, self.is_away = 0, False

    def handle(self, take: Callable[..., Any], message: Any, arrays: Any) -> Any:
        number, self.seen = self.seen, self.seen + 1
        if number == self.message:
            self.is_away = True
            if self.after:
                take(message, arrays)
        if self.is_away:
            raise TransportError("the connection was cut", retryable=True)
        return take(message, arrays)

    def repaired(self) -> None:
        self.is_away = False


@contextmanager
def servers_behind(cut: Cut, mode: str = "async") -> Iterator[tuple[RoutingTable, list[ParameterServer]]]:
    spec = spec_of(mode)
    servers = [ParameterServer(f"ps-{index}", spec, capacity_rows=1000) for index in range(SERVERS)]
    rpcs = []
    for index, server in enumerate(servers):
        handlers = server.array_handlers()
        if index == cut.server:
            handlers = {
                kind: (lambda message, arrays, take=take: cut.handle(take, message, arrays))
                for kind, take in handlers.items()
            }
        rpcs.append(RpcServer({}, token=TOKEN, array_handlers=handlers))
    for rpc in rpcs:
        rpc.serve_in_background()
    routing = routing_of([rpc.address for rpc in rpcs], buckets=spec.resources.virtual_buckets)
    for server in servers:
        server.start_empty(routing, 1)
    try:
        yield routing, servers
    finally:
        for rpc in rpcs:
            rpc.shutdown()


def spec_of(mode: str = "async") -> Any:
    training = {"batch_size": BATCH, "consistency": {"mode": mode}}
    return job_spec(optimizers=SGD, training=training, resources={"worker": {"count": 1}})


def client_of(incarnation: str = "i") -> ParameterClient:
    return ParameterClient(
        plan_of_job(spec_of()),
        worker="w",
        incarnation=incarnation,
        token=TOKEN,
        layout=LAYOUT,
        patience_seconds=PATIENCE_SECONDS,
    )


def step(client: ParameterClient, place: int, *, hold: bool) -> None:
    """Pulls all rows and pushes a gradient of ones for each of them."""
    count = len(IDS) // 2
    routed = client.router.route(IDS, np.array([0, count]), np.array([count, 2 * count]), np.arange(2))
    pulled = client.pull(routed, dense=True)
    rows, _ = pulled.rows(), pulled.dense()
    client.push(
        pulled,
        [np.ones_like(part) for part in rows],
        [np.ones(6, np.float32)],
        BATCH,
        origin_of(place, rows=BATCH, is_last=place == STEPS - 1),
        hold=hold,
    )


def train(
    client: ParameterClient,
    routing: Callable[[], RoutingTable],
    on_loss: Callable[[], object],
    *,
    hold: bool = False,
    first: int = 0,
) -> int:
    """Trains the split as the worker's loop does; returns how often something was lost."""
    place, losses, is_connected, is_initialised = first, 0, False, False
    while True:
        try:
            if not is_connected:
                client.connect(routing(), 1)
                is_connected = True
            if not is_initialised:
                client.init_dense(np.zeros(6, np.float32))
                is_initialised = True
            if place == STEPS:
                client.leave()
                assert client.pushes_applied == STEPS - first
                return losses
            step(client, place, hold=hold)
            place += 1
        except RoutingChangedError:
            losses += 1
            client.drop()
            is_connected = False
            on_loss()


def check(servers: list[ParameterServer], pushes: int = STEPS) -> None:
    """Every row and every dense element has taken every step once."""
    initial = job_rows(spec_of())
    for server in servers:
        assert server.dense is not None
        assert (server.dense.steps, server.stats(GetStats()).pushes) == (STEPS, pushes)
        np.testing.assert_array_equal(server.dense.values, -np.full(3, STEPS))
        assert server.pushes.marks.offset(origin_of(0).split) == WHOLE
        assert not server.pushes.waiting
    np.testing.assert_allclose(rows_of(servers), initial - STEPS, atol=1e-5)


def rows_of(servers: list[ParameterServer]) -> np.ndarray:
    """Rows of all ids, ordered by table and id, from whatever server holds them."""
    found = np.full((len(IDS), DIMENSION), np.nan, np.float32)
    half = len(IDS) // 2
    for server in servers:
        store = server.stores[0]
        for table in range(2):
            ids = IDS[table * half : (table + 1) * half]
            for place, number in enumerate(ids.tolist()):
                counts = np.array([1 - table, table], np.int32)
                lookup = store.look_up(counts, np.array([number]))
                if not lookup.foreign:
                    found[table * half + place] = store.pull(counts, np.array([number]), read_only=False)[0][0]
    return found


def job_rows(spec: Any) -> np.ndarray:
    """First values of all rows."""
    server = ParameterServer("ps-0", spec, capacity_rows=1000)
    server.start_empty(routing_of(["here:1"], buckets=spec.resources.virtual_buckets), 1)
    return rows_of([server])


MESSAGES = 2 + 2 * STEPS + 1
"""What one server gets when nothing is lost, and some more: InitDense, a pull and a push per step, Leave."""


@pytest.mark.parametrize(("mode", "hold"), [("async", True), ("async", False), ("ssp", True), ("bsp", False)])
@pytest.mark.parametrize("after", [True, False])
def test_a_connection_cut_between_any_two_messages_loses_and_repeats_no_push(
    mode: str, hold: bool, after: bool
) -> None:
    losses = 0
    for server in range(SERVERS):
        for message in range(MESSAGES):
            cut = Cut(server, message, after=after)
            with servers_behind(cut, mode) as (routing, servers):
                client = client_of()
                losses += train(client, lambda: routing, cut.repaired, hold=hold)
                client.close()
                check(servers)
    assert losses >= SERVERS * (STEPS + 2), "connections were lost"


@pytest.mark.parametrize("after", [True, False])
def test_a_worker_that_begins_its_shard_again_counts_once(after: bool) -> None:
    """Another process trains the same rows, as after a lost worker: it computes their gradients anew."""
    for server in range(SERVERS):
        for message in range(1, MESSAGES):
            cut = Cut(server, message, after=after)
            with servers_behind(cut) as (routing, servers):
                first = client_of("first")

                def give_up() -> None:
                    raise InterruptedError

                try:
                    train(first, lambda: routing, give_up)
                except InterruptedError:
                    cut.repaired()
                first.close()
                second = client_of("second")
                train(second, lambda: routing, cut.repaired)
                second.close()
                check(servers)


class Epoch(Cut):
    """Instead of losing a message, the epoch changes before it is taken, or after."""

    def __init__(self, message: int, *, after: bool) -> None:
        super().__init__(1, message, after=after)
        self.servers: list[ParameterServer] = []
        self.routing: RoutingTable | None = None

    def handle(self, take: Callable[..., Any], message: Any, arrays: Any) -> Any:
        number, self.seen = self.seen, self.seen + 1
        if number != self.message:
            return take(message, arrays)
        answer = take(message, arrays) if self.after else None
        assert self.routing is not None
        self.routing = msgspec.structs.replace(self.routing, epoch=2)
        for server in self.servers:
            server.adopt(self.routing, 1, [WorkerProcess("w", "i")], 0)
        return answer or take(message, arrays)


@pytest.mark.parametrize("after", [True, False])
@pytest.mark.parametrize("message", range(1, MESSAGES - 2))
def test_an_epoch_change_between_any_two_messages_loses_no_push_and_no_connection(message: int, after: bool) -> None:
    epoch = Epoch(message, after=after)
    with servers_behind(epoch) as (routing, servers):
        epoch.servers, epoch.routing = servers, routing
        client = client_of()
        client.connect(routing, 1)
        lanes = list(client._lanes.values())
        streams: list[Any] = []

        def note() -> None:
            streams.append([lane._watched for lane in lanes])

        def newest() -> RoutingTable:
            assert epoch.routing is not None
            return epoch.routing

        assert train(client, newest, note)
        streams.append([lane._watched for lane in client._lanes.values()])
        assert list(client._lanes.values()) == lanes
        assert all(seen == streams[0] for seen in streams)
        client.close()
        check(servers)


@pytest.mark.parametrize("applied_at", ["none", "one", "both"])
def test_an_unapplied_push_follows_its_rows_to_their_new_owners(applied_at: str) -> None:
    """Half of all buckets change owners while a push is under way, with their marks; each row gets it once."""
    cut = Cut(1, 0, after=applied_at == "both")
    cut.seen = -1000
    with servers_behind(cut) as (routing, servers):
        client = client_of()
        client.connect(routing, 1)
        client.init_dense(np.zeros(6, np.float32))
        if applied_at != "none":
            step(client, 0, hold=True)
            cut.seen = cut.message
            client.release()
            with pytest.raises(RoutingChangedError):
                client.flush()
            client.drop()
        else:
            step(client, 0, hold=True)
        other = msgspec.structs.replace(
            routing,
            epoch=2,
            owners=[(bucket // 2) % 2 for bucket in range(len(routing.owners))],
            dense_owners=[bucket // 32 % 2 for bucket in range(len(routing.dense_owners))],
        )
        hand_over(servers, other)
        cut.repaired()
        client.connect(other, 1)
        client.flush()
        assert client.pushes_applied == 1
        for place in range(1, STEPS):
            step(client, place, hold=False)
        client.leave()
        client.close()
        np.testing.assert_allclose(rows_of(servers), job_rows(spec_of()) - STEPS, atol=1e-5)
        for server in servers:
            assert server.dense is not None
            np.testing.assert_array_equal(server.dense.values, np.full_like(server.dense.values, -STEPS))
            buckets = server.dense.copies(np.flatnonzero(server.dense.owned).tolist())
            assert {bucket.steps for bucket in buckets} == {STEPS}
        assert all(len(server.pushes.marks.values()) == 1 for server in servers)


def test_an_unapplied_push_is_discarded_with_its_generation() -> None:
    with servers_behind(Cut(1, -1, after=False)) as (routing, servers):
        client = client_of()
        client.connect(routing, 1)
        client.init_dense(np.zeros(6, np.float32))
        step(client, 0, hold=True)
        for server in servers:
            server.start_empty(routing, 2)
        client.connect(routing, 2)
        assert client.pushes_applied == 1, "those that are lost are counted"
        client.init_dense(np.zeros(6, np.float32))
        client.join()
        assert [server.stats(GetStats()).pushes for server in servers] == [0, 0]
        client.close()


def test_rows_that_another_worker_has_pushed_count_once() -> None:
    with servers_behind(Cut(1, -1, after=False)) as (routing, servers):
        client = client_of()
        client.connect(routing, 1)
        client.init_dense(np.zeros(6, np.float32))
        step(client, 0, hold=True)
        step(client, 1, hold=False)
        client.flush()
        other = client_of("other")
        other.connect(routing, 1)
        step(other, 0, hold=False)
        other.flush()
        assert other.pushes_applied == 1
        assert [server.stats(GetStats()).pushes for server in servers] == [2, 2]
        client.close()
        other.close()
