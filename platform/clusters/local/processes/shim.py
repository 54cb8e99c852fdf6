"""The supervisor of one pod's process: a small program that outlives the node agent.

Run as `python -I -S shim.py FOLDER ATTEMPT`; imports nothing of elastrec, so that it costs little memory and starts
in milliseconds. It claims the attempt and starts the plan's command inside the pod's cgroups. It stays outside of them
itself, so that it survives memory pressure in the pod. It copies the pod's output into log segments of bounded size,
and when the main process ends, it kills every descendant and writes the exit file atomically.

Files in FOLDER, all JSON: `plan.N.json` (read), `claim.N.json` (the supervisor of attempt N; created once, never
replaced), `exit.N.json` (how it ended). SIGTERM is passed on to the main process; SIGUSR1 kills the whole pod.
"""

# pathlib would double the time to start.
# ruff: noqa: PTH108, PTH123, PTH208

from __future__ import annotations

import ctypes
import errno
import json
import os
import select
import signal
import sys
import time
from typing import Any

_PR_SET_CHILD_SUBREAPER = 36
_READ_BYTES = 1 << 16
_SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGCHLD)
_CANNOT_START = 127
_PAUSE_SECONDS = 0.5


def start_ticks(pid: int) -> int:
    """Start time of a process in clock ticks since boot; together with the pid, it is unique."""
    with open(f"/proc/{pid}/stat", "rb") as file:
        return int(file.read().rpartition(b")")[2].split()[19])


def boot_id() -> str:
    """An identifier of the machine's boot."""
    with open("/proc/sys/kernel/random/boot_id") as file:
        return file.read().strip()


def write_once(path: str, content: dict[str, Any]) -> bool:
    """Creates a file with its whole content; False when it exists already (link() is atomic and never replaces)."""
    temporary = f"{path}.{os.getpid()}"
    with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        json.dump(content, file)
    try:
        os.link(temporary, path)
    except FileExistsError:
        return False
    finally:
        os.unlink(temporary)
    return True


class SegmentedLog:
    """Appends to files named after the position of their first byte; the oldest ones are removed above the limit."""

    def __init__(self, folder: str, segment_bytes: int, segments: int) -> None:
        self._folder, self._segment_bytes, self._segments = folder, segment_bytes, segments
        names = self._names()
        self._start = int(names[-1]) if names else 0
        self._open()

    def _names(self) -> list[str]:
        return sorted(name for name in os.listdir(self._folder) if name.isdigit())

    def _open(self) -> None:
        path = f"{self._folder}/{self._start:020d}"
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self._size = os.fstat(self._file).st_size

    def write(self, data: bytes) -> None:
        try:
            while data:
                written = os.write(self._file, data)
                data = data[written:]
                self._size += written
            if self._size >= self._segment_bytes:
                self._begin_segment()
        except OSError as error:
            # A full disk must not stop the training. The supervisor's own output reports the loss, but may be on that
            # disk, too.
            try:  # noqa: SIM105 (contextlib is one more import)
                os.write(sys.stderr.fileno(), f"{len(data)} bytes of output lost: {error}\n".encode())
            except OSError:
                pass

    def _begin_segment(self) -> None:
        full, start = self._file, self._start
        self._start += self._size
        try:
            self._open()
        except OSError:
            self._start = start  # the full segment is used until there is room for another
            raise
        os.close(full)
        for name in self._names()[: -self._segments]:
            os.unlink(f"{self._folder}/{name}")


