"""Starts and stops the node agent of a local cluster."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import threading
import time
from pathlib import Path

from elastrec.platform.clusters.local.agent.journal import DamagedJournalError, Journal
from elastrec.platform.clusters.local.client import LocalCluster
from elastrec.platform.clusters.local.processes.proc import is_stopped
from elastrec.platform.clusters.local.state_folder import StateFolder
from elastrec.platform.specs.errors import ClusterError
from elastrec.platform.specs.text.quantities import format_bytes
from elastrec.platform.transport.security import TlsConfig

_START_SECONDS = 60.0
_STOP_SECONDS = 30.0
_ANSWER_SECONDS = 2.0
_FIND_SECONDS = 15.0
_TICK_SECONDS = 0.02


def start_agent(
    state_folder: str | Path,
    *,
    cores: float | None = None,
    memory_bytes: int | None = None,
    port: int = 0,
    node: str | None = None,
    limits: str = "auto",
    tls_folder: Path | None = None,
) -> LocalCluster:
    """The cluster of a folder; if its agent is not running, it is started in a session of its own.

    Args:
        cores: of the cluster; default: the last requested number, at first those that this process may use.
        memory_bytes: of the cluster; default: the last requested amount, at first 90 % of the machine's.
        port: 0: the previous one, or a free one.
        limits: `auto`, or `threads` for no cgroups.
        tls_folder: with ca.pem, tls.crt and tls.key.

    Raises:
        ClusterError: the agent does not start, or one with another size or another TLS setting is running.
    """
    state = StateFolder(Path(state_folder))
    with state.starting():
        deadline = time.monotonic() + _START_SECONDS
        while (cluster := _connect(state, tls_folder)) is None:
            # The lock is held, but there is no answer: the agent is just ending, and releases its lock last.
            if state.is_owned():
                if time.monotonic() > deadline:
                    raise _silent(state)
                time.sleep(_TICK_SECONDS)
                continue
            command = [sys.executable, "-m", "elastrec.platform.clusters.local", "--state", str(state.folder)]
            command += ["--port", str(port), "--limits", limits]
            command += ["--cores", str(cores)] if cores is not None else []
            command += ["--memory", str(memory_bytes)] if memory_bytes is not None else []
            command += ["--node", node] if node else []
            command += ["--tls", str(tls_folder.absolute())] if tls_folder else []
            _spawn(state, command)
    total = cluster.agent().total
    for name, asked, present, text in (
        ("cores", cores, total.cores, str),
        ("memory", memory_bytes, total.memory_bytes, lambda amount: f"{format_bytes(amount)} ({amount} bytes)"),
    ):
        if asked is not None and asked != present:
            raise ClusterError(
                f"{name}: {text(asked)} is not what the running cluster in {state.folder} has ({text(present)}); "
                "leave it out, or end that cluster and its pods first: elastrec agent stop"
            )
    return cluster


def find_agent(
    state_folder: str | Path, tls_folder: Path | None = None, patience_seconds: float = _FIND_SECONDS
) -> LocalCluster | None:
    """The cluster of a folder if its agent is running, else None.

    Args:
        patience_seconds: how long an agent is waited for that holds the folder but does not answer.

    Raises:
        ClusterError: an agent holds the folder but does not answer, or only one of the two sides has TLS.
    """
    if not Path(state_folder).is_dir():
        return None
    state = StateFolder(Path(state_folder))
    deadline = time.monotonic() + patience_seconds
    while state.is_owned():
        # The last attempt, too, ends within the patience: the caller waits for it.
        left = max(_TICK_SECONDS, deadline - time.monotonic())
        cluster = _connect(state, tls_folder, min(_ANSWER_SECONDS, left))
        if cluster is not None:
            return cluster
        if time.monotonic() >= deadline - _TICK_SECONDS or _stopped_process(state) is not None:
            raise _silent(state)
        time.sleep(_TICK_SECONDS)
    return None


def has_left_pods(state_folder: str | Path) -> bool:
    """Whether no agent runs, and the one before has left pods, which it finds when it is started."""
    if not Path(state_folder).is_dir():
        return False
    state = StateFolder(Path(state_folder))
    with state.starting():
        try:
            return not state.is_owned() and _left_pods(state)
        except DamagedJournalError:
            # The agent names the remedy when it is started.
            return True


def stop_agent(state_folder: str | Path, *, tls_folder: Path | None = None) -> None:
    """Deletes all pods and ends the agent; an agent that has crashed is started again to end its pods.

    The damaged journal of a crashed agent is renamed; its pods are ended all the same.
    """
    state = StateFolder(Path(state_folder))
    with state.starting():
        try:
            if not state.is_owned() and not _left_pods(state):
                return
        except DamagedJournalError:
            Journal.put_aside(state.journal)
            if not _left_pods(state):
                return
    cluster = start_agent(state_folder, tls_folder=tls_folder)
    with state.starting():
        agent = os.pidfd_open(cluster.agent().pid)
        try:
            cluster.stop()
            cluster.close()
            # Readable when the process has ended, slightly later than the release of the lock.
            if not select.select([agent], [], [], _STOP_SECONDS)[0]:
                raise ClusterError(f"the node agent in {state.folder} does not end; see {state.log}")
        finally:
            os.close(agent)


def _silent(state: StateFolder) -> ClusterError:
    problem = f"the node agent in {state.folder} does not answer"
    if (pid := _stopped_process(state)) is not None:
        return ClusterError(
            f"{problem}, because its process {pid} is stopped (SIGSTOP); its pods run on. Continue it with "
            f"`kill -CONT {pid}`"
        )
    return ClusterError(f"{problem}; see {state.log}")


def _stopped_process(state: StateFolder) -> int | None:
    """The process of the agent that holds the folder, if it is stopped."""
    info = state.agent()
    return info.pid if info is not None and state.is_owned() and is_stopped(info.pid) else None


def _left_pods(state: StateFolder) -> bool:
    # Without the journal, pods are found by their folders.
    has_pods = state.pods.is_dir() and any(entry.name != "trash" for entry in state.pods.iterdir())
    if not state.journal.exists():
        return has_pods
    journal = Journal(state.journal)
    try:
        # Read in any case, because the agent could not start with damaged records.
        return bool(journal.records()) or has_pods
    finally:
        journal.close()


def _environment() -> dict[str, str]:
    # The agent has another working directory: relative entries would name other folders there.
    variables = dict(os.environ)
    if "PYTHONPATH" in variables:
        entries = variables["PYTHONPATH"].split(os.pathsep)
        variables["PYTHONPATH"] = os.pathsep.join(str(Path(entry).absolute()) for entry in entries)
    return variables


def _spawn(state: StateFolder, command: list[str]) -> None:
    # Removed, so that the file of a killed agent is not read as that of the new one.
    state.info.unlink(missing_ok=True)
    with os.fdopen(os.open(state.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "wb") as output:
        begin = output.tell()
        # The folder is the working directory: a checkout's own `platform` folder must not shadow the standard library.
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            cwd=state.folder,
            env=_environment(),
            start_new_session=True,
        )
    deadline = time.monotonic() + _START_SECONDS
    while state.agent() is None:
        if process.poll() is not None or time.monotonic() > deadline:
            log_text = state.log.read_bytes()[begin:].decode(errors="replace").strip()
            raise ClusterError(f"the node agent in {state.folder} did not start: {log_text[-2000:]}")
        time.sleep(_TICK_SECONDS)
    # The agent outlives this process; if it ends first, it must not stay a zombie.
    threading.Thread(target=process.wait, name="agent-reaper", daemon=True).start()


def _connect(
    state: StateFolder, tls_folder: Path | None, answer_seconds: float = _ANSWER_SECONDS
) -> LocalCluster | None:
    """The cluster of a folder when an agent holds the folder and answers.

    Raises:
        ClusterError: only one of the two sides uses TLS.
    """
    info = state.agent()
    if info is None or not state.is_owned():
        return None
    if info.tls is not bool(tls_folder):
        problem = (
            "speaks TLS: name the folder of its TLS material (ELASTREC_TLS)"
            if info.tls
            else "speaks no TLS: leave the TLS folder out (ELASTREC_TLS), or stop that agent first, without it"
        )
        raise ClusterError(f"the node agent in {state.folder} {problem}")
    tls = TlsConfig.from_folder(tls_folder) if tls_folder else None
    try:
        token = state.token.read_text()
    except OSError as error:
        raise ClusterError(
            f"{state.token}: the node agent's token cannot be read ({error.strerror}); end the agent with "
            f"`kill {info.pid}` and start it again: its pods run on, and it makes a new one"
        ) from error
    cluster = LocalCluster(info.address, token, tls)
    try:
        cluster.agent(timeout_seconds=answer_seconds)
    except ClusterError:
        cluster.close()
        return None
    return cluster
