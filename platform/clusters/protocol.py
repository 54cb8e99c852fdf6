"""The two faces of every cluster: `Launcher`, for those outside of a job, and `Fleet`, for a job's master.

Nothing outside creates or deletes single pods of a job: YARN grants containers to a job's ApplicationMaster alone.
Every method raises ClusterError, whose `retryable` says whether the same call may succeed later: out of reach, a
conflict, a quota. Everything else is a refusal.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

from elastrec.platform.clusters.nodes import Node
from elastrec.platform.clusters.pods import PodEvent, PodEventKind, PodSize, PodSpec, PodStatus
from elastrec.platform.specs.errors import ClusterError


class Launcher(Protocol):
    """Jobs, for the command line and Airflow. A job begins as one pod, here called its first: a master, which makes the
    others by its `Fleet`, or a pod that works alone, as an evaluator does.

    A finished job stays known, with its first pod's status and log, until it is removed or submitted again.
    """

    def submit(self, first: PodSpec) -> PodStatus:
        """Starts a job by its first pod; answers when it is accepted.

        Where the job's first pod is there and has not ended, that one is returned as it is. One that has ended is
        replaced by another one, with a new uid.

        Raises:
            ClusterError: another job has a pod of that name, a field cannot be honoured, or no node is large enough.
        """
        ...

    def find(self, job: str) -> PodStatus | None:
        """The job's first pod; None: there is no such job, or it was removed."""
        ...

    def address(self, first: PodStatus) -> str:
        """`host:port` at which this caller reaches what a job's first pod serves; empty while it serves nothing.

        It may differ from `PodStatus.address`, which is for pods of the cluster.
        """
        ...

    def secrets(self, name: str, uid: str) -> dict[str, str] | None:
        """The `PodSpec.secrets` of a job's first pod, for callers who may submit jobs; None: that pod is gone."""
        ...

    def jobs(self) -> list[PodStatus]:
        """The first pod of every job, oldest first."""
        ...

    def pods(self, job: str | None = None) -> list[PodStatus]:
        """The pods of a job, or of all jobs, oldest first. For people and for sums; no decision about a single pod
        is taken from it.
        """
        ...

    def remove(self, job: str) -> list[str]:
        """Ends a job and forgets it: its first pod, so that nobody makes more, then whatever is left of the job.

        Returns the names of the pods that it removed, when no process of them is left; none: there is no such job.
        """
        ...

    def logs(self, name: str, *, tail_lines: int | None = None, follow: bool = False) -> Iterator[str]:
        """Lines of standard output and error of a pod, oldest first; kept after the pod's end until it is deleted."""
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
        """Creates a pod; answers when it is accepted. Where the job has one of that name, that one is returned."""
        ...

    def delete(self, name: str, uid: str, *, grace_seconds: float | None = None) -> None:
        """Orders the end of a pod and returns at once; the watch reports when it is gone.

        No error when there is no such pod, or another one of that name.
        """
        ...

    def resize(self, name: str, uid: str, size: PodSize) -> None:
        """Asks for other limits of a running pod, in place; `PodStatus.resize` shows what becomes of it."""
        ...

    def watch(self, resume: str, timeout_seconds: float) -> Iterator[PodEvent]:
        """Events after a `PodEvent.resume`, oldest first; ends after the time.

        Without a resume token, or with one that the cluster does not know any more, it begins with a snapshot: one SEEN
        per pod, then SYNCED.
        """
        ...

    def nodes(self) -> list[Node]:
        """The nodes on which the job's pods may run."""
        ...

    def logs(self, name: str, *, tail_lines: int | None = None) -> Iterator[str]:
        """Lines of standard output and error, oldest first; kept after the pod's end until it is deleted."""
        ...


def snapshot(fleet: Fleet) -> list[PodStatus]:
    """The pods of a job now.

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
