"""What the kernel's files in /proc say about the processes of pods: whose they are, and what they use."""

from __future__ import annotations

import os
from pathlib import Path

from elastrec.platform.clusters.local.processes.limits import Usage

UID_VARIABLE = "ELASTREC_POD_UID"
"""Marks every process of a pod, so that processes of a killed supervisor are found without cgroups."""


def marked(uid: str) -> list[int]:
    """Processes whose environment contains the pod's mark."""
    mark = f"{UID_VARIABLE}={uid}".encode()
    marked = []
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            try:
                if mark in environment_of(process).split(b"\0"):
                    marked.append(int(process.name))
            except OSError:
                continue  # has ended meanwhile, or belongs to another user
    return marked


def environment_of(process: Path) -> bytes:
    """The environment of a process, also of one in the middle of execve(2), which the kernel shows as empty.

    Raises:
        OSError: it has ended, or belongs to another user.
    """
    while not (environment := (process / "environ").read_bytes()):
        # Fields of proc(5) from the third on: state, vsize (0 for the kernel's threads), startcode, env_start, env_end.
        fields = (process / "stat").read_bytes().rpartition(b")")[2].split()
        state, size, code, start, end = fields[0], *(int(fields[index]) for index in (20, 23, 47, 48))
        # The kernel sets startcode when it knows the end of the environment; until then, all of them may look empty.
        if state in b"ZX" or size == 0 or (code != 0 and start == end):
            break
        os.sched_yield()
    return environment


def is_stopped(pid: int) -> bool:
    """Whether a process was stopped by a signal, such as SIGSTOP, and was not continued; False if it has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0] == b"T"
    except OSError:
        return False


def usage_of_tree(supervisor: int) -> Usage:
    """CPU and resident memory of the descendants of a process, where no cgroup counts them."""
    ticks, pages = 0, 0
    pids = [supervisor]
    while pids:
        pid = pids.pop()
        try:
            pids += [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
            fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        except OSError:
            continue
        own = (int(fields[11]) + int(fields[12])) if pid != supervisor else 0
        ticks += own + int(fields[13]) + int(fields[14])
        pages += int(fields[21]) if pid != supervisor else 0
    return Usage(ticks / os.sysconf("SC_CLK_TCK"), pages * os.sysconf("SC_PAGE_SIZE"))
