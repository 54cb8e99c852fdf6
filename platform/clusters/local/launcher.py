"""The launcher of the local cluster, for callers outside of a job."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from elastrec.platform.clusters.local.client import LocalCluster, creation_request
from elastrec.platform.clusters.nodes import Node
from elastrec.platform.clusters.pods import PodSpec, PodStatus
from elastrec.platform.specs.metrics import Role

FIRST_ROLES = (Role.MASTER, Role.EVALUATOR)


class LocalLauncher:
    """Implements `Launcher` by a node agent; safe to use from several threads."""

    def __init__(self, cluster: LocalCluster) -> None:
        self.cluster = cluster

    def submit(self, first: PodSpec) -> PodStatus:
        """See `Launcher.submit`."""
        return self.cluster.create(first, replaces_ended=True)

    def find(self, job: str) -> PodStatus | None:
        """See `Launcher.find`."""
        return next((pod for pod in self.pods(job) if pod.role in FIRST_ROLES), None)

    def address(self, first: PodStatus) -> str:
        """See `Launcher.address`: callers are on the pods' machine."""
        return first.address

    def secrets(self, name: str, uid: str) -> dict[str, str] | None:
        """See `Launcher.secrets`."""
        return self.cluster.secrets(name, uid)

    def jobs(self) -> list[PodStatus]:
        """See `Launcher.jobs`."""
        return [pod for pod in self.pods() if pod.role in FIRST_ROLES]

    def pods(self, job: str | None = None) -> list[PodStatus]:
        """See `Launcher.pods`."""
        return self.cluster.list(job)

    def remove(self, job: str) -> list[str]:
        """See `Launcher.remove`."""
        removed: list[str] = []
        # After the end of the master, the pods that it was creating exist, too.
        while pods := self.pods(job):
            first = [pod for pod in pods if pod.role in FIRST_ROLES]
            for pod in first or pods:
                self.cluster.delete(pod.name)
                removed.append(pod.name)
        return removed

    def logs(self, name: str, *, tail_lines: int | None = None, follow: bool = False) -> Iterator[str]:
        """See `Launcher.logs`."""
        return self.cluster.logs(name, tail_lines=tail_lines, follow=follow)

    def nodes(self) -> list[Node]:
        """See `Launcher.nodes`."""
        return self.cluster.nodes()

    def dry_run(self, pod: PodSpec) -> dict[str, Any]:
        """See `Launcher.dry_run`."""
        return creation_request(pod, replaces_ended=pod.role in FIRST_ROLES)
