"""The RPC stack over real sockets."""

from __future__ import annotations

import contextlib
import gc
import re
import socket
import subprocess
import sys
import threading
import typing
import warnings
from collections.abc import Iterator

import msgspec
import numpy as np
import psutil
import pytest

from elastrec.platform.specs.errors import AuthenticationError, ClusterError, IncompatibleError, TransportError
from elastrec.platform.transport import ArrayStream, RpcClient, RpcServer, TlsConfig
from elastrec.platform.transport.versions import code_version
from elastrec.platform.transport.wire.frames import Encoded, Packed, bytes_of
from elastrec.platform.transport.wire.greeting import Welcome
from tests.platform.transport.messages import TOKEN, Answered, Ask, AskArrays
from tests.platform.transport.raw_wire import greeting, tcp_only


class Counter:
    def __init__(self) -> None:
        self.calls = 0
        self.lock = threading.Lock()

    def __call__(self, message: Ask) -> Answered:
        with self.lock:
            self.calls += 1
        if message.number == -1:
            raise ClusterError("no such pod")
        return Answered(message.number + 1)


def add_one(message: AskArrays, arrays: list[np.ndarray]) -> tuple[Answered, list[np.ndarray]]:
    if message.number < 0:
        raise ClusterError("negative")
    return Answered(message.number), [array + 1 for array in arrays]


@pytest.fixture
def counter() -> Counter:
    return Counter()


@pytest.fixture
def server(counter: Counter) -> Iterator[RpcServer]:
    server = RpcServer({Ask: counter}, token=TOKEN, array_handlers={AskArrays: add_one})
    server.serve_in_background()
    yield server
    server.stop()


def test_a_call_gets_its_typed_answer(client: RpcClient) -> None:
    assert client.call(Ask(1), Answered) == Answered(2)


def test_an_answer_that_was_encoded_once_serves_many_calls() -> None:
    encoded = Encoded.of(Answered(7))
    server = RpcServer({Ask: lambda message: encoded}, token=TOKEN)
    server.serve_in_background()
    client = RpcClient(server.address, TOKEN)
    assert [client.call(Ask(number), Answered) for number in range(2)] == [Answered(7)] * 2
    client.close()
    server.stop()


def test_a_client_that_is_dropped_closes_its_connections(server: RpcServer) -> None:
    client = RpcClient(server.address, TOKEN)
    client.call(Ask(1), Answered)
    with warnings.catch_warnings(record=True) as unclosed:
        warnings.simplefilter("always")
        del client
        gc.collect()
    assert unclosed == []


class _Inner(msgspec.Struct):
    number: int


class _Outer(msgspec.Struct, tag=True):
    inner: _Inner


