"""Clients of a node agent: for all of its calls, and for the pods of one job."""

from __future__ import annotations

import builtins
import time
from collections.abc import Iterator
from typing import Any, TypeVar

import msgspec

from elastrec.platform.clusters.local import messages
from elastrec.platform.clusters.local.agent.pod_checks import check_options
from elastrec.platform.clusters.local.config import LocalConfig
from elastrec.platform.clusters.local.processes.pod_environment import pod_command
from elastrec.platform.clusters.nodes import Node
from elastrec.platform.clusters.pods import PodEvent, PodSize, PodSpec, PodStatus
from elastrec.platform.specs.errors import ClusterError, TransportError
from elastrec.platform.transport.client import RpcClient
from elastrec.platform.transport.security import TlsConfig

Answer = TypeVar("Answer", bound=msgspec.Struct)
CALL_SECONDS = 15.0
_POLL_SECONDS = 20.0
_DELETE_SLACK_SECONDS = 40.0
_MASK = "***"


def creation_request(pod: PodSpec, *, replaces_ended: bool = False) -> dict[str, Any]:
    """The request CreatePod; the texts of secrets are masked.

    Raises:
        ClusterError: the pod has another backend's options.
    """
    check_options(pod)
    masked = msgspec.structs.replace(pod, secrets=dict.fromkeys(pod.secrets, _MASK), command=pod_command(pod))
    request: dict[str, Any] = msgspec.to_builtins(messages.CreatePod(pod=masked, replaces_ended=replaces_ended))
    return {"kind": messages.CreatePod.__name__, **request}


class LocalCluster:
    """A client for all calls of a node agent; thread-safe.

    Masters use a `LocalFleet` for their pods; callers outside of a job use a `LocalLauncher`.

    Args:
        address: `host:port` of the agent.
        token: content of the file `token` in the agent's folder.
        tls: the root to trust when the agent uses TLS.
    """

    def __init__(self, address: str, token: str, tls: TlsConfig | None = None) -> None:
        self.address = address
        self.token = token
        self.tls = tls
        self._client = RpcClient(address, token, tls)

    def call(
        self,
        message: msgspec.Struct,
        answer: type[Answer],
        timeout_seconds: float = CALL_SECONDS,
        *,
        remember: bool = False,
    ) -> Answer:
        """Calls the node agent.

        Args:
            remember: whether a call that is sent again, because its answer was lost, is executed only once.

        Raises:
            ClusterError: the agent refuses, or does not answer.
        """
        try:
            return self._client.call(message, answer, timeout_seconds=timeout_seconds, remember=remember)
        except TransportError as error:
            raise ClusterError(f"local cluster {error}", retryable=error.retryable) from error

    def create(self, pod: PodSpec, *, replaces_ended: bool = False) -> PodStatus:
        """See `CreatePod`.

        Raises:
            ClusterError: the agent refuses, or does not answer.
        """
        check_options(pod)
        request = messages.CreatePod(pod=pod, replaces_ended=replaces_ended)
        # A repeated call would replace the pod that it has created, if that pod has ended meanwhile.
        return self.call(request, PodStatus, remember=replaces_ended)

    def delete(self, name: str, *, grace_seconds: float | None = None) -> None:
        """Ends and removes a pod, if it exists; returns when no process of it is left."""
        # Only the agent knows the pod's grace period, so it is requested; this also works for absent pods.
        if grace_seconds is None:
            grace_seconds = self.call(messages.GetGrace(name=name), messages.Grace).grace_seconds
        request = messages.DeletePod(name=name, grace_seconds=grace_seconds)
        self.call(request, messages.Done, grace_seconds + _DELETE_SLACK_SECONDS)

    def get(self, name: str) -> PodStatus | None:
        """The pod with this name; None if there is none."""
        pods = self.call(messages.ListPods(name=name), messages.PodList).pods
        return pods[0] if pods else None

    def secrets(self, name: str, uid: str) -> dict[str, str] | None:
        """See `Launcher.secrets`."""
        return self.call(messages.GetSecrets(name=name, uid=uid), messages.Secrets).files

    def list(self, job: str | None = None) -> list[PodStatus]:
        """Pods of a job, or all; oldest first."""
        return self.call(messages.ListPods(job=job), messages.PodList).pods

    def fleet(self, job: str) -> LocalFleet:
        """The pods of one job, for its master."""
        return LocalFleet(self, job)

    @property
    def config(self) -> LocalConfig:
        """The configuration with which a pod reaches the same cluster."""
        tls = self.tls.root_pem.decode() if self.tls else ""
        return LocalConfig(address=self.address, token=self.token, tls=tls)

    def nodes(self) -> builtins.list[Node]:
        """The agent's machine."""
        return self.call(messages.GetNodes(), messages.Nodes).nodes

    def logs(self, name: str, *, tail_lines: int | None = None, follow: bool = False) -> Iterator[str]:
        """See `Launcher.logs`. Following ends with the pod. Bytes that are no UTF-8 are replaced."""
        wait = _POLL_SECONDS if follow else 0.0
        request = messages.ReadLog(name=name, tail_lines=tail_lines)
        rest = b""
        while True:
            chunk = self.call(request, messages.LogChunk, wait + CALL_SECONDS)
            *lines, rest = (rest + chunk.data).split(b"\n")
            for line in lines:
                yield line.decode(errors="replace")
            if not chunk.more or not (follow or chunk.data):
                break
            request = messages.ReadLog(name=name, uid=chunk.uid, position=chunk.position, wait_seconds=wait)
        if rest:
            yield rest.decode(errors="replace")

    def agent(self, timeout_seconds: float = CALL_SECONDS) -> messages.AgentInfo:
        """Information about the agent of this cluster."""
        return self.call(messages.GetAgent(), messages.AgentInfo, timeout_seconds)

    def stop(self) -> None:
        """Deletes every pod and ends the agent; returns when no pod is left."""
        grace = self.call(messages.GetGrace(), messages.Grace).grace_seconds
        self.call(messages.StopAgent(), messages.AgentInfo, grace + _DELETE_SLACK_SECONDS)

    def close(self) -> None:
        """Closes the connection; nothing in the cluster changes."""
        self._client.close()


