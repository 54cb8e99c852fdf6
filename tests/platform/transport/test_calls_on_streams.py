"""What is asked again and again travels on one stream, and behaves as a plain call does."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from elastrec.platform.specs.errors import AuthenticationError, ClusterError, IncompatibleError, TransportError
from elastrec.platform.transport import RpcClient, RpcServer, TlsConfig, new_token
from tests.platform.transport.messages import Ask, Told

TOKEN = new_token()


class Counting:
    """Answers the next number; refuses -1 for good, and sends away while `busy` is above zero."""

    def __init__(self) -> None:
        self.busy = 0
        self.threads: set[int] = set()

    def __call__(self, message: Ask) -> Told:
        self.threads.add(threading.get_ident())
        if message.number == -1:
            raise ClusterError("no such pod")
        if self.busy:
            self.busy -= 1
            raise TransportError("come again", retryable=True)
        return Told(message.number + 1)


def serving(handler: Counting, port: int = 0, tls: TlsConfig | None = None) -> RpcServer:
    server = RpcServer({Ask: handler}, often=[Ask], token=TOKEN, port=port, tls=tls)
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


@pytest.fixture
def client(server: RpcServer) -> Iterator[RpcClient]:
    client = RpcClient(server.address, TOKEN)
    yield client
    client.close()


def ask(client: RpcClient, number: int, timeout_seconds: float = 10.0) -> Told:
    return client.call_often(Ask(number), Told, timeout_seconds=timeout_seconds)


def test_many_requests_are_answered_on_one_connection(client: RpcClient, handler: Counting) -> None:
    assert [ask(client, number) for number in range(50)] == [Told(number + 1) for number in range(50)]
    assert len(handler.threads) == 1


def test_the_same_message_may_also_come_as_a_plain_call(client: RpcClient) -> None:
    assert client.call(Ask(1), Told) == ask(client, 1)


def test_requests_of_several_threads_wait_for_each_other(client: RpcClient) -> None:
    told: list[Told] = []
    threads = [threading.Thread(target=lambda n=n: told.append(ask(client, n))) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(each.number for each in told) == list(range(1, 9))


def test_an_error_of_the_handler_reaches_the_caller_for_good(client: RpcClient) -> None:
    with pytest.raises(TransportError, match="ClusterError: no such pod") as refusal:
        ask(client, -1)
    assert not refusal.value.retryable
    assert ask(client, 1) == Told(2)


def test_who_is_told_to_come_again_does(client: RpcClient, handler: Counting) -> None:
    handler.busy = 2
    assert ask(client, 1) == Told(2)
    handler.busy = 1000
    with pytest.raises(TransportError, match="come again") as refusal:
        ask(client, 1, timeout_seconds=0.3)
    assert refusal.value.retryable


def test_a_wrong_token_is_refused_at_once(server: RpcServer) -> None:
    with pytest.raises(AuthenticationError):
        ask(RpcClient(server.address, "wrong"), 1)


def test_a_message_that_the_server_does_not_take_often_is_refused(server: RpcServer, handler: Counting) -> None:
    plain = RpcServer({Ask: handler}, token=TOKEN)
    plain.serve_in_background()
    with pytest.raises(TransportError, match="unknown message 'FindStreams'"):
        ask(RpcClient(plain.address, TOKEN), 1)
    plain.stop()
    with pytest.raises(IncompatibleError):
        RpcClient(server.address, TOKEN).call_often(Told(1), Told, timeout_seconds=5.0)


def test_a_server_that_comes_back_at_its_address_is_found_again(handler: Counting) -> None:
    first = serving(handler)
    client = RpcClient(first.address, TOKEN)
    assert ask(client, 1) == Told(2)
    first.stop()
    with pytest.raises(TransportError) as absent:
        ask(client, 1, timeout_seconds=0.3)
    assert absent.value.retryable
    second = serving(handler, port=first.port)
    assert ask(client, 1) == Told(2)
    client.close()
    second.stop()


def test_a_server_that_says_nothing_is_given_up_at_the_deadline() -> None:
    release = threading.Event()

    def silent(message: Ask) -> Told:
        release.wait(20)
        return Told(0)

    server = RpcServer({Ask: silent}, often=[Ask], token=TOKEN)
    server.serve_in_background()
    client = RpcClient(server.address, TOKEN)
    began = time.monotonic()
    with pytest.raises(TransportError) as silence:
        ask(client, 1, timeout_seconds=0.5)
    assert silence.value.retryable and time.monotonic() - began < 10
    release.set()
    client.close()
    server.stop()


def test_it_speaks_tls(handler: Counting, tls: TlsConfig) -> None:
    server = serving(handler, tls=tls)
    client = RpcClient(f"localhost:{server.port}", TOKEN, tls)
    assert [ask(client, 1), ask(client, 2)] == [Told(2), Told(3)]
    client.close()
    server.stop()
