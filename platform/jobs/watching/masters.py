"""Connections to a job's master: its pod, and clients with the job's own secret.

Requests to masters belong to the modules that make them.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import TypeVar

import msgspec

from elastrec.platform.clusters.pods import PodPhase, PodStatus
from elastrec.platform.jobs.identity import secret_of
from elastrec.platform.jobs.surroundings import Platform
from elastrec.platform.jobs.watching.last_words import whole_log
from elastrec.platform.master.pods.launch import pod_name
from elastrec.platform.specs.errors import ClusterError, TransportError
from elastrec.platform.specs.metrics import Role
from elastrec.platform.transport import RpcClient

_START_SECONDS = 60.0
Answer = TypeVar("Answer", bound=msgspec.Struct)


def pod_of_master(platform: Platform, job_id: str) -> PodStatus | None:
    """The pod of the job's master; None if the cluster has none.

    Raises:
        ClusterError: the cluster does not answer.
    """
    first = platform.launcher.find(job_id)
    return first if first is not None and first.role is Role.MASTER else None


def is_gone(pod: PodStatus | None) -> bool:
    """Whether a master has finished and ended; its data is in the checkpoint store."""
    return pod is None or pod.phase is PodPhase.SUCCEEDED


def master_client(platform: Platform, pod: PodStatus | None) -> RpcClient | None:
    """A client of the master in a pod; None if no master runs in it.

    Raises:
        ClusterError: the cluster does not answer.
    """
    if pod is None or pod.phase is not PodPhase.RUNNING or not pod.address:
        return None
    address, secret = platform.launcher.address(pod), secret_of(platform, pod)
    return RpcClient(address, secret.token, secret.tls) if address and secret else None


def ask_pod(
    platform: Platform, pod: PodStatus | None, message: msgspec.Struct, answer: type[Answer], *, timeout_seconds: float
) -> Answer | None:
    """Makes one call to the master in a pod; None if no master runs in it.

    Raises:
        TransportError: the master does not answer, or refuses.
        ClusterError: the cluster does not answer.
    """
    found = master_client(platform, pod)
    if found is None:
        return None
    with contextlib.closing(found) as client:
        return client.call(message, answer, timeout_seconds=timeout_seconds)


@contextlib.contextmanager
def live_master(platform: Platform, job_id: str) -> Iterator[RpcClient | None]:
    """A client of the job's master for several calls; None if no master runs.

    Raises:
        ClusterError: the cluster does not answer, or the master did not answer a call in the block.
    """
    found = master_client(platform, pod_of_master(platform, job_id))
    if found is None:
        yield None
        return
    with contextlib.closing(found) as client:
        try:
            yield client
        except TransportError as error:
            problem = f"job {job_id}: its master does not answer: {error}"
            raise ClusterError(problem, retryable=error.retryable) from error


def wait_for_master(platform: Platform, job_id: str, timeout_seconds: float = _START_SECONDS) -> RpcClient:
    """Waits until the pod of the job's master has an address; returns a client, which the caller must close.

    Raises:
        ClusterError: the pod failed, does not fit, or did not start in time; with the reason.
    """
    deadline = time.monotonic() + timeout_seconds
    while True:
        pod = pod_of_master(platform, job_id)
        if pod is None:
            name = pod_name(job_id, Role.MASTER)
            raise ClusterError(f"job {job_id}: its master {name} does not exist; it was stopped or never launched")
        if pod.phase is PodPhase.FAILED:
            tail = [*platform.launcher.logs(pod.name, tail_lines=30), *whole_log(platform, pod)]
            raise ClusterError("\n".join([f"job {job_id}: its master failed: {pod.reason} {pod.message}", *tail]))
        if (client := master_client(platform, pod)) is not None:
            return client
        if time.monotonic() > deadline:
            raise ClusterError(f"job {job_id}: its master is still {pod.phase.value}: {pod.reason} {pod.message}")
        time.sleep(0.1)
