"""The local cluster while its node agent does not run: for those who only look, and start nothing."""

from __future__ import annotations

from pathlib import Path
from typing import NoReturn, TypeVar

import msgspec

from elastrec.platform.clusters.local.client import LocalCluster
from elastrec.platform.clusters.local.journal import Journal
from elastrec.platform.clusters.local.sizes import kept_size, machine_size
from elastrec.platform.clusters.protocol import Capacity, PodStatus
from elastrec.platform.specs.errors import ClusterError

Answer = TypeVar("Answer", bound=msgspec.Struct)


class AbsentCluster(LocalCluster):
    """Has no pods and the capacity with which its agent would start; shows what it would be sent (`dry_run`).

    Every other call raises ClusterError.

    Args:
        state_folder: of the agent that does not run.
    """

    def __init__(self, state_folder: Path) -> None:
        # Not LocalCluster's own: there is no address that a client could be made for.
        self.address, self.token, self.tls = "", "", None
        self._journal = state_folder / "journal.sqlite"

    def _call(self, message: msgspec.Struct, answer: type[Answer], timeout_seconds: float = 0.0) -> NoReturn:
        raise ClusterError("no node agent runs; start one with `elastrec agent start`")

    def close(self) -> None:
        """Nothing is open."""

    def get(self, name: str) -> PodStatus | None:
        """None: there is no pod."""
        return None

    def list(self, job: str | None = None) -> list[PodStatus]:
        """Empty."""
        return []

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
