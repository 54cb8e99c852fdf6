"""The connections of a client: one thread for all servers, and no server delays another."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
import numpy as np
import pytest

from elastrec.platform.specs.errors import TransportError
from elastrec.platform.transport import RpcServer, StreamLoop
from elastrec.platform.transport.messages.directive import RoutingTable
from elastrec.trainers.embedding.client import ParameterClient
from elastrec.trainers.embedding.lane import Lane, Request, RoutingChangedError
from elastrec.trainers.embedding.replies import Reply, results, wait_for
from elastrec.trainers.parameter_server.messages import Accepted, Blocked, Join, Stale, Stamp
from elastrec.trainers.parameter_server.plan import plan_of_job
from tests.trainers.parameter_server.running import TOKEN, job_spec, routing_of, running_servers

SPEC = job_spec()
STAMP = Stamp("w", "i", 1, 1)
JOIN = Request(lambda stamp: Join(stamp=stamp))


class Scripted:
    """Answers each Join as the test says; without a script, with Accepted."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.stamps: list[Stamp] = []
        self.rpc = RpcServer({}, token=TOKEN, array_handlers={Join: self.join})
        self.rpc.serve_in_background()

    def join(self, request: Join, arrays: list[np.ndarray]) -> tuple[Any, list[np.ndarray]]:
        self.stamps.append(request.stamp)
        answer = self.answers.pop(0) if self.answers else Accepted()
        if callable(answer):
            answer = answer()
        if isinstance(answer, Exception):
            raise answer
        return answer, []


@contextmanager
def lane_to(server: Scripted, patience_seconds: float = 5.0) -> Iterator[Lane]:
    loop = StreamLoop("lanes")
    lane = Lane(loop, "ps-0", server.rpc.address, TOKEN, None, STAMP, patience_seconds)
    try:
        yield lane
    finally:
        lane.close()
        loop.close(10.0)
        server.rpc.shutdown()


def test_one_thread_serves_the_connections_to_all_servers_and_ends_with_the_client() -> None:
    before = set(threading.enumerate())
    client = ParameterClient(plan_of_job(SPEC), worker="w", incarnation="i", token=TOKEN)
    with running_servers(SPEC, 5) as (routing, _):
        client.connect(routing, 1)
        client.join()
        mine = [each.name for each in set(threading.enumerate()) - before if not each.name.startswith("rpc")]
        assert mine == ["parameter-client"]
        client.close()
    assert "parameter-client" not in [thread.name for thread in threading.enumerate()]


def test_a_hanging_server_does_not_delay_others_and_its_connection_is_replaced() -> None:
    gate, is_hanging = threading.Event(), threading.Event()

    def hang() -> Accepted:
        is_hanging.set()
        gate.wait(60)
        return Accepted()

    hanging, other = Scripted(hang), Scripted()
    routing = RoutingTable(
        epoch=1, owners=[0, 1] * 128, servers=["ps-0", "ps-1"], addresses=[hanging.rpc.address, other.rpc.address]
    )
    client = ParameterClient(plan_of_job(SPEC), worker="w", incarnation="i", token=TOKEN, patience_seconds=0.2)
    try:
        client.connect(routing, 1)
        waiting = [lane.send(JOIN) for lane in client._lanes.values()]
        assert waiting[1].result()[0] == Accepted()
        assert is_hanging.wait(60) and not waiting[0].is_done
        began = time.monotonic()
        client.connect(msgspec.structs.replace(routing, epoch=2), 1)
        with pytest.raises(RoutingChangedError, match="given up"):
            waiting[0].result()
        client.join()  # over a new connection, while the old one still waits for its answer
        assert not gate.is_set() and time.monotonic() - began < 15
        assert [stamp.epoch for stamp in hanging.stamps] == [1, 2]
    finally:
        gate.set()
        client.close()
        hanging.rpc.shutdown()
        other.rpc.shutdown()


def test_a_request_is_repeated_after_a_lost_answer_and_those_behind_it_keep_their_order() -> None:
    server = Scripted(Accepted(), TransportError("lost", retryable=True), Blocked(), Blocked())
    with lane_to(server) as lane:
        assert [answer for answer, _ in results([lane.send(JOIN) for _ in range(5)])] == [Accepted()] * 5
    assert len(server.stamps) == 8


