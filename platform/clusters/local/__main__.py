"""The node agent's process: `python -m elastrec.platform.clusters.local --state DIR --cores N --memory BYTES`.

SIGTERM ends the agent and leaves its pods running; the request StopAgent deletes them first. An agent whose folder is
deleted kills its pods and ends.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
import uuid
from pathlib import Path

import click
import msgspec
import structlog

from elastrec.platform.clusters.local import messages
from elastrec.platform.clusters.local.agent.journal import Journal
from elastrec.platform.clusters.local.agent.rights import JobRights
from elastrec.platform.clusters.local.agent.service import NodeAgent
from elastrec.platform.clusters.local.agent.sizes import keep_size
from elastrec.platform.clusters.local.processes.limits import Limits, ThreadLimits, probe_limits
from elastrec.platform.clusters.local.processes.ports import choose_port, is_free
from elastrec.platform.clusters.local.state_folder import StateFolder
from elastrec.platform.specs.errors import ClusterError
from elastrec.platform.specs.text.quantities import parse_bytes
from elastrec.platform.transport.security import TlsConfig, new_token, write_secret
from elastrec.platform.transport.server import Handler, RpcServer

log = structlog.get_logger(__name__)
_LOOK_SECONDS = 2.0


def _memory(context: click.Context, parameter: click.Parameter, value: str | None) -> int | None:
    if value is None:
        return None
    try:
        return int(value) if value.isdigit() else parse_bytes(value)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


@click.command()
@click.option("--state", type=click.Path(path_type=Path), required=True, help="Folder of the agent's state.")
@click.option("--cores", type=float, help="Cores that pods may be granted together; default: as last time.")
@click.option("--memory", callback=_memory, help="Memory for pods: bytes, or 8Gi; default: as last time.")
@click.option("--port", type=int, default=0, help="Where to listen; 0: the port of last time, or a free one.")
@click.option("--node", default=socket.gethostname(), help="Name of this machine.")
@click.option("--limits", "kind", type=click.Choice(["auto", "threads"]), default="auto", help="threads: no cgroups.")
@click.option("--tls", type=click.Path(path_type=Path), help="Folder with ca.pem, tls.crt and tls.key.")
def main(
    state: Path, cores: float | None, memory: int | None, port: int, node: str, kind: str, tls: Path | None
) -> None:
    """Runs the node agent of a local cluster until it is stopped."""
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso"),
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(default=str),
        ],
        logger_factory=structlog.WriteLoggerFactory(file=sys.stderr),
    )
    try:
        _serve(StateFolder(state), cores, memory, port, node, kind, tls)
    except ClusterError as error:
        raise click.ClickException(str(error)) from None


def _serve(
    state: StateFolder,
    cores: float | None,
    memory_bytes: int | None,
    port: int,
    node: str,
    kind: str,
    tls_folder: Path | None,
) -> None:
    # Blocked before any thread exists, so that the main thread alone gets them, by waiting for them.
    awaited = {signal.SIGTERM, signal.SIGINT}
    signal.pthread_sigmask(signal.SIG_BLOCK, awaited)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    tls = None
    if tls_folder is not None:
        tls = TlsConfig.from_folder(tls_folder)
        if tls is None or not tls.certificate_pem or not tls.key_pem:
            raise ClusterError(f"tls: {tls_folder} must hold ca.pem, tls.crt and tls.key")
    with state.owned():
        journal = Journal(state.journal)
        agent_id = journal.fact("agent_id") or uuid.uuid4().hex[:12]
        journal.set_fact("agent_id", agent_id)
        limits = _limits(agent_id, kind)
        total = keep_size(journal, cores, memory_bytes)
        agent = NodeAgent(state.folder, journal, limits, total, node, os.environ)
        port = _port(journal, port)
        if not state.token.exists():
            write_secret(state.token, new_token())
        info = messages.AgentInfo(
            agent_id=agent_id,
            pid=os.getpid(),
            node=node,
            address=f"127.0.0.1:{port}",
            total=total,
            limits=limits.kind,
            tls=tls is not None,
        )
        agent.start()
        rights = JobRights(agent)
        handlers = rights.limited(_handlers(agent, info))
        server = RpcServer(handlers, token=state.token.read_text(), others=rights.job_of, port=port, tls=tls)
        server.serve_in_background()
        write_secret(state.info, msgspec.json.encode(info).decode())
        log.info("agent_started", **msgspec.structs.asdict(info))
        watch = _FolderWatch(state.folder)
        number = signal.sigwait(awaited)
        watch.over.set()
        gone = watch.gone
        if gone:
            log.error("agent_folder_gone", folder=str(state.folder), consequence="it ends, and its pods with it")
        else:
            log.info("agent_ends", signal=number, pods_left=len(agent.pods(None, None)))
            state.info.unlink(missing_ok=True)
        # First the calls, then what they use: a call cut off here is sent again, to the next agent.
        agent.release_waiting_calls()
        server.shutdown()
        left = agent.pods(None, None)
        agent.close()
        if gone:
            agent.kill_all()
        if gone or not left:
            limits.close()


class _FolderWatch:
    """Ends the agent when somebody takes its folder away: nobody could find or stop it again.

    A thread beside `sigwait`, because `sigtimedwait` answers garbage when SIGCONT comes after its time is over.
    """

    def __init__(self, folder: Path) -> None:
        self.gone, self.over = False, threading.Event()
        self._folder, self._own = folder, folder.stat().st_ino
        threading.Thread(target=self._watch, name="folder-watch", daemon=True).start()

    def _watch(self) -> None:
        while not self.over.wait(_LOOK_SECONDS):
            if not self._is_there():
                self.gone = True
                os.kill(os.getpid(), signal.SIGTERM)
                return

    def _is_there(self) -> bool:
        try:
            return self._folder.stat().st_ino == self._own
        except FileNotFoundError:
            return False
        except OSError:  # a file system that does not answer is not gone
            return True


def _limits(agent_id: str, kind: str) -> Limits:
    limits, reason = (ThreadLimits(), "asked for") if kind == "threads" else probe_limits(agent_id)
    if not limits.enforced:
        log.warning(
            "limits_not_enforced",
            reason=reason,
            consequence="pods get thread counts only: a pod can take more cores and memory than it was granted",
        )
    return limits


def _port(journal: Journal, asked: int) -> int:
    """The port to listen on: pods that are still running know the last one."""
    last = int(journal.fact("port") or 0)
    port = asked or last or choose_port(())
    if not is_free(port):
        if asked or journal.records():
            raise ClusterError(f"port: {port} is taken by another program; end that, or choose another port")
        port = choose_port(())
    journal.set_fact("port", str(port))
    return port


def _handlers(agent: NodeAgent, info: messages.AgentInfo) -> dict[type[msgspec.Struct], Handler]:
    def delete(request: messages.DeletePod) -> messages.Done:
        agent.delete(request.name, request.grace_seconds, uid=request.uid, wait=request.wait)
        return messages.Done()

    def stop(request: messages.StopAgent) -> messages.AgentInfo:
        agent.delete_all()
        os.kill(os.getpid(), signal.SIGTERM)
        return info

    return {
        messages.CreatePod: lambda request: agent.create(request.pod, replaces_ended=request.replaces_ended),
        messages.DeletePod: delete,
        messages.GetGrace: lambda request: messages.Grace(grace_seconds=agent.longest_grace_seconds(request.name)),
        messages.ResizePod: lambda request: agent.resize(request.name, request.size, request.uid),
        messages.ListPods: lambda request: messages.PodList(pods=agent.pods(request.name, request.job)),
        messages.GetSecrets: lambda request: messages.Secrets(files=agent.secrets(request.name, request.uid)),
        messages.WatchPods: lambda request: agent.watch(request.job, request.resume, request.wait_seconds),
        messages.GetNodes: lambda request: messages.Nodes(nodes=agent.nodes()),
        messages.ReadLog: agent.read_log,
        messages.GetAgent: lambda request: info,
        messages.StopAgent: stop,
    }


if __name__ == "__main__":
    main()
