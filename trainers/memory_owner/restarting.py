"""Runs a server as a child process, and restarts it after a crash."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence

from elastrec.trainers.memory_owner.log import say

RESTARTS = 3
"""Maximum of restarts after crashes in a row; after that, a pod on another node may succeed."""
HEALTHY_SECONDS = 60.0
"""A crash after this time begins a new row."""
_FORWARDED = (signal.SIGTERM, signal.SIGINT)
_WATCHED = (*_FORWARDED, signal.SIGCHLD)
_SET_PARENT_DEATH_SIGNAL = 1
_CANNOT_START = 127


class RestartedProcess:
    """One program, as processes that follow each other.

    A process that exits is never restarted, whatever its exit code: it has reported its reason to the master, or would
    exit again. Nor is one that was killed for the pod's memory, because only the master can give it more, or one that
    ends after SIGTERM or SIGINT, which are forwarded.

    Args:
        arguments: of the interpreter.
        environment: of the processes.
        once: variables that only the first process gets.
        memory_kills: how many processes of the pod were killed for memory.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        *,
        once: Sequence[str] = (),
        memory_kills: Callable[[], int] = lambda: 0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._command = [sys.executable, *arguments]
        self._environment, self._once = dict(environment), once
        self._memory_kills, self._clock = memory_kills, clock
        self._is_ending = False
        self._mask: set[signal.Signals] = set()

    def run(self) -> int:
        """The exit code of the last process, as a shell gives it: 128 and the signal's number of one that was killed.

        Signals are blocked from here on and handled one after the other.
        """
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        self._mask = {signal.Signals(number) for number in signal.pthread_sigmask(signal.SIG_BLOCK, _WATCHED)}
        # Its handler, if there is one, would otherwise take the signals of a child that has not called execve yet.
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        crashes = 0
        while True:
            began, kills = self._clock(), self._memory_kills()
            code = self._wait(self._start())
            if code >= 0:
                return code
            crashes = 1 if self._clock() - began >= HEALTHY_SECONDS else crashes + 1
            killed_by = signal.Signals(-code).name
            if why := self._why_no_other(crashes, self._memory_kills() > kills):
                say("error", "server_not_started_again", killed_by=killed_by, reason=why)
                return 128 - code
            say("warning", "server_started_again", killed_by=killed_by, crashes_in_a_row=crashes)
            for name in self._once:
                self._environment.pop(name, None)

    def _why_no_other(self, crashes: int, is_memory_kill: bool) -> str:
        if self._is_ending:
            return "the pod is about to end"
        if is_memory_kill:
            return "it was killed for the memory of its pod"
        return f"it crashed {crashes} times in a row" if crashes > RESTARTS else ""

    def _start(self) -> int:
        owner, library = os.getpid(), ctypes.CDLL(None)
        pid = os.fork()
        if pid == 0:
            try:
                # The memory must not outlive its owner, nor a server the pod. Where the owner was killed before this
                # call, the process has another parent by now.
                library.prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)
                # Some clusters signal a whole process group: a server that gets SIGTERM twice ends at once.
                os.setpgid(0, 0)
                signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)
                if os.getppid() == owner:
                    os.execve(self._command[0], self._command, self._environment)
            except OSError as error:
                say("error", "server_not_started", command=self._command[0], reason=error.strerror)
            finally:
                os._exit(_CANNOT_START)
        return pid

    def _wait(self, pid: int) -> int:
        """Forwards signals until the process has ended; returns its exit code, negative if a signal ended it."""
        while True:
            number = signal.sigwait(_WATCHED)
            if number in _FORWARDED:
                self._is_ending = True
                os.kill(pid, number)
            elif (code := _reap(pid)) is not None:
                return code


def _reap(main: int) -> int | None:
    """The exit status of the process after its end; the first process of a container also reaps orphans."""
    found = None
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return found
        if pid == 0:
            return found
        if pid == main:
            found = os.waitstatus_to_exitcode(status)
