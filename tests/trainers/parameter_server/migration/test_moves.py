"""Buckets move while a worker trains: all parameters are bit for bit those of a training without moves."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from elastrec.platform.specs.errors import TransportError
from elastrec.platform.transport.messages.directive import TakeFrom, TakeOrder
from elastrec.trainers.parameter_server.migration import giving
from elastrec.trainers.parameter_server.migration import mover as mover_module
from elastrec.trainers.parameter_server.migration.messages import HandOver
from elastrec.trainers.parameter_server.migration.mover import Mover
from elastrec.trainers.parameter_server.migration.taking import Taker
from elastrec.trainers.parameter_server.serving.server import ParameterServer
from elastrec.trainers.parameter_server.warm_up import warm_kernels
from tests.processes import wait_for
from tests.splits import origin_of
from tests.trainers.parameter_server.migration.moving import (
    BUCKETS,
    JOB,
    SHAPES,
    Worker,
    check_as_without_moves,
    cluster,
)


@pytest.fixture(autouse=True, scope="module")
def _warm() -> None:
    """A kernel that compiles in the middle of a request would look like a server out of reach."""
    warm_kernels()


def test_moving_all_buckets_keeps_training_bit_for_bit() -> None:
    with cluster() as moved:
        worker = Worker(moved.routing)
        for _ in range(5):
            worker.step()
        failures: list[BaseException] = []
        has_ended = threading.Event()

        def train_on() -> None:
            enough = worker.steps + 2
            while worker.steps < enough and not has_ended.is_set():
                time.sleep(0.002)

        def move() -> None:
            try:
                for count in SHAPES[1:]:
                    moved.move(count, between=train_on)
            except BaseException as error:
                failures.append(error)

        mover = threading.Thread(target=move)
        mover.start()
        try:
            while mover.is_alive():
                worker.step()
        finally:
            has_ended.set()
            mover.join()
        assert not failures, failures
        for _ in range(5):
            worker.step()
        assert moved.routing.epoch == len(SHAPES)
        check_as_without_moves(worker, moved)
        for server in moved.servers.values():
            if server.model is not None:
                assert server.pushes.marks.offset(origin_of(0).split) == 20 * worker.steps
                assert server.left is None


def test_a_copy_is_dropped_when_the_move_is_cancelled_and_the_owner_keeps_serving() -> None:
    with cluster(2, 1) as moved:
        worker = Worker(moved.routing)
        after = moved.table(2, moved.routing.owners)
        taker = Taker(moved.servers["ps-1"], moved.orders(after)["ps-1"], 1, moved.connect)
        for _ in range(3):
            worker.step()
            assert taker.copy_round() > 0
        taker.give_up()
        worker.step()
        check_as_without_moves(worker, moved)


def test_a_hand_over_whose_answer_was_lost_is_requested_again() -> None:
    with cluster(2, 1) as moved:
        worker = Worker(moved.routing)
        worker.step()
        after = moved.table(2, moved.routing.owners)
        taker = Taker(moved.servers["ps-1"], moved.orders(after)["ps-1"], 1, moved.connect)
        taker.copy_round()
        worker.step()
        giver = moved.givers["ps-0"]
        giver.hand_over(
            HandOver(server="ps-1", order_id="move-2", generation=1, routing=after), []
        )  # nobody hears the answer
        taker.take_over(after)
        moved.servers["ps-0"].drop_left()
        worker.step()
        check_as_without_moves(worker, moved)


class Lossy:
    """A stream that is lost with the answer to its second request."""

    def __init__(self, stream: Any) -> None:
        self.stream, self.requests = stream, 0

    def request(self, message: Any) -> Any:
        self.requests += 1
        answer = self.stream.request(message)
        if self.requests == 2:
            raise TransportError("the connection is lost", retryable=True)
        return answer

    def cut(self) -> None:
        self.stream.cut()

    def close(self) -> None:
        self.stream.close()


def test_lost_connections_lose_and_repeat_nothing_also_in_the_hand_over() -> None:
    with cluster(2, 1) as moved:
        worker = Worker(moved.routing)
        worker.step()
        after = moved.table(2, moved.routing.owners)
        streams: list[Any] = []

        def connect(address: str) -> Any:
            stream = moved.connect(address)
            streams.append(Lossy(stream) if len(streams) < 3 else stream)
            return streams[-1]

        taker = Taker(moved.servers["ps-1"], moved.orders(after)["ps-1"], 1, connect)
        for _ in range(2):
            assert taker.copy_round() > 0
            worker.step()
            with pytest.raises(TransportError, match="lost"):
                taker.copy_round()
        assert taker.copy_round() > 0
        with pytest.raises(TransportError, match="lost"):
            taker.take_over(after)
        taker.take_over(after)
        moved.servers["ps-0"].drop_left()
        worker.step()
        assert len(streams) == 4
        check_as_without_moves(worker, moved)


class Held:
    """A stream whose second request has no answer until it is cut."""

    def __init__(self, stream: Any) -> None:
        self.stream, self.requests = stream, 0
        self.is_held, self.is_cut = threading.Event(), threading.Event()

    def request(self, message: Any) -> Any:
        self.requests += 1
        if self.requests == 2:
            self.is_held.set()
            assert self.is_cut.wait(60)
            raise TransportError("the connection was cut", retryable=True)
        return self.stream.request(message)

    def cut(self) -> None:
        self.is_cut.set()

    def close(self) -> None:
        self.stream.close()


def test_a_copying_order_can_be_cancelled_and_the_next_one_is_executed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Else the order is copied after its first round, of rows as few as these.
    monkeypatch.setattr(mover_module, "_SMALL_BYTES", 0)
    with cluster(2, 1) as moved:
        worker = Worker(moved.routing)
        for _ in range(3):
            worker.step()
        after, streams = moved.table(2, moved.routing.owners), list[Any]()

        def connect(address: str) -> Any:
            streams.append(moved.connect(address) if streams else Held(moved.connect(address)))
            return streams[-1]

        mover, server = Mover(moved.servers["ps-1"], connect, lambda: None), moved.servers["ps-1"]
        order = moved.orders(after)["ps-1"]
        mover.follow(order, 1)
        wait_for(lambda: bool(streams) and streams[0].is_held.is_set(), 60, "a copy that hangs")
        mover.cancel()
        assert streams[0].is_cut.is_set() and not mover.copied and server.model is None
        assert moved.servers["ps-0"].ready and moved.servers["ps-0"].left is None
        worker.step()
        again = TakeOrder("another", order.sources)
        assert mover.take_over(again, 1, after, lambda: True)
        moved.servers["ps-0"].drop_left()
        worker.step()
        mover.cancel()
        check_as_without_moves(worker, moved)


def test_no_server_serves_half_of_the_buckets_of_a_server_lost_after_handing_them_over() -> None:
    with cluster(2, 1) as moved:
        worker = Worker(moved.routing)
        worker.step()
        after = moved.table(2, moved.routing.owners)
        requests: list[str] = []

        class Dying:
            def __init__(self, stream: Any) -> None:
                self.stream = stream

            def request(self, message: Any) -> Any:
                requests.append(type(message).__name__)
                if "HandOver" in requests[:-1]:
                    moved.rpcs["ps-0"].shutdown()
                return self.stream.request(message)

            def cut(self) -> None:
                self.stream.cut()

            def close(self) -> None:
                self.stream.close()

        taker = Taker(moved.servers["ps-1"], moved.orders(after)["ps-1"], 1, lambda a: Dying(moved.connect(a)))
        taker.copy_round()
        worker.step()
        with pytest.raises(TransportError):
            taker.take_over(after)
        assert requests[-1] == "CopyBuckets" and "HandOver" in requests
        # Its rows are lost: the master goes back to a record. Until then the new owner serves none of them.
        assert not moved.servers["ps-1"].ready and moved.servers["ps-1"].model is None
        taker.give_up()
        assert moved.servers["ps-1"].usage() == []
        worker.client.close()


def test_an_order_that_is_due_before_anything_was_copied_is_executed() -> None:
    with cluster(2, 1) as moved:
        worker = Worker(moved.routing)
        for _ in range(3):
            worker.step()
        after = moved.table(2, moved.routing.owners)
        reports: list[str] = []
        mover = Mover(moved.servers["ps-1"], moved.connect, lambda: reports.append(mover.taken))
        order = moved.orders(after)["ps-1"]
        assert not mover.take_over(order, 1, after, lambda: False) and not mover.taken
        assert mover.take_over(order, 1, after, lambda: True) and mover.taken == order.order_id == reports[-1]
        mover.cancel()
        moved.servers["ps-0"].drop_left()
        worker.step()
        check_as_without_moves(worker, moved)


@pytest.mark.parametrize("count", [3, 1])
def test_a_change_right_after_another_one_is_executed(count: int) -> None:
    with cluster(3, 1) as moved:
        worker = Worker(moved.routing)
        worker.step()
        moved.move(2, is_heard_of=False)
        worker.step()
        giver = moved.servers["ps-0"]
        assert giver.left is not None and giver.left.place.owned.sum() == BUCKETS // 2
        for server in moved.servers.values():
            server.drop_left_before(moved.routing.epoch, "the next change")
        # The first server gives more away, or takes what it gave away.
        moved.move(count)
        worker.step()
        check_as_without_moves(worker, moved)


def test_a_hand_over_ends_the_rest_of_the_previous_change() -> None:
    with cluster(3, 1) as moved:
        worker = Worker(moved.routing)
        for count in (2, 3):
            worker.step()
            # No directive has said to the first server that there is another change.
            moved.move(count, is_heard_of=False)
        left, held = moved.servers["ps-0"].left, moved.servers["ps-0"].stores[0].owned.sum()
        assert left is not None and left.order_id == "move-3" and left.epoch == moved.routing.epoch
        assert held == sum(owner == 0 for owner in moved.routing.owners) + left.place.owned.sum()
        worker.step()
        for server in moved.servers.values():
            server.drop_left()
        check_as_without_moves(worker, moved)


def test_an_old_directive_does_not_drop_buckets_after_a_hand_over() -> None:
    with cluster(2, 1) as moved:
        worker = Worker(moved.routing)
        worker.step()
        before, giver = moved.routing, moved.servers["ps-0"]
        after = moved.table(2, before.owners)
        taker = Taker(moved.servers["ps-1"], moved.orders(after)["ps-1"], 1, moved.connect)
        taker.copy_round()
        worker.step()
        moved.givers["ps-0"].hand_over(
            HandOver(server="ps-1", order_id="move-2", generation=1, routing=after), []
        )  # nobody hears the answer
        giver.drop_left_before(before.epoch, "")
        giver.drop_left_before(after.epoch, "move-2")
        assert giver.left is not None
        taker.take_over(after)
        giver.drop_left_before(after.epoch, "")
        assert giver.left is None
        worker.step()
        check_as_without_moves(worker, moved)


def test_a_server_without_the_buckets_of_a_newer_routing_does_not_serve_under_it() -> None:
    with cluster(2, 2) as moved:
        after = moved.table(1, moved.routing.owners)
        moved.servers["ps-0"].adopt(after, 1, [], 1, moves=True)
        assert not moved.servers["ps-0"].ready
        assert moved.servers["ps-1"].ready


def test_an_older_routing_in_a_directive_does_not_undo_a_hand_over() -> None:
    with cluster(2, 1) as moved:
        before, server = moved.routing, moved.servers["ps-0"]
        moved.move(2)
        server.adopt(before, 1, [], 1, moves=True)
        assert server.ready and server.epoch == moved.routing.epoch
        assert server.place is not None and server.place.owned.sum() == BUCKETS // 2


def test_a_bucket_is_copied_in_parts_and_each_row_counts_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(giving, "PART_BYTES", 1)
    with cluster(2, 2) as moved:
        worker = Worker(moved.routing)
        for _ in range(3):
            worker.step()

        def rows() -> int:
            return sum(table.rows for server in moved.servers.values() for table in server.usage())

        held, after = rows(), moved.table(1, moved.routing.owners)
        taker = Taker(moved.servers["ps-0"], moved.orders(after)["ps-0"], 1, moved.connect)
        asked = moved.servers["ps-0"].transfers
        taker.hurry()  # hundreds of requests without a pause after each
        taker.copy_round()
        assert moved.servers["ps-0"].transfers - asked > 2 * BUCKETS  # requests for half of the buckets
        assert rows() == held > 500
        taker.take_over(after)
        # The one that gave them away has them still, until it learns that they are owned.
        assert rows() == held and moved.servers["ps-1"].stores[0].rows > 0
        moved.servers["ps-1"].forget()
        assert rows() == held
        worker.client.connect(after, 1)  # the server that forgot cannot name the new routing table
        worker.step()
        check_as_without_moves(worker, moved)


def test_buckets_that_are_not_held_are_refused() -> None:
    with cluster(2, 1) as moved:
        order = TakeOrder("move", [TakeFrom("ps-1", moved.rpcs["ps-1"].address, [3], [])])
        moved.servers["ps-1"].start_empty(moved.table(2, []), 1)
        taker = Taker(moved.servers["ps-0"], TakeOrder("move", []), 1, moved.connect)
        assert taker.copy_round() == 0
        with pytest.raises(Exception, match="is to take over bucket 3, which it holds"):
            Taker(moved.servers["ps-0"], order, 1, moved.connect)
        with pytest.raises(TransportError, match="does not hold bucket"):
            foreign = [bucket for bucket in range(BUCKETS) if not moved.servers["ps-1"].place.owned[bucket]][:1]
            free = ParameterServer("ps-2", JOB.spec, granted_cores=1)
            Taker(
                free, TakeOrder("move", [TakeFrom("ps-1", moved.rpcs["ps-1"].address, foreign, [])]), 1, moved.connect
            ).copy_round()


def test_a_save_while_buckets_are_copied_holds_each_of_them_once() -> None:
    with cluster(2, 2) as moved:
        worker = Worker(moved.routing)
        worker.step()
        after = moved.table(1, moved.routing.owners)
        taker = Taker(moved.servers["ps-0"], moved.orders(after)["ps-0"], 1, moved.connect)
        taker.copy_round()
        frozen = [moved.servers[name].freeze() for name in moved.routing.servers]
        worker.step()
        # What a save copies is asked for again until it is done.
        thawing = threading.Timer(0.3, lambda: [each.thaw() for each in frozen])
        thawing.start()
        taker.copy_round()
        thawing.join()
        assert sorted(bucket for each in frozen for bucket in each.stores[0][1]) == list(range(BUCKETS))
        assert all(each.stores[0][1] == each.owned for each in frozen)
        worker.client.close()
