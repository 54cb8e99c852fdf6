"""The control groups of a job's pods: the time for which limits throttled them, and their weight against other load."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path

import psutil

from elastrec.platform.specs.environment import POD

_CPU_TIME_MOUNT = Path("/sys/fs/cgroup/cpuacct")
_CPU_MOUNTS = (Path("/sys/fs/cgroup/cpu"), Path("/sys/fs/cgroup"))
# Of one process outside of any group.
_V1_WEIGHT, _V2_WEIGHT, _V2_MOST_WEIGHT = 1024, 100, 10_000


@dataclass(frozen=True)
class Throttling:
    """Counters of a group since its creation: scheduling periods in which it ran, throttled periods, CPU time."""

    periods: int
    throttled: int
    cpu_seconds: float

    def since(self, before: Throttling) -> Throttling:
        return Throttling(
            self.periods - before.periods, self.throttled - before.throttled, self.cpu_seconds - before.cpu_seconds
        )

    @property
    def share(self) -> float:
        """Share of the periods in which the limit was reached; 0 to 1."""
        return self.throttled / self.periods if self.periods else 0.0


def pod_groups(job_id: str) -> dict[str, Path]:
    """The CPU groups of a job's running pods by pod, empty where pods have none."""
    groups = {}
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            pod = process.environ().get(POD, "")
            folder = _cpu_group(Path(f"/proc/{process.pid}/cgroup").read_text())
            # The supervisor of a pod also has the pod's name, but is outside of its group.
            if pod.startswith(f"{job_id}-") and folder is not None and folder.parent.name.startswith("elastrec-"):
                groups[pod] = folder
    return groups


def limit_cores(group: Path) -> float:
    """The cores that a group may use at most; it has a limit."""
    if (group / "cpu.max").exists():
        quota, period = (group / "cpu.max").read_text().split()
    else:
        quota, period = ((group / f"cpu.cfs_{name}_us").read_text() for name in ("quota", "period"))
    return int(quota) / int(period)


def throttling(group: Path) -> Throttling:
    """The counters of a group now."""
    pairs = (line.split() for line in (group / "cpu.stat").read_text().splitlines())
    stat = {name: int(value) for name, value in pairs}
    # Version 1 counts CPU time in a controller of its own, which may be mounted beside this one.
    accounts = (group, _CPU_TIME_MOUNT / group.parent.name / group.name)
    file = next((file for folder in accounts if (file := folder / "cpuacct.usage").exists()), None)
    used = stat["usage_usec"] / 1e6 if file is None else int(file.read_text()) / 1e9
    return Throttling(stat["nr_periods"], stat["nr_throttled"], used)


def outweigh_other_load(agent_id: str, processes: int) -> None:
    """Gives all pods of a node agent together the weight of a number of busy processes; the default is that of one.

    Does nothing where the agent has no groups.
    """
    for folder in (mount / f"elastrec-{agent_id}" for mount in _CPU_MOUNTS):
        if (folder / "cpu.shares").exists():
            (folder / "cpu.shares").write_text(str(_V1_WEIGHT * processes))
        elif (folder / "cpu.weight").exists():
            (folder / "cpu.weight").write_text(str(min(_V2_MOST_WEIGHT, _V2_WEIGHT * processes)))


def hold_back(agent_id: str, uid: str, cores: float) -> None:
    """Gives a pod fewer cores than its agent has granted, until the agent sets its limit again.

    A common group of all pods of an agent cannot be used, because with version 1 no group may have less than a group
    inside it.
    """
    for group in (mount / f"elastrec-{agent_id}" / uid for mount in _CPU_MOUNTS):
        # The pod may just be ending.
        with contextlib.suppress(FileNotFoundError):
            if (group / "cpu.max").exists():
                _, period = (group / "cpu.max").read_text().split()
                (group / "cpu.max").write_text(f"{round(cores * int(period))} {period}")
            elif (group / "cpu.cfs_quota_us").exists():
                period = (group / "cpu.cfs_period_us").read_text()
                (group / "cpu.cfs_quota_us").write_text(str(round(cores * int(period))))


def _cpu_group(text: str) -> Path | None:
    """The folder that /proc/PID/cgroup names; version 1 where its CPU controller is mounted, else version 2."""
    unified = None
    for line in text.splitlines():
        number, controllers, path = line.split(":", 2)
        if "cpu" in controllers.split(","):
            # Inside a container the path may be that of the host; the mount shows the part below the container's own.
            return _below(Path("/sys/fs/cgroup/cpu"), path)
        if number == "0":
            unified = _below(Path("/sys/fs/cgroup"), path)
    return unified


def _below(mount: Path, path: str) -> Path | None:
    parts = [part for part in path.split("/") if part]
    for first in range(len(parts)):
        found = mount.joinpath(*parts[first:])
        if found.is_dir():
            return found
    return None
