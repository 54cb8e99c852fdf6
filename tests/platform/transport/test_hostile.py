"""Foreign connections are refused or survived, logged without the secret, and do not delay clients."""

from __future__ import annotations

import contextlib
import resource
import socket
import stat
import struct
import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np
import psutil
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from elastrec.platform.clusters.local import start_agent, stop_agent
from elastrec.platform.clusters.pods import PodSize, PodSpec
from elastrec.platform.jobs import home_folder
from elastrec.platform.specs.errors import AuthenticationError, TransportError
from elastrec.platform.specs.metrics import Role
from elastrec.platform.transport import RpcClient, RpcServer, new_token
from elastrec.platform.transport.wire import connection, port
from elastrec.platform.transport.wire.frames import MAXIMUM_CALL_BYTES, MAXIMUM_FRAME_BYTES, encode_frame
from tests.platform.transport.raw_wire import frame, greeting, header, read_reply

TOKEN = new_token()
HTTP_2 = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00"
IDLE = 1000
FUZZ = settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


class Ask(msgspec.Struct, tag=True):
    text: str


class AskArrays(msgspec.Struct, tag=True):
    text: str


class Answered(msgspec.Struct, tag=True):
    text: str


@pytest.fixture(scope="module")
def server() -> Iterator[RpcServer]:
    server = RpcServer(
        {Ask: lambda message: Answered(message.text)},
        token=TOKEN,
        array_handlers={AskArrays: lambda message, arrays: (Answered(message.text), arrays)},
    )
    server.serve_in_background()
    yield server
    server.stop()


def assert_serves(server: RpcServer) -> None:
    """A client with the token gets an answer, by call and by stream."""
    client = RpcClient(server.address, TOKEN)
    assert client.call(Ask("call"), Answered) == Answered("call")
    stream = client.open_stream([Answered])
    answer, arrays = stream.request(AskArrays("stream"), [np.arange(3)])
    assert answer == Answered("stream") and arrays[0].tolist() == [0, 1, 2]
    stream.close()
    client.close()


def throw(to: int, *pieces: bytes, listen_seconds: float = 0.05) -> bytes:
    """Sends bytes, hears what comes back for a moment, and hangs up."""
    heard = b""
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", to), 5) as link:
        for piece in pieces:
            link.sendall(piece)
        link.settimeout(listen_seconds)
        heard = link.recv(4096)
    return heard


@pytest.mark.parametrize("token", ["", "wrong", "x" * 4000])
def test_refusals_are_logged_a_few_times_and_never_with_a_token(server: RpcServer, token: str) -> None:
    with capture_logs() as logs:
        for _ in range(40):
            with pytest.raises(AuthenticationError) as refusal:
                RpcClient(server.address, token).call(Ask("x"), Answered)
            assert TOKEN not in str(refusal.value)
    assert len(logs) <= 7
    assert TOKEN not in str(logs) and "x" * 100 not in str(logs)
    assert_serves(server)


def test_a_stream_with_a_wrong_token_is_refused_and_counted(server: RpcServer) -> None:
    with capture_logs() as logs:
        assert throw(server.port, greeting("wrong"), listen_seconds=2) == b"\x00"
        assert throw(server.port, greeting(TOKEN[:-1]), listen_seconds=2) == b"\x00"
        assert throw(server.port, struct.pack("<4sI", b"elg1", 2**32 - 1), listen_seconds=2) == b"\x00"
    assert TOKEN not in str(logs)
    assert_serves(server)


@FUZZ
@given(st.binary(max_size=300))
def test_garbage_before_and_behind_the_token_is_survived(server: RpcServer, garbage: bytes) -> None:
    throw(server.port, garbage, listen_seconds=0.001)
    throw(server.port, greeting(TOKEN), garbage, listen_seconds=0.001)
    throw(server.port, greeting(TOKEN), header(len(garbage), 0), garbage, listen_seconds=0.001)
    assert RpcClient(server.address, TOKEN).call(Ask("x"), Answered) == Answered("x")


@pytest.mark.parametrize("length", range(0, len(HTTP_2), 5))
def test_another_protocol_is_survived(server: RpcServer, length: int) -> None:
    throw(server.port, HTTP_2[:length])
    assert RpcClient(server.address, TOKEN).call(Ask("x"), Answered) == Answered("x")


