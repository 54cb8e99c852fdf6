"""The Fleet of a job's master and the launcher outside it, on Kubernetes."""

from __future__ import annotations

import base64
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from elastrec.platform.clusters import Backend, ClusterConfig
from elastrec.platform.clusters.nodes import Node
from elastrec.platform.clusters.pods import PodEvent, PodEventKind, PodSize, PodSpec, PodStatus
from elastrec.platform.specs.errors import ClusterError
from elastrec.platform.specs.metrics import Role
from tests.spikes.kubernetes.api import MERGE, Api, ApiError
from tests.spikes.kubernetes.manifests import (
    CONTAINER,
    JOB_LABEL,
    ROLE_LABEL,
    pod_manifest,
    resources,
    secret_manifest,
)
from tests.spikes.kubernetes.statuses import gone, node_status, pod_status
from tools.ports import free_ports

_NAME = "kubernetes-spike"
_SCRIPTED = ("python", "-m", "tests.spikes.scripted_pod")
_NOT_HONOURED = ("memory_volume", "group", "placement", "priority", "queue", "image", "options")
_GONE = 410
_KINDS = {"ADDED": PodEventKind.ADDED, "MODIFIED": PodEventKind.MODIFIED, "DELETED": PodEventKind.DELETED}


class KubernetesPods:
    """What fleet and launcher share: objects of one namespace."""

    def __init__(self, api: Api, namespace: str, tolerated_seconds: int = 300) -> None:
        self.api, self.namespace, self._tolerated_seconds = api, namespace, tolerated_seconds

    def path(self, kind: str, name: str = "", part: str = "") -> str:
        """Of objects, one object, or its subresource."""
        return "/".join(word for word in (f"/api/v1/namespaces/{self.namespace}/{kind}", name, part) if word)

    def read(self, name: str) -> dict[str, Any] | None:
        """The pod's object as it is now."""
        try:
            return self.api.call("GET", self.path("pods", name))
        except ApiError as error:
            if error.status == 404:
                return None
            raise

    def manifest(self, spec: PodSpec, secret: str, port: int) -> dict[str, Any]:
        """What is sent for a pod."""
        return pod_manifest(spec, self.namespace, secret, port, self._tolerated_seconds)

    def make(self, spec: PodSpec) -> PodStatus:
        """Secret, pod, then the Secret's owner, with whom it goes; what a crash leaves goes with the job."""
        for field in _NOT_HONOURED:
            if getattr(spec, field):
                raise ClusterError(f"{field}: {getattr(spec, field)!r} is not allowed; allowed in this spike: none")
        secret = self.api.call("POST", self.path("secrets"), secret_manifest(spec, self.namespace))["metadata"]["name"]
        # Pods of these nodes share one address; where each has its own, the port is a constant.
        port = free_ports(1)[0] if spec.serves else 0
        try:
            pod = self.api.call("POST", self.path("pods"), self.manifest(spec, secret, port))
        except ApiError as error:
            self.api.call("DELETE", self.path("secrets", secret))
            if error.reason != "AlreadyExists":
                raise
            return pod_status(self._earlier(spec))
        owner = {"apiVersion": "v1", "kind": "Pod", "name": spec.name, "uid": pod["metadata"]["uid"]}
        patch = {"metadata": {"ownerReferences": [owner]}}
        self.api.call("PATCH", self.path("secrets", secret), patch, content_type=MERGE)
        return pod_status(pod)

    def _earlier(self, spec: PodSpec) -> dict[str, Any]:
        found = self.read(spec.name)
        if found is None:
            raise ClusterError(f"{spec.name} was just removed", retryable=True)
        labels = found["metadata"].get("labels", {})
        if (labels.get(JOB_LABEL), labels.get(ROLE_LABEL)) != (spec.job, spec.role.value):
            raise ClusterError(f"{spec.name} is the name of a pod that is not {spec.role} of job {spec.job}")
        if found["metadata"].get("deletionTimestamp"):
            raise ClusterError(f"{spec.name} is still terminating", retryable=True)
        return found

    def order_end(self, name: str, uid: str, grace_seconds: float | None) -> None:
        """Deletes the pod of this uid; no error where there is none."""
        body: dict[str, Any] = {"kind": "DeleteOptions", "apiVersion": "v1", "preconditions": {"uid": uid}}
        if grace_seconds is not None:
            # In the body: a query's value is ignored once there is a body. 0 would forget a pod that still runs.
            body["gracePeriodSeconds"] = max(1, round(grace_seconds))
        try:
            self.api.call("DELETE", self.path("pods", name), body)
        except ApiError as error:
            if error.status not in (404, 409):
                raise

    def forget_lost(self, name: str, uid: str) -> None:
        """Removes the object of a pod whose node does not answer: nobody else ever will."""
        body = {"kind": "DeleteOptions", "apiVersion": "v1", "preconditions": {"uid": uid}, "gracePeriodSeconds": 0}
        try:
            self.api.call("DELETE", self.path("pods", name), body)
        except ApiError as error:
            if error.status not in (404, 409):
                raise

    def nodes(self) -> list[Node]:
        """What pods of this namespace leave free; what others have taken cannot be seen with a namespace's rights."""
        taken: dict[str, list[PodSize]] = {}
        for item in self.api.call("GET", self.path("pods"))["items"]:
            pod = pod_status(item)
            if not pod.phase.is_final:
                taken.setdefault(pod.node, []).append(pod.size)
        return [node_status(item, taken.get(item["metadata"]["name"], [])) for item in self._node_objects()]

    def _node_objects(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.api.call("GET", "/api/v1/nodes")["items"]
        return found

    def lines(self, name: str, tail_lines: int | None) -> Iterator[str]:
        """Of the pod's log."""
        query = {} if tail_lines is None else {"tailLines": tail_lines}
        return iter(self.api.text(self.path("pods", name, "log"), container=CONTAINER, **query).splitlines())


class KubernetesFleet:
    """Implements `Fleet` for one job; safe to use from several threads.

    Args:
        command: command that replaces that of the pods.
    """

    def __init__(self, pods: KubernetesPods, job: str, command: tuple[str, ...] | None = None) -> None:
        self._pods, self._command = pods, command
        self._selector = f"{JOB_LABEL}={job}"

    def create(self, pod: PodSpec) -> PodStatus:
        """See `Fleet.create`."""
        return self._pods.make(msgspec.structs.replace(pod, command=self._command) if self._command else pod)

    def delete(self, name: str, uid: str, *, grace_seconds: float | None = None) -> None:
        """See `Fleet.delete`."""
        found = self._pods.read(name)
        if found is None or found["metadata"]["uid"] != uid:
            return
        if found["metadata"].get("deletionTimestamp") and pod_status(found).phase.is_final:
            self._pods.forget_lost(name, uid)
            return
        self._pods.order_end(name, uid, grace_seconds)

    def resize(self, name: str, uid: str, size: PodSize) -> None:
        """See `Fleet.resize`."""
        body = {
            "metadata": {"uid": uid},
            "spec": {"containers": [{"name": CONTAINER, "resources": resources(size)}]},
        }
        self._pods.api.call("PATCH", self._pods.path("pods", name, "resize"), body, content_type=MERGE)

    def watch(self, resume: str, timeout_seconds: float) -> Iterator[PodEvent]:
        """See `Fleet.watch`."""
        deadline = time.monotonic() + timeout_seconds
        version = resume
        while True:
            if not version:
                for event in self._snapshot():
                    version = event.resume or version
                    yield event
            left = deadline - time.monotonic()
            if left <= 0.0:
                return
            try:
                yield from self._changes(version, left)
                return
            except ApiError as error:
                if error.status != _GONE:
                    raise
                version = ""

    def _snapshot(self) -> Iterator[PodEvent]:
        answer = self._pods.api.call("GET", self._pods.path("pods"), labelSelector=self._selector)
        for item in answer["items"]:
            yield PodEvent(PodEventKind.SEEN, pod_status(item))
        yield PodEvent(PodEventKind.SYNCED, resume=answer["metadata"]["resourceVersion"])

    def _changes(self, version: str, seconds: float) -> Iterator[PodEvent]:
        query = {"labelSelector": self._selector}
        for kind, item in self._pods.api.watch(self._pods.path("pods"), version, seconds, **query):
            translate = gone if kind == "DELETED" else pod_status
            yield PodEvent(_KINDS[kind], translate(item), item["metadata"]["resourceVersion"])

    def nodes(self) -> list[Node]:
        """See `Fleet.nodes`."""
        return self._pods.nodes()

    def logs(self, name: str, *, tail_lines: int | None = None) -> Iterator[str]:
        """See `Fleet.logs`."""
        return self._pods.lines(name, tail_lines)


class KubernetesLauncher:
    """Implements `Launcher`."""

    def __init__(self, pods: KubernetesPods) -> None:
        self._pods = pods

    def submit(self, first: PodSpec) -> PodStatus:
        """See `Launcher.submit`."""
        found = self._pods.read(first.name)
        if found is not None and pod_status(found).phase.is_final:
            self._pods.forget_lost(first.name, found["metadata"]["uid"])
        return self._pods.make(first)

    def find(self, job: str) -> PodStatus | None:
        """See `Launcher.find`."""
        return next((pod for pod in self.pods(job) if pod.role is Role.MASTER), None)

    def address(self, first: PodStatus) -> str:
        """See `Launcher.address`: callers are on the nodes' machine."""
        return first.address

    def jobs(self) -> list[PodStatus]:
        """See `Launcher.jobs`."""
        return [pod for pod in self.pods() if pod.role is Role.MASTER]

    def pods(self, job: str | None = None) -> list[PodStatus]:
        """See `Launcher.pods`."""
        selector = JOB_LABEL if job is None else f"{JOB_LABEL}={job}"
        answer = self._pods.api.call("GET", self._pods.path("pods"), labelSelector=selector)
        return sorted(map(pod_status, answer["items"]), key=lambda pod: pod.created_unix_seconds)

    def nodes(self) -> list[Node]:
        """See `Launcher.nodes`."""
        return self._pods.nodes()

    def dry_run(self, pod: PodSpec) -> dict[str, Any]:
        """See `Launcher.dry_run`."""
        return self._pods.manifest(pod, "made-by-the-server", 0)

    def remove(self, job: str) -> list[str]:
        """See `Launcher.remove`, but it orders the ends and does not wait for them."""
        pods = sorted(self.pods(job), key=lambda pod: pod.role is not Role.MASTER)
        for pod in pods:
            self._pods.order_end(pod.name, pod.uid, None)
        selector = {"labelSelector": f"{JOB_LABEL}={job}"}
        self._pods.api.call("DELETE", self._pods.path("secrets"), **selector)
        return [pod.name for pod in pods]

    def secrets(self, name: str, uid: str) -> dict[str, str] | None:
        """See `Launcher.secrets`."""
        pod = self._pods.read(name)
        if pod is None or pod["metadata"]["uid"] != uid:
            return None
        secret = next(volume["secret"]["secretName"] for volume in pod["spec"]["volumes"] if "secret" in volume)
        data: dict[str, str] = self._pods.api.call("GET", self._pods.path("secrets", secret)).get("data", {})
        return {file: base64.b64decode(text).decode() for file, text in data.items()}

    def logs(self, name: str, *, tail_lines: int | None = None) -> Iterator[str]:
        """See `Launcher.logs`, without following."""
        return self._pods.lines(name, tail_lines)


class KubernetesConfig(ClusterConfig, frozen=True, kw_only=True, tag=_NAME):
    """How to reach the spike's cluster.

    Attributes:
        address: URL of the API server.
        authority: PEM text of the certificate to trust.
        scripted: whether pods run scripts that imitate workers and servers.
    """

    address: str
    token: str
    authority: str
    namespace: str
    scripted: bool = False
    tolerated_seconds: int = 300

    @property
    def job_tls(self) -> bool:
        """All nodes of the spike are this machine."""
        return False


def _pods(config: KubernetesConfig) -> KubernetesPods:
    api = Api(config.address, config.token, config.authority)
    return KubernetesPods(api, config.namespace, config.tolerated_seconds)


def _fleet(config: KubernetesConfig, job: str) -> KubernetesFleet:
    return KubernetesFleet(_pods(config), job, _SCRIPTED if config.scripted else None)


def entry_point(folder: Path) -> Path:
    """A folder that, on `PYTHONPATH`, makes the backend known as an installed package does."""
    info = folder / "elastrec_kubernetes_spike-0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: elastrec-kubernetes-spike\nVersion: 0\n")
    (info / "entry_points.txt").write_text(f"[elastrec.clusters]\n{_NAME} = {__name__}:BACKEND\n")
    return folder


BACKEND = Backend(KubernetesConfig, lambda config: KubernetesLauncher(_pods(config)), _fleet)
