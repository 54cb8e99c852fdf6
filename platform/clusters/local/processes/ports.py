"""Ports for pods, chosen below the kernel's range of ephemeral ports, so that outgoing connections do not use them."""

from __future__ import annotations

import random
import socket
from collections.abc import Collection
from pathlib import Path

from elastrec.platform.specs.errors import ClusterError

_LOWEST, _TRIES = 20_000, 1_000


def is_free(port: int) -> bool:
    """Whether a port is free."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def choose_port(taken: Collection[int]) -> int:
    """A free port outside `taken`.

    Raises:
        ClusterError: none was found.
    """
    first_outgoing = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    end = first_outgoing if first_outgoing > _LOWEST + _TRIES else 32_768
    # Random, because several agents on one machine do not communicate.
    for port in random.sample(range(_LOWEST, end), _TRIES):
        if port not in taken and is_free(port):
            return port
    raise ClusterError(f"no free port between {_LOWEST} and {end}; end some of the programs that listen there")
