"""Classifies the causes of lost pods, from the reports of the cluster. Pure."""

from __future__ import annotations

from elastrec.platform.clusters.pods import EndCause, EndReason


def is_taken_away(end: EndReason) -> bool:
    """Whether the cluster or a user ended the pod, not the pod itself.

    A process of a job ends with 0 only when it was ordered to end.
    """
    return end.cause is not EndCause.PROGRAM or end is EndReason.COMPLETED
