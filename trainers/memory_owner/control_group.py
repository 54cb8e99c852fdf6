"""The limit of a pod's memory and the kills for it, as its control group shows them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

_KILLS = "oom_kill "


class MemoryFiles(NamedTuple):
    """A control group's values of memory."""

    limit: Path
    events: Path


def memory_groups(membership: Path, root: Path) -> Iterator[MemoryFiles]:
    """The files of each control group that bounds a process's memory, in version 1 or 2, from its own group upwards.

    Not all of these files have to be there. A container has its own group mounted at the top, whatever its path is
    outside.

    Args:
        membership: lists the groups of the process; nothing is known without it.
        root: under which they are mounted.
    """
    try:
        entries = [line.split(":", 2) for line in membership.read_text().splitlines()]
    except OSError:
        return
    for _, controllers, path in entries:
        own = Path(path.lstrip("/"))
        if not controllers:
            mounts, names = [root, root / "unified"], ("memory.max", "memory.events")
        elif "memory" in controllers.split(","):
            mounts, names = [root / "memory"], ("memory.limit_in_bytes", "memory.oom_control")
        else:
            continue
        for mount in mounts:
            for group in (own, *own.parents):
                yield MemoryFiles(*(mount / group / name for name in names))


class ControlGroup:
    """That of this process, in version 1 or 2; without one nothing is known.

    Args:
        membership: lists the groups of a process.
        root: under which they are mounted.
    """

    def __init__(self, membership: Path = Path("/proc/self/cgroup"), root: Path = Path("/sys/fs/cgroup")) -> None:
        there = (files for files in memory_groups(membership, root) if all(file.is_file() for file in files))
        self._files: MemoryFiles | None = next(there, None)

    def limit_bytes(self) -> int | None:
        """None: it has no limit of its own, or nothing is known."""
        if self._files is None or (text := self._files.limit.read_text().strip()) == "max":
            return None
        return int(text)

    def memory_kills(self) -> int:
        """The number of the pod's processes that the kernel has killed for memory; 0 if unknown."""
        if self._files is None:
            return 0
        lines = self._files.events.read_text().splitlines()
        return next((int(line.removeprefix(_KILLS)) for line in lines if line.startswith(_KILLS)), 0)