class LocalFleet:
    """Implements `Fleet` for one job; thread-safe."""

    def __init__(self, cluster: LocalCluster, job: str) -> None:
        self._cluster, self._job = cluster, job

    def create(self, pod: PodSpec) -> PodStatus:
        """See `Fleet.create`."""
        return self._cluster.create(pod)

    def delete(self, name: str, uid: str, *, grace_seconds: float | None = None) -> None:
        """See `Fleet.delete`."""
        request = messages.DeletePod(name=name, uid=uid, wait=False, grace_seconds=grace_seconds)
        self._cluster.call(request, messages.Done)

    def resize(self, name: str, uid: str, size: PodSize) -> None:
        """See `Fleet.resize`. Done or refused immediately."""
        self._cluster.call(messages.ResizePod(name=name, uid=uid, size=size), PodStatus)

    def watch(self, resume: str, timeout_seconds: float) -> Iterator[PodEvent]:
        """See `Fleet.watch`."""
        deadline = time.monotonic() + timeout_seconds
        while True:
            left = max(0.0, deadline - time.monotonic())
            wait = min(left, _POLL_SECONDS)
            request = messages.WatchPods(job=self._job, resume=resume, wait_seconds=wait)
            answer = self._cluster.call(request, messages.PodEvents, wait + CALL_SECONDS)
            yield from answer.events
            resume = answer.resume
            if left <= 0.0:
                return

    def nodes(self) -> list[Node]:
        """See `Fleet.nodes`."""
        return self._cluster.nodes()

    def logs(self, name: str, *, tail_lines: int | None = None) -> Iterator[str]:
        """See `Fleet.logs`."""
        return self._cluster.logs(name, tail_lines=tail_lines)
