"""Calls: reused connections, concurrent threads, and at most one execution of a call with a key."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Iterator

import numpy as np
import pytest

from elastrec.platform.specs.errors import AuthenticationError, ClusterError, IncompatibleError, TransportError
from elastrec.platform.transport import RpcClient, RpcServer, TlsConfig
from tests.platform.transport.messages import TOKEN, Answered, Ask
from tests.platform.transport.raw_wire import frame, greeting, read_reply
from tests.processes import wait_for


class Counting:
    """Answers the next number; refuses -1 for good, and sends away while `busy` is above zero."""

    def __init__(self) -> None:
        self.busy = 0
        self.threads: set[int] = set()

    def __call__(self, message: Ask) -> Answered:
        self.threads.add(threading.get_ident())
        if message.number == -1:
            raise ClusterError("no such pod")
        if self.busy:
            self.busy -= 1
            raise TransportError("come again", retryable=True)
        return Answered(message.number + 1)


def serving(handler: Counting, port: int = 0, tls: TlsConfig | None = None) -> RpcServer:
    server = RpcServer({Ask: handler}, token=TOKEN, port=port, tls=tls)
    server.serve_in_background()
    return server


@pytest.fixture
def handler() -> Counting:
    return Counting()


@pytest.fixture
def server(handler: Counting) -> Iterator[RpcServer]:
    server = serving(handler)
    yield server
    server.stop()


def ask(client: RpcClient, number: int, timeout_seconds: float = 10.0) -> Answered:
    return client.call(Ask(number), Answered, timeout_seconds=timeout_seconds)


def connections(server: RpcServer) -> int:
    return len(server._port._admission._admitted)


def test_many_calls_are_answered_on_one_connection(client: RpcClient, server: RpcServer) -> None:
    assert [ask(client, number) for number in range(50)] == [Answered(number + 1) for number in range(50)]
    assert connections(server) == 1


def test_calls_of_several_threads_are_answered_side_by_side() -> None:
    together = threading.Barrier(8)

    def meet(message: Ask) -> Answered:
        together.wait(20)  # broken unless all eight are here at once
        return Answered(message.number)

    server = RpcServer({Ask: meet}, token=TOKEN)
    server.serve_in_background()
    client = RpcClient(server.address, TOKEN)
    answers: list[int] = []
    for _ in range(2):
        threads = [threading.Thread(target=lambda n=n: answers.append(ask(client, n).number)) for n in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        # One whose opening took too long under load is opened again, and the first of the two ends.
        wait_for(lambda: connections(server) == 8, 20, "the second time the same ones")
    assert sorted(answers) == sorted([*range(8), *range(8)])
    client.close()
    server.stop()


def test_idle_connections_cost_no_threads(client: RpcClient, server: RpcServer) -> None:
    ask(client, 1)
    clients = [RpcClient(server.address, TOKEN) for _ in range(50)]
    for number, each in enumerate(clients):
        assert ask(each, number) == Answered(number + 1)
    # One whose opening took too long under load is opened again, and the first of the two ends.
    wait_for(lambda: connections(server) == 51, 20, "fifty strangers")
    # Those that greeted may be about to end.
    wait_for(
        lambda: "rpc-greeting" not in [thread.name for thread in threading.enumerate()], 20, "no thread that greets"
    )
    assert server._port._pool._threads <= 10
    for each in clients:
        each.close()
    wait_for(lambda: connections(server) == 1, 20, "one connection")


def test_an_error_of_the_handler_reaches_the_caller_and_is_not_retried(client: RpcClient) -> None:
    with pytest.raises(ClusterError, match=r"^no such pod$") as refusal:
        ask(client, -1)
    assert not refusal.value.retryable
    assert ask(client, 1) == Answered(2)


def test_a_retryable_error_is_retried_until_the_deadline(client: RpcClient, handler: Counting) -> None:
    handler.busy = 2
    assert ask(client, 1) == Answered(2)
    handler.busy = 1000
    with pytest.raises(TransportError, match="come again") as refusal:
        ask(client, 1, timeout_seconds=0.3)
    assert refusal.value.retryable


def test_a_wrong_token_is_refused_immediately(server: RpcServer) -> None:
    with pytest.raises(AuthenticationError):
        ask(RpcClient(server.address, "wrong"), 1)


def test_a_client_reconnects_to_a_restarted_server_at_its_address(handler: Counting) -> None:
    first = serving(handler)
    client = RpcClient(first.address, TOKEN)
    assert ask(client, 1) == Answered(2)
    first.stop()
    with pytest.raises(TransportError) as absent:
        ask(client, 1, timeout_seconds=0.3)
    assert absent.value.retryable
    second = serving(handler, port=first.port)
    assert ask(client, 1) == Answered(2)
    client.close()
    second.stop()


def test_a_silent_server_is_given_up_at_the_deadline() -> None:
    release = threading.Event()

    def silent(message: Ask) -> Answered:
        release.wait(20)
        return Answered(0)

    server = RpcServer({Ask: silent}, token=TOKEN)
    server.serve_in_background()
    client = RpcClient(server.address, TOKEN)
    began = time.monotonic()
    with pytest.raises(TransportError) as silence:
        ask(client, 1, timeout_seconds=0.5)
    assert silence.value.retryable and time.monotonic() - began < 10
    release.set()
    client.close()
    server.stop()


def test_calls_work_with_tls(handler: Counting, tls: TlsConfig) -> None:
    server = serving(handler, tls=tls)
    client = RpcClient(f"localhost:{server.port}", TOKEN, tls)
    assert [ask(client, 1), ask(client, 2)] == [Answered(2), Answered(3)]
    client.close()
    server.stop()


class Gated:
    """Executes calls only while the gate is open, and counts them."""

    def __init__(self) -> None:
        self.begun, self.gate = threading.Event(), threading.Event()
        self.calls = 0

    def __call__(self, message: Ask) -> Answered:
        self.calls += 1
        self.begun.set()
        assert self.gate.wait(20)
        return Answered(self.calls)


@pytest.fixture
def gated() -> Iterator[tuple[Gated, RpcServer]]:
    handler = Gated()
    server = RpcServer({Ask: handler}, token=TOKEN)
    server.serve_in_background()
    yield handler, server
    handler.gate.set()
    server.stop()


def send(server: RpcServer, key: str) -> socket.socket:
    """A call by hand, whose answer nobody has read yet."""
    link = socket.create_connection(("127.0.0.1", server.port), 10)
    link.sendall(greeting(TOKEN))
    heard = link.makefile("rb")
    assert heard.read(1) == b"\x01"
    assert read_reply(heard).kind == "Welcome"
    link.sendall(frame(Ask(1), key=key))
    return link


def test_a_repeated_call_with_a_key_is_executed_once_even_during_its_execution(gated: tuple[Gated, RpcServer]) -> None:
    handler, server = gated
    links = [send(server, "one")]
    assert handler.begun.wait(10)
    links += [send(server, "one") for _ in range(3)]
    other = send(server, "two")
    wait_for(lambda: handler.calls == 2, 20, "two calls")
    handler.gate.set()
    links.append(send(server, "one"))
    answers = {read_reply(link.makefile("rb")).message["number"] for link in links}
    assert len(answers) == 1 and handler.calls == 2
    for link in (*links, other):
        link.close()


def test_a_call_whose_connection_breaks_in_the_middle_is_executed_once(gated: tuple[Gated, RpcServer]) -> None:
    handler, server = gated
    client = RpcClient(server.address, TOKEN)
    answers: list[Answered] = []
    thread = threading.Thread(target=lambda: answers.append(client.call(Ask(1), Answered, remember=True)))
    thread.start()
    assert handler.begun.wait(10)
    for visitor in list(server._port._admission._admitted):
        visitor.cut()
    # The retry waits for the first execution, on a connection of its own.
    wait_for(lambda: connections(server) == 2, 20, "two connections")
    handler.gate.set()
    thread.join(20)
    assert answers == [Answered(1)] and handler.calls == 1
    client.close()


def test_a_stopping_server_answers_running_calls_and_accepts_no_others(gated: tuple[Gated, RpcServer]) -> None:
    handler, server = gated
    client = RpcClient(server.address, TOKEN)
    answers: list[Answered] = []
    thread = threading.Thread(target=lambda: answers.append(client.call(Ask(1), Answered)))
    thread.start()
    assert handler.begun.wait(10)
    idle = send(server, "late")
    wait_for(lambda: handler.calls == 2, 20, "two calls")
    assert not server.stop(0.05), "two calls are being executed"
    with pytest.raises(TransportError):
        RpcClient(server.address, TOKEN).call(Ask(1), Answered, timeout_seconds=0.2)
    handler.gate.set()
    thread.join(20)
    assert server.stop(20)
    assert len(answers) == 1 and read_reply(idle.makefile("rb")).kind == "Answered"
    assert handler.calls == 2
    idle.close()


def test_a_call_with_arrays_and_two_handlers_for_one_message_are_refused(client: RpcClient, handler: Counting) -> None:
    with (
        contextlib.closing(client.open_stream([Answered])) as stream,
        pytest.raises(IncompatibleError, match="carries no arrays"),
    ):
        stream.request(Ask(1), [np.zeros(3)])
    with pytest.raises(ValueError, match="two handlers"):
        RpcServer({Ask: handler}, token=TOKEN, array_handlers={Ask: lambda message, arrays: (Answered(1), arrays)})


def test_a_server_that_is_stopped_twice_closes_nothing_of_others(handler: Counting) -> None:
    first, second = serving(handler), serving(handler)
    clients = [RpcClient(server.address, TOKEN) for server in (first, second)]
    for client in clients:
        ask(client, 1)
    first.stop()
    # Numbers that the first server has let go of now belong to these.
    others = [os.dup(0) for _ in range(20)]
    first.shutdown()
    for descriptor in others:
        os.close(descriptor)
    assert ask(clients[1], 1) == Answered(2)
    second.stop()
    for client in clients:
        client.close()
