"""The pods of a job, including its evaluator, which is a separate job in the cluster."""

from __future__ import annotations

from elastrec.platform.clusters.pods import PodPhase, PodStatus
from elastrec.platform.jobs.surroundings import Platform
from elastrec.platform.jobs.watching.last_words import keep_log
from elastrec.platform.jobs.watching.masters import pod_of_master
from elastrec.platform.master.pods.launch import evaluator_job


def pods_of_job(platform: Platform, job_id: str) -> list[PodStatus]:
    """The existing pods of a job, including its evaluator.

    Raises:
        ClusterError: the cluster does not answer.
    """
    return [*platform.launcher.pods(job_id), *platform.launcher.pods(evaluator_job(job_id))]


def remove_job(platform: Platform, job_id: str) -> list[str]:
    """Removes a job and its evaluator; returns the names of the pods. The log of a failed master is kept.

    Raises:
        ClusterError: the cluster does not answer, or a pod does not end.
    """
    master = pod_of_master(platform, job_id)
    if master is not None and master.phase is PodPhase.FAILED:
        keep_log(platform, master)
    return [*platform.launcher.remove(job_id), *platform.launcher.remove(evaluator_job(job_id))]
