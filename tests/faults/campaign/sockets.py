"""A network cut between real processes of one machine: the kernel drops what arrives at their sockets. Needs root.

No packet filter has to be installed and no other process is touched: a copy of the descriptor of each socket is taken
from its process, and a socket filter that accepts nothing is attached to it. For both sides this is the same as a
pulled cable: no reset and no error, and retransmissions after the end of the cut.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import socket
import struct
import time
from collections.abc import Iterator
from pathlib import Path

import psutil

_PIDFD_GETFD = 438  # the same number on every architecture
_ATTACH_FILTER, _DETACH_FILTER = 26, 27
_DROP_ALL = ctypes.create_string_buffer(struct.pack("HBBI", 0x06, 0, 0, 0))  # BPF_RET | BPF_K: keep 0 bytes
_library = ctypes.CDLL(None, use_errno=True)


def sockets_of(process: psutil.Process) -> Iterator[socket.socket]:
    """Copies of a process's TCP sockets; the caller closes them.

    Raises:
        OSError: the process has ended, or its descriptors may not be read.
    """
    handle = os.pidfd_open(process.pid)
    try:
        for entry in list(Path(f"/proc/{process.pid}/fd").iterdir()):
            with contextlib.suppress(FileNotFoundError):
                if not str(entry.readlink()).startswith("socket:"):
                    continue
                descriptor = _library.syscall(_PIDFD_GETFD, handle, int(entry.name), 0)
                if descriptor < 0:
                    raise OSError(ctypes.get_errno(), f"pidfd_getfd of {entry}")
                copy = socket.socket(fileno=descriptor)
                if copy.family in (socket.AF_INET, socket.AF_INET6) and copy.type == socket.SOCK_STREAM:
                    yield copy
                else:
                    copy.close()
    finally:
        os.close(handle)


def _is_listening(link: socket.socket) -> bool:
    return bool(link.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))


def _port_of_peer(link: socket.socket) -> int:
    try:
        return int(link.getpeername()[1])
    except OSError:
        return 0  # not connected any more


@contextlib.contextmanager
def cut(server: psutil.Process, clients: list[psutil.Process]) -> Iterator[int]:
    """Cuts a server off from its clients; its own requests to other servers still work.

    Args:
        clients: processes whose connections to the server are cut on their side, too.

    Yields:
        The number of cut sockets.
    """
    silenced: list[socket.socket] = []
    try:
        own = list(sockets_of(server))
        ports = {link.getsockname()[1] for link in own if _is_listening(link)}
        for link in own:
            _keep(link, silenced, wanted=link.getsockname()[1] in ports)
        for client in clients:
            with contextlib.suppress(OSError, psutil.Error):
                for link in sockets_of(client):
                    _keep(link, silenced, wanted=_port_of_peer(link) in ports)
        for link in silenced:
            program = struct.pack("HL", 1, ctypes.addressof(_DROP_ALL))
            link.setsockopt(socket.SOL_SOCKET, _ATTACH_FILTER, program)
        yield len(silenced)
    finally:
        for link in silenced:
            with contextlib.suppress(OSError):
                link.setsockopt(socket.SOL_SOCKET, _DETACH_FILTER, 0)
            link.close()


def _keep(link: socket.socket, kept: list[socket.socket], *, wanted: bool) -> None:
    if wanted:
        kept.append(link)
    else:
        link.close()


def take_port(port: int, timeout_seconds: float) -> socket.socket:
    """Listens on a port as soon as its owner has closed it, before the next owner can.

    Raises:
        OSError: the owner did not close it in time.
    """
    deadline = time.monotonic() + timeout_seconds
    while True:
        squatter = socket.socket()
        squatter.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            squatter.bind(("127.0.0.1", port))
            squatter.listen()
        except OSError:
            squatter.close()
            if time.monotonic() > deadline:
                raise
            time.sleep(0.005)
        else:
            return squatter
