"""Finds what a finished job must not leave behind: pods, processes, control groups, ports, shared memory, partial
files.
"""

from __future__ import annotations

import contextlib
import socket
from pathlib import Path

import psutil

from elastrec.checkpoints.manifest import MANIFEST
from elastrec.platform.clusters.local.agent.volumes import volumes_of
from elastrec.platform.clusters.local.client import LocalCluster
from elastrec.platform.master.pods.launch import evaluator_job
from elastrec.platform.specs import environment
from tests.processes import wait_for

_SHARED_MEMORY = Path("/dev/shm")
_GRACE_SECONDS = 60.0


def shared_memory() -> frozenset[str]:
    """Names in shared memory."""
    return frozenset(entry.name for entry in _SHARED_MEMORY.iterdir())


def leftovers(
    home: Path, job_id: str, cluster: LocalCluster, ports: frozenset[int], before: frozenset[str]
) -> list[str]:
    """One sentence for everything that a finished job has left behind; empty if there is nothing.

    Args:
        ports: ports on which pods of the job listened; other programs may use them now.
        before: names in shared memory before the job began.
    """
    found = [f"pod {pod.name} is still there: {pod.phase}" for job in _jobs(job_id) for pod in cluster.list(job)]
    with contextlib.suppress(AssertionError):
        # What was killed is reaped, and what was moved to the trash is removed, a moment later.
        wait_for(lambda: not _processes(job_id) and not _pod_folders(home), _GRACE_SECONDS, "")
    found += [f"process {pid} is still there" for pid in _processes(job_id)]
    found += [f"folder {folder} is still there" for folder in _pod_folders(home)]
    found += [f"group {group} is still there" for group in groups(cluster.agent().agent_id)]
    found += [f"port {port} still answers" for port in sorted(ports) if _answers(port, home)]
    left = [name for name in sorted(shared_memory() - before) if not (_is_open(name) or _is_of_others(name, home))]
    found += [f"shared memory {name} was left" for name in left]
    return found


def torn_records(store: Path, job_name: str) -> list[str]:
    """Record folders without a manifest, and temporary files, in a job's part of a store that is a folder."""
    found = []
    for folder in (store / job_name / "records").iterdir():
        if not (folder / MANIFEST).exists():
            found.append(f"record {folder.name} is torn: {sorted(file.name for file in folder.iterdir())}")
    found += [f"temporary file {file} was left" for file in store.rglob("*.tmp*")]
    return found


def groups(agent_id: str) -> list[Path]:
    """Control groups of an agent's pods."""
    own = [*Path("/sys/fs/cgroup").glob(f"*/elastrec-{agent_id}"), Path(f"/sys/fs/cgroup/elastrec-{agent_id}")]
    return [pod for folder in own if folder.is_dir() for pod in folder.iterdir() if pod.is_dir()]


def _jobs(job_id: str) -> tuple[str, ...]:
    return (job_id, evaluator_job(job_id))


def _processes(job_id: str) -> list[int]:
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get(environment.JOB) in _jobs(job_id) and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process.pid)
    return found


def _pod_folders(home: Path) -> list[Path]:
    pods = home / "agent" / "pods"
    return [*(folder for folder in pods.iterdir() if folder.name != "trash"), *(pods / "trash").iterdir()]


def _answers(port: int, home: Path) -> bool:
    """Whether a pod of this home does, or somebody whom nobody may look into."""
    with socket.socket() as probe:
        probe.settimeout(1.0)
        if probe.connect_ex(("127.0.0.1", port)) != 0:
            return False
    listeners = [link for link in psutil.net_connections("tcp") if link.laddr and link.laddr.port == port]
    return any(_is_at(link.pid, home) for link in listeners if link.status == psutil.CONN_LISTEN)


def _is_at(pid: int | None, home: Path) -> bool:
    if pid is None:
        return True
    try:
        return str(home) in psutil.Process(pid).environ().get(environment.WORK, "")
    except psutil.AccessDenied:
        return True
    except psutil.NoSuchProcess:
        return False


def _is_of_others(name: str, home: Path) -> bool:
    """Whether it is the folder of another node agent's volumes, which may be there for a moment only."""
    own = volumes_of(home / "agent")
    return name != own.name and name.startswith(own.name.rpartition("-")[0])


def _is_open(name: str) -> bool:
    """Whether any process uses it: others work on this machine, too."""
    path = str(_SHARED_MEMORY / name)
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            with contextlib.suppress(OSError):
                if path in (process / "maps").read_text():
                    return True
                if any(str(link.readlink()) == path for link in (process / "fd").iterdir()):
                    return True
    return False
