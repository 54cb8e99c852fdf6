"""Starts, stops, limits, measures and re-adopts pods as process groups; independent of its callers.

Every attempt to run a pod's command is supervised by a `shim` process in its own session, which survives the process
that started it. The pod's folder contains everything that is needed to find it again:

    FOLDER/UID/plan.N.json   what attempt N runs            files/     PodSpec's files and secrets (0600)
    FOLDER/UID/claim.N.json  which process supervises it    work/      the pod's own folder
    FOLDER/UID/exit.N.json   how it ended                   log/       bounded segments of its output
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec

from elastrec.platform.clusters.local.processes.limits import Limits, Usage
from elastrec.platform.clusters.local.processes.proc import UID_VARIABLE, marked, usage_of_tree
from elastrec.platform.clusters.local.processes.shim import boot_id, start_ticks, write_once
from elastrec.platform.clusters.pods import PodSize
from elastrec.platform.specs.errors import ClusterError
from elastrec.platform.specs.text.decoders import json_decoder
from elastrec.platform.transport.security import write_secret

LOG_SEGMENT_BYTES = 16 << 20
LOG_SEGMENTS = 4
_SHIM = Path(__file__).with_name("shim.py")
_BLOCKED_AT_START = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)
_KILLED = 128 + signal.SIGKILL
_DYING_SECONDS = 0.3
_SURVIVORS_SECONDS = 10.0


class ProcessExit(msgspec.Struct, frozen=True, kw_only=True):
    """The end of an attempt. `lost`: the end was not observed (the machine crashed, or the supervisor was killed).

    Attributes:
        ran_seconds: by the monotonic clock; None when the end was not observed.
    """

    exit_code: int
    finished_unix_seconds: float
    ran_seconds: float | None = None
    oom_killed: bool = False
    message: str = ""
    cpu_seconds: float = 0.0
    lost: bool = False
    rebooted: bool = False


class StillDyingError(ClusterError):
    """Killed processes have not ended yet, for example on a machine that is short of CPU; try again later."""


class _Claim(msgspec.Struct, frozen=True):
    pid: int
    start_ticks: int
    boot_id: str


class _Joined(msgspec.Struct, frozen=True):
    """The fields of a plan that are read again."""

    join_files: list[str]


_claims, _exits, _plans = json_decoder(_Claim), json_decoder(ProcessExit), json_decoder(_Joined)


class RunningPod:
    """A live supervisor. `descriptor` becomes readable when it has ended (poll it, never read it)."""

    def __init__(
        self, uid: str, attempt: int, pid: int, descriptor: int, child: subprocess.Popen[bytes] | None
    ) -> None:
        self.uid, self.attempt, self.pid, self.descriptor = uid, attempt, pid, descriptor
        self._child = child

    def fileno(self) -> int:
        return self.descriptor

    def send(self, number: signal.Signals) -> None:
        """Sends a signal to the supervisor; nothing happens when it has already ended."""
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.descriptor, number)

    def release(self) -> None:
        """Closes the descriptor of an ended supervisor and reaps its zombie."""
        os.close(self.descriptor)
        if self._child is not None:
            self._child.wait()


class PodRunner:
    """Pods by uid below one folder.

    Args:
        folder: created with rights for the owner alone.
        limits: see `probe_limits`.
    """

    def __init__(self, folder: Path, limits: Limits) -> None:
        self._folder = folder
        self._limits = limits
        self._groups_left: set[str] = set()
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._trash.mkdir(mode=0o700, exist_ok=True)

    @property
    def _trash(self) -> Path:
        return self._folder / "trash"

    def _pod(self, uid: str) -> Path:
        return self._folder / uid

    def log_folder(self, uid: str) -> Path:
        return self._pod(uid) / "log"

    def prepare(self, uid: str, files: Mapping[str, str]) -> None:
        """Creates the pod's folders and writes its files, or leaves nothing behind.

        Raises:
            ClusterError: they cannot be written; retryable if the disk is full.
        """
        try:
            self._pod(uid).mkdir(mode=0o700)
            for name in ("files", "work", "log"):
                (self._pod(uid) / name).mkdir(mode=0o700)
            for name, text in files.items():
                write_secret(self._pod(uid) / "files" / name, text)
        except OSError as error:
            shutil.rmtree(self._pod(uid), ignore_errors=True)
            is_full = error.errno in (errno.ENOSPC, errno.EDQUOT)
            raise ClusterError(f"the pod's files cannot be written: {error}", retryable=is_full) from error

    def read_files(self, uid: str, names: Iterable[str]) -> dict[str, str]:
        """Texts of a pod's files.

        Raises:
            ClusterError: one cannot be read.
        """
        try:
            return {name: (self.files_folder(uid) / name).read_text() for name in names}
        except OSError as error:
            raise ClusterError(f"the pod's file cannot be read: {error}") from error

    def files_folder(self, uid: str) -> Path:
        return self._pod(uid) / "files"

    def work_folder(self, uid: str) -> Path:
        return self._pod(uid) / "work"

    def ready_file(self, uid: str) -> Path:
        """The file by which the pod's process reports its start (see `transport.readiness`)."""
        return self._pod(uid) / "ready"

    def start(
        self,
        uid: str,
        attempt: int,
        command: tuple[str, ...],
        environment: Mapping[str, str],
        size: PodSize,
        startup_cores: float = 0.0,
    ) -> RunningPod:
        """Starts an attempt under a new supervisor.

        Args:
            attempt: its number from 1, never used twice for a pod.
            command: argument vector, looked up in the PATH of `environment`.
            environment: the whole environment of the process; only the mark of the pod is added.
            startup_cores: see `Limits.resize`.

        Raises:
            OSError: no process could be created, or the limits could not be set.
        """
        self._limits.create(uid, size, startup_cores)
        self.ready_file(uid).unlink(missing_ok=True)
        pod = self._pod(uid)
        plan = {
            "command": list(command),
            "environment": {**environment, UID_VARIABLE: uid},
            "work_folder": str(self.work_folder(uid)),
            "log_folder": str(self.log_folder(uid)),
            "segment_bytes": LOG_SEGMENT_BYTES,
            "segments": LOG_SEGMENTS,
            "join_files": self._limits.join_files(uid),
            "oom_file": self._limits.oom_file(uid),
        }
        write_secret(pod / f"plan.{attempt}.json", msgspec.json.encode(plan).decode())
        with os.fdopen(os.open(pod / "supervisor.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "wb") as output:
            # Blocked signals stay pending until the shim can handle them: an early stop is not lost.
            previous = signal.pthread_sigmask(signal.SIG_BLOCK, _BLOCKED_AT_START)
            try:
                child = subprocess.Popen(
                    [sys.executable, "-I", "-S", str(_SHIM), str(pod), str(attempt)],
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    cwd="/",
                    # Marked as well, because the pod's process is a copy of its supervisor until it calls execve(2).
                    env={UID_VARIABLE: uid},
                    start_new_session=True,
                )
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, previous)
        try:
            descriptor = os.pidfd_open(child.pid)
        except OSError:
            # Out of descriptors: nobody would notice its end, and the next attempt would run beside it.
            child.send_signal(signal.SIGUSR1)
            child.wait()
            raise
        return RunningPod(uid, attempt, child.pid, descriptor, child)

    def adopt(self, uid: str, attempt: int) -> RunningPod | ProcessExit | None:
        """Finds an earlier attempt: still running, ended, or None if it never began.

        After None, the attempt can no longer begin, even if its supervisor is just being started.

        Raises:
            StillDyingError: see `collect`.
        """
        pod = self._pod(uid)
        me = os.getpid()
        void = {"pid": me, "start_ticks": start_ticks(me), "boot_id": boot_id()}
        if not pod.is_dir():
            return self.collect(uid, attempt)
        if write_once(str(pod / f"claim.{attempt}.json"), void):
            return None
        claim = _claims.decode((pod / f"claim.{attempt}.json").read_bytes())
        if claim.boot_id == boot_id():
            try:
                descriptor = os.pidfd_open(claim.pid)
            except ProcessLookupError:
                return self.collect(uid, attempt)
            # Compared after the descriptor was opened, because from then on the pid cannot be reused.
            try:
                if start_ticks(claim.pid) == claim.start_ticks:
                    return RunningPod(uid, attempt, claim.pid, descriptor, None)
            except OSError:
                pass
            os.close(descriptor)
        return self.collect(uid, attempt)

    def terminate(self, running: RunningPod) -> None:
        """Sends SIGTERM to the pod's main process; processes that remain after its end are killed."""
        running.send(signal.SIGTERM)

    def kill(self, running: RunningPod) -> None:
        """Kills the whole pod through its supervisor, which writes the exit file."""
        running.send(signal.SIGUSR1)

    def destroy(self, running: RunningPod) -> None:
        """Kills a pod together with its supervisor, which does not react."""
        running.send(signal.SIGKILL)
        # Processes that need longer are found by `collect`.
        with contextlib.suppress(StillDyingError):
            self._kill_survivors(running.uid)

    def collect(self, uid: str, attempt: int) -> ProcessExit:
        """The result of an ended attempt; kills the remaining processes of a lost supervisor.

        Raises:
            StillDyingError: some of these have not ended yet, and so the attempt has not ended.
        """
        try:
            return _exits.decode((self._pod(uid) / f"exit.{attempt}.json").read_bytes())
        except FileNotFoundError:
            pass
        claim_file = self._pod(uid) / f"claim.{attempt}.json"
        claim = _claims.decode(claim_file.read_bytes()) if claim_file.exists() else None
        rebooted = claim is not None and claim.boot_id != boot_id()
        self._kill_survivors(uid)
        try:
            output = (self._pod(uid) / "supervisor.log").read_text(errors="replace").strip().splitlines()
        except FileNotFoundError:
            output = ["its folder is gone"]
        died = ": ".join(["the pod's supervisor died", *output[-1:]])
        reason = "the machine was restarted" if rebooted else died
        return ProcessExit(
            exit_code=_KILLED, finished_unix_seconds=time.time(), message=reason, lost=True, rebooted=rebooted
        )

    def _kill_survivors(self, uid: str, timeout_seconds: float = _DYING_SECONDS) -> None:
        deadline = time.monotonic() + timeout_seconds
        while pids := {*self._limits.processes(uid), *marked(uid)}:
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            if time.monotonic() > deadline:
                raise StillDyingError(f"processes {sorted(pids)} of pod {uid} were killed and have not ended yet")
            time.sleep(0.005)

    def resize(self, uid: str, size: PodSize) -> None:
        """Changes the limits of a running pod in place.

        Raises:
            ClusterError: it already uses more memory.
        """
        self._limits.resize(uid, size)

    def usage(self, running: RunningPod, earlier_cpu_seconds: float) -> Usage:
        """The present use of a running pod, with the CPU time of all of its attempts.

        Args:
            earlier_cpu_seconds: of ended attempts; needed if no cgroup counts them.
        """
        counted = self._limits.usage(running.uid)
        if counted is not None:
            return counted
        current = usage_of_tree(running.pid)
        return Usage(earlier_cpu_seconds + current.cpu_seconds, current.memory_bytes)

    def release(self, uid: str) -> None:
        """Removes the limits of an ended pod; log and work folder stay."""
        self._remove_group(uid)

    def remove(self, uid: str) -> None:
        """Removes an ended pod. Fast, because `empty_trash` frees the disk later."""
        self._remove_group(uid)
        with contextlib.suppress(FileNotFoundError):
            self._pod(uid).rename(self._trash / uid)

    def _remove_group(self, uid: str) -> None:
        if not self._limits.remove(uid):
            self._groups_left.add(uid)

    def sweep(self) -> bool:
        """Tries again to remove groups that the kernel has kept; true when none is left."""
        for uid in sorted(self._groups_left):
            pids = self._limits.processes(uid)
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            # Groups with processes are skipped, because they cannot be removed.
            if not pids and self._limits.remove(uid):
                self._groups_left.discard(uid)
        return not self._groups_left

    def forget_groups(self, known: set[str]) -> None:
        """Removes groups of unknown pods, which an earlier agent has not removed before it ended."""
        for uid in self._limits.uids():
            if uid not in known:
                self._remove_group(uid)

    def empty_trash(self) -> None:
        """Deletes the folders of removed pods."""
        for folder in self._trash.iterdir():
            shutil.rmtree(folder, ignore_errors=True)

    def end_unknown(self, uid: str) -> bool:
        """Kills the processes of a pod without a record, and removes its groups, after a loss of the agent's journal.

        Returns whether all of its processes have ended.
        """
        plans = [int(path.name.split(".")[1]) for path in self._pod(uid).glob("plan.*.json")]
        try:
            for attempt in plans:
                # With a damaged claim, the supervisor is unknown; it ends after its process.
                with contextlib.suppress(msgspec.MsgspecError):
                    adopted = self.adopt(uid, attempt)
                    if isinstance(adopted, RunningPod):
                        adopted.send(signal.SIGKILL)
                        adopted.release()
            if plans:
                self._kill_survivors(uid, _SURVIVORS_SECONDS)
        except StillDyingError:
            return False
        for attempt in plans:
            with contextlib.suppress(msgspec.MsgspecError):
                plan = _plans.decode((self._pod(uid) / f"plan.{attempt}.json").read_bytes())
                self._limits.remove_foreign(plan.join_files)
        return True

    def unknown(self, known: set[str]) -> list[str]:
        """Uids of folders without a record: their creation was never answered, or the journal was lost."""
        return [path.name for path in self._folder.iterdir() if path.name not in known and path != self._trash]
