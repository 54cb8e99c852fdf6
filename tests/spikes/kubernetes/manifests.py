"""Kubernetes objects of a PodSpec: a pod, and a Secret with its files."""

from __future__ import annotations

from typing import Any

from elastrec.platform.clusters.pods import PodSize, PodSpec, RestartPolicy
from elastrec.platform.specs import environment

JOB_LABEL = "elastrec.io/job"
ROLE_LABEL = "elastrec.io/kind"
CONTAINER = "main"
SERVICE_ACCOUNT = "elastrec"
FILES_FOLDER = "/elastrec/files"
WORK_FOLDER = "/elastrec/work"
_PERMANENT_FAILURE = "2"
"""`BAD_INPUT_EXIT_CODE`: the node does not start the process again."""


def resources(size: PodSize) -> dict[str, Any]:
    """Requests equal to limits: class Guaranteed, whatever the size, so every resize keeps the class."""
    amounts = {"cpu": f"{round(size.cores * 1000)}m", "memory": str(size.memory_bytes)}
    return {"requests": amounts, "limits": amounts}


def pod_manifest(spec: PodSpec, namespace: str, secret: str, port: int, tolerated_seconds: int) -> dict[str, Any]:
    """The pod.

    Args:
        secret: name of the Secret with its files.
        port: port on which the pod listens, if it serves.
        tolerated_seconds: how long a pod stays on a node that does not answer.
    """
    variables = {
        **spec.environment,
        environment.JOB: spec.job,
        environment.POD: spec.name,
        environment.CORES: f"{spec.size.cores:g}",
        environment.FILES: FILES_FOLDER,
        environment.WORK: WORK_FOLDER,
        **({environment.PORT: str(port)} if spec.serves else {}),
    }
    from_pod = {environment.HOST: "status.podIP", environment.NODE: "spec.nodeName"}
    container: dict[str, Any] = {
        "name": CONTAINER,
        "image": "elastrec",
        "command": list(spec.command),
        "resources": resources(spec.size),
        "resizePolicy": [{"resourceName": name, "restartPolicy": "NotRequired"} for name in ("cpu", "memory")],
        "env": [
            *({"name": name, "value": value} for name, value in variables.items()),
            *({"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}} for name, path in from_pod.items()),
        ],
        "volumeMounts": [
            {"name": "files", "mountPath": FILES_FOLDER, "readOnly": True},
            {"name": "work", "mountPath": WORK_FOLDER},
        ],
    }
    if spec.serves:
        container["ports"] = [{"containerPort": port}]
    if spec.restart_policy is RestartPolicy.ON_FAILURE:
        final = {"operator": "NotIn", "values": [0, int(_PERMANENT_FAILURE)]}
        container |= {"restartPolicy": "Never", "restartPolicyRules": [{"action": "Restart", "exitCodes": final}]}
    taints = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": spec.name,
            "namespace": namespace,
            "labels": {**spec.labels, JOB_LABEL: spec.job, ROLE_LABEL: spec.role.value},
        },
        "spec": {
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": max(1, round(spec.grace_seconds)),
            # A pod needs no rights in the cluster; a master brings its own token among its files.
            "automountServiceAccountToken": False,
            "serviceAccountName": SERVICE_ACCOUNT,
            "enableServiceLinks": False,
            "tolerations": [
                {"key": taint, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": tolerated_seconds}
                for taint in taints
            ],
            "containers": [container],
            "volumes": [
                {"name": "files", "secret": {"secretName": secret, "defaultMode": 0o400}},
                {"name": "work", "emptyDir": {}},
            ],
        },
    }


def secret_manifest(spec: PodSpec, namespace: str) -> dict[str, Any]:
    """The files of the pod, secret or not; created before the pod, so that the pod does not wait for it.

    The server generates its name, because the garbage collector may still be removing the Secret of an earlier pod of
    the same name.
    """
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"generateName": f"{spec.name}-", "namespace": namespace, "labels": {JOB_LABEL: spec.job}},
        "stringData": {**spec.files, **spec.secrets},
    }
