"""Conversion of sizes and exit reasons between YARN and elastrec."""

from __future__ import annotations

import math

from elastrec.platform.clusters.pods import EndReason
from elastrec.platform.specs.shape import PodSize

MEGABYTE = 2**20
_ENDS = {
    0: EndReason.COMPLETED,
    2: EndReason.BAD_INPUT,
    137: EndReason.KILLED,
    143: EndReason.KILLED,
    -101: EndReason.NODE_LOST,  # its disks failed
    -102: EndReason.PREEMPTED,
    -103: EndReason.OUT_OF_MEMORY,
    -104: EndReason.OUT_OF_MEMORY,
    -105: EndReason.DELETED,  # by its ApplicationMaster
    -106: EndReason.EVICTED,  # by the ResourceManager
    -107: EndReason.DELETED,  # its application is over
    -108: EndReason.PREEMPTED,  # an opportunistic container made room
    -1000: EndReason.NOT_STARTED,  # its files could not be fetched
}
_ABORTED = -100
"""One code for several causes, which the text alone distinguishes."""
_ABORTED_BECAUSE = {
    "released on a *lost* node": EndReason.NODE_LOST,
    "expired since it was unused": EndReason.NOT_STARTED,
    "released by application": EndReason.DELETED,
}


def rounded(size: PodSize, step_mb: int) -> tuple[int, int]:
    """Megabytes and whole cores that YARN grants for a size."""
    memory_mb = max(1, math.ceil(size.memory_bytes / MEGABYTE))
    return math.ceil(memory_mb / step_mb) * step_mb, max(1, math.ceil(size.cores))


def pod_size(memory_mb: int, cores: int) -> PodSize:
    """In our words."""
    return PodSize(float(cores), memory_mb * MEGABYTE)


def end_of(exit_code: int, diagnostics: str) -> EndReason:
    """Why a container ended."""
    if exit_code == _ABORTED:
        return next((end for words, end in _ABORTED_BECAUSE.items() if words in diagnostics), EndReason.EVICTED)
    return _ENDS.get(exit_code, EndReason.ERROR)
