"""During a network cut of the campaign nothing arrives and nothing is refused; afterwards all data arrives."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing

import psutil
import pytest

from tests.faults.campaign.sockets import cut, take_port

pytestmark = pytest.mark.services

_ECHO = """
import socket
listener = socket.create_server(("127.0.0.1", 0))
print(listener.getsockname()[1], flush=True)
while True:
    link, _ = listener.accept()
    while data := link.recv(64):
        link.sendall(data)
"""
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="other processes' sockets are root's business")


@pytest.fixture
def echo() -> Iterator[tuple[psutil.Process, int]]:
    process = subprocess.Popen([sys.executable, "-c", _ECHO], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield psutil.Process(process.pid), int(process.stdout.readline())
    finally:
        process.kill()
        process.communicate()


@needs_root
def test_a_cut_server_does_not_answer_and_answers_again_afterwards(echo: tuple[psutil.Process, int]) -> None:
    process, port = echo
    with socket.create_connection(("127.0.0.1", port), 5.0) as link:
        link.sendall(b"one")
        assert link.recv(64) == b"one"
        link.settimeout(0.3)
        with cut(process, []) as sockets:
            assert sockets == 2
            link.sendall(b"two")
            with pytest.raises(TimeoutError):
                link.recv(64)
            with pytest.raises(TimeoutError):
                socket.create_connection(("127.0.0.1", port), 0.3)
        link.settimeout(60.0)
        assert link.recv(64) == b"two"


def test_a_port_is_taken_as_soon_as_it_is_free(echo: tuple[psutil.Process, int]) -> None:
    process, port = echo
    with pytest.raises(OSError, match="in use"):
        take_port(port, 0.05)
    process.kill()
    process.wait(60.0)
    with closing(take_port(port, 60.0)) as squatter:
        assert squatter.getsockname()[1] == port
