"""Gets the measurements of jobs from their masters, concurrently and with a timeout for each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import structlog

from elastrec.platform.clusters.nodes import Node
from elastrec.platform.clusters.owned_memory import without_owner
from elastrec.platform.clusters.pods import PodStatus
from elastrec.platform.jobs.surroundings import Platform
from elastrec.platform.jobs.watching.masters import ask_pod, pod_of_master
from elastrec.platform.master.scaling.facts import largest_server_bytes
from elastrec.platform.specs.errors import ClusterError, TransportError
from elastrec.platform.specs.metrics import Role
from elastrec.platform.transport.messages.profile import GetProfile, Profile

log = structlog.get_logger(__name__)
ANSWER_SECONDS = 5.0
"""Chosen: a master answers in milliseconds, unless it is restarting or its node is lost."""
_SIDE_BY_SIDE = 64
"""Number of concurrent connections; most of a call is waiting."""


def masters_of(platform: Platform) -> dict[str, PodStatus]:
    """The pod of every job's master, by job id.

    Raises:
        ClusterError: the cluster cannot be reached.
    """
    pods = platform.launcher.jobs()
    return {pod.job: pod for pod in sorted(pods, key=lambda pod: pod.job) if pod.role is Role.MASTER}


def ask_profile(platform: Platform, job_id: str) -> Profile | None:
    """The measurements of one job's master; None if no master runs.

    Raises:
        ClusterError: the cluster, or the job's master, does not answer.
    """
    try:
        return ask_pod(
            platform, pod_of_master(platform, job_id), GetProfile(), Profile, timeout_seconds=2 * ANSWER_SECONDS
        )
    except TransportError as error:
        raise ClusterError(f"job {job_id}: its master does not answer: {error}", retryable=error.retryable) from error


def ask_profiles(
    platform: Platform,
    masters: Mapping[str, PodStatus],
    timeout_seconds: float = ANSWER_SECONDS,
    *,
    next_round_seconds: float = 0.0,
) -> dict[str, Profile | str]:
    """The measurements of the masters by job id; for a master that does not answer in time, the reason.

    Args:
        next_round_seconds: time until the next round; 0: unknown.
    """
    message = GetProfile(next_round_seconds=next_round_seconds)
    if not masters:
        return {}

    def ask(pod: PodStatus) -> Profile | str:
        try:
            profile = ask_pod(platform, pod, message, Profile, timeout_seconds=timeout_seconds)
        except (TransportError, ClusterError) as error:
            log.warning("master_not_asked", job_id=pod.job, reason=str(error), consequence="its job is left alone")
            return f"its master does not answer: {error}"
        if profile is None:
            return f"its master does not run yet: {pod.phase.value} {pod.reason}".strip()
        return profile

    with ThreadPoolExecutor(min(_SIDE_BY_SIDE, len(masters)), thread_name_prefix="ask-master") as threads:
        return dict(zip(masters, threads.map(ask, masters.values()), strict=True))


def largest_bytes_of(nodes: Sequence[Node], pods: Iterable[PodStatus], job_ids: Iterable[str]) -> dict[str, float]:
    """The most memory that a server of each job could have.

    Args:
        pods: all of the cluster.
    """
    of_job = dict[str, list[PodStatus]]()
    for pod in map(without_owner, pods):
        of_job.setdefault(pod.job, []).append(pod)
    return {job_id: largest_server_bytes(nodes, of_job.get(job_id, ())) for job_id in job_ids}
