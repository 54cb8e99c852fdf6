"""Child processes of a service stack, each in its own session, which is stopped with all of its processes."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import psutil


class ServiceError(Exception):
    """A service did not start, or ended unexpectedly; the message ends with the last lines of its log."""


@dataclass(frozen=True)
class Service:
    """One running service.

    Attributes:
        created: start time of the process from the kernel; together with the pid, it is unique.
    """

    name: str
    process: subprocess.Popen[bytes]
    log: Path
    created: float

    def log_tail(self, lines: int = 25) -> str:
        """The last lines that the service wrote."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])

    def check_alive(self) -> None:
        """Raises ServiceError when the service has ended."""
        code = self.process.poll()
        if code is not None:
            raise ServiceError(
                f"{self.name} ended with exit code {code}; its log {self.log} ends with:\n{self.log_tail()}"
            )


def start_service(
    name: str, command: Sequence[str], environment: Mapping[str, str], log: Path, folder: Path
) -> Service:
    """Starts a command as the leader of a new session; its output goes to the end of `log`."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as output:
        process = subprocess.Popen(
            list(command),
            env=dict(environment),
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    return Service(name, process, log, psutil.Process(process.pid).create_time())


def wait_until(ready: Callable[[], bool], services: Sequence[Service], what: str, timeout_seconds: float) -> None:
    """Waits for a condition while all services run.

    Raises:
        ServiceError: a service ended, or the time is over.
    """
    deadline = time.monotonic() + timeout_seconds
    while not ready():
        for service in services:
            service.check_alive()
        if time.monotonic() > deadline:
            tails = "\n".join(f"--- {service.log}\n{service.log_tail(8)}" for service in services)
            raise ServiceError(f"{what}: not ready within {timeout_seconds:.0f} s\n{tails}")
        time.sleep(0.1)


def stop_sessions(leaders: Sequence[int], grace_seconds: float = 10.0) -> None:
    """Ends the sessions of these processes: SIGTERM to the leaders, then SIGKILL to the remaining processes.

    Airflow's children leave their parent's process group but not its session, so that whole sessions are ended.
    """
    members = {leader: session_members(leader) for leader in leaders}
    for leader, found in members.items():
        # A leader ends its children in order; only orphans get a signal of their own.
        asked = [leader] if any(process.pid == leader for process in found) else [process.pid for process in found]
        for pid in asked:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
    everyone = [process for found in members.values() for process in found]
    psutil.wait_procs(everyone, timeout=grace_seconds)
    for leader in leaders:
        kill_session(leader)


def kill_session(leader: int) -> None:
    """Kills every process of a session, as `kill -9` does."""
    left = session_members(leader)
    for process in left:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(left, timeout=5)


def session_members(leader: int) -> list[psutil.Process]:
    """The live processes of one session."""
    members = []
    for process in psutil.process_iter():
        with contextlib.suppress(ProcessLookupError, PermissionError, psutil.Error):
            if os.getsid(process.pid) == leader and process.status() != psutil.STATUS_ZOMBIE:
                members.append(process)
    return members


def hold(file: Path) -> IO[bytes]:
    """Locks a file until it is closed or this process ends, however it ends.

    Raises:
        ServiceError: another process holds it.
    """
    held = file.open("ab")
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        held.close()
        raise ServiceError(f"{file.parent} is in use by another process; end that, or choose another folder") from None
    return held


def remember(file: Path, services: Sequence[Service]) -> None:
    """Records the running services, so that the next start can end those of a killed stack."""
    content = {service.name: [service.process.pid, service.created] for service in services}
    temporary = file.with_suffix(".new")
    temporary.write_text(json.dumps(content))
    temporary.replace(file)


def end_forgotten(file: Path, grace_seconds: float = 10.0) -> list[str]:
    """Ends the services that an earlier start has recorded and not stopped; returns their names."""
    if not file.exists():
        return []
    leaders, names = [], []
    for name, (pid, created) in json.loads(file.read_text()).items():
        with contextlib.suppress(psutil.NoSuchProcess):
            # The leader may have ended while its children still run in its session; its pid is not reused until they
            # end.
            if abs(psutil.Process(pid).create_time() - created) > 1.0:
                continue
        if session_members(pid):
            leaders.append(pid)
            names.append(name)
    stop_sessions(leaders, grace_seconds)
    file.unlink()
    return names
