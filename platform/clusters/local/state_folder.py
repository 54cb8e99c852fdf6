"""Where a node agent keeps its state, and who may use it: one agent at a time."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from elastrec.platform.clusters.local.messages import AgentInfo
from elastrec.platform.specs.errors import ClusterError


class StateFolder:
    """Names of the files in an agent's folder, which only its owner may enter."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder.absolute()
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.folder.chmod(0o700)
        self.token = self.folder / "token"
        self.info = self.folder / "agent.json"
        self.journal = self.folder / "journal.sqlite"
        self.log = self.folder / "agent.log"

    @contextmanager
    def _locked(self, name: str, *, wait: bool) -> Iterator[None]:
        descriptor = os.open(self.folder / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            except BlockingIOError:
                raise ClusterError(
                    f"state: {self.folder} is in use by another node agent ({self.agent()}); "
                    "stop that or use another folder"
                ) from None
            yield
        finally:
            os.close(descriptor)

    @contextmanager
    def owned(self) -> Iterator[None]:
        """Held by the agent while it runs.

        Raises:
            ClusterError: another agent holds it.
        """
        with self._locked("agent.lock", wait=False):
            yield

    @contextmanager
    def starting(self) -> Iterator[None]:
        """Held by whoever starts or stops an agent here; waits for others who do."""
        with self._locked("start.lock", wait=True):
            yield

    def is_owned(self) -> bool:
        """Whether an agent is running here (or is just ending)."""
        try:
            with self.owned():
                return False
        except ClusterError:
            return True

    def agent(self) -> AgentInfo | None:
        """What the last agent wrote about itself; it may be dead by now."""
        try:
            return msgspec.json.decode(self.info.read_bytes(), type=AgentInfo)
        except (FileNotFoundError, msgspec.MsgspecError):
            return None
