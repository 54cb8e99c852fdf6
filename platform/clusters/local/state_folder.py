"""The state folder of a node agent, which only one agent uses at a time."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from elastrec.platform.clusters.local.messages import AgentInfo
from elastrec.platform.specs.errors import ClusterError

_LOOK_SECONDS = 1.0
_TICK_SECONDS = 0.02


class StateFolder:
    """Names of the files in an agent's folder, which only its owner may enter.

    Raises:
        ClusterError: the folder cannot be created or used; also raised by all methods.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder.absolute()
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self.folder.chmod(0o700)
        except OSError as error:
            raise self._unusable(error) from error
        self.pods = self.folder / "pods"
        self.token = self.folder / "token"
        self.info = self.folder / "agent.json"
        self.journal = self.folder / "journal.sqlite"
        self.log = self.folder / "agent.log"

    def _unusable(self, error: OSError) -> ClusterError:
        return ClusterError(
            f"{error.filename or self.folder}: {error.strerror}; the folder of a node agent has to belong to the user "
            "who runs it: correct its owner, or name another folder (ELASTREC_HOME)"
        )

    @contextmanager
    def _locked(self, name: str, kind: int, wait_seconds: float | None) -> Iterator[None]:
        """Holds a lock; raises BlockingIOError if it is not available in time (None: waits without limit)."""
        try:
            descriptor = os.open(self.folder / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise self._unusable(error) from error
        try:
            deadline = time.monotonic() + (wait_seconds or 0.0)
            while True:
                try:
                    fcntl.flock(descriptor, kind if wait_seconds is None else kind | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() >= deadline:
                        raise
                    time.sleep(_TICK_SECONDS)
            yield
        finally:
            os.close(descriptor)

    @contextmanager
    def owned(self) -> Iterator[None]:
        """Held by the agent while it runs.

        Raises:
            ClusterError: another agent holds it.
        """
        with contextlib.ExitStack() as stack:
            try:
                # Longer than a check whether the folder is owned.
                stack.enter_context(self._locked("agent.lock", fcntl.LOCK_EX, _LOOK_SECONDS))
            except BlockingIOError:
                raise ClusterError(
                    f"state: {self.folder} is in use by another node agent ({self.agent()}); "
                    "stop that or use another folder"
                ) from None
            yield

    @contextmanager
    def starting(self) -> Iterator[None]:
        """Held while an agent is started or stopped here; waits for the current holder."""
        with self._locked("start.lock", fcntl.LOCK_EX, None):
            yield

    def is_owned(self) -> bool:
        """Whether an agent is running here (or is just ending)."""
        try:
            # Shared, so that two processes that check at the same time do not take each other for an agent.
            with self._locked("agent.lock", fcntl.LOCK_SH, 0.0):
                return False
        except BlockingIOError:
            return True

    def agent(self) -> AgentInfo | None:
        """The last agent's description of itself; that agent may have ended."""
        try:
            return msgspec.json.decode(self.info.read_bytes(), type=AgentInfo)
        except (FileNotFoundError, msgspec.MsgspecError):
            return None
