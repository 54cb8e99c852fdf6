"""Checks of pod specifications; errors name field, value and what is allowed."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable

from elastrec.platform.clusters.local.agent.pod_life import shortage
from elastrec.platform.clusters.local.agent.volumes import ROOT
from elastrec.platform.clusters.pods import MemoryVolume, PodSize, PodSpec
from elastrec.platform.specs.errors import ClusterError
from elastrec.platform.specs.text.quantities import SMALLEST_CORES

LONGEST_GRACE_SECONDS = 7 * 86_400.0
"""Longer waits overflow the system's timers, and JSON has no infinity for the journal."""
_LONGEST_FILE_NAME = 200
"""Bytes: below the 255 of file systems, as a file has a longer name while it is written."""
_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")


def check_spec(spec: PodSpec, node: str) -> None:
    """Refuses a spec that no node could run.

    Args:
        node: name of the cluster's only node.

    Raises:
        ClusterError: name, command, a file's name, grace, size, placement or startup_cores are not allowed.
    """
    if not _NAME.fullmatch(spec.name):
        raise ClusterError(f"name: {spec.name!r} is not allowed; allowed: [a-z0-9-], at most 63 characters")
    if not spec.command or not spec.command[0]:
        raise ClusterError(f"pod {spec.name}: command is empty; name a program")
    for file in spec.files.keys() & spec.secrets.keys():
        raise ClusterError(f"pod {spec.name}: the file name {file!r} stands in files and in secrets; name it once")
    for file in (*spec.files, *spec.secrets):
        if "/" in file or "\0" in file or file in ("", ".", "..") or len(file.encode()) > _LONGEST_FILE_NAME:
            raise ClusterError(f"pod {spec.name}: the file name {file!r} is not allowed; allowed: a plain name")
    _check_process(spec)
    check_grace(spec.name, spec.grace_seconds)
    _check_words(spec, node)
    if not 0 <= spec.startup_cores < math.inf:
        raise ClusterError(f"pod {spec.name}: startup_cores {spec.startup_cores} is not allowed; allowed: >= 0")
    check_size(spec.size)
    _check_volume(spec)


def _check_process(spec: PodSpec) -> None:
    """Refuses texts with which execve(2) cannot start a process."""
    for name, value in spec.environment.items():
        if not name or "=" in name or "\0" in name + value:
            raise ClusterError(
                f"pod {spec.name}: the variable {name!r} is not allowed; allowed: a name without '=', and no NUL"
            )
    if any("\0" in argument for argument in spec.command):
        raise ClusterError(f"pod {spec.name}: command {spec.command} is not allowed; allowed: texts without NUL")


def _check_volume(spec: PodSpec) -> None:
    volume = spec.memory_volume
    if volume is None:
        return
    for field, name in (("memory_volume.name", volume.name), ("job", spec.job)):
        if not _NAME.fullmatch(name):
            raise ClusterError(
                f"pod {spec.name}: {field} {name!r} is not allowed; allowed: [a-z0-9-], at most 63 characters"
            )
    if volume.size_bytes < (page := os.sysconf("SC_PAGE_SIZE")):
        raise ClusterError(
            f"pod {spec.name}: memory_volume.size_bytes {volume.size_bytes} is not allowed; allowed: at least {page}"
        )
    if not ROOT.is_dir():
        raise ClusterError(
            f"pod {spec.name}: memory_volume is not allowed on a machine without {ROOT}; leave it out (in a job file "
            "spec.checkpoint.memory)"
        )


def check_grace(name: str, seconds: float) -> None:
    """Refuses a grace period that is no time.

    Raises:
        ClusterError: it is negative, no number, or longer than timers can be.
    """
    if not 0 <= seconds <= LONGEST_GRACE_SECONDS:
        raise ClusterError(
            f"pod {name}: grace_seconds {seconds} is not allowed; allowed: 0 to {LONGEST_GRACE_SECONDS:g}"
        )


def check_options(spec: PodSpec) -> None:
    """Refuses options, because the local backend has none. Checked in the client, because the agent cannot decode them.

    Raises:
        ClusterError: there are some.
    """
    if spec.options is not None:
        backend = type(spec.options).__struct_config__.tag
        raise ClusterError(
            f"pod {spec.name}: options of {backend!r} are not allowed on the local cluster; leave them out"
        )


def _check_words(spec: PodSpec, node: str) -> None:
    """Refuses features that a single machine without containers does not have."""
    for field, value, why in (
        ("queue", spec.queue, "it has no queues"),
        ("image", spec.image, "its pods run with the interpreter and the packages of the node agent"),
    ):
        if value:
            raise ClusterError(
                f"pod {spec.name}: {field} {value!r} is not allowed on the local cluster: {why}; leave it out"
            )
    if spec.group is not None and (not spec.group.name or spec.group.least < 1):
        raise ClusterError(f"pod {spec.name}: group {spec.group} is not allowed; allowed: a name, and least >= 1")
    placement = spec.placement
    if placement is None or not placement.is_required:
        # With one node, preferences have no effect.
        return
    avoided = [name for name in placement.avoid_node_names if name == node]
    for field, chosen, why in (
        ("near_nodes", placement.near_nodes, "its only node has no labels"),
        ("avoid_pods", placement.avoid_pods, "it has one node, which all pods share"),
        ("avoid_node_names", avoided, "it has no other node"),
    ):
        if chosen:
            raise ClusterError(
                f"pod {spec.name}: placement.{field} {chosen} is not allowed on the local cluster: {why}; "
                "leave it out, or set is_required to false"
            )


def check_group(spec: PodSpec, others: Iterable[PodSpec]) -> None:
    """Refuses a pod whose group already has another least number.

    Raises:
        ClusterError: the numbers differ.
    """
    for other in others:
        if spec.group is None or other.group is None or spec.job != other.job or spec.group.name != other.group.name:
            continue
        if spec.group.least != other.group.least:
            raise ClusterError(
                f"pod {spec.name}: group.least {spec.group.least} is not allowed: pod {other.name} of the same group "
                f"says {other.group.least}; say the same number in all pods of a group"
            )


def check_size(size: PodSize) -> None:
    """Refuses a size that is not possible as a limit.

    Raises:
        ClusterError: it is too small, or no number.
    """
    if not SMALLEST_CORES <= size.cores < math.inf:
        raise ClusterError(f"size.cores: {size.cores} is not allowed; allowed: a number of at least {SMALLEST_CORES}")
    page = os.sysconf("SC_PAGE_SIZE")
    if size.memory_bytes < page:
        raise ClusterError(f"size.memory_bytes: {size.memory_bytes} is not allowed; allowed: at least {page}")


def check_fits_at_all(spec_name: str, size: PodSize, total: PodSize, memory_volume: MemoryVolume | None = None) -> None:
    """Refuses a pod that would wait forever.

    Raises:
        ClusterError: it is larger than the whole cluster, with its memory volume.
    """
    beside = memory_volume.size_bytes if memory_volume is not None else 0
    text = shortage(PodSize(size.cores, size.memory_bytes + beside), total)
    if text and beside:
        text = f"{text}, of which {beside} for its memory volume"
    if text:
        raise ClusterError(
            f"pod {spec_name} is larger than the whole cluster ({text.replace('free', 'the cluster has')}); "
            "make the pod smaller or start the cluster with more"
        )
