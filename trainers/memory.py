"""The resident memory of a process that computes with torch, and a bound on what glibc keeps of freed memory.

`threads.py` keeps glibc from giving memory back after every batch, because faulting the same pages in again is slow.
Freed pieces that fit nothing any more then add up: a worker with xDeepFM grew by 1.2 MB a step (batch 256), until the
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
    """Of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def room_bytes(root: Path = Path("/")) -> int:
    """What this process may take: of the machine, and below the limits of its control groups.

    Other processes of a group take of its limit, too: so does memory that a process of the pod owns.

    Args:
        root: where `proc` and `sys` are.
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
    """Of a control group and those in it, without the cached files, which the kernel drops where it needs room."""
    if not statistics.exists():
        return 0
    numbers = dict(line.split(" ", 1) for line in statistics.read_text().splitlines())
    # By versions 2 and 1.
    names = ("anon", "shmem") if "anon" in numbers else ("total_rss", "total_shmem")
    return sum(int(numbers.get(name, 0)) for name in names)


class ResidentMemory:
    """Measures this process's resident memory, and gives freed memory back when it has grown much since it last did.

    A process that does not grow never pays for it. Not safe for several threads.

    Args:
        measure_bytes: measures the resident memory.
        trim: gives freed memory back to the system.
    """

    def __init__(
        self, measure_bytes: Callable[[], int] = resident_bytes, trim: Callable[[], object] | None = None
    ) -> None:
        self._measure_bytes = measure_bytes
        self._trim = trim or _malloc_trim()
        self._limit_bytes: float | None = None

    def measure(self) -> int:
        """Bytes, after freed memory was given back if that was due."""
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
    # Of glibc alone; other C libraries return freed memory by themselves.
    return (lambda: libc.malloc_trim(0)) if hasattr(libc, "malloc_trim") else (lambda: None)
