"""A node agent: registers one node and runs the pods that are bound to it as processes of this machine.

It only has the rights of a node. A process has no mounts and no memory limit: variables with the path of a mount get
the path of the folder on this machine, and tests request kills for memory.
"""

from __future__ import annotations

import base64
import contextlib
import datetime
import shutil
import threading
import time
from pathlib import Path
from typing import Any

import structlog

from elastrec.platform.clusters.pods import PodSize
from elastrec.platform.specs.errors import ClusterError
from tests.spikes.kubernetes.api import MERGE, Api, ApiError
from tests.spikes.kubernetes.manifests import resources
from tests.spikes.kubernetes.node_logs import LogServer
from tests.spikes.kubernetes.node_pod import NodePod

log = structlog.get_logger(__name__)
_LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
_LEASE_SECONDS = 1.0
_WATCH_SECONDS = 60.0
_PAUSE_SECONDS = 0.2


class NodeAgent:
    """One node, running from `start` to `close`.

    Args:
        api: client with the token of the node.
        folder: folder for the folders and logs of pods.
        size: capacity of the node.

    Attributes:
        pods: pods by uid.
        refuses_resizes: whether every resize is infeasible.
    """

    def __init__(self, api: Api, name: str, folder: Path, size: PodSize) -> None:
        self.api, self.name, self.folder, self.size = api, name, folder, size
        self.pods: dict[str, NodePod] = {}
        self.refuses_resizes = False
        self.lock = threading.Lock()
        self._silent, self._closing = threading.Event(), threading.Event()
        self._logs = LogServer(self)
        self._threads = [
            threading.Thread(target=run, name=f"{name}-{run.__name__}", daemon=True)
            for run in (self._keep_lease, self._watch)
        ]

    def start(self) -> None:
        """Registers the node; returns when pods may be bound to it."""
        self.folder.mkdir(parents=True, exist_ok=True)
        node = {"metadata": {"name": self.name, "labels": {"kubernetes.io/hostname": self.name}}}
        with contextlib.suppress(ApiError):
            self.api.call("POST", "/api/v1/nodes", {"apiVersion": "v1", "kind": "Node", **node})
        self._say_ready()
        for thread in self._threads:
            thread.start()

    def fall_silent(self) -> None:
        """As a cut network does: the node says and hears nothing more; its processes go on."""
        self._silent.set()

    def speak_again(self) -> None:
        """The network is back."""
        self._silent.clear()

    @property
    def is_silent(self) -> bool:
        return self._silent.is_set()

    def free_but(self, uid: str) -> PodSize:
        """What the node has left beside all other pods that hold resources."""
        with self.lock:
            held = [pod.allocated for pod in self.pods.values() if pod.uid != uid and not pod.is_over]
        return PodSize(
            self.size.cores - sum(size.cores for size in held),
            self.size.memory_bytes - sum(size.memory_bytes for size in held),
        )

    def close(self) -> None:
        """Kills the processes and ends the threads; says nothing to the cluster."""
        self._closing.set()
        with self.lock:
            pods = list(self.pods.values())
        for pod in pods:
            pod.abandon()
        for pod in pods:
            pod.thread.join(10.0)
        self._logs.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _say_ready(self) -> None:
        amounts = {**resources(self.size)["limits"], "pods": "110"}
        now = timestamp()
        status = {
            "capacity": amounts,
            "allocatable": amounts,
            "addresses": [
                {"type": "InternalIP", "address": "127.0.0.1"},
                {"type": "Hostname", "address": self.name},
            ],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": self._logs.port}},
            "conditions": [{"type": "Ready", "status": "True", "reason": "Ready", "lastHeartbeatTime": now}],
        }
        self.api.call("PATCH", f"/api/v1/nodes/{self.name}/status", {"status": status}, content_type=MERGE)

    def _keep_lease(self) -> None:
        while not self._closing.wait(_LEASE_SECONDS):
            if self.is_silent:
                continue
            try:
                self._renew()
                # A lease alone does not take back that the cluster has called the node unknown.
                status = self.api.call("GET", f"/api/v1/nodes/{self.name}")["status"]
                if not any(each["type"] == "Ready" and each["status"] == "True" for each in status["conditions"]):
                    self._say_ready()
            except ClusterError as error:
                log.warning("lease_not_renewed", node=self.name, reason=str(error))

    def _renew(self) -> None:
        spec = {"holderIdentity": self.name, "leaseDurationSeconds": 40, "renewTime": timestamp(fraction=True)}
        try:
            self.api.call("PATCH", f"{_LEASES}/{self.name}", {"spec": spec}, content_type=MERGE)
        except ApiError as error:
            if error.status != 404:
                raise
            body = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": self.name}}
            self.api.call("POST", _LEASES, {**body, "spec": spec})

    def _watch(self) -> None:
        mine = {"fieldSelector": f"spec.nodeName={self.name}"}
        while not self._closing.is_set():
            if self.is_silent:
                time.sleep(_PAUSE_SECONDS)
                continue
            try:
                answer = self.api.call("GET", "/api/v1/pods", **mine)
                self._forget_all_but({item["metadata"]["uid"] for item in answer["items"]})
                for item in answer["items"]:
                    self._see(item)
                version = answer["metadata"]["resourceVersion"]
                for kind, item in self.api.watch("/api/v1/pods", version, _WATCH_SECONDS, **mine):
                    if self.is_silent or self._closing.is_set():
                        break
                    if kind == "DELETED":
                        self._forget(item["metadata"]["uid"])
                    else:
                        self._see(item)
            except ClusterError as error:
                log.warning("pods_not_watched", node=self.name, reason=str(error))
                time.sleep(_PAUSE_SECONDS)

    def _see(self, item: dict[str, Any]) -> None:
        with self.lock:
            pod = self.pods.get(item["metadata"]["uid"])
            if pod is None:
                pod = self.pods[item["metadata"]["uid"]] = NodePod(self, item)
                pod.thread.start()
                return
        pod.update(item)

    def _forget(self, uid: str) -> None:
        with self.lock:
            pod = self.pods.pop(uid, None)
        if pod is not None:
            pod.abandon()

    def _forget_all_but(self, uids: set[str]) -> None:
        for uid in self.pods.keys() - uids:
            self._forget(uid)

    def secret(self, namespace: str, name: str) -> dict[str, bytes]:
        """The texts of a Secret that a pod of this node names."""
        data = self.api.call("GET", f"/api/v1/namespaces/{namespace}/secrets/{name}").get("data", {})
        return {name: base64.b64decode(text) for name, text in data.items()}


def timestamp(*, fraction: bool = False) -> str:
    """The time now, as Kubernetes writes it."""
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ" if fraction else "%Y-%m-%dT%H:%M:%SZ")
