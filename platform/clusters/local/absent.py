"""The local cluster while its node agent does not run: for those who only look, and start nothing."""

from __future__ import annotations

import builtins
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

from elastrec.platform.clusters.local.client import creation_request
from elastrec.platform.clusters.local.journal import Journal
from elastrec.platform.clusters.local.sizes import kept_size, machine_size
from elastrec.platform.clusters.nodes import Capacity, Node
from elastrec.platform.clusters.pods import PodSpec, PodStatus
from elastrec.platform.specs.errors import ClusterError


class AbsentCluster:
    """Implements `Cluster`: has no pods and the capacity with which its agent would start.

    It shows what the agent would be sent (`dry_run`). What needs an agent raises ClusterError.

    Args:
        state_folder: of the agent that does not run.
    """

    def __init__(self, state_folder: Path) -> None:
        self._journal = state_folder / "journal.sqlite"

    def _refuse(self) -> NoReturn:
        raise ClusterError("no node agent runs; start one with `elastrec agent start`")

    def create(self, pod: PodSpec) -> PodStatus:
        """Refused."""
        self._refuse()

    def delete(self, name: str, *, grace_seconds: float | None = None) -> None:
        """Refused."""
        self._refuse()

    def get(self, name: str) -> PodStatus | None:
        """None: there is no pod."""
        return None

    def list(self, job: str | None = None) -> list[PodStatus]:
        """Empty."""
        return []

    def secrets(self, name: str, uid: str) -> dict[str, str] | None:
        """None: there is no such pod."""
        return None

    def capacity(self) -> Capacity:
        """Of the agent that would be started; all of it is free."""
        size = machine_size()
        if self._journal.is_file():
            journal = Journal(self._journal)
            try:
                size = kept_size(journal)
            finally:
                journal.close()
        return Capacity(size, size)

    def nodes(self) -> builtins.list[Node]:
        """This machine, all of it free."""
        size = self.capacity().total
        return [Node(name=socket.gethostname(), size=size, free=size)]

    def logs(self, name: str, *, tail_lines: int | None = None, follow: bool = False) -> Iterator[str]:
        """Refused."""
        self._refuse()

    def dry_run(self, pod: PodSpec) -> dict[str, Any]:
        """See `Cluster.dry_run`."""
        return creation_request(pod)
