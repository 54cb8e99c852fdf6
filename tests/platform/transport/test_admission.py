"""Strangers cannot use up a port of streams; a client above the limit of streams learns the limit."""

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
from elastrec.platform.transport import RpcClient, RpcServer, TlsConfig, new_token, streams
from elastrec.platform.transport.streams import ArrayStream, FindStreams, StreamsAt
from tests.platform.transport.messages import Ask, Told

TOKEN = new_token()
MAXIMUM_GREETING = 8
MAXIMUM_STREAMS = 2


@pytest.fixture(params=["plain", "tls"])
def security(request: pytest.FixtureRequest, tls: TlsConfig) -> TlsConfig | None:
    return tls if request.param == "tls" else None


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, security: TlsConfig | None) -> Iterator[RpcServer]:
    monkeypatch.setattr(streams, "_MAXIMUM_GREETING", MAXIMUM_GREETING)
    monkeypatch.setattr(streams, "_MAXIMUM_STREAMS", MAXIMUM_STREAMS)
    monkeypatch.setattr(streams, "_GREETING_SECONDS", 600.0)
    server = RpcServer({Ask: lambda message: Told(message.number + 1)}, often=[Ask], token=TOKEN, tls=security)
    server.serve_in_background()
    yield server
    server.stop()


@pytest.fixture
def client(server: RpcServer, security: TlsConfig | None) -> Iterator[RpcClient]:
    client = RpcClient(f"localhost:{server.port}", TOKEN, security)
    yield client
    client.close()


def stream_port(client: RpcClient) -> int:
    return client.call(FindStreams(), StreamsAt).port


def strangers(port: int, count: int, stack: contextlib.ExitStack) -> list[socket.socket]:
    """Connections that send nothing, opened one after the other."""
    return [stack.enter_context(socket.create_connection(("127.0.0.1", port), 30)) for _ in range(count)]


def assert_answers(stream: ArrayStream) -> None:
    assert stream.request(Ask(1))[0] == Told(2)


def test_silent_strangers_are_few_and_a_client_with_the_token_is_served(client: RpcClient) -> None:
    with contextlib.ExitStack() as stack, capture_logs() as logs:
        silent = strangers(stream_port(client), 5 * MAXIMUM_GREETING, stack)
        for stranger in silent[:-MAXIMUM_GREETING]:
            assert stranger.recv(1) == b"", "the oldest ones are cut, before any deadline"
        assert_answers(stack.enter_context(contextlib.closing(client.open_stream([Told]))))
    assert [line["event"] for line in logs].count("connections_without_token_cut") == 1


def test_a_stream_with_the_token_is_never_cut_for_strangers(client: RpcClient) -> None:
    with contextlib.ExitStack() as stack:
        stream = stack.enter_context(contextlib.closing(client.open_stream([Told])))
        silent = strangers(stream_port(client), 3 * MAXIMUM_GREETING, stack)
        assert silent[0].recv(1) == b""
        assert_answers(stream)


def test_a_greeting_byte_by_byte_ends_at_the_deadline(
    monkeypatch: pytest.MonkeyPatch, server: RpcServer, client: RpcClient, security: TlsConfig | None
) -> None:
    monkeypatch.setattr(streams, "_GREETING_SECONDS", 0.3)
    with socket.create_connection(("localhost", stream_port(client)), 30) as link:
        if security is not None:
            link = streams._client_context(security).wrap_socket(link, server_hostname="localhost")
        pause = threading.Event()
        with link, contextlib.suppress(OSError):
            link.sendall(struct.pack("<4sI", b"els1", 4096))
            for _ in range(400):  # 20 s
                link.sendall(b"x")
                pause.wait(0.05)
            pytest.fail("every byte prolonged the greeting")
    monkeypatch.setattr(streams, "_GREETING_SECONDS", 10.0)
    assert client.call_often(Ask(1), Told, timeout_seconds=30) == Told(2)


def test_a_thread_that_cannot_start_costs_one_connection_and_not_the_port(
    monkeypatch: pytest.MonkeyPatch, client: RpcClient
) -> None:
    start = threading.Thread.start
    failures = 0

    def fail_twice(thread: threading.Thread) -> None:
        nonlocal failures
        if thread.name == "stream" and failures < 2:
            failures += 1
            raise RuntimeError("can't start new thread")
        start(thread)

    port = stream_port(client)
    monkeypatch.setattr(threading.Thread, "start", fail_twice)
    with capture_logs() as logs, contextlib.ExitStack() as stack:
        for stranger in strangers(port, 2, stack):
            assert stranger.recv(1) == b"", "closed, not left open without a thread"
        assert client.call_often(Ask(1), Told, timeout_seconds=30) == Told(2)
    assert failures == 2
    assert [line["reason"] for line in logs if line["event"] == "stream_not_accepted"] == ["can't start new thread"]


def test_an_accept_that_fails_in_any_way_does_not_end_the_port(
    monkeypatch: pytest.MonkeyPatch, client: RpcClient, server: RpcServer
) -> None:
    enter = server._streams._admission.enter  # type: ignore[union-attr]
    failures = iter([MemoryError(), ValueError("any")])

    def fail(link: socket.socket) -> Any:
        error = next(failures, None)
        if error is not None:
            link.close()
            raise error
        return enter(link)

    monkeypatch.setattr(server._streams._admission, "enter", fail)  # type: ignore[union-attr]
    assert client.call_often(Ask(1), Told, timeout_seconds=30) == Told(2)
    assert next(failures, None) is None


def test_a_client_above_the_limit_of_streams_learns_the_limit_and_gets_in_later(client: RpcClient) -> None:
    with contextlib.ExitStack() as stack, capture_logs() as logs:
        first, second = (stack.enter_context(contextlib.closing(client.open_stream([Told]))) for _ in range(2))
        for _ in range(3):
            with pytest.raises(TransportError, match="2 streams are open, which is the limit of one server") as refusal:
                client.open_stream([Told])
            assert refusal.value.retryable
        assert_answers(first)
        assert_answers(second)
        second.close()
        assert client.call_often(Ask(1), Told, timeout_seconds=30) == Told(2)
    assert [line["maximum"] for line in logs if line["event"] == "streams_refused"] == [MAXIMUM_STREAMS]
