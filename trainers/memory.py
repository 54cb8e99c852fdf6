"""The resident memory of a process that computes with torch, and a limit for the freed memory that glibc keeps.

`threads.py` prevents glibc from returning memory after every batch, because page faults for the same pages are slow.
Freed pieces that cannot be reused then accumulate: a worker with xDeepFM grew by 1.2 MB per step (batch 256), until the
kernel killed it at its limit.
"""

from __future__ import annotations

import ctypes
import resource
from collections.abc import Callable
from pathlib import Path

from elastrec.trainers.memory_owner.control_group import memory_groups

_GROWTH = 1.25
_SLACK_BYTES = 256 << 20


def resident_bytes() -> int:
    """Resident memory of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def room_bytes(root: Path = Path("/")) -> int:
    """Memory that is available to this process on the machine and within the limits of its control groups.

    Other processes of a group use part of its limit, and so does memory that a process of the pod owns.

    Args:
        root: the folder with `proc` and `sys`.
    """
    numbers = dict(line.split(":") for line in (root / "proc/meminfo").read_text().splitlines())
    rooms = [1024 * int(numbers["MemAvailable"].split()[0])]
    resident = resident_bytes()
    for files in memory_groups(root / "proc/self/cgroup", root / "sys/fs/cgroup"):
        limit = files.limit.read_text().strip() if files.limit.exists() else "max"
        if limit != "max":
            rooms.append(int(limit) - max(resident, _used_bytes(files.limit.with_name("memory.stat"))))
    return min(rooms)


def _used_bytes(statistics: Path) -> int:
    """Used memory of a control group and its children, without cached files, which the kernel can drop."""
    if not statistics.exists():
        return 0
    numbers = dict(line.split(" ", 1) for line in statistics.read_text().splitlines())
    # File names of versions 2 and 1.
    names = ("anon", "shmem") if "anon" in numbers else ("total_rss", "total_shmem")
    return sum(int(numbers.get(name, 0)) for name in names)


class ResidentMemory:
    """Measures this process's resident memory, and returns freed memory to the system if it has grown much since the
    last time.

    This has no cost for a process that does not grow. Not thread-safe.

    Args:
        measure_bytes: measures the resident memory.
        trim: returns freed memory to the system.
    """

    def __init__(
        self, measure_bytes: Callable[[], int] = resident_bytes, trim: Callable[[], object] | None = None
    ) -> None:
        self._measure_bytes = measure_bytes
        self._trim = trim or _malloc_trim()
        self._limit_bytes: float | None = None

    def measure(self) -> int:
        """Resident bytes, after freed memory was returned if that was due."""
        resident = self._measure_bytes()
        if self._limit_bytes is not None and resident > self._limit_bytes:
            self._trim()
            resident = self._measure_bytes()
            self._limit_bytes = None
        if self._limit_bytes is None:
            self._limit_bytes = _GROWTH * resident + _SLACK_BYTES
        return resident


def _malloc_trim() -> Callable[[], object]:
    libc = ctypes.CDLL(None)
    # Only in glibc; other C libraries return freed memory by themselves.
    return (lambda: libc.malloc_trim(0)) if hasattr(libc, "malloc_trim") else (lambda: None)
