"""The local cluster while its node agent does not run, for callers that only read."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

from elastrec.platform.clusters.local.agent.journal import Journal
from elastrec.platform.clusters.local.agent.sizes import kept_size, machine_size
from elastrec.platform.clusters.local.client import creation_request
from elastrec.platform.clusters.local.launcher import FIRST_ROLES
from elastrec.platform.clusters.nodes import Node
from elastrec.platform.clusters.pods import PodSpec, PodStatus
from elastrec.platform.specs.errors import ClusterError


class AbsentLauncher:
    """Implements `Launcher`: there are no jobs, and one node of the size with which the agent would start.

    It shows what the agent would be sent (`dry_run`). What needs an agent raises ClusterError.

    Args:
        state_folder: of the agent that does not run.
    """

    def __init__(self, state_folder: Path) -> None:
        self._journal = state_folder / "journal.sqlite"

    def _refuse(self) -> NoReturn:
        raise ClusterError("no node agent runs; start one with `elastrec agent start`")

    def submit(self, first: PodSpec) -> PodStatus:
        """Refused."""
        self._refuse()

    def find(self, job: str) -> PodStatus | None:
        """None: there is no job."""
        return None

    def address(self, first: PodStatus) -> str:
        """Refused."""
        self._refuse()

    def secrets(self, name: str, uid: str) -> dict[str, str] | None:
        """None: there is no such pod."""
        return None

    def jobs(self) -> list[PodStatus]:
        """Empty."""
        return []

    def pods(self, job: str | None = None) -> list[PodStatus]:
        """Empty."""
        return []

    def remove(self, job: str) -> list[str]:
        """Refused."""
        self._refuse()

    def logs(self, name: str, *, tail_lines: int | None = None, follow: bool = False) -> Iterator[str]:
        """Refused."""
        self._refuse()

    def nodes(self) -> list[Node]:
        """This machine, of the size with which its agent would start; all of it is free."""
        size = machine_size()
        if self._journal.is_file():
            journal = Journal(self._journal)
            try:
                size = kept_size(journal)
            finally:
                journal.close()
        return [Node(name=socket.gethostname(), size=size, free=size)]

    def dry_run(self, pod: PodSpec) -> dict[str, Any]:
        """See `Launcher.dry_run`."""
        return creation_request(pod, replaces_ended=pod.role in FIRST_ROLES)
