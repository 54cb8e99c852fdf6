"""Whose doing the loss of a pod was, as far as the cluster says. Pure."""

from __future__ import annotations

from elastrec.platform.clusters.protocol import ENDED_FROM_OUTSIDE

OOM_KILLED = "OOMKilled"
_TAKEN_AWAY = frozenset(
    {
        "Deleted",
        "NodeLost",
        # What a kubelet writes into the status of a pod that it ends.
        "Evicted",
        "NodeShutdown",
        "Shutdown",
        "Terminated",
        "Preempting",
        # Reasons of the pod condition DisruptionTarget, and YARN's word.
        "PreemptionByScheduler",
        "DeletionByTaintManager",
        "EvictionByEvictionAPI",
        "DeletionByPodGC",
        "TerminationByKubelet",
        "Preempted",
    }
)


def is_taken_away(reason: str, exit_code: int | None) -> bool:
    """Whether the cluster or a person ended the pod, rather than the pod itself.

    A process does not send SIGKILL or SIGTERM to itself, and ends with 0 only when it was told to end. A kill by the
    kernel for the pod's own memory limit has the reason `OOMKilled` and is the pod's own failure.

    Args:
        reason: of the pod's status, in Kubernetes' words.
        exit_code: 128 + n after signal n; None: unknown.
    """
    if reason == OOM_KILLED:
        return False
    return reason in _TAKEN_AWAY or exit_code == 0 or exit_code in ENDED_FROM_OUTSIDE
