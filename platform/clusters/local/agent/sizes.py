"""The size of a local cluster: as requested now or the last time, otherwise the size of the machine."""

from __future__ import annotations

import math
import os

from elastrec.platform.clusters.local.agent.journal import Journal
from elastrec.platform.clusters.pods import PodSize
from elastrec.platform.specs.errors import ClusterError

_MEMORY_SHARE = 0.9
_CORES, _MEMORY = "cores", "memory_bytes"


def machine_size() -> PodSize:
    """The cores that this process may use, and 90 % of the machine's memory."""
    memory_bytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return PodSize(float(len(os.sched_getaffinity(0))), int(memory_bytes * _MEMORY_SHARE))


def kept_size(journal: Journal) -> PodSize:
    """The size with which the agent of a journal starts: the last requested one, otherwise the machine's."""
    cores, memory_bytes, machine = journal.fact(_CORES), journal.fact(_MEMORY), machine_size()
    return PodSize(
        machine.cores if cores is None else float(cores),
        machine.memory_bytes if memory_bytes is None else int(memory_bytes),
    )


def keep_size(journal: Journal, cores: float | None, memory_bytes: int | None) -> PodSize:
    """Stores the requested size (None: no request); returns the size with which the agent starts.

    Raises:
        ClusterError: an amount that is no number above 0.
    """
    for name, amount in ((_CORES, cores), (_MEMORY, memory_bytes)):
        # Stored, such an amount would also be that of every later agent of this folder.
        if amount is not None and not 0 < amount < math.inf:
            raise ClusterError(f"{name}: {amount} is not allowed; allowed: a number above 0")
    for name, amount in ((_CORES, cores), (_MEMORY, memory_bytes)):
        if amount is not None:
            journal.set_fact(name, str(amount))
    return kept_size(journal)
