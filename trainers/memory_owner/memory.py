"""Memory without a file system: it exists while its owner runs or a process maps it.

A container's /dev/shm holds 64 MiB by default; this memory has no limit but the pod's.
"""

from __future__ import annotations

import os

from elastrec.platform.memory import make_pages
from elastrec.trainers.memory_owner.log import say


class MemoryRefusedError(Exception):
    """The memory is permanently not available in this pod."""


def make_memory(size_bytes: int, limit_bytes: int | None) -> str:
    """Creates all pages of the memory; returns the path by which processes of the pod open it.

    If it does not fit on the node at present, the memory is empty, and a server logs that it works without it.

    Args:
        limit_bytes: of the pod's memory; None: unknown.

    Raises:
        MemoryRefusedError: the pod is too small for it, or this machine has no such memory.
    """
    field = f"spec.checkpoint.memory: {size_bytes} bytes are not allowed"
    if limit_bytes is not None and size_bytes >= limit_bytes:
        raise MemoryRefusedError(
            f"{field} in this pod; allowed: less than {limit_bytes}, the limit of its memory; the cluster has to give "
            "the pod the memory that was asked for, else leave the field out"
        )
    try:
        descriptor = os.memfd_create("elastrec-records")
    except OSError as error:
        raise MemoryRefusedError(
            f"{field} on this machine: memfd_create: {error.strerror}; allow the call in the sandbox of the pods "
            "(seccomp), else leave the field out"
        ) from None
    try:
        make_pages(descriptor, size_bytes)
    except OSError as error:
        say("error", "memory_not_made", bytes=size_bytes, reason=error.strerror)
        os.ftruncate(descriptor, 0)
    # Of this process, not of the one that opens it: a server's own children open it, too.
    return f"/proc/{os.getpid()}/fd/{descriptor}"
