"""`python -m tests.faults.campaign.hog PID`: allocates memory in a pod's control group until the kernel kills the pod's
process.

The limit and the kill are real; only the memory is allocated by another process than the pod's. This module imports
nothing heavy.
"""

from __future__ import annotations

import os
import select
import sys
from pathlib import Path

_STEP_BYTES = 8 << 20
_MOST_BYTES = 4 << 30


def memory_group(pid: int) -> Path | None:
    """The folder of the group whose memory limit holds for a process; None without one below the root."""
    for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if "memory" in controllers.split(",") or not controllers:
            root = Path("/sys/fs/cgroup/memory" if controllers else "/sys/fs/cgroup")
            folder = root / path.lstrip("/")
            if path != "/" and (folder / "cgroup.procs").exists():
                return folder
    return None


def main() -> int:
    """0: the process is gone; 1: it has no limit; 2: it withstood."""
    pid = int(sys.argv[1])
    victim = os.pidfd_open(pid)
    group = memory_group(pid)
    if group is None:
        return 1
    # The kernel has to choose the pod, not the hog.
    Path(f"/proc/{pid}/oom_score_adj").write_text("1000")
    (group / "cgroup.procs").write_text("0")
    held = []
    while len(held) * _STEP_BYTES < _MOST_BYTES:
        held.append(b"\x01" * _STEP_BYTES)
        if select.select([victim], [], [], 0)[0]:
            return 0
    return 0 if select.select([victim], [], [], 5.0)[0] else 2


if __name__ == "__main__":
    sys.exit(main())
