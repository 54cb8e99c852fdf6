"""Strangers at the ports: refused or survived, logged without the secret, and never in the way of those who belong."""

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
import pyarrow.flight as flight
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from elastrec.platform.clusters.local import start_agent, stop_agent
from elastrec.platform.clusters.protocol import PodSize, PodSpec
from elastrec.platform.jobs import home_folder
from elastrec.platform.specs.errors import AuthenticationError, TransportError
from elastrec.platform.specs.metrics import Role
from elastrec.platform.transport import RpcClient, RpcServer, new_token, streams
from elastrec.platform.transport.frames import MAXIMUM_FRAME_BYTES, encode_frame
from elastrec.platform.transport.server import MAXIMUM_CALL_BYTES
from elastrec.platform.transport.streams import FindStreams, StreamsAt

TOKEN = new_token()
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
SETTINGS = PREFACE + b"\x00\x00\x00\x04\x00\x00\x00\x00\x00"
IDLE = 500
FUZZ = settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


class Ask(msgspec.Struct, tag=True):
    text: str


class Told(msgspec.Struct, tag=True):
    text: str


@pytest.fixture(scope="module")
def server() -> Iterator[RpcServer]:
    server = RpcServer(
        {Ask: lambda message: Told(message.text)},
        token=TOKEN,
        array_handlers={Ask: lambda message, arrays: (Told(message.text), arrays)},
    )
    server.serve_in_background()
    yield server
    server.stop()


@pytest.fixture(scope="module")
def stream_port(server: RpcServer) -> int:
    client = RpcClient(server.address, TOKEN)
    port = client.call(FindStreams(), StreamsAt).port
    client.close()
    return port


def assert_serves(server: RpcServer) -> None:
    """Whoever belongs here gets an answer, by call and by stream."""
    client = RpcClient(server.address, TOKEN)
    assert client.call(Ask("call"), Told) == Told("call")
    stream = client.open_stream([Told])
    answer, arrays = stream.request(Ask("stream"), [np.arange(3)])
    assert answer == Told("stream") and arrays[0].tolist() == [0, 1, 2]
    stream.close()
    client.close()


def throw(port: int, *pieces: bytes, listen_seconds: float = 0.05) -> bytes:
    """Sends bytes, hears what comes back for a moment, and hangs up."""
    heard = b""
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 5) as link:
        for piece in pieces:
            link.sendall(piece)
        link.settimeout(listen_seconds)
        heard = link.recv(4096)
    return heard


def greeting(token: str = TOKEN) -> bytes:
    return struct.pack("<4sI", b"els1", len(token)) + token.encode()


def frame(message: Ask, arrays: list[np.ndarray]) -> bytes:
    metadata, buffers = encode_frame(message, arrays)
    body = b"".join(bytes(buffer) for buffer in buffers)
    return struct.pack("<4sIQ", b"elf1", len(metadata), len(body)) + metadata + body


@pytest.mark.parametrize("token", ["", "wrong", "x" * 4000])
def test_refusals_are_logged_a_few_times_and_never_with_a_token(server: RpcServer, token: str) -> None:
    with capture_logs() as logs:
        for _ in range(40):
            with pytest.raises(AuthenticationError) as refusal:
                RpcClient(server.address, token).call(Ask("x"), Told)
            assert TOKEN not in str(refusal.value)
    assert len(logs) <= 7
    assert TOKEN not in str(logs) and "x" * 100 not in str(logs)
    assert_serves(server)


def test_a_stream_with_a_wrong_token_is_refused_and_counted(server: RpcServer, stream_port: int) -> None:
    with capture_logs() as logs:
        assert throw(stream_port, greeting("wrong"), listen_seconds=2) == b"\x00"
        assert throw(stream_port, greeting(TOKEN[:-1]), listen_seconds=2) == b"\x00"
        assert throw(stream_port, struct.pack("<4sI", b"els1", 2**32 - 1), listen_seconds=2) == b"\x00"
    assert TOKEN not in str(logs)
    assert_serves(server)


@FUZZ
@given(st.binary(max_size=300))
def test_garbage_at_the_port_of_calls_is_survived(server: RpcServer, garbage: bytes) -> None:
    throw(server.port, garbage, listen_seconds=0.001)
    throw(server.port, SETTINGS, garbage, listen_seconds=0.001)


@pytest.mark.parametrize("length", range(0, len(SETTINGS), 5))
def test_an_http2_beginning_that_is_cut_off_is_survived(server: RpcServer, length: int) -> None:
    throw(server.port, SETTINGS[:length])
    assert RpcClient(server.address, TOKEN).call(Ask("x"), Told) == Told("x")


