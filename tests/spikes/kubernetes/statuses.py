"""Conversion of a Kubernetes pod to a PodStatus. Pure; all interpretation of Kubernetes' states is in this module."""

from __future__ import annotations

import datetime
from typing import Any

import msgspec

from elastrec.platform.clusters.nodes import Node, NodeCondition
from elastrec.platform.clusters.pods import (
    BAD_INPUT_EXIT_CODE,
    EndReason,
    PodPhase,
    PodSize,
    PodStatus,
    ResizeState,
)
from elastrec.platform.specs.metrics import Role
from tests.spikes.kubernetes.manifests import JOB_LABEL, ROLE_LABEL

Object = dict[str, Any]

_DISRUPTIONS = {
    "PreemptionByScheduler": EndReason.PREEMPTED,
    "DeletionByTaintManager": EndReason.NODE_LOST,
    "DeletionByPodGC": EndReason.NODE_LOST,
}
"""Reasons of the condition DisruptionTarget; any other one is an eviction."""
_NEVER_RAN = ("NodeAffinity", "UnexpectedAdmissionError", "OutOf", "NodePorts", "NodeName", "Topology", "Sysctl")
"""Beginnings of `status.reason` by which a node says that it did not take the pod."""
_SIGNALLED = (137, 143)
_UNITS = {"": 1.0, "m": 1e-3, "k": 1e3, "M": 1e6, "G": 1e9, "Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30}


def quantity(text: str) -> float:
    """A Kubernetes quantity; `n`, `T`, `P`, `E` and exponents are none that a pod of ours has."""
    number = text.rstrip("mkMGKi")
    return float(number) * _UNITS[text[len(number) :]]


def pod_status(pod: Object) -> PodStatus:
    """What Kubernetes knows of a pod, in the protocol's words."""
    metadata, spec, status = pod["metadata"], pod["spec"], pod.get("status", {})
    conditions = {condition["type"]: condition for condition in status.get("conditions", [])}
    container = next(iter(status.get("containerStatuses", [])), {})
    asked = _size(spec["containers"][0].get("resources", {}))
    size = _size(container.get("resources") or {}) or asked
    assert asked is not None and size is not None
    end, attempt = _end(pod, status, container, conditions)
    phase = PodPhase(status.get("phase", "Pending")) if status.get("phase") != "Unknown" else PodPhase.RUNNING
    ending = _seconds(metadata.get("deletionTimestamp"))
    is_lost = ending is not None and _is_unreachable(conditions) and not phase.is_final
    if is_lost:
        # Its node cannot say so, and the object stays until the node is back or somebody removes it.
        phase, end = PodPhase.FAILED, EndReason.NODE_LOST
    waiting = container.get("state", {}).get("waiting", {})
    scheduled = conditions.get("PodScheduled", {})
    waits_for_room = scheduled.get("status") == "False" and scheduled.get("reason") == "Unschedulable"
    state, message = _resize(metadata, asked, size, conditions)
    ports = spec["containers"][0].get("ports", [])
    address = f"{status['podIP']}:{ports[0]['containerPort']}" if ports and status.get("podIP") else ""
    return PodStatus(
        name=metadata["name"],
        uid=metadata["uid"],
        job=metadata.get("labels", {}).get(JOB_LABEL, ""),
        role=Role(metadata.get("labels", {}).get(ROLE_LABEL, Role.WORKER)),
        phase=phase,
        size=size,
        asked=None if asked == size else asked,
        resize=state,
        resize_message=message,
        is_ending=ending is not None and not is_lost,
        ending_until_unix_seconds=None if is_lost else ending,
        node=spec.get("nodeName", ""),
        address=address,
        reason=status.get("reason") or waiting.get("reason") or (scheduled.get("reason", "") if waits_for_room else ""),
        end=end,
        waits_for_room=waits_for_room,
        message=status.get("message") or waiting.get("message") or scheduled.get("message", ""),
        exit_code=attempt.get("exitCode"),
        restarts=container.get("restartCount", 0),
        created_unix_seconds=_seconds(metadata["creationTimestamp"]) or 0.0,
        started_unix_seconds=_seconds(container.get("state", {}).get("running", attempt).get("startedAt")),
        finished_unix_seconds=_seconds(attempt.get("finishedAt")),
        labels={name: value for name, value in metadata.get("labels", {}).items() if name != JOB_LABEL},
    )


def node_status(node: Object, taken: list[PodSize]) -> Node:
    """A node, less what pods on it have."""
    status = node.get("status", {})
    whole = PodSize(quantity(status["allocatable"]["cpu"]), round(quantity(status["allocatable"]["memory"])))
    conditions = {condition["type"]: condition["status"] for condition in status.get("conditions", [])}
    found = []
    if conditions.get("Ready") != "True":
        found.append(NodeCondition.NOT_READY)
    if node["spec"].get("unschedulable"):
        found.append(NodeCondition.UNSCHEDULABLE)
    cores = whole.cores - sum(size.cores for size in taken)
    memory_bytes = whole.memory_bytes - sum(size.memory_bytes for size in taken)
    free = PodSize(0.0, 0) if found else PodSize(cores, memory_bytes)
    labels = node["metadata"].get("labels", {})
    return Node(name=node["metadata"]["name"], size=whole, free=free, conditions=tuple(found), labels=labels)


def _end(pod: Object, status: Object, container: Object, conditions: Object) -> tuple[EndReason | None, Object]:
    """Why the last attempt ended, and what its node said of it."""
    attempt = container.get("state", {}).get("terminated") or container.get("lastState", {}).get("terminated") or {}
    disruption = conditions.get("DisruptionTarget", {})
    is_over = bool(attempt) or status.get("phase") == "Failed"
    if not is_over:
        return None, {}
    code = attempt.get("exitCode")
    # At a pod's own limit: its program's doing, even if its end was asked for at the same moment.
    if attempt.get("reason") == "OOMKilled":
        return EndReason.OUT_OF_MEMORY, attempt
    # Before the exit code: a process that ends well on SIGTERM was taken away all the same.
    if disruption.get("status") == "True":
        return _DISRUPTIONS.get(disruption.get("reason", ""), EndReason.EVICTED), attempt
    if code == 0:
        return EndReason.COMPLETED, attempt
    word = status.get("reason", "")
    if word == "Evicted":
        return EndReason.EVICTED, attempt
    if word == "NodeLost":
        return EndReason.NODE_LOST, attempt
    if word.startswith(_NEVER_RAN) or attempt.get("reason") in ("StartError", "ContainerCannotRun"):
        return EndReason.NOT_STARTED, attempt
    if _ended_by_deletion(pod, attempt):
        return EndReason.DELETED, attempt
    if code == BAD_INPUT_EXIT_CODE:
        return EndReason.BAD_INPUT, attempt
    return (EndReason.KILLED if code in _SIGNALLED else EndReason.ERROR), attempt


def _ended_by_deletion(pod: Object, attempt: Object) -> bool:
    """Whether a process ended because its pod was deleted. Times have a resolution of a second: an end by a signal in
    the second of the deletion counts as caused by the deletion.
    """
    metadata = pod["metadata"]
    until = _seconds(metadata.get("deletionTimestamp"))
    if until is None:
        return False
    # Its node shortens the grace to 0 when it removes the object: then the pod's own says when it was asked for.
    grace = metadata.get("deletionGracePeriodSeconds") or pod["spec"].get("terminationGracePeriodSeconds", 0)
    finished, asked = _seconds(attempt.get("finishedAt")), until - grace
    return finished is None or finished > asked or (finished == asked and attempt.get("exitCode") in _SIGNALLED)


def gone(pod: Object) -> PodStatus:
    """A pod whose object was removed: one that nobody saw end was deleted, or its cluster took it away."""
    status = pod_status(pod)
    if status.end is not None:
        return status
    conditions = {condition["type"]: condition for condition in pod.get("status", {}).get("conditions", [])}
    disruption = conditions.get("DisruptionTarget", {})
    end = EndReason.DELETED
    if disruption.get("status") == "True":
        end = _DISRUPTIONS.get(disruption.get("reason", ""), EndReason.EVICTED)
    return msgspec.structs.replace(status, end=end)


def _resize(metadata: Object, asked: PodSize, size: PodSize, conditions: Object) -> tuple[ResizeState, str]:
    pending, running = conditions.get("PodResizePending", {}), conditions.get("PodResizeInProgress", {})
    # A condition of an earlier generation is about another size.
    if pending.get("status") == "True" and pending.get("observedGeneration", 0) >= metadata.get("generation", 0):
        state = ResizeState.INFEASIBLE if pending.get("reason") == "Infeasible" else ResizeState.DEFERRED
        return state, pending.get("message", "")
    if asked == size and running.get("status") != "True":
        return ResizeState.DONE, ""
    return ResizeState.IN_PROGRESS, running.get("message", "")


def _is_unreachable(conditions: Object) -> bool:
    """Whether the pod is deleted for its node's silence: a node that is drained by a taint still says Ready."""
    by_taint = conditions.get("DisruptionTarget", {}).get("reason") == "DeletionByTaintManager"
    return by_taint and conditions.get("Ready", {}).get("status") == "False"


def _size(resources: Object) -> PodSize | None:
    limits = resources.get("limits") or resources.get("requests") or {}
    if "cpu" not in limits or "memory" not in limits:
        return None
    return PodSize(quantity(limits["cpu"]), round(quantity(limits["memory"])))


def _seconds(text: str | None) -> float | None:
    return datetime.datetime.fromisoformat(text).timestamp() if text else None
