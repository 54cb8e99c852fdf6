"""Thread, OpenMP and malloc settings of processes that compute with torch, made before torch is imported.

Spinning OpenMP threads and page faults of returned memory cost up to half the throughput on contended cores.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Mapping, MutableMapping, Sequence
from typing import TYPE_CHECKING

from elastrec.platform.specs import environment

if TYPE_CHECKING:
    from elastrec.platform.transport.messages.directive import PodOrders

_MALLOC = {"MALLOC_MMAP_THRESHOLD_": "4294967296", "MALLOC_TRIM_THRESHOLD_": "100000000000"}


def granted_threads(variables: Mapping[str, str]) -> int:
    """Threads for the pod's granted cores, rounded up, at least 1; this machine's cores if no cores were granted."""
    granted = variables.get(environment.CORES)
    return threads_for(float(granted)) if granted else os.cpu_count() or 1


def threads_of(orders: PodOrders | None, variables: Mapping[str, str]) -> int:
    """Threads for the cores that a pod has now: those in its orders after it was resized in place, otherwise as
    granted."""
    return threads_for(orders.cores) if orders and orders.cores else granted_threads(variables)


def threads_for(cores: float) -> int:
    """Threads for this many cores: rounded up, at least 1."""
    return max(1, math.ceil(cores - 1e-6))


def process_settings(variables: Mapping[str, str]) -> dict[str, str]:
    """Environment variables for such a process; existing values are not changed."""
    threads = str(granted_threads(variables))
    wanted = {
        "OMP_NUM_THREADS": threads,
        "MKL_NUM_THREADS": threads,
        "NUMBA_NUM_THREADS": threads,
        "OMP_WAIT_POLICY": "PASSIVE",
        **_MALLOC,
    }
    return {name: value for name, value in wanted.items() if name not in variables}


def prepare_process(variables: MutableMapping[str, str], command: Sequence[str]) -> None:
    """Applies the settings; if malloc's variables change, executes the process again, once, with the same id.

    glibc reads malloc's variables before Python starts, so setting them in a running process has no effect.
    """
    missing = process_settings(variables)
    variables.update(missing)
    if missing.keys() & _MALLOC.keys():
        sys.stdout.flush()
        sys.stderr.flush()
        os.execve(sys.executable, [sys.executable, *command[1:]], dict(variables))
