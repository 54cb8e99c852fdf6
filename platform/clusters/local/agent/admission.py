"""The choice of waiting pods that start now; pure functions of records.

Pods start in the order of priority, then of creation; if one does not fit, smaller ones may start before it. Pods of a
group that has not started yet start together, as soon as the least number of them exists and fits.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

import msgspec

from elastrec.platform.clusters.local.agent.pod_life import PodRecord, Stage, free_of, shortage
from elastrec.platform.clusters.local.agent.volumes import VolumeKey, bytes_to_make
from elastrec.platform.clusters.pods import PodGroup, PodSize


class Admission(msgspec.Struct, frozen=True):
    """`start`: records to start now, together; `why`: by uid, why others still wait."""

    start: list[PodRecord]
    why: dict[str, str]


def admission(
    records: Sequence[PodRecord], total: PodSize, volumes: Mapping[VolumeKey, int] = MappingProxyType({})
) -> Admission:
    """The next pods to start: one pod, or the first pods of one group. Call it again until it starts none.

    Args:
        records: all pods of the node, oldest first.
        volumes: bytes of the existing memory volumes.
    """
    free, why = free_of(total, records, sum(volumes.values())), dict[str, str]()
    for record in in_order(records):
        if record.uid in why:
            continue
        group, waiting = _unstarted_group(record, records)
        if group is not None and len(waiting) < group.least:
            problem = f"group {group.name}: {len(waiting)} of {group.least} pods are there"
        else:
            start = waiting[: group.least] if group else waiting
            asked = _sum(pod.size for pod in start)
            problem = shortage(PodSize(asked.cores, asked.memory_bytes + bytes_to_make(start, volumes)), free)
            if not problem:
                return Admission(start, why)
        why |= {pod.uid: problem for pod in waiting}
    return Admission([], why)


def in_order(records: Iterable[PodRecord]) -> list[PodRecord]:
    """The waiting pods, those of higher priority first."""
    waiting = [record for record in records if record.stage is Stage.WAITING and not record.is_deleting]
    return sorted(waiting, key=lambda record: -record.spec.priority)


def _unstarted_group(record: PodRecord, records: Sequence[PodRecord]) -> tuple[PodGroup | None, list[PodRecord]]:
    """The group, if none of its pods has started yet, with its waiting pods; None, and the pod, if it starts alone."""
    group = record.spec.group
    if group is None:
        return None, [record]
    members = [member for member in records if member.spec.job == record.spec.job and is_of(member, group.name)]
    return (None, [record]) if any(member.attempt for member in members) else (group, in_order(members))


def is_of(record: PodRecord, group: str) -> bool:
    """Whether a pod is of the group of this name of its job."""
    return record.spec.group is not None and record.spec.group.name == group


def _sum(sizes: Iterable[PodSize]) -> PodSize:
    added = list(sizes)
    return PodSize(sum(size.cores for size in added), sum(size.memory_bytes for size in added))
