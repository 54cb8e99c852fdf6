"""The limit of a pod's memory and the kills for it, as its control group shows them."""

from __future__ import annotations

from pathlib import Path

_UNIFIED = ("memory.max", "memory.events")
_VERSION_1 = ("memory.limit_in_bytes", "memory.oom_control")
_KILLS = "oom_kill "


class ControlGroup:
    """That of this process, in version 1 or 2; without one nothing is known.

    Args:
        membership: lists the groups of a process.
        root: under which they are mounted.
    """

    def __init__(self, membership: Path = Path("/proc/self/cgroup"), root: Path = Path("/sys/fs/cgroup")) -> None:
        self._limit, self._events = _files(membership, root)

    def limit_bytes(self) -> int | None:
        """None: it has no limit of its own, or nothing is known."""
        if self._limit is None or (text := self._limit.read_text().strip()) == "max":
            return None
        return int(text)

    def memory_kills(self) -> int:
        """How many processes of the pod the kernel has killed for memory; 0 where nothing is known."""
        if self._events is None:
            return 0
        lines = self._events.read_text().splitlines()
        return next((int(line.removeprefix(_KILLS)) for line in lines if line.startswith(_KILLS)), 0)


def _files(membership: Path, root: Path) -> tuple[Path | None, Path | None]:
    try:
        entries = [line.split(":", 2) for line in membership.read_text().splitlines()]
    except OSError:
        return None, None
    for _, controllers, path in entries:
        if "memory" in controllers.split(","):
            top, names = root / "memory", _VERSION_1
        elif not controllers:
            top, names = root, _UNIFIED
        else:
            continue
        # A container has its own group mounted at the top, whatever its path is outside.
        for folder in (top / path.lstrip("/"), top):
            if all((folder / name).is_file() for name in names):
                return folder / names[0], folder / names[1]
    return None, None
