"""Foreign connections cannot exhaust a port; a client above the limit gets an error with the limit, which depends on
the job.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from structlog.testing import capture_logs

from elastrec.platform.specs.errors import TransportError
from elastrec.platform.transport import ArrayStream, RpcClient, RpcServer, TlsConfig, connections_for, new_token
from elastrec.platform.transport.wire import port
from elastrec.platform.transport.wire.greeting import client_context
from tests.platform.transport.messages import Answered, Ask, AskArrays
from tests.platform.transport.raw_wire import tcp_only

TOKEN = new_token()
MAXIMUM_GREETING = 8
MAXIMUM_CONNECTIONS = 2


@pytest.fixture(params=["plain", "tls"])
def security(request: pytest.FixtureRequest, tls: TlsConfig) -> TlsConfig | None:
    return tls if request.param == "tls" else None


@pytest.fixture
def limit() -> list[int]:
    """Of connections that have sent the token; a test may change it."""
    return [MAXIMUM_CONNECTIONS]


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, security: TlsConfig | None, limit: list[int]) -> Iterator[RpcServer]:
    monkeypatch.setattr(port, "_MAXIMUM_GREETING", MAXIMUM_GREETING)
    monkeypatch.setattr(port, "_GREETING_SECONDS", 600.0)
    server = RpcServer(
        {Ask: lambda message: Answered(message.number + 1)},
        token=TOKEN,
        array_handlers={AskArrays: lambda message, arrays: (Answered(message.number + 1), arrays)},
        tls=security,
        maximum_connections=lambda: limit[0],
    )
    server.serve_in_background()
    yield server
    server.stop()


@pytest.fixture
def client(server: RpcServer, security: TlsConfig | None) -> Iterator[RpcClient]:
    client = tcp_only(RpcClient(f"localhost:{server.port}", TOKEN, security))
    yield client
    client.close()


def strangers(port: int, count: int, stack: contextlib.ExitStack) -> list[socket.socket]:
    """Connections that send nothing, opened one after the other."""
    return [stack.enter_context(socket.create_connection(("127.0.0.1", port), 30)) for _ in range(count)]


def assert_answers(stream: ArrayStream) -> None:
    assert stream.request(AskArrays(1))[0] == Answered(2)


def test_silent_strangers_are_few_and_a_client_with_the_token_is_served(server: RpcServer, client: RpcClient) -> None:
    with contextlib.ExitStack() as stack, capture_logs() as logs:
        silent = strangers(server.port, 5 * MAXIMUM_GREETING, stack)
        for stranger in silent[:-MAXIMUM_GREETING]:
            assert stranger.recv(1) == b"", "the oldest ones are cut, before any deadline"
        assert_answers(stack.enter_context(contextlib.closing(client.open_stream([Answered]))))
    assert [line["event"] for line in logs].count("connections_without_token_cut") == 1


def test_a_stream_with_the_token_is_never_cut_for_strangers(server: RpcServer, client: RpcClient) -> None:
    with contextlib.ExitStack() as stack:
        stream = stack.enter_context(contextlib.closing(client.open_stream([Answered])))
        silent = strangers(server.port, 3 * MAXIMUM_GREETING, stack)
        assert silent[0].recv(1) == b""
        assert_answers(stream)


def test_a_greeting_byte_by_byte_ends_at_the_deadline(
    monkeypatch: pytest.MonkeyPatch, server: RpcServer, client: RpcClient, security: TlsConfig | None
) -> None:
    monkeypatch.setattr(port, "_GREETING_SECONDS", 0.3)
    with socket.create_connection(("localhost", server.port), 30) as link:
        if security is not None:
            link = client_context(security).wrap_socket(link, server_hostname="localhost")
        pause = threading.Event()
        with link, contextlib.suppress(OSError):
            link.sendall(struct.pack("<4sI", b"elg1", 4096))
            for _ in range(400):  # 20 s
                link.sendall(b"x")
                pause.wait(0.05)
            pytest.fail("every byte prolonged the greeting")
    monkeypatch.setattr(port, "_GREETING_SECONDS", 10.0)
    assert client.call(Ask(1), Answered, timeout_seconds=30) == Answered(2)


def test_a_thread_that_cannot_start_costs_one_connection_and_not_the_port(
    monkeypatch: pytest.MonkeyPatch, server: RpcServer, client: RpcClient
) -> None:
    start = threading.Thread.start
    failures = 0

    def fail_twice(thread: threading.Thread) -> None:
        nonlocal failures
        if thread.name == "rpc-greeting" and failures < 2:
            failures += 1
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", fail_twice)
    with capture_logs() as logs, contextlib.ExitStack() as stack:
        for stranger in strangers(server.port, 2, stack):
            assert stranger.recv(1) == b"", "closed, not left open without a thread"
        assert client.call(Ask(1), Answered, timeout_seconds=30) == Answered(2)
    assert failures == 2
    assert [line["reason"] for line in logs if line["event"] == "connection_not_accepted"] == ["can't start new thread"]


def test_an_accept_that_fails_in_any_way_does_not_end_the_port(
    monkeypatch: pytest.MonkeyPatch, client: RpcClient, server: RpcServer
) -> None:
    enter = server._port._admission.enter
    failures = iter([MemoryError(), ValueError("any")])

    def fail(link: socket.socket) -> Any:
        error = next(failures, None)
        if error is not None:
            link.close()
            raise error
        return enter(link)

    monkeypatch.setattr(server._port._admission, "enter", fail)
    assert client.call(Ask(1), Answered, timeout_seconds=30) == Answered(2)
    assert next(failures, None) is None


def test_a_client_above_the_limit_learns_it_and_gets_in_when_the_job_grows(client: RpcClient, limit: list[int]) -> None:
    with contextlib.ExitStack() as stack, capture_logs() as logs:
        first, second = (stack.enter_context(contextlib.closing(client.open_stream([Answered]))) for _ in range(2))
        for _ in range(3):
            with pytest.raises(TransportError, match="2 connections are open, which is the limit") as refusal:
                client.open_stream([Answered])
            assert refusal.value.retryable
        assert_answers(first)
        assert_answers(second)
        limit[0] = 3
        third = stack.enter_context(contextlib.closing(client.open_stream([Answered])))
        assert_answers(third)
        second.close()
        assert client.call(Ask(1), Answered, timeout_seconds=30) == Answered(2)
    assert [line["maximum"] for line in logs if line["event"] == "connections_refused"] == [MAXIMUM_CONNECTIONS]


def test_when_no_thread_can_be_started_those_that_there_are_serve_all(
    monkeypatch: pytest.MonkeyPatch, client: RpcClient
) -> None:
    start = threading.Thread.start

    def fail(thread: threading.Thread) -> None:
        if thread.name == "rpc":
            raise RuntimeError("can't start new thread")
        start(thread)

    with contextlib.closing(client.open_stream([Answered])) as stream, capture_logs() as logs:
        assert_answers(stream)  # by the first thread
        monkeypatch.setattr(threading.Thread, "start", fail)
        for _ in range(20):
            assert_answers(stream)
            assert client.call(Ask(1), Answered, timeout_seconds=30) == Answered(2)
    assert [line["event"] for line in logs].count("thread_not_started") <= 1


def test_the_limit_follows_the_size_of_the_job() -> None:
    assert connections_for(0) == 1024
    assert connections_for(10_000) > 2 * 10_000
