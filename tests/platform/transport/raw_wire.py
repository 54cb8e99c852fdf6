"""The wire without the client: data that a foreign program could send, and the answers."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from elastrec.platform.transport import RpcClient
from elastrec.platform.transport.wire.channel import Dialer
from elastrec.platform.transport.wire.frames import encode_frame

HEADER = struct.Struct("<4sIQBH")
NO_SEGMENT = 255


def greeting(token: str, magic: bytes = b"elg1") -> bytes:
    return struct.pack("<4sI", magic, len(token)) + token.encode()


def header(metadata_bytes: int, body_bytes: int, segment: int = NO_SEGMENT, given_back: int = 0) -> bytes:
    return HEADER.pack(b"elf2", metadata_bytes, body_bytes, segment, given_back)


def frame(message: msgspec.Struct, arrays: list[np.ndarray] | None = None, key: str = "") -> bytes:
    metadata, buffers = encode_frame(message, arrays or [], key=key)
    body = b"".join(bytes(buffer) for buffer in buffers)
    return header(len(metadata), len(body)) + metadata + body


@dataclass(frozen=True)
class Reply:
    """A frame without arrays."""

    kind: str
    message: dict[str, Any]


def read_reply(heard: Any) -> Reply:
    """The next frame of a file that reads from a socket."""
    _, metadata_bytes, _, _, _ = HEADER.unpack(heard.read(HEADER.size))
    kind, _, message, _ = msgspec.msgpack.decode(heard.read(metadata_bytes))
    return Reply(kind, message)


class _TcpDialer(Dialer):
    def _open_local(self, deadline: float) -> None:
        return None


def tcp_only(client: RpcClient) -> RpcClient:
    """A client that stands in another network namespace than its server."""
    dialer = client._dialer
    other = RpcClient(client.address, dialer._token, dialer._tls)
    other._dialer = _TcpDialer(client.address, dialer._token, dialer._tls)
    return other


class Relay:
    """Passes the bytes of one connection on to a server, those to the server only while ``passes`` is set."""

    def __init__(self, server_port: int) -> None:
        self.passes = threading.Event()
        self.passes.set()
        self._listener = socket.create_server(("localhost", 0))
        self._server_port = server_port
        self._sockets: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._run, daemon=True)]
        self._threads[0].start()

    @property
    def port(self) -> int:
        return int(self._listener.getsockname()[1])

    def _run(self) -> None:
        try:
            client, _ = self._listener.accept()
        except OSError:
            return
        server = socket.create_connection(("localhost", self._server_port))
        self._sockets += [client, server]
        back = threading.Thread(target=self._copy, args=(server, client), daemon=True)
        self._threads.append(back)
        back.start()
        self._copy(client, server, self.passes)

    @staticmethod
    def _copy(source: socket.socket, target: socket.socket, passes: threading.Event | None = None) -> None:
        try:
            while chunk := source.recv(65536):
                if passes is not None:
                    passes.wait()
                target.sendall(chunk)
            target.shutdown(socket.SHUT_WR)
        except OSError:
            return

    def close(self) -> None:
        self.passes.set()
        for each in (self._listener, *self._sockets):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()
        for thread in self._threads:
            thread.join(10)


@contextmanager
def relaying(server_port: int) -> Iterator[Relay]:
    relay = Relay(server_port)
    try:
        yield relay
    finally:
        relay.close()
