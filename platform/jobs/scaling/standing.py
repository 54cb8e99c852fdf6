"""Resources of the cluster by team, and pods that wait for room, as needed by `scaling.across_jobs.quota`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import msgspec

from elastrec.platform.clusters.nodes import Capacity, Node
from elastrec.platform.clusters.pods import PodPhase, PodSize, PodStatus
from elastrec.platform.master.pods.launch import TEAM_LABEL
from elastrec.platform.scaling import amounts
from elastrec.platform.scaling.across_jobs.quota import Holder, Shares
from elastrec.platform.scaling.amounts import Resources
from elastrec.platform.specs.job import DEFAULT_TEAM
from elastrec.platform.specs.metrics import Role
from elastrec.platform.specs.scaling import ScalingSettings

if TYPE_CHECKING:
    from elastrec.platform.scaling.across_jobs.shared_round import Standing


def standing_of(
    pods: Iterable[PodStatus], nodes: Iterable[Node], settings: ScalingSettings, holders: Sequence[Holder]
) -> Standing:
    """Resources of these nodes by team, and pods that wait for room.

    Args:
        pods: all of the cluster.
        holders: jobs that can return workers.
    """
    # Imported here, because it loads scipy, which other steps do not need.
    from elastrec.platform.scaling.across_jobs.shared_round import Standing

    held: dict[str, Resources] = {}
    waiting: dict[str, list[Resources]] = {}
    waiting_workers: Counter[str] = Counter()
    for pod in pods:
        team = pod.labels.get(TEAM_LABEL, DEFAULT_TEAM)
        if pod.phase is PodPhase.PENDING and pod.waits_for_room:
            waiting.setdefault(team, []).append(resources_of(pod.size))
            waiting_workers[pod.job] += pod.role is Role.WORKER
        elif not pod.phase.is_final:
            held[team] = held.get(team, Resources()) + resources_of(pod.size)
    entitled = {name: team.share for name, team in settings.teams.items()}
    known = [
        msgspec.structs.replace(each, pending_workers=min(waiting_workers[each.job_id], each.allocation.workers))
        for each in holders
    ]
    return Standing(Shares(total=resources_of(Capacity.of(nodes).total), entitled=entitled, held=held), known, waiting)


def room_of(nodes: Iterable[Node]) -> amounts.Capacity:
    """Free resources, and the maximum size of a pod, which is the size of a node, because the job's old pods make
    room."""
    capacity = Capacity.of(nodes)
    # If no node answers, nothing is free, so no other limit is needed.
    largest = resources_of(capacity.largest) if capacity.largest.cores else None
    return amounts.Capacity(free=resources_of(capacity.free), largest_pod=largest)


def resources_of(size: PodSize) -> Resources:
    """An amount of a cluster, as the scaling algorithms count it."""
    return Resources(size.cores, float(size.memory_bytes))