def test_a_thread_waits_while_another_one_collects_the_types_of_the_same_answer(
    server: RpcServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    collects, goes_on, second_is_done = threading.Event(), threading.Event(), threading.Event()

    class SlowReference(typing.ForwardRef, _root=True):
        def __init__(self, argument: str, **options: bool) -> None:
            if argument == "int":  # of the inner class, while the outer one is known and not complete
                collects.set()
                assert goes_on.wait(20)
            super().__init__(argument, **options)

    def open_stream() -> None:
        RpcClient(server.address, TOKEN).open_stream([_Outer]).close()

    def open_second() -> None:
        open_stream()
        second_is_done.set()

    monkeypatch.setattr(typing, "ForwardRef", SlowReference)
    first, second = threading.Thread(target=open_stream), threading.Thread(target=open_second)
    first.start()
    assert collects.wait(20)
    second.start()
    done_too_early = second_is_done.wait(0.3)
    goes_on.set()
    first.join()
    second.join()
    assert not done_too_early


@pytest.mark.parametrize("token", ["", "wrong"])
def test_a_call_without_the_token_is_refused_and_not_retried(server: RpcServer, counter: Counter, token: str) -> None:
    with pytest.raises(AuthenticationError, match="token") as refusal:
        RpcClient(server.address, token).call(Ask(1), Answered, timeout_seconds=5)
    assert counter.calls == 0
    assert TOKEN not in str(refusal.value)


def test_a_stream_without_the_token_is_refused(server: RpcServer) -> None:
    with pytest.raises(AuthenticationError):
        RpcClient(server.address, "wrong").open_stream([Answered]).request(AskArrays(1))


def test_an_error_of_the_handler_reaches_the_caller_with_its_text(client: RpcClient) -> None:
    with pytest.raises(ClusterError, match=r"^no such pod$") as error:
        client.call(Ask(-1), Answered)
    assert not error.value.retryable


def test_a_message_that_is_unknown_is_refused_by_name(client: RpcClient) -> None:
    with pytest.raises(IncompatibleError, match="unknown message 'Answered'"):
        client.call(Answered(1), Answered)


def test_an_answer_of_another_type_is_refused(client: RpcClient) -> None:
    with pytest.raises(TransportError, match="no Ask"):
        client.call(Ask(1), Ask)


def test_a_message_of_another_version_is_refused_permanently_with_both_versions(client: RpcClient) -> None:
    version = re.escape(f"elastrec {code_version()}")
    both = f"{version}.*{version}.*the same version on every node"
    newer = msgspec.defstruct("Ask", [("text", str)], tag="Ask")
    newer_arrays = msgspec.defstruct("AskArrays", [("text", str)], tag="AskArrays")
    with pytest.raises(IncompatibleError, match=both) as refusal:
        client.call(newer("one"), Answered)
    assert not refusal.value.retryable
    with (
        contextlib.closing(client.open_stream([Answered])) as stream,
        pytest.raises(IncompatibleError, match=both),
    ):
        stream.request(newer_arrays("one"))
    with (
        contextlib.closing(client.open_stream([newer])) as stream,
        pytest.raises(IncompatibleError, match="cannot read"),
    ):
        stream.request(AskArrays(1))
    other_answer = msgspec.defstruct("Answered", [("text", str)], tag="Answered")
    with pytest.raises(IncompatibleError, match=both):
        client.call(Ask(1), other_answer)


def test_a_server_that_starts_late_is_reached_within_the_deadline(counter: Counter) -> None:
    first = RpcServer({Ask: counter}, token=TOKEN)
    port = first.port
    first.serve_in_background()
    client = RpcClient(f"127.0.0.1:{port}", TOKEN)
    client.call(Ask(1), Answered)
    first.stop()
    second: list[RpcServer] = []

    def restart() -> None:
        second.append(RpcServer({Ask: counter}, token=TOKEN, port=port))
        second[0].serve_in_background()

    timer = threading.Timer(0.7, restart)
    timer.start()
    assert client.call(Ask(5), Answered, timeout_seconds=20) == Answered(6)
    timer.join()
    second[0].stop()


def test_an_absent_server_is_reported_as_retryable_after_the_deadline() -> None:
    with pytest.raises(TransportError) as error:
        RpcClient("127.0.0.1:1", TOKEN).call(Ask(1), Answered, timeout_seconds=0.3)
    assert error.value.retryable


def test_a_call_that_takes_too_long_ends_at_its_deadline() -> None:
    release = threading.Event()

    def slow(message: Ask) -> Answered:
        release.wait(20)
        return Answered(0)

    server = RpcServer({Ask: slow}, token=TOKEN)
    server.serve_in_background()
    with pytest.raises(TransportError) as error:
        RpcClient(server.address, TOKEN).call(Ask(1), Answered, timeout_seconds=0.5)
    assert error.value.retryable
    release.set()
    server.stop()


def test_a_stream_request_that_takes_too_long_ends_at_its_deadline() -> None:
    release = threading.Event()

    def slow(message: AskArrays, arrays: list[np.ndarray]) -> tuple[Answered, list[np.ndarray]]:
        release.wait(20)
        return Answered(0), []

    server = RpcServer({}, token=TOKEN, array_handlers={AskArrays: slow})
    server.serve_in_background()
    stream = RpcClient(server.address, TOKEN).open_stream([Answered], timeout_seconds=0.3)
    with pytest.raises(TransportError):
        stream.request(AskArrays(1))
    release.set()
    stream.close()
    server.stop()


def test_many_requests_travel_on_one_stream_in_order(client: RpcClient) -> None:
    stream = client.open_stream([Answered])
    for number in range(200):
        values = np.arange(number, dtype=np.float32).reshape(-1, 1)
        answer, arrays = stream.request(AskArrays(number), [values, np.array([], np.int64)])
        assert answer == Answered(number)
        np.testing.assert_array_equal(arrays[0], values + 1)
        assert arrays[1].shape == (0,) and arrays[1].dtype == np.int64
    stream.close()


def test_a_refused_stream_request_does_not_end_the_stream(client: RpcClient) -> None:
    stream = client.open_stream([Answered])
    with pytest.raises(ClusterError, match="negative"):
        stream.request(AskArrays(-1))
    assert stream.request(AskArrays(3))[0] == Answered(3)
    stream.close()


@pytest.mark.services
def test_a_stream_whose_server_died_raises(server: RpcServer) -> None:
    script = (
        "import sys, msgspec\n"
        "from elastrec.platform.transport import RpcServer\n"
        "class AskArrays(msgspec.Struct, tag=True): number: int\n"
        "class Answered(msgspec.Struct, tag=True): number: int\n"
        "handlers = {AskArrays: lambda message, arrays: (Answered(message.number), arrays)}\n"
        f"server = RpcServer({{}}, token={TOKEN!r}, array_handlers=handlers)\n"
        "server.serve_in_background()\n"
        "print(server.address, flush=True)\n"
        "sys.stdin.read()\n"
    )
    process = subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    stream = RpcClient(process.stdout.readline().strip(), TOKEN).open_stream([Answered])
    assert stream.request(AskArrays(1))[0] == Answered(1)
    process.kill()
    process.communicate()
    with pytest.raises(TransportError) as error:
        stream.request(AskArrays(2))
    assert error.value.retryable
    stream.close()


def test_with_tls_the_whole_way_is_encrypted_and_the_root_is_checked(tls: TlsConfig) -> None:
    server = RpcServer({Ask: lambda m: Answered(m.number)}, token=TOKEN, tls=tls, array_handlers={AskArrays: add_one})
    server.serve_in_background()
    client = RpcClient(f"localhost:{server.port}", TOKEN, tls)
    assert client.call(Ask(4), Answered) == Answered(4)
    stream = client.open_stream([Answered])
    assert stream.request(AskArrays(5), [np.zeros(3)])[1][0].tolist() == [1, 1, 1]
    stream.close()
    with pytest.raises(TransportError):
        RpcClient(f"localhost:{server.port}", TOKEN).call(Ask(1), Answered, timeout_seconds=1)
    assert "PRIVATE" not in repr(tls)
    server.stop()


def test_a_vector_in_thousands_of_parts_arrives_over_every_kind_of_connection(client: RpcClient) -> None:
    parts = [np.full(30, number, np.float32) for number in range(3000)]
    for opener in (client, tcp_only(client)):
        stream = opener.open_stream([Answered])
        for count in (3, 3000):
            (got,) = stream.request(AskArrays(1), [Packed.vectors(("f4", list(map(bytes_of, parts[:count]))))])[1]
            np.testing.assert_array_equal(got, np.concatenate(parts[:count]) + 1)
        stream.close()


def test_a_connection_with_another_protocol_is_closed_and_the_server_continues(
    server: RpcServer, client: RpcClient
) -> None:
    stream = client.open_stream([Answered])
    foreign = [b"GET / HTTP/1.1\r\n\r\n", b"elg1\xff\xff\xff\xff"]
    wrong = [*foreign, greeting(TOKEN) + b"elf1" + b"\xff" * 15, greeting(TOKEN) + b"x" * 19]
    for data in wrong:
        with socket.create_connection(("127.0.0.1", server.port), 5) as link:
            link.sendall(data)
            answer = b"".join(iter(lambda link=link: _received(link), b""))
            assert answer == b"\x00" if data in foreign else answer[:1] in (b"\x01", b"")
    assert stream.request(AskArrays(3))[0] == Answered(3)
    stream.close()


def _received(link: socket.socket) -> bytes:
    try:
        return link.recv(100)
    except ConnectionResetError:
        return b""


def test_a_wrong_token_opens_no_stream_at_either_socket(server: RpcServer) -> None:
    for token in ("", "wrong", TOKEN + "x"):
        client = RpcClient(server.address, token)
        with pytest.raises(AuthenticationError, match="refused the token"):
            client.open_stream([Answered])
        link = socket.socket(socket.AF_UNIX)
        link.connect("\0" + server._port.welcome.local_name)
        link.sendall(greeting(token))
        assert link.recv(1) == b"\x00"
        link.close()


def family(stream: ArrayStream) -> str:
    return stream._channel.connection._link.family.name


def test_a_stream_within_a_network_namespace_is_a_unix_socket_and_across_namespaces_tcp(
    server: RpcServer, client: RpcClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    with contextlib.closing(client.open_stream([Answered])) as stream:
        assert family(stream) == "AF_UNIX"
        assert stream.request(AskArrays(4))[0] == Answered(4)
    # A name that nobody listens at is what a server in another namespace gives.
    monkeypatch.setattr(server._port, "welcome", Welcome("elsewhere", "elastrec-elsewhere"))
    with contextlib.closing(RpcClient(server.address, TOKEN).open_stream([Answered])) as stream:
        assert family(stream) == "AF_INET"
        assert stream.request(AskArrays(4))[0] == Answered(4)


def test_a_server_listens_at_one_tcp_port_for_calls_and_arrays(client: RpcClient, server: RpcServer) -> None:
    with (
        contextlib.closing(tcp_only(client)) as over_tcp,
        contextlib.closing(over_tcp.open_stream([Answered])) as stream,
    ):
        assert over_tcp.call(Ask(1), Answered) == Answered(2)
        assert stream.request(AskArrays(3))[0] == Answered(3)
        mine = [at for at in psutil.Process().net_connections("tcp") if at.laddr.port == server.port]
        assert [at.status for at in mine].count("LISTEN") == 1
        connected = [at for at in psutil.Process().net_connections("tcp") if at.raddr and at.raddr.port == server.port]
        assert len(connected) == 2
    assert [link.family.name for link in server._port._listeners] == ["AF_INET", "AF_UNIX"]


def test_a_server_that_stops_ends_its_streams(counter: Counter) -> None:
    server = RpcServer({}, token=TOKEN, array_handlers={AskArrays: add_one})
    server.serve_in_background()
    stream = RpcClient(server.address, TOKEN).open_stream([Answered])
    stream.request(AskArrays(1))
    assert server.stop()
    with pytest.raises(TransportError) as error:
        stream.request(AskArrays(2))
    assert error.value.retryable
    stream.close()


def test_a_large_array_arrives_whole_also_over_tls(client: RpcClient, tls: TlsConfig) -> None:
    encrypted = RpcServer({}, token=TOKEN, tls=tls, array_handlers={AskArrays: add_one})
    encrypted.serve_in_background()
    values = np.arange(5_000_001, dtype=np.int32)
    over_tcp = tcp_only(RpcClient(f"localhost:{encrypted.port}", TOKEN, tls)).open_stream([Answered])
    np.testing.assert_array_equal(over_tcp.request(AskArrays(1), [values])[1][0], values + 1)
    over_tcp.close()
    for opener in (client, RpcClient(f"localhost:{encrypted.port}", TOKEN, tls)):
        stream = opener.open_stream([Answered])
        np.testing.assert_array_equal(stream.request(AskArrays(1), [values[:3], values])[1][1], values + 1)
        stream.close()
    encrypted.stop()