@FUZZ
@given(data=st.data())
def test_a_corrupt_frame_gets_an_error_or_a_close_and_other_clients_are_served(
    server: RpcServer, data: st.DataObject
) -> None:
    good = frame(AskArrays("x"), [np.arange(6, dtype=np.float32), np.zeros((0, 3), np.int64)])
    position = data.draw(st.integers(0, len(good) - 1))
    spoiled = bytearray(good)
    spoiled[position] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(1, len(good)))
    throw(server.port, greeting(TOKEN), bytes(spoiled[:cut]), listen_seconds=0.005)


def test_after_garbage_valid_clients_are_still_served(server: RpcServer) -> None:
    assert_serves(server)


@pytest.mark.parametrize("shape", [[0, 2**70], [-1], [2**40], [2**62, 4], [0, 2**62, 2**62]])
def test_a_shape_that_no_array_has_is_refused_by_name(server: RpcServer, shape: list[int]) -> None:
    sizes = [min(extent, 2**63 - 1) for extent in shape]
    metadata = msgspec.msgpack.encode(
        ["AskArrays", "", msgspec.Raw(msgspec.msgpack.encode(AskArrays("x"))), [["f4", sizes]]]
    )
    with socket.create_connection(("127.0.0.1", server.port), 5) as link, link.makefile("rb") as heard:
        link.sendall(greeting(TOKEN) + header(len(metadata), 0) + metadata)
        assert heard.read(1) == b"\x01"
        assert read_reply(heard).kind == "Welcome"
        assert read_reply(heard).message["code"] == "IncompatibleError"
    assert_serves(server)


@pytest.mark.parametrize(("metadata_bytes", "body_bytes"), [(MAXIMUM_CALL_BYTES + 1, 0), (2**32 - 1, 0), (10, 2**30)])
def test_a_frame_above_the_limits_is_refused_in_words_before_it_is_read(
    server: RpcServer, metadata_bytes: int, body_bytes: int
) -> None:
    with (
        capture_logs() as logs,
        socket.create_connection(("127.0.0.1", server.port), 5) as link,
        link.makefile("rb") as heard,
    ):
        link.sendall(greeting(TOKEN) + header(metadata_bytes, body_bytes))
        assert heard.read(1) == b"\x01"
        assert read_reply(heard).kind == "Welcome"
        refusal = read_reply(heard)
        assert refusal.message["code"] == "TransportError" and "retryable" not in refusal.message
        assert f"at most {MAXIMUM_CALL_BYTES} bytes with arrays of at most" in refusal.message["text"]
        link.shutdown(socket.SHUT_WR)
        assert heard.read(1) == b"", "the connection is closed"
    assert str(MAXIMUM_FRAME_BYTES) in str(logs)
    assert_serves(server)


def test_while_a_call_above_the_limit_arrives_the_servers_memory_does_not_grow(server: RpcServer) -> None:
    megabyte = bytes(2**20)
    with socket.create_connection(("127.0.0.1", server.port), 5) as link, link.makefile("rb") as heard:
        before = psutil.Process().memory_info().rss
        link.sendall(greeting(TOKEN) + header(2**31, 0))
        with contextlib.suppress(OSError):  # closed when the server has heard enough
            for _ in range(200):
                link.sendall(megabyte)
        assert psutil.Process().memory_info().rss - before < 32 * 2**20
        assert heard.read(1) == b"\x01"


def test_a_client_that_is_refused_while_it_sends_learns_why(server: RpcServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "MAXIMUM_CALL_BYTES", 2**20)  # of the receiving sides
    with pytest.raises(TransportError, match=f"at most {2**20} bytes") as refusal:
        RpcClient(server.address, TOKEN).call(Ask("x" * 2**23), Answered, timeout_seconds=30)
    assert not refusal.value.retryable


def test_an_answer_above_the_limit_is_refused_by_both_sides(monkeypatch: pytest.MonkeyPatch) -> None:
    server = RpcServer({Ask: lambda message: Answered("x" * int(message.text))}, token=TOKEN)
    server.serve_in_background()
    client = RpcClient(server.address, TOKEN)
    with pytest.raises(TransportError, match=f"'Answered' of .* at most {MAXIMUM_CALL_BYTES} bytes") as refusal:
        client.call(Ask(str(MAXIMUM_CALL_BYTES)), Answered)
    assert not refusal.value.retryable
    monkeypatch.setattr(connection, "MAXIMUM_CALL_BYTES", 2**20)
    with pytest.raises(TransportError, match="answers with a frame that is too large") as refusal:
        client.call(Ask(str(2**21)), Answered)
    assert not refusal.value.retryable
    client.close()
    server.stop()


