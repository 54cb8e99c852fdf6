"""Ports of the loopback interface for servers of tests."""

from __future__ import annotations

import socket


def free_ports(count: int) -> list[int]:
    """Different ports that are free at present."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports: list[int] = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports
