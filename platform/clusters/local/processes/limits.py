"""Limits of cores and memory by the kernel: cgroup v1, cgroup v2, or none if neither can be written.

Each agent has its own group `elastrec-<agent id>` at the mount's root (which is the container's own group inside a
container) with one group per pod below it. Pods join it between fork and exec; supervisors stay outside.
"""

from __future__ import annotations

import contextlib
import errno
import os
import time
from pathlib import Path
from typing import Protocol

import msgspec

from elastrec.platform.clusters.pods import PodSize
from elastrec.platform.specs.errors import ClusterError
from elastrec.platform.specs.text.quantities import SMALLEST_CORES

_PERIOD_MICROSECONDS = 100_000
_V1_SHARES, _V2_WEIGHT = 1024, 100
"""The kernel's own defaults."""
_AGENT_PREFIX = "elastrec-"
_STARTING_PART = 16
"""Factor by which the CPU weight of a starting pod is lower, so that it uses cores that the others leave idle."""


class Usage(msgspec.Struct, frozen=True):
    """A pod's use: `cpu_seconds` of all of its processes, including ended ones, and present `memory_bytes`.

    Memory is Kubernetes' working set: the kernel's charge to the pod, less the file cache that it could drop.
    """

    cpu_seconds: float = 0.0
    memory_bytes: int = 0


class Limits(Protocol):
    """Limits of pods by uid. `kind` is for users; `enforced`: whether the kernel enforces them."""

    kind: str
    enforced: bool

    def create(self, uid: str, size: PodSize, startup_cores: float = 0.0) -> None:
        """Creates the pod's group, or sets the limits of an existing one; see `resize`."""

    def resize(self, uid: str, size: PodSize, startup_cores: float = 0.0) -> None:
        """Changes the limits in place.

        Args:
            startup_cores: if above those of the size: the limit of a starting pod, which has a lower CPU weight.

        Raises:
            ClusterError: the pod holds more memory than the new limit.
        """

    def join_files(self, uid: str) -> list[str]:
        """Files into which a process writes `0` to enter the group."""

    def oom_file(self, uid: str) -> str:
        """File with a line `oom_kill N`; empty when there is none."""

    def processes(self, uid: str) -> list[int]:
        """Pids inside the group."""

    def usage(self, uid: str) -> Usage | None:
        """The use of a pod; None if this kind of limit does not measure, or the group does not exist."""

    def remove(self, uid: str) -> bool:
        """Removes the group of a pod without processes; false while the kernel still keeps it."""

    def uids(self) -> list[str]:
        """The uids of the pods that have a group."""

    def remove_foreign(self, join_files: list[str]) -> None:
        """Removes the group of a pod without processes, and that of its agent unless it is this one.

        Args:
            join_files: the paths from `join_files` of an agent whose id is lost.
        """

    def close(self) -> None:
        """Removes the agent's own group."""


class ThreadLimits:
    """No kernel limits: pods only learn their number of cores, and set their thread counts by it."""

    kind = "threads"
    enforced = False

    def create(self, uid: str, size: PodSize, startup_cores: float = 0.0) -> None:
        pass

    def resize(self, uid: str, size: PodSize, startup_cores: float = 0.0) -> None:
        pass

    def join_files(self, uid: str) -> list[str]:
        return []

    def oom_file(self, uid: str) -> str:
        return ""

    def processes(self, uid: str) -> list[int]:
        return []

    def usage(self, uid: str) -> Usage | None:
        return None

    def remove(self, uid: str) -> bool:
        return True

    def uids(self) -> list[str]:
        return []

    def remove_foreign(self, join_files: list[str]) -> None:
        _remove_foreign(join_files, set())

    def close(self) -> None:
        pass


