"""The local cluster as its users see it: the cluster protocol, spoken to a node agent."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any, TypeVar

import msgspec

from elastrec.platform.clusters.local import messages
from elastrec.platform.clusters.local.pod_environment import pod_command
from elastrec.platform.clusters.protocol import Capacity, PodEvent, PodSize, PodSpec, PodStatus
from elastrec.platform.specs.errors import ClusterError, TransportError
from elastrec.platform.transport.client import RpcClient
from elastrec.platform.transport.security import TlsConfig

Answer = TypeVar("Answer", bound=msgspec.Struct)
_CALL_SECONDS = 15.0
_POLL_SECONDS = 20.0
_DELETE_SLACK_SECONDS = 40.0
_MASK = "***"


class LocalCluster:
    """Implements `Cluster` by a node agent; safe to use from several threads.

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

    def _call(self, message: msgspec.Struct, answer: type[Answer], timeout_seconds: float = _CALL_SECONDS) -> Answer:
        try:
            return self._client.call(message, answer, timeout_seconds=timeout_seconds)
        except TransportError as error:
            raise ClusterError(f"local cluster {error}", retryable=error.retryable) from error

    def create(self, pod: PodSpec) -> PodStatus:
        """See `Cluster.create`."""
        return self._call(messages.CreatePod(pod=pod), PodStatus)

    def delete(self, name: str, *, grace_seconds: float | None = None) -> None:
        """See `Cluster.delete`."""
        # The pod's own grace is known to the agent alone, unless we ask; asking also answers for absent pods.
        if grace_seconds is None:
            grace_seconds = self._call(messages.GetGrace(name=name), messages.Grace).grace_seconds
        request = messages.DeletePod(name=name, grace_seconds=grace_seconds)
        self._call(request, messages.Done, grace_seconds + _DELETE_SLACK_SECONDS)

    def resize(self, name: str, size: PodSize) -> PodStatus:
        """See `Cluster.resize`."""
        return self._call(messages.ResizePod(name=name, size=size), PodStatus)

    def get(self, name: str) -> PodStatus | None:
        """See `Cluster.get`."""
        pods = self._call(messages.ListPods(name=name), messages.PodList).pods
        return pods[0] if pods else None

    def secrets(self, name: str, uid: str) -> dict[str, str] | None:
        """See `Cluster.secrets`."""
        return self._call(messages.GetSecrets(name=name, uid=uid), messages.Secrets).files

    def list(self, job: str | None = None) -> list[PodStatus]:
        """See `Cluster.list`; oldest first."""
        return self._call(messages.ListPods(job=job), messages.PodList).pods

    def watch(
        self, job: str | None = None, since_version: int = 0, timeout_seconds: float = 30.0
    ) -> Iterator[PodEvent]:
        """See `Cluster.watch`."""
        deadline = time.monotonic() + timeout_seconds
        while True:
            left = max(0.0, deadline - time.monotonic())
            wait = min(left, _POLL_SECONDS)
            request = messages.WatchPods(job=job, since_version=since_version, wait_seconds=wait)
            answer = self._call(request, messages.PodEvents, wait + _CALL_SECONDS)
            yield from answer.events
            since_version = answer.version
            if left <= 0.0:
                return

    def capacity(self) -> Capacity:
        """See `Cluster.capacity`."""
        return self._call(messages.GetCapacity(), Capacity)

    def logs(self, name: str, *, tail_lines: int | None = None, follow: bool = False) -> Iterator[str]:
        """See `Cluster.logs`. Following ends with the pod. Bytes that are no UTF-8 are replaced."""
        wait = _POLL_SECONDS if follow else 0.0
        request = messages.ReadLog(name=name, tail_lines=tail_lines)
        rest = b""
        while True:
            chunk = self._call(request, messages.LogChunk, wait + _CALL_SECONDS)
            *lines, rest = (rest + chunk.data).split(b"\n")
            for line in lines:
                yield line.decode(errors="replace")
            if not chunk.more or not (follow or chunk.data):
                break
            request = messages.ReadLog(name=name, uid=chunk.uid, position=chunk.position, wait_seconds=wait)
        if rest:
            yield rest.decode(errors="replace")

    def dry_run(self, pod: PodSpec) -> dict[str, Any]:
        """The request CreatePod; the texts of secrets are masked."""
        masked = msgspec.structs.replace(pod, secrets=dict.fromkeys(pod.secrets, _MASK), command=pod_command(pod))
        request: dict[str, Any] = msgspec.to_builtins(messages.CreatePod(pod=masked))
        return {"kind": messages.CreatePod.__name__, **request}

    def agent(self, timeout_seconds: float = _CALL_SECONDS) -> messages.AgentInfo:
        """Who serves this cluster."""
        return self._call(messages.GetAgent(), messages.AgentInfo, timeout_seconds)

    def stop(self) -> None:
        """Deletes every pod and ends the agent; returns when no pod is left."""
        grace = self._call(messages.GetGrace(), messages.Grace).grace_seconds
        self._call(messages.StopAgent(), messages.AgentInfo, grace + _DELETE_SLACK_SECONDS)

    def close(self) -> None:
        """Closes the connection; nothing in the cluster changes."""
        self._client.close()