def test_a_frame_above_the_limit_is_not_even_sent() -> None:
    many = [np.empty(MAXIMUM_FRAME_BYTES // 8, np.float64), np.zeros(1, np.uint8)]
    with pytest.raises(TransportError, match=f"at most {MAXIMUM_FRAME_BYTES}"):
        encode_frame(AskArrays("x"), many)


def test_a_call_above_the_limit_is_not_even_sent(server: RpcServer) -> None:
    with pytest.raises(TransportError, match=f"'Ask' of .* at most {MAXIMUM_CALL_BYTES} bytes"):
        RpcClient(server.address, TOKEN).call(Ask("x" * (MAXIMUM_CALL_BYTES + 1)), Answered)


@pytest.fixture
def many_descriptors() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 8192)), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_server_answers_with_a_thousand_idle_connections(server: RpcServer, many_descriptors: None) -> None:
    with contextlib.ExitStack() as idle:
        for _ in range(IDLE):
            idle.enter_context(socket.create_connection(("127.0.0.1", server.port), 5))
        assert_serves(server)
    assert_serves(server)


def test_a_connection_that_does_not_greet_in_time_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(port, "_GREETING_SECONDS", 0.2)
    server = RpcServer({}, token=TOKEN)
    server.serve_in_background()
    with socket.create_connection(("127.0.0.1", server.port), 5) as link:
        link.sendall(b"elg1")
        assert link.recv(1) == b"", "closed by the server"
    server.stop()


def test_a_connection_whose_other_end_vanished_is_lost_within_minutes() -> None:
    # The lost packets of a dead node cannot be made here; the settings that the kernel documents for them can.
    with socket.create_server(("127.0.0.1", 0)) as listener:
        ours = socket.create_connection(listener.getsockname())
        theirs = listener.accept()[0]
        for link in (ours, theirs):
            made = connection.Connection(link)
            assert link.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
            idle, pause, probes = (
                link.getsockopt(socket.IPPROTO_TCP, option)
                for option in (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)
            )
            assert 30 <= idle + pause * probes <= 180
            made.close()


def test_a_frame_that_stops_in_the_middle_ends_its_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(port, "_SILENCE_SECONDS", 0.2)
    server = RpcServer({Ask: lambda message: Answered(message.text)}, token=TOKEN)
    server.serve_in_background()
    with socket.create_connection(("127.0.0.1", server.port), 5) as link, link.makefile("rb") as heard:
        link.sendall(greeting(TOKEN) + frame(Ask("x"))[:-1])
        assert heard.read(1) == b"\x01"
        assert read_reply(heard).kind == "Welcome"
        assert heard.read(1) == b"", "closed by the server"
    server.stop()


@pytest.mark.services
def test_files_of_agent_and_pods_are_the_owners_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ELASTREC_HOME", str(tmp_path / "home"))
    home = home_folder()
    assert stat.S_IMODE(home.stat().st_mode) == 0o700
    cluster = start_agent(home / "agent", cores=1, memory_bytes=2**30, limits="threads")
    try:
        pod = PodSpec(
            name="quiet",
            job="j",
            role=Role.WORKER,
            command=("sh", "-c", "touch $ELASTREC_WORK/here; sleep 60"),
            size=PodSize(0.5, 2**28),
            secrets={"token": "secret", "tls.key": "secret"},
            grace_seconds=0,
        )
        cluster.create(pod)
        started = threading.Event()
        for _ in range(200):
            if list(home.rglob("here")):
                break
            started.wait(0.05)
        assert stat.S_IMODE((home / "agent").stat().st_mode) == 0o700
        secrets = [path for path in home.rglob("*") if path.name in ("token", "tls.key", "agent.json")]
        assert len(secrets) >= 4
        for path in secrets:
            assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0, path
        files = next(path for path in secrets if path.name == "tls.key").parent
        assert stat.S_IMODE(files.stat().st_mode) & 0o077 == 0
        assert [path for path in home.rglob("*") if path.is_socket() and path.stat().st_mode & 0o077] == []
    finally:
        cluster.close()
        stop_agent(home / "agent")