class CgroupV1Limits:
    """`cpu.cfs_quota_us`, `cpu.shares` and `memory.limit_in_bytes`; usage from cpuacct where it is mounted.

    Args:
        roots: mount point by controller; `cpu` and `memory` are needed, `cpuacct` is used when given.
        group: name of the agent's own group.
    """

    kind = "cgroup v1"
    enforced = True

    def __init__(self, roots: dict[str, Path], group: str) -> None:
        self._folders = {name: root / group for name, root in roots.items()}
        for folder in self._folders.values():
            folder.mkdir(exist_ok=True)

    def _pod(self, controller: str, uid: str) -> Path:
        return self._folders[controller] / uid

    def create(self, uid: str, size: PodSize, startup_cores: float = 0.0) -> None:
        for controller in self._folders:
            self._pod(controller, uid).mkdir(exist_ok=True)
        self.resize(uid, size, startup_cores)

    def resize(self, uid: str, size: PodSize, startup_cores: float = 0.0) -> None:
        memory = self._pod("memory", uid)
        with_swap = memory / "memory.memsw.limit_in_bytes"
        # The limit with swap may never be below the one without, so that their order depends on the direction.
        without = memory / "memory.limit_in_bytes"
        names, before = [without], _read_int(without)
        if with_swap.exists():
            raised = size.memory_bytes > _read_int(with_swap)
            names = [with_swap, *names] if raised else [*names, with_swap]
        try:
            for name in names:
                name.write_text(str(size.memory_bytes))
        except OSError as error:
            if error.errno != errno.EBUSY:
                raise
            # A pod with swapped memory may keep the limit without swap and exceed the one with it. Which one was
            # refused does not matter: the earlier limit is allowed.
            without.write_text(str(before))
            usage = memory / ("memory.memsw.usage_in_bytes" if with_swap.exists() else "memory.usage_in_bytes")
            raise _too_small(_read_int(usage), size) from None
        cpu = self._pod("cpu", uid)
        (cpu / "cpu.cfs_period_us").write_text(str(_PERIOD_MICROSECONDS))
        (cpu / "cpu.cfs_quota_us").write_text(str(_quota(max(size.cores, startup_cores))))
        (cpu / "cpu.shares").write_text(str(_weight(_V1_SHARES, size, startup_cores)))

    def join_files(self, uid: str) -> list[str]:
        # The real path: where cpu and cpuacct are one mount, it is joined once.
        return sorted({os.path.realpath(self._pod(name, uid) / "cgroup.procs") for name in self._folders})

    def oom_file(self, uid: str) -> str:
        return str(self._pod("memory", uid) / "memory.oom_control")

    def processes(self, uid: str) -> list[int]:
        pids = [_pids(self._pod(name, uid)) for name in self._folders]
        return sorted(set().union(*pids))

    def usage(self, uid: str) -> Usage | None:
        memory = self._pod("memory", uid)
        try:
            inactive = _read_key(memory / "memory.stat", "total_inactive_file")
            working_set = max(0, _read_int(memory / "memory.usage_in_bytes") - inactive)
            if "cpuacct" not in self._folders:
                return None
            return Usage(_read_int(self._pod("cpuacct", uid) / "cpuacct.usage") / 1e9, working_set)
        except OSError:  # the group is gone, or is just being removed
            return None

    def remove(self, uid: str) -> bool:
        removed = [_remove_group(self._pod(controller, uid)) for controller in self._folders]
        return all(removed)

    def uids(self) -> list[str]:
        return sorted({uid for folder in self._folders.values() for uid in _groups_in(folder)})

    def remove_foreign(self, join_files: list[str]) -> None:
        _remove_foreign(join_files, {folder.name for folder in self._folders.values()})

    def close(self) -> None:
        for folder in self._folders.values():
            _remove_group(folder)


class CgroupV2Limits:
    """`cpu.max`, `cpu.weight` and `memory.max`.

    An out-of-memory kill takes the whole pod (`memory.oom.group`), as in Kubernetes.

    Args:
        root: a group whose children may be given the cpu and memory controllers.
        group: name of the agent's own group.
    """

    kind = "cgroup v2"
    enforced = True

    def __init__(self, root: Path, group: str) -> None:
        self._folder = root / group
        self._folder.mkdir(exist_ok=True)
        try:
            for folder in (root, self._folder):
                enabled = (folder / "cgroup.subtree_control").read_text().split()
                if not {"cpu", "memory"} <= set(enabled):
                    (folder / "cgroup.subtree_control").write_text("+cpu +memory")
        except OSError:
            _remove_group(self._folder)
            raise

    def create(self, uid: str, size: PodSize, startup_cores: float = 0.0) -> None:
        (self._folder / uid).mkdir(exist_ok=True)
        self.resize(uid, size, startup_cores)

    def resize(self, uid: str, size: PodSize, startup_cores: float = 0.0) -> None:
        pod = self._folder / uid
        # memory.max below the usage would kill the pod instead of refusing.
        used = _read_int(pod / "memory.current") - _read_key(pod / "memory.stat", "inactive_file")
        if used > size.memory_bytes:
            raise _too_small(used, size)
        (pod / "memory.max").write_text(str(size.memory_bytes))
        for name, value in (("memory.swap.max", "0"), ("memory.oom.group", "1")):
            if (pod / name).exists():
                (pod / name).write_text(value)
        (pod / "cpu.max").write_text(f"{_quota(max(size.cores, startup_cores))} {_PERIOD_MICROSECONDS}")
        (pod / "cpu.weight").write_text(str(_weight(_V2_WEIGHT, size, startup_cores)))

    def join_files(self, uid: str) -> list[str]:
        return [str(self._folder / uid / "cgroup.procs")]

    def oom_file(self, uid: str) -> str:
        return str(self._folder / uid / "memory.events")

    def processes(self, uid: str) -> list[int]:
        return _pids(self._folder / uid)

    def usage(self, uid: str) -> Usage | None:
        pod = self._folder / uid
        try:
            inactive = _read_key(pod / "memory.stat", "inactive_file")
            working_set = max(0, _read_int(pod / "memory.current") - inactive)
            return Usage(_read_key(pod / "cpu.stat", "usage_usec") / 1e6, working_set)
        except OSError:  # the group is gone, or is just being removed
            return None

    def remove(self, uid: str) -> bool:
        return _remove_group(self._folder / uid)

    def uids(self) -> list[str]:
        return _groups_in(self._folder)

    def remove_foreign(self, join_files: list[str]) -> None:
        _remove_foreign(join_files, {self._folder.name})

    def close(self) -> None:
        _remove_group(self._folder)


