"""The two interfaces of every cluster: `Launcher`, for callers outside of a job, and `Fleet`, for a job's master.

Callers outside do not create or delete single pods of a job, because YARN grants containers only to a job's
ApplicationMaster. Every method raises ClusterError. If `retryable` is set, the same call may succeed later, for example
after a lost connection, a conflict or an exceeded quota; otherwise the cluster refuses.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

from elastrec.platform.clusters.nodes import Node
from elastrec.platform.clusters.pods import PodEvent, PodEventKind, PodSize, PodSpec, PodStatus
from elastrec.platform.specs.errors import ClusterError


class Launcher(Protocol):
    """Jobs, for the command line and Airflow. A job begins with its *first pod*: a master, which creates the other pods
    with its `Fleet`, or a pod that works alone, such as an evaluator.

    A finished job is kept, with its first pod's status and log, until it is removed or submitted again.
    """

    def submit(self, first: PodSpec) -> PodStatus:
        """Starts a job with its first pod; returns when the pod is accepted.

        If the job's first pod exists and has not ended, it is returned unchanged. If it has ended, it is replaced by
        another one, with a new uid.

        Raises:
            ClusterError: another job has a pod of that name, a field cannot be honoured, or no node is large enough.
        """
        ...

    def find(self, job: str) -> PodStatus | None:
        """The job's first pod; None if there is no such job, or it was removed."""
        ...

    def address(self, first: PodStatus) -> str:
        """`host:port` of the server in a job's first pod for this caller; empty while there is none.

        It may differ from `PodStatus.address`, which is for pods of the cluster.
        """
        ...

    def secrets(self, name: str, uid: str) -> dict[str, str] | None:
        """The `PodSpec.secrets` of a job's first pod, for callers that may submit jobs; None if that pod was
        deleted."""
        ...

    def jobs(self) -> list[PodStatus]:
        """The first pod of every job, oldest first."""
        ...

    def pods(self, job: str | None = None) -> list[PodStatus]:
        """The pods of a job, or of all jobs, oldest first. For people and for sums, not for decisions about single
        pods.
        """
        ...

    def remove(self, job: str) -> list[str]:
        """Ends a job and removes it: first its first pod, so that no more pods are created, then its other pods.

        Returns the names of the removed pods when no process of them is left; empty if there is no such job.
        """
        ...

    def logs(self, name: str, *, tail_lines: int | None = None, follow: bool = False) -> Iterator[str]:
        """Lines of a pod's standard output and error, oldest first; kept after the pod's end until it is deleted."""
        ...

    def nodes(self) -> list[Node]:
        """The nodes on which the caller's pods may run."""
        ...

    def dry_run(self, pod: PodSpec) -> dict[str, Any]:
        """Exactly the request that would be sent for a pod, secrets masked."""
        ...


class Fleet(Protocol):
    """The pods of one job, for its master."""

    def create(self, pod: PodSpec) -> PodStatus:
        """Creates a pod; returns when it is accepted. If the job has a pod with this name, that pod is returned."""
        ...

    def delete(self, name: str, uid: str, *, grace_seconds: float | None = None) -> None:
        """Requests the deletion of a pod and returns immediately; the watch reports when it is deleted.

        No error if there is no such pod, or another one with the same name.
        """
        ...

    def resize(self, name: str, uid: str, size: PodSize) -> None:
        """Requests other limits for a running pod, in place; `PodStatus.resize` shows the result."""
        ...

    def watch(self, resume: str, timeout_seconds: float) -> Iterator[PodEvent]:
        """Events after a `PodEvent.resume`, oldest first; ends after the given time.

        Without a resume token, or with an expired one, it begins with a snapshot: one SEEN per pod, then SYNCED.
        """
        ...

    def nodes(self) -> list[Node]:
        """The nodes on which the job's pods may run."""
        ...

    def logs(self, name: str, *, tail_lines: int | None = None) -> Iterator[str]:
        """Lines of standard output and error, oldest first; kept after the pod's end until it is deleted."""
        ...


def snapshot(fleet: Fleet) -> list[PodStatus]:
    """The present pods of a job.

    Raises:
        ClusterError: the cluster does not answer.
    """
    pods: list[PodStatus] = []
    for event in fleet.watch("", 0.0):
        if event.kind is PodEventKind.SYNCED:
            return pods
        if event.pod is not None:
            pods.append(event.pod)
    raise ClusterError("the cluster ended a watch before its snapshot was complete", retryable=True)


__all__ = ["Fleet", "Launcher", "snapshot"]