@FUZZ
@given(st.binary(max_size=300))
def test_garbage_at_the_port_of_streams_is_survived(server: RpcServer, stream_port: int, garbage: bytes) -> None:
    throw(stream_port, garbage, listen_seconds=0.001)
    throw(stream_port, greeting(), garbage, listen_seconds=0.001)


@FUZZ
@given(data=st.data())
def test_a_frame_with_wrong_bytes_gets_an_answer_or_an_end_and_harms_nobody(
    server: RpcServer, stream_port: int, data: st.DataObject
) -> None:
    good = frame(Ask("x"), [np.arange(6, dtype=np.float32), np.zeros((0, 3), np.int64)])
    position = data.draw(st.integers(0, len(good) - 1))
    spoiled = bytearray(good)
    spoiled[position] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(1, len(good)))
    throw(stream_port, greeting(), bytes(spoiled[:cut]), listen_seconds=0.005)


def test_after_all_the_garbage_everybody_who_belongs_is_served(server: RpcServer) -> None:
    assert_serves(server)


@pytest.mark.parametrize("shape", [[0, 2**70], [-1], [2**40], [2**62, 4], [0, 2**62, 2**62]])
def test_a_shape_that_no_array_has_is_refused_by_name(server: RpcServer, stream_port: int, shape: list[int]) -> None:
    metadata = msgspec.msgpack.encode(
        [msgspec.Raw(msgspec.msgpack.encode(Ask("x"))), [["f4", [min(extent, 2**63 - 1) for extent in shape]]]]
    )
    with socket.create_connection(("127.0.0.1", stream_port), 5) as link, link.makefile("rb") as heard:
        link.sendall(greeting() + struct.pack("<4sIQ", b"elf1", len(metadata), 0) + metadata)
        assert heard.read(1) == b"\x01"
        _, length, _ = struct.unpack("<4sIQ", heard.read(16))
        assert b"IncompatibleError" in heard.read(length)
    assert_serves(server)


def test_a_frame_of_a_gigabyte_is_refused_before_it_is_read(server: RpcServer, stream_port: int) -> None:
    with capture_logs() as logs, socket.create_connection(("127.0.0.1", stream_port), 5) as link:
        link.sendall(greeting() + struct.pack("<4sIQ", b"elf1", 10, 2**30))
        assert link.recv(1) == b"\x01"
        assert link.recv(1) == b"", "the stream is closed"
    assert str(MAXIMUM_FRAME_BYTES) in str(logs)
    assert_serves(server)


def test_a_frame_above_the_limit_is_not_even_sent() -> None:
    many = [np.empty(MAXIMUM_FRAME_BYTES // 8, np.float64), np.zeros(1, np.uint8)]
    with pytest.raises(TransportError, match=f"at most {MAXIMUM_FRAME_BYTES}"):
        encode_frame(Ask("x"), many)


def test_a_call_above_the_limit_is_refused_by_both_sides(server: RpcServer) -> None:
    text = "x" * (MAXIMUM_CALL_BYTES + 1)
    with pytest.raises(TransportError, match=f"'Ask' of .* at most {MAXIMUM_CALL_BYTES} bytes"):
        RpcClient(server.address, TOKEN).call(Ask(text), Told)
    body = msgspec.msgpack.encode(["", msgspec.Raw(msgspec.msgpack.encode(Ask(text)))])
    options = flight.FlightCallOptions(timeout=30, headers=[(b"authorization", f"Bearer {TOKEN}".encode())])
    raw = flight.connect(f"grpc+tcp://{server.address}")
    with pytest.raises(flight.FlightServerError, match=f"at most {MAXIMUM_CALL_BYTES} bytes"):
        list(raw.do_action(flight.Action("Ask", body), options))
    raw.close()
    assert_serves(server)


@pytest.fixture
def many_descriptors() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 8192)), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_thousand_idle_connections_keep_nobody_from_being_served(
    server: RpcServer, stream_port: int, many_descriptors: None
) -> None:
    with contextlib.ExitStack() as idle:
        for port in (server.port, stream_port):
            for _ in range(IDLE):
                idle.enter_context(socket.create_connection(("127.0.0.1", port), 5))
        assert_serves(server)
    assert_serves(server)


def test_who_does_not_greet_in_time_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "_GREETING_SECONDS", 0.2)
    port = streams.StreamPort(
        lambda metadata, body: (b"", []), host="127.0.0.1", token=TOKEN, tls=None, on_refused=lambda: None
    )
    with socket.create_connection(("127.0.0.1", port.found.port), 5) as link:
        link.sendall(b"els1")
        assert link.recv(1) == b"", "closed by the server"
    port.close()


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
            files={"token": "secret", "tls.key": "secret"},
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
