"""One change of servers in which a server gives some buckets away and takes others over.

After buckets have left a hot server, it has fewer virtual buckets than the others, and as many dense ones. When servers
are added then, it takes virtual buckets over and gives dense ones away.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from elastrec.platform.specs.buckets import balanced_owners
from elastrec.platform.transport.messages.directive import RoutingTable, TakeFrom, TakeOrder
from elastrec.trainers.parameter_server.migration.messages import HandOver
from elastrec.trainers.parameter_server.migration.mover import Mover
from elastrec.trainers.parameter_server.migration.taking import Taker
from elastrec.trainers.parameter_server.warm_up import warm_kernels
from tests.processes import wait_for
from tests.trainers.parameter_server.migration.moving import (
    BUCKETS,
    Cluster,
    Worker,
    check_as_without_moves,
    cluster,
    same,
)
from tests.trainers.parameter_server.migration.synchronous import (
    STEPS,
    WORKERS,
    Synchronous,
    job_with,
    servers_of,
    train,
)

RELIEVED = "ps-0"
SECONDS = 30.0


@pytest.fixture(autouse=True, scope="module")
def _warm() -> None:
    """A kernel that compiles in the middle of a request would look like a server out of reach."""
    warm_kernels()


def _table(moved: Cluster, owners: list[int], dense_owners: list[int], count: int) -> RoutingTable:
    names = list(moved.servers)[:count]
    return RoutingTable(
        epoch=moved.routing.epoch + 1, owners=owners, servers=names, dense_owners=dense_owners,
        addresses=[moved.rpcs[name].address for name in names],
    )  # fmt: skip


def _orders(moved: Cluster, after: RoutingTable) -> dict[str, TakeOrder]:
    before, sources = moved.routing, dict[str, dict[str, tuple[list[int], list[int]]]]()
    kinds = (before.owners, after.owners), (before.dense_owners, after.dense_owners)
    for number, (old, new) in enumerate(kinds):
        for bucket in range(BUCKETS):
            giver, taker = before.servers[old[bucket]], after.servers[new[bucket]]
            if giver != taker:
                sources.setdefault(taker, {}).setdefault(giver, ([], []))[number].append(bucket)
    return {
        taker: TakeOrder(
            f"move-{after.epoch}", [TakeFrom(giver, moved.rpcs[giver].address, *each) for giver, each in givers.items()]
        )
        for taker, givers in sources.items()
    }


@pytest.fixture
def relieved() -> Iterator[tuple[Cluster, Worker, RoutingTable]]:
    """Three servers, of which one has few virtual buckets, a worker, and the table with a fourth one."""
    with cluster(4, 3) as moved:
        owners, dense_owners = [0] * 14 + [1] * 25 + [2] * 25, balanced_owners(BUCKETS, 3)
        moved.routing = _table(moved, owners, dense_owners, 3)
        for name in moved.routing.servers:
            moved.servers[name].start_empty(moved.routing, 1)
        worker = Worker(moved.routing)
        for _ in range(3):
            worker.step()
        after = _table(moved, balanced_owners(BUCKETS, 4, owners), balanced_owners(BUCKETS, 4, dense_owners), 4)
        yield moved, worker, after


def _movers(moved: Cluster, orders: dict[str, TakeOrder]) -> dict[str, Mover]:
    return {name: Mover(moved.servers[name], moved.connect, lambda: None) for name in orders}


def _end(moved: Cluster, worker: Worker, after: RoutingTable, movers: dict[str, Mover]) -> None:
    for mover in movers.values():
        mover.cancel()
    for name, server in moved.servers.items():
        server.adopt(after, 1, moved.members, -1, moves=True)
        assert server.ready and server.place is not None, name
        server.drop_left_before(after.epoch, "")
        assert server.left is None
    for _ in range(3):
        worker.step()
    check_as_without_moves(worker, moved)


@pytest.mark.parametrize("is_asked_first", [True, False], ids=["gives-first", "takes-first"])
def test_a_server_that_gives_buckets_and_takes_others_in_one_change_loses_nothing(
    relieved: tuple[Cluster, Worker, RoutingTable], is_asked_first: bool
) -> None:
    moved, worker, after = relieved
    orders = _orders(moved, after)
    givers = {source.server for order in orders.values() for source in order.sources}
    assert RELIEVED in orders and RELIEVED in givers
    movers = _movers(moved, orders)
    others = [name for name in orders if name != RELIEVED]
    is_over = threading.Event()

    def take_over(name: str) -> None:
        assert movers[name].take_over(orders[name], 1, after, lambda: not is_over.is_set()), name

    threads = {name: threading.Thread(target=take_over, args=(name,)) for name in orders}
    first, later = (others, [RELIEVED]) if is_asked_first else ([RELIEVED], others)
    try:
        for names in (first, later):
            for name in names:
                threads[name].start()
            for name in names:
                threads[name].join(SECONDS)
                assert not threads[name].is_alive(), f"{name} has not taken its buckets over"
                assert movers[name].taken == orders[name].order_id
    finally:
        is_over.set()
    _end(moved, worker, after, movers)


def test_a_server_that_has_given_buckets_away_serves_again_once_it_has_those_that_it_takes(
    relieved: tuple[Cluster, Worker, RoutingTable],
) -> None:
    moved, worker, after = relieved
    orders = _orders(moved, after)
    movers = _movers(moved, orders)
    server, order = moved.servers[RELIEVED], orders[RELIEVED]
    for name in orders:
        movers[name].follow(orders[name], 1)
    moved.givers[RELIEVED].hand_over(
        HandOver(server="ps-3", order_id=order.order_id, generation=1, routing=after), []
    )  # nobody hears the answer
    assert server.left is not None and not server.ready, "it would serve rows that it does not have yet"
    server.adopt(moved.routing, 1, moved.members, -1, moves=True)
    assert not server.ready and server.epoch == after.epoch
    for name in orders:
        assert movers[name].take_over(orders[name], 1, after, lambda: True)
    assert server.ready
    _end(moved, worker, after, movers)


def test_a_bsp_job_has_the_same_parameters_bit_for_bit_when_two_servers_exchange_buckets() -> None:
    """One gives rows and takes dense parameters, the other one the other way round, and back again."""
    job = job_with("bsp")
    halves = [0] * 20 + [1] * 44, [0] * 44 + [1] * 20

    def exchange(workers: list[Synchronous]) -> None:
        for place in range(1, 5):
            held = workers[0]
            wait_for(lambda: held.steps >= place * 8, 60, "steps before a move")  # noqa: B023
            held.may_step.clear()
            waits = [moved.servers[name].pushes for name in moved.routing.servers]
            wait_for(lambda: all(pushes.waiting >= WORKERS - 1 for pushes in waits), 60, "pushes of a round")  # noqa: B023
            after = _table(moved, halves[place % 2], halves[1 - place % 2], 2)
            takers = {n: Taker(moved.servers[n], o, 1, moved.connect) for n, o in _orders(moved, after).items()}
            assert len(takers) == 2
            for taker in takers.values():
                taker.copy_round()
            if place % 2:
                held.may_step.set()
            for taker in takers.values():
                taker.take_over(after)
            for name in takers:
                moved.servers[name].adopt(after, 1, moved.members, -1, moves=True)
                moved.servers[name].drop_left_before(after.epoch, "")
            moved.routing = after
            held.may_step.set()
        assert all(worker.steps < STEPS for worker in workers), "training ended before its buckets moved"

    with servers_of(job, 2) as moved, servers_of(job, 1) as still:
        train(moved, job, exchange)
        train(still, job, lambda _: None)
        same(moved, still)
        for name in moved.routing.servers:
            assert not moved.servers[name].pushes.waiting