def test_a_request_waits_for_a_server_of_an_older_version_and_fails_at_a_newer_one() -> None:
    server = Scripted(
        Stale(epoch=0, generation=1, ready=True),
        Accepted(),
        Stale(epoch=2, generation=1, ready=True),
        Stale(epoch=0, generation=1, ready=True),
    )
    with lane_to(server) as lane:
        lane.send(JOIN).result()
        with pytest.raises(RoutingChangedError, match="at epoch 2") as caught:
            lane.send(JOIN).result()
        assert (caught.value.epoch, caught.value.generation) == (2, 1)
        with pytest.raises(RoutingChangedError, match="at epoch 2"):
            lane.send(JOIN).result()  # nothing overtakes what was refused
        assert len(server.stamps) == 3
        newer = msgspec.structs.replace(STAMP, epoch=2)
        lane.restart(newer)
        lane.send(JOIN).result()
    assert server.stamps[-1] == newer


def test_a_permanent_error_of_the_server_fails_requests_immediately() -> None:
    server = Scripted(TransportError("refused for good"))
    with lane_to(server) as lane:
        replies = [lane.send(JOIN), lane.send(JOIN)]
        for reply in replies:
            with pytest.raises(TransportError, match="refused for good"):
                reply.result()
        assert len(server.stamps) == 1
        lane.restart(STAMP)
        lane.send(JOIN).result()


def test_a_message_is_encoded_once_for_all_servers_that_get_it_under_one_stamp() -> None:
    made: list[Stamp] = []

    def make(stamp: Stamp) -> Join:
        made.append(stamp)
        return Join(stamp=stamp)

    client = ParameterClient(plan_of_job(SPEC), worker="w", incarnation="i", token=TOKEN)
    with running_servers(SPEC, 3) as (routing, _):
        client.connect(routing, 1)
        request = Request(make)
        results([lane.send(request) for lane in client._lanes.values()])
        assert len(made) == 1
        client.follow(7)
        results([lane.send(request) for lane in client._lanes.values()])
        assert [stamp.version for stamp in made] == [-1, 7]
        client.close()


def test_a_closed_lane_fails_waiting_and_later_requests() -> None:
    gate = threading.Event()
    server = Scripted(lambda: gate.wait(60) and Accepted())
    with lane_to(server) as lane:
        waiting = [lane.send(JOIN), lane.send(JOIN)]
        lane.close()
        for reply in [*waiting, lane.send(JOIN)]:
            with pytest.raises(RoutingChangedError, match="given up"):
                reply.result()
        gate.set()


def test_waiting_for_several_answers_ends_with_the_last_answer_or_the_first_failure() -> None:
    lock = threading.RLock()
    for fails in (False, True):
        replies = [Reply(lock) for _ in range(3)]
        woken = threading.Event()
        waiting = threading.Thread(target=lambda replies=replies, woken=woken: (wait_for(replies), woken.set()))
        waiting.start()
        with lock:
            replies[1].succeed((Accepted(), []))
        assert not woken.wait(0.05)
        with lock:
            if fails:
                replies[2].fail(TransportError("lost"))
            else:
                replies[2].succeed((Accepted(), []))
                replies[0].succeed((Accepted(), []))
        assert woken.wait(60)
        waiting.join(60)
        if fails:
            with pytest.raises(TransportError, match="lost"):
                results(replies)
            with lock:
                replies[0].succeed((Accepted(), []))
        else:
            assert len(results(replies)) == 3


@pytest.mark.parametrize(
    ("epoch", "generation", "named", "is_taken"),
    [(2, 1, 2, True), (2, 2, 2, False), (2, 1, 1, False), (2, 1, 0, False), (2, 1, None, False)],
)
def test_a_refusal_contains_only_a_newer_routing_table_of_the_same_generation(
    epoch: int, generation: int, named: int | None, is_taken: bool
) -> None:
    routing = None if named is None else routing_of(["here:1"], epoch=named)
    with lane_to(Scripted(Stale(epoch=epoch, generation=generation, ready=True, routing=routing))) as lane:
        with pytest.raises(RoutingChangedError) as caught:
            lane.send(JOIN).result()
        assert caught.value.routing == (routing if is_taken else None)
