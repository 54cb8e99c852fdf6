"""A small cluster for tests: the real control plane, two nodes that run processes, and namespaces with few rights."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from elastrec.platform.clusters.pods import PodSize
from tests.spikes.kubernetes.api import MERGE, Api, ApiError
from tests.spikes.kubernetes.backend import KubernetesPods
from tests.spikes.kubernetes.manifests import SERVICE_ACCOUNT
from tests.spikes.kubernetes.node_agent import NodeAgent
from tests.spikes.kubernetes.node_pod import NodePod
from tools.kubernetes.servers import Servers

NODE_SIZE = PodSize(4.0, 4 << 30)
TOLERATED_SECONDS = 6
_FLAGS = {
    # A silent node is noticed within seconds instead of most of a minute.
    "kube-controller-manager": ("--node-monitor-period=500ms", "--node-monitor-grace-period=4s"),
}
_RULES = [
    {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch", "create", "delete"]},
    {"apiGroups": [""], "resources": ["pods/resize"], "verbs": ["patch"]},
    {"apiGroups": [""], "resources": ["pods/log"], "verbs": ["get"]},
    {"apiGroups": [""], "resources": ["secrets"], "verbs": ["create", "patch", "delete"]},
]
"""All that the master of a job may do in its own namespace; it cannot read a Secret."""
_CLUSTER_RULES = [{"apiGroups": [""], "resources": ["nodes"], "verbs": ["get", "list"]}]
_RBAC = "rbac.authorization.k8s.io"
_names = itertools.count(1)


def wait_until(fact: Callable[[], object], what: str, seconds: float = 60.0) -> None:
    """Fails with `what` where a fact does not come true in time."""
    deadline = time.monotonic() + seconds
    while not fact():
        assert time.monotonic() < deadline, f"not within {seconds} s: {what}"
        time.sleep(0.05)


class Namespace:
    """The namespace of one test.

    Attributes:
        token: token of the service account of a job's master.
        admin: client with all rights, for the launcher and for tests.
        pods: client with the rights of the master.
    """

    def __init__(self, lab: Lab) -> None:
        self.name = f"test-{next(_names)}"
        self.lab, self.admin = lab, KubernetesPods(lab.admin, self.name, TOLERATED_SECONDS)
        lab.admin.call("POST", "/api/v1/namespaces", {"metadata": {"name": self.name}})
        account = {"metadata": {"name": SERVICE_ACCOUNT}}
        lab.admin.call("POST", self.admin.path("serviceaccounts"), account)
        rights = f"/apis/{_RBAC}/v1/namespaces/{self.name}"
        lab.admin.call("POST", f"{rights}/roles", {**account, "rules": _RULES})
        lab.admin.call(
            "POST",
            f"{rights}/rolebindings",
            {
                **account,
                "roleRef": {"apiGroup": _RBAC, "kind": "Role", "name": SERVICE_ACCOUNT},
                "subjects": [{"kind": "ServiceAccount", "name": SERVICE_ACCOUNT, "namespace": self.name}],
            },
        )
        # Nodes belong to no namespace.
        name = f"{SERVICE_ACCOUNT}-{self.name}"
        cluster = f"/apis/{_RBAC}/v1"
        lab.admin.call("POST", f"{cluster}/clusterroles", {"metadata": {"name": name}, "rules": _CLUSTER_RULES})
        lab.admin.call(
            "POST",
            f"{cluster}/clusterrolebindings",
            {
                "metadata": {"name": name},
                "roleRef": {"apiGroup": _RBAC, "kind": "ClusterRole", "name": name},
                "subjects": [{"kind": "ServiceAccount", "name": SERVICE_ACCOUNT, "namespace": self.name}],
            },
        )
        request = {"spec": {"expirationSeconds": 3600}}
        asked = lab.admin.call("POST", self.admin.path("serviceaccounts", SERVICE_ACCOUNT, "token"), request)
        self.token: str = asked["status"]["token"]
        self.pods = KubernetesPods(lab.api(self.token), self.name, TOLERATED_SECONDS)

    def objects(self) -> list[dict[str, Any]]:
        """The pods, as Kubernetes has them."""
        found: list[dict[str, Any]] = self.lab.admin.call("GET", self.admin.path("pods"))["items"]
        return found

    def on_node(self, uid: str) -> NodePod:
        """The pod as its node has it."""
        return next(agent.pods[uid] for agent in self.lab.agents.values() if uid in agent.pods)

    def evict(self, name: str) -> None:
        """As a drain does: through the eviction API."""
        body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name, "namespace": self.name}}
        self.lab.admin.call("POST", self.admin.path("pods", name, "eviction"), body)

    def set_quota(self, pods: int | None) -> None:
        """At most so many pods; None: any number. Returns when the quota counts."""
        path = self.admin.path("resourcequotas")
        if pods is None:
            self.lab.admin.call("DELETE", f"{path}/pods")
            return
        self.lab.admin.call("POST", path, {"metadata": {"name": "pods"}, "spec": {"hard": {"pods": str(pods)}}})
        wait_until(lambda: self.lab.admin.call("GET", f"{path}/pods").get("status", {}).get("used"), "a quota counts")

    def close(self) -> None:
        """Every process of the namespace is ended, and the nodes are as they were."""
        for agent in self.lab.agents.values():
            agent.refuses_resizes = False
            agent.speak_again()
        self.lab.open_node("n1", is_open=True)
        self.lab.open_node("n2", is_open=False)
        wait_until(lambda: self.lab.is_ready("n1"), "n1 takes pods")
        body = {"kind": "DeleteOptions", "apiVersion": "v1", "gracePeriodSeconds": 0}
        self.lab.admin.call("DELETE", self.admin.path("pods"), body)
        uids = {uid for agent in self.lab.agents.values() for uid in agent.pods}
        wait_until(lambda: not self.objects(), "no pod is left")
        wait_until(lambda: not uids & self.lab.uids(), "no process is left")


class Lab:
    """A control plane and nodes `n1` and `n2`; no pod is placed on `n2` until `open_node` is called.

    Args:
        folder: folder for the nodes.
    """

    def __init__(self, programs: Path, folder: Path) -> None:
        self.servers = Servers(programs, nodes=("n1", "n2"), flags=_FLAGS)
        self.agents: dict[str, NodeAgent] = {}
        self._clients: list[Api] = []
        try:
            self.authority = self.servers.authority.read_text()
            self.admin = self.api(self.servers.tokens["admin"])
            for name in ("n1", "n2"):
                agent = self.agents[name] = NodeAgent(
                    self.api(self.servers.tokens[name]), name, folder / name, NODE_SIZE
                )
                agent.start()
            self.open_node("n2", is_open=False)
            wait_until(lambda: self.is_ready("n1"), "the node n1 takes pods")
        except BaseException:
            self.close()
            raise

    def api(self, token: str) -> Api:
        """A client with the rights of a token, which is closed with the servers."""
        client = Api(self.servers.url, token, self.authority)
        self._clients.append(client)
        return client

    def uids(self) -> set[str]:
        """Of all pods that the nodes have."""
        return {uid for agent in self.agents.values() for uid in list(agent.pods)}

    def open_node(self, name: str, *, is_open: bool) -> None:
        """Whether new pods may be placed on a node (cordon, uncordon)."""
        body = {"spec": {"unschedulable": not is_open}}
        self.admin.call("PATCH", f"/api/v1/nodes/{name}", body, content_type=MERGE)

    def is_ready(self, name: str) -> bool:
        """Whether a node takes pods."""
        try:
            return not self.admin.call("GET", f"/api/v1/nodes/{name}")["spec"].get("taints")
        except ApiError:
            return False

    def close(self) -> None:
        for agent in self.agents.values():
            agent.close()
        for client in self._clients:
            client.close()
        self.servers.close()