def probe_limits(agent_id: str, mounts_text: str | None = None) -> tuple[Limits, str]:
    """The strongest limits that can be written here, and why stronger ones cannot (empty for cgroups).

    A trial group is created, limited and removed, because a mount may only seem to be writable.

    Args:
        agent_id: names the agent's group.
        mounts_text: content of /proc/self/mounts; None reads it.
    """
    group = f"{_AGENT_PREFIX}{agent_id}"
    v1, v2 = _mounts(Path("/proc/self/mounts").read_text() if mounts_text is None else mounts_text)
    reasons = []
    if "cpu" in v1 and "memory" in v1:
        try:
            return _tried(CgroupV1Limits(v1, group)), ""
        except OSError as error:
            reasons.append(f"cgroup v1: {error}")
    for root in _v2_roots(v2):
        try:
            return _tried(CgroupV2Limits(root, group)), ""
        except OSError as error:
            reasons.append(f"cgroup v2: {error}")
    return ThreadLimits(), "; ".join(reasons) or "no cgroup mount with the controllers cpu and memory"


def _tried(limits: Limits) -> Limits:
    try:
        limits.create("probe", PodSize(1.0, 1 << 30))
        for path in limits.join_files("probe"):
            os.close(os.open(path, os.O_WRONLY))
        limits.remove("probe")
    except OSError:
        limits.remove("probe")
        limits.close()
        raise
    return limits


def _mounts(text: str) -> tuple[dict[str, Path], list[Path]]:
    """Mount point of each wanted v1 controller, and the v2 mounts."""
    v1: dict[str, Path] = {}
    v2: list[Path] = []
    for line in text.splitlines():
        _, point, kind, options, *_ = line.split(" ")
        path = Path(point.replace("\\040", " "))
        if kind == "cgroup2":
            v2.append(path)
        elif kind == "cgroup":
            for controller in {"cpu", "cpuacct", "memory"} & set(options.split(",")):
                v1[controller] = path
    return v1, v2


def _v2_roots(mounts: list[Path]) -> list[Path]:
    # The mount's root first; a user without root rights owns at most the group that systemd delegated to him.
    roots = []
    for mount in mounts:
        try:
            if not {"cpu", "memory"} <= set((mount / "cgroup.controllers").read_text().split()):
                continue
            own = next(
                line[3:] for line in Path("/proc/self/cgroup").read_text().splitlines() if line.startswith("0::")
            )
        except (OSError, StopIteration):
            continue
        roots += [mount, *([mount / own.lstrip("/")] if own != "/" else [])]
    return roots


def _quota(cores: float) -> int:
    return round(max(SMALLEST_CORES, cores) * _PERIOD_MICROSECONDS)


def _weight(default: int, size: PodSize, startup_cores: float) -> int:
    return default // _STARTING_PART if startup_cores > size.cores else default


def _too_small(used: int, size: PodSize) -> ClusterError:
    return ClusterError(
        f"memory_bytes: {size.memory_bytes} is not allowed for a pod that holds {used}; ask for more than that"
    )


def _pids(folder: Path) -> list[int]:
    try:
        return [int(pid) for pid in (folder / "cgroup.procs").read_text().split()]
    except FileNotFoundError:
        return []


def _read_int(path: Path) -> int:
    return int(path.read_text())


def _read_key(path: Path, key: str) -> int:
    for line in path.read_text().splitlines():
        name, _, value = line.partition(" ")
        if name == key:
            return int(value)
    return 0


def _groups_in(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir() if entry.is_dir())


def _remove_foreign(join_files: list[str], own: set[str]) -> None:
    for group in (Path(file).parent for file in join_files):
        if group.parent.name.startswith(_AGENT_PREFIX) and _remove_group(group) and group.parent.name not in own:
            # Other pods of that agent may still have groups in it.
            with contextlib.suppress(OSError):
                group.parent.rmdir()


def _remove_group(folder: Path) -> bool:
    """Whether the group was removed."""
    # The kernel releases a group some milliseconds after its last process was reaped.
    for pause in (0.0, 0.001, 0.005, 0.02, 0.1, 0.4):
        time.sleep(pause)
        try:
            folder.rmdir()
            return True
        except FileNotFoundError:
            return True
        except OSError as error:
            if error.errno not in (errno.EBUSY, errno.ENOTEMPTY):
                raise
    return False
