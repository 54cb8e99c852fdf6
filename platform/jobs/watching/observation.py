"""Observes a job without changing it: its metrics, why it failed, and the last log lines of its pods."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from elastrec.platform.clusters.pods import EndCause, PodPhase
from elastrec.platform.jobs.surroundings import Platform
from elastrec.platform.jobs.watching.job_pods import pods_of_job
from elastrec.platform.jobs.watching.last_words import ending_of, last_known, pod_last_words, whole_log
from elastrec.platform.jobs.watching.masters import ask_pod, is_gone, pod_of_master
from elastrec.platform.specs.errors import ClusterError, JobNotFoundError, TransportError
from elastrec.platform.specs.metrics import Phase, Role, TrainingMetrics
from elastrec.platform.specs.text import plain_words
from elastrec.platform.transport.messages.observer import GetStatus, Status

_SIDE_BY_SIDE = 16


@dataclass(frozen=True)
class Observation:
    """The state of a job at one moment.

    Attributes:
        metrics: from the master; only the job's name and the reason if it does not answer: the phase is unknown, or
            pending if the master has not started yet.
        failure: reason and, if there is one, the user's traceback; empty unless the job failed.
        reachable: whether the master answers; it does not, for example, while its node restarts it.
        is_lost: whether the cluster has ended the master, for example with its node; another launch continues the job.
        has_ended: whether the master has ended because its job is over and nobody read the result in time; then
            `result_of` has it.
    """

    metrics: TrainingMetrics
    failure: str = ""
    reachable: bool = True
    is_lost: bool = False
    has_ended: bool = False


def observe(platform: Platform, job_id: str, timeout_seconds: float = 5.0) -> Observation:
    """The present state of the job.

    Raises:
        JobNotFoundError: no such job in the cluster.
        ClusterError: the cluster cannot be reached.
    """
    pod = pod_of_master(platform, job_id)
    if pod is None:
        raise JobNotFoundError(f"job {job_id}: not in the cluster; it was stopped, finished or never launched")
    if pod.phase is PodPhase.FAILED:
        reason = f"the master failed: {ending_of(platform, pod)}"
        is_lost = pod.end is not None and pod.end.cause is EndCause.CLUSTER
        return Observation(TrainingMetrics(job=job_id, phase=Phase.FAILED, reason=reason), reason, is_lost=is_lost)
    try:
        status = ask_pod(platform, pod, GetStatus(), Status, timeout_seconds=timeout_seconds)
    except TransportError as error:
        if not error.retryable:
            raise ClusterError(f"job {job_id}: its master refused to answer: {error}") from error
        restarted = "" if pod.end is None else f"restarted {pod.restarts} times: {ending_of(platform, pod)}"
        known = "; ".join(text for text in (last_known(platform, pod), restarted) if text)
        words = f"the master does not answer{f' ({known})' if known else ''}: {error}"
        return Observation(TrainingMetrics(job=job_id, phase=Phase.UNKNOWN, reason=words), reachable=False)
    if status is None:
        words = f"master {pod.phase.value}: {pod.reason} {pod.message}".rstrip(" :")
        phase = Phase.UNKNOWN if is_gone(pod) else Phase.PENDING
        metrics = TrainingMetrics(job=job_id, phase=phase, reason=words)
        return Observation(metrics, reachable=False, has_ended=is_gone(pod))
    return Observation(TrainingMetrics.model_validate_json(status.metrics_json), status.failure)


def failure_report(platform: Platform, job_id: str) -> str:
    """Why a job failed, for people: reason, traceback, and the last log lines of failed pods.

    If the master itself failed, there is no explanation of the job; its log is copied, and the report contains the
    path.
    """
    try:
        observation = observe(platform, job_id)
        report = [
            f"job {job_id} {plain_words.phase(observation.metrics.phase)}: "
            f"{observation.failure or observation.metrics.reason}"
        ]
    except ClusterError as error:
        report = [str(error)]
    for pod in pods_of_job(platform, job_id):
        if pod.phase is PodPhase.FAILED:
            report.append(pod_last_words(platform, pod))
            if pod.role is Role.MASTER:
                report += whole_log(platform, pod)
    return "\n".join(report)


def jobs(platform: Platform, timeout_seconds: float = 5.0) -> list[Observation]:
    """Every job of the cluster, by name, except jobs that are removed at the same time.

    Args:
        timeout_seconds: for each master; they are asked side by side, so that silent ones do not add up.
    """

    def look(name: str) -> Observation | None:
        try:
            return observe(platform, name, timeout_seconds)
        except ClusterError:
            if pod_of_master(platform, name) is not None:
                raise
            return None

    names = sorted(pod.job for pod in platform.launcher.jobs() if pod.role is Role.MASTER)
    with ThreadPoolExecutor(_SIDE_BY_SIDE) as pool:
        return [observation for observation in pool.map(look, names) if observation is not None]
