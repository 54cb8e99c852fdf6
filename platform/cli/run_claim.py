"""The claim to stop a job that `run` started: one process at a time has it, and treats SIGTERM and SIGHUP like
Ctrl-C."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from types import FrameType, TracebackType

from elastrec.platform.specs.errors import ElastrecError


class InterruptedBySignalError(KeyboardInterrupt):
    """SIGTERM or SIGHUP was received.

    Attributes:
        exit_code: of a process that ends because of the signal, as shells report it.
    """

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.exit_code = 128 + number


@contextlib.contextmanager
def interrupted_by_signals() -> Iterator[None]:
    """SIGTERM and SIGHUP raise KeyboardInterrupt in the main thread, once; an ignored signal stays ignored."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        # A closing terminal sends SIGHUP more than once; a second signal must not interrupt the stopping of the job.
        for other in previous:
            signal.signal(other, signal.SIG_IGN)
        if number == signal.SIGHUP:
            _leave_dead_terminal()
        raise InterruptedBySignalError(number)

    handled = [number for number in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(number) is not signal.SIG_IGN]
    previous = {number: signal.getsignal(number) for number in handled}
    for number in handled:
        signal.signal(number, interrupt)
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def _leave_dead_terminal() -> None:
    """Redirects output from a closed terminal, because writing to it would end the process before the job is
    stopped."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    try:
        os.write(2, b"\n")
    except OSError:
        null = os.open(os.devnull, os.O_WRONLY)
        for descriptor in (1, 2):
            os.dup2(null, descriptor)
        os.close(null)


class RunClaim:
    """At most one process of a work folder has the claim to a job; the claim ends with the process.

    Args:
        work_folder: of the platform.
    """

    def __init__(self, work_folder: Path, job_id: str) -> None:
        self._file = work_folder / "runs" / f"{job_id}.lock"
        self._descriptor: int | None = None
        self.owner = ""
        """The name of this process for the job's master; empty unless it had the claim from the start."""

    def __enter__(self) -> RunClaim:
        if self.acquire():
            self.owner = f"elastrec run {uuid.uuid4().hex}"
        return self

    def acquire(self) -> bool:
        """Takes the claim if it is free; returns whether this process has it. Never waits.

        Raises:
            ElastrecError: the folder cannot be written.
        """
        while self._descriptor is None:
            try:
                self._file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                descriptor = os.open(self._file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            except OSError as error:
                raise ElastrecError(f"{self._file}: the claim to the job cannot be kept: {error}") from error
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(descriptor)
                return False
            if self._is_current(descriptor):
                self._descriptor = descriptor
            else:
                os.close(descriptor)  # its last holder removed it meanwhile
        return True

    def _is_current(self, descriptor: int) -> bool:
        try:
            return os.path.samestat(self._file.stat(), os.fstat(descriptor))
        except FileNotFoundError:
            return False

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._descriptor is not None:
            self._file.unlink(missing_ok=True)
            os.close(self._descriptor)
            self._descriptor = None
