"""Freed memory is returned to the system only if a process keeps growing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from elastrec.trainers import memory as memory_module
from elastrec.trainers.memory import ResidentMemory
from elastrec.trainers.threads import process_settings

GIB = 1 << 30


class Heap:
    """A process of which `kept_bytes` are freed and not given back."""

    def __init__(self) -> None:
        self.used_bytes, self.kept_bytes, self.trims = GIB, 0, 0

    def resident(self) -> int:
        return self.used_bytes + self.kept_bytes

    def trim(self) -> None:
        self.kept_bytes = 0
        self.trims += 1


def test_a_process_of_constant_size_returns_no_memory() -> None:
    heap = Heap()
    memory = ResidentMemory(heap.resident, heap.trim)
    for kept in (0, 400 << 20, 0, 500 << 20):
        heap.kept_bytes = kept
        assert memory.measure() == heap.resident()
    assert heap.trims == 0


def test_freed_memory_of_a_process_that_grows_is_given_back_again_and_again() -> None:
    heap = Heap()
    memory = ResidentMemory(heap.resident, heap.trim)
    memory.measure()
    for _ in range(3):
        heap.kept_bytes = GIB
        assert memory.measure() == GIB
    assert heap.trims == 3


def test_a_larger_process_returns_memory_less_often() -> None:
    heap = Heap()
    memory = ResidentMemory(heap.resident, heap.trim)
    for _ in range(160):
        memory.measure()
        heap.used_bytes += 100 << 20
    assert heap.used_bytes > 16 * GIB
    assert heap.trims <= 11


def test_memory_that_glibc_keeps_under_a_workers_settings_is_returned() -> None:
    code = """
import psutil
from elastrec.trainers.memory import ResidentMemory
memory = ResidentMemory()
memory.measure()
# Some pieces stay, so that the freed ones do not lie at the end of the heap.
pieces = [bytearray(b"x") * (1 << 20) for _ in range(1200)]
pieces = pieces[::20]
kept = psutil.Process().memory_info().rss
print(kept - memory.measure() >> 20)
"""
    environment = process_settings({})
    ran = subprocess.run([sys.executable, "-c", code], env=environment, check=True, capture_output=True, text=True)
    assert int(ran.stdout) > 900


@pytest.mark.parametrize(
    ("group", "limits", "expected"),
    [
        ("0::/", {"memory.max": "max"}, 2**30),
        ("0::/", {"memory.max": "700"}, 200),
        ("0::/pods/a", {"pods/a/memory.max": "600", "memory.max": "max"}, 100),
        ("0::/pods/a", {"pods/a/memory.max": "900", "pods/memory.max": "600"}, 100),
        ("4:memory:/pods/a", {"memory/pods/a/memory.limit_in_bytes": "800"}, 300),
        ("4:cpu,memory:/pods/a", {"memory/memory.limit_in_bytes": "800"}, 300),
        ("4:cpu:/pods/a", {"memory/pods/a/memory.limit_in_bytes": "800"}, 2**30),
        # 300 bytes of the group belong to another process, which owns memory.
        ("0::/pods/a", {"pods/a/memory.max": "900", "pods/a/memory.stat": "anon 520\nfile 999\nshmem 280"}, 100),
        (
            "4:memory:/pods/a",
            {
                "memory/pods/a/memory.limit_in_bytes": "900",
                "memory/pods/a/memory.stat": "rss 1\nshmem 1\ntotal_cache 999\ntotal_rss 520\ntotal_shmem 280",
            },
            100,
        ),
    ],
)
def test_room_ends_at_the_limit_of_the_control_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, group: str, limits: dict[str, str], expected: int
) -> None:
    monkeypatch.setattr(memory_module, "resident_bytes", lambda: 500)
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/meminfo").write_text("MemTotal: 9999999 kB\nMemAvailable:    1048576 kB\n")
    (tmp_path / "proc/self/cgroup").write_text(f"{group}\n")
    for name, text in limits.items():
        file = tmp_path / "sys/fs/cgroup" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{text}\n")
    assert memory_module.room_bytes(tmp_path) == expected