class Supervisor:
    """One attempt to run one command."""

    def __init__(self, folder: str, attempt: int) -> None:
        self._folder, self._attempt = folder, attempt
        with open(f"{folder}/plan.{attempt}.json") as file:
            self._plan: dict[str, Any] = json.load(file)
        self._log = SegmentedLog(self._plan["log_folder"], self._plan["segment_bytes"], self._plan["segments"])
        self._main = 0
        self._status: int | None = None
        self._message = ""

    def run(self) -> None:
        wake_read, wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        for number in _SIGNALS:
            signal.signal(number, lambda *_: None)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        me = os.getpid()
        claim = {"pid": me, "start_ticks": start_ticks(me), "boot_id": boot_id()}
        if not write_once(f"{self._folder}/claim.{self._attempt}.json", claim):
            return
        kills_before = self._oom_kills()
        output, began = self._start(), time.monotonic()
        os.set_blocking(output, False)
        # Signals sent before this moment were blocked by the parent and arrive now.
        signal.pthread_sigmask(signal.SIG_SETMASK, [])
        poll = select.poll()
        poll.register(wake_read, select.POLLIN)
        poll.register(output, select.POLLIN)
        while self._status is None:
            for descriptor, _ in poll.poll():
                if descriptor == wake_read:
                    self._handle(os.read(wake_read, 4096))
                elif not self._copy(output):
                    poll.unregister(output)
        finished, ran = time.time(), time.monotonic() - began
        self._kill_descendants()
        while self._copy(output):
            pass
        times = os.times()
        signalled = os.WIFSIGNALED(self._status)
        exit_code = 128 + os.WTERMSIG(self._status) if signalled else os.WEXITSTATUS(self._status)
        self._leave(
            {
                "exit_code": exit_code,
                "oom_killed": exit_code != 0 and self._oom_kills() > kills_before,
                "message": self._message,
                "finished_unix_seconds": finished,
                "ran_seconds": ran,
                "cpu_seconds": times.children_user + times.children_system,
            }
        )

    def _leave(self, end: dict[str, Any]) -> None:
        """Writes the exit file, however long the disk stays full, because without it the attempt counts as lost."""
        while True:
            try:
                write_once(f"{self._folder}/exit.{self._attempt}.json", end)
                return
            except OSError as error:
                if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                    raise
            time.sleep(_PAUSE_SECONDS)

    def _handle(self, signals: bytes) -> None:
        for number in signals:
            if number == signal.SIGTERM and self._status is None:
                os.kill(self._main, signal.SIGTERM)
            elif number == signal.SIGUSR1 and self._status is None:
                os.kill(self._main, signal.SIGKILL)
        if signal.SIGCHLD in signals:
            self._reap(os.WNOHANG)

    def _reap(self, options: int) -> bool:
        # Orphaned descendants become children of this process (subreaper) and must not stay zombies.
        try:
            while True:
                pid, status = os.waitpid(-1, options)
                if pid == 0:
                    return True
                if pid == self._main:
                    self._status = status
                if not options:
                    return True
        except ChildProcessError:
            return False

    def _copy(self, output: int) -> bool:
        try:
            data = os.read(output, _READ_BYTES)
        except BlockingIOError:
            return self._status is None
        if data:
            self._log.write(data)
        return bool(data)

    def _kill_descendants(self) -> None:
        # Children of killed processes become children of this one, so that the loop ends when no process of the pod is
        # left.
        while True:
            for pid in _children():
                try:  # noqa: SIM105 (contextlib is one more import)
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
            if not self._reap(0):
                return

    def _oom_kills(self) -> int:
        path = self._plan["oom_file"]
        if not path:
            return 0
        with open(path) as file:
            for line in file:
                key, _, value = line.partition(" ")
                if key == "oom_kill":
                    return int(value)
        return 0

    def _start(self) -> int:
        """Forks the main process; returns the reading end of its output."""
        output_read, output_write = os.pipe2(os.O_CLOEXEC)
        error_read, error_write = os.pipe2(os.O_CLOEXEC)
        # The handlers above would discard a signal between fork and exec.
        signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        self._main = os.fork()
        if self._main == 0:
            self._become_the_pod(output_write, error_write)
        os.close(output_write)
        os.close(error_write)
        with open(error_read, "rb") as errors:
            self._message = errors.read().decode(errors="replace")
        return output_read

    def _become_the_pod(self, output: int, errors: int) -> None:
        plan = self._plan
        try:
            signal.set_wakeup_fd(-1)
            for number in (*_SIGNALS, signal.SIGINT, signal.SIGHUP, signal.SIGPIPE):
                signal.signal(number, signal.SIG_DFL)
            os.setsid()
            for path in plan["join_files"]:
                with open(path, "w") as file:
                    file.write("0")
            null = os.open(os.devnull, os.O_RDONLY)
            for source, target in ((null, 0), (output, 1), (output, 2)):
                os.dup2(source, target)
            os.chdir(plan["work_folder"])
            os.umask(0o077)
            signal.pthread_sigmask(signal.SIG_SETMASK, [])
            os.execvpe(plan["command"][0], plan["command"], plan["environment"])
        except OSError as error:
            os.write(errors, f"cannot start {plan['command'][0]!r}: {error}".encode())
        finally:
            os._exit(_CANNOT_START)


def _children() -> list[int]:
    me = os.getpid()
    try:
        with open(f"/proc/{me}/task/{me}/children") as file:
            return [int(pid) for pid in file.read().split()]
    except FileNotFoundError:
        pass  # a kernel without CONFIG_PROC_CHILDREN
    children = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", "rb") as stat:
                    parent = int(stat.read().rpartition(b")")[2].split()[1])
            except OSError:
                continue
            if parent == me:
                children.append(int(name))
    return children


def main() -> None:
    library = ctypes.CDLL(None, use_errno=True)
    if library.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "PR_SET_CHILD_SUBREAPER")
    Supervisor(sys.argv[1], int(sys.argv[2])).run()


if __name__ == "__main__":
    main()
