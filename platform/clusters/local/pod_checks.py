"""What a pod must be to be taken at all; refused with field, value and what is allowed."""

from __future__ import annotations

import math
import os
import re

from elastrec.platform.clusters.local.limits import LEAST_CORES
from elastrec.platform.clusters.local.pod_life import shortage
from elastrec.platform.clusters.protocol import PodSize, PodSpec
from elastrec.platform.specs.errors import ClusterError

_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")


def check_spec(spec: PodSpec) -> None:
    """Refuses a spec that no node could run.

    Raises:
        ClusterError: name, command, a file's name, grace, size or startup_cores are not allowed.
    """
    if not _NAME.fullmatch(spec.name):
        raise ClusterError(f"name: {spec.name!r} is not allowed; allowed: [a-z0-9-], at most 63 characters")
    if not spec.command or not spec.command[0]:
        raise ClusterError(f"pod {spec.name}: command is empty; name a program")
    for file in spec.files.keys() & spec.secrets.keys():
        raise ClusterError(f"pod {spec.name}: the file name {file!r} stands in files and in secrets; name it once")
    for file in (*spec.files, *spec.secrets):
        if "/" in file or file in ("", ".", ".."):
            raise ClusterError(f"pod {spec.name}: the file name {file!r} is not allowed; allowed: a plain name")
    if not 0 <= spec.grace_seconds < math.inf:
        raise ClusterError(f"pod {spec.name}: grace_seconds {spec.grace_seconds} is not allowed; allowed: >= 0")
    if not 0 <= spec.startup_cores < math.inf:
        raise ClusterError(f"pod {spec.name}: startup_cores {spec.startup_cores} is not allowed; allowed: >= 0")
    check_size(spec.size)


def check_size(size: PodSize) -> None:
    """Refuses a size that no limit can have.

    Raises:
        ClusterError: it is too small, or no number.
    """
    if not LEAST_CORES <= size.cores < math.inf:
        raise ClusterError(f"size.cores: {size.cores} is not allowed; allowed: a number of at least {LEAST_CORES}")
    page = os.sysconf("SC_PAGE_SIZE")
    if size.memory_bytes < page:
        raise ClusterError(f"size.memory_bytes: {size.memory_bytes} is not allowed; allowed: at least {page}")


def check_fits_at_all(spec_name: str, size: PodSize, total: PodSize) -> None:
    """Refuses a pod that would wait for ever.

    Raises:
        ClusterError: it is larger than the whole cluster.
    """
    text = shortage(size, total)
    if text:
        raise ClusterError(
            f"pod {spec_name} is larger than the whole cluster ({text.replace('free', 'the cluster has')}); "
            "make the pod smaller or start the cluster with more"
        )
