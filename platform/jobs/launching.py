"""Start, take over, stop and finish a job: the steps that change the cluster."""

from __future__ import annotations

import time

import structlog
from elastrec.platform.clusters.protocol import PodPhase
from elastrec.platform.history import History
from elastrec.platform.jobs.preparation import allocated
from elastrec.platform.jobs.surroundings import Platform
from elastrec.platform.jobs.types import Allocation, Launched, Prepared
from elastrec.platform.master.launch import LaunchRequest, master_pod, pod_name
from elastrec.platform.specs.errors import ClusterError, TransportError
from elastrec.platform.specs.loading import job_from_json
from elastrec.platform.specs.metrics import Role
from elastrec.platform.transport import RpcClient
from elastrec.platform.transport.job_messages import Done, FinishJob, StopJob, TakeOver

log = structlog.get_logger(__name__)
_MASTER_START_SECONDS = 60.0


def launch_request(
    prepared: Prepared, allocation: Allocation, run_id: str = "", tracking_uri: str = ""
) -> LaunchRequest:
    """What the job's master is started with."""
    job = allocated(job_from_json(prepared.job_json), allocation)
    return LaunchRequest.of(
        job,
        job_id=prepared.job_id,
        training_manifest=prepared.training_manifest,
        training_rows=prepared.training_rows,
        evaluation_manifest=prepared.evaluation_manifest,
        evaluation_rows=prepared.evaluation_rows,
        store=job.spec.checkpoint.store,
        start_record=prepared.start_record,
        data_interval=(prepared.interval.start, prepared.interval.end),
        run_id=run_id,
        tracking_uri=tracking_uri,
    )


def launch(platform: Platform, prepared: Prepared, allocation: Allocation, owner: str = "") -> Launched:
    """Creates the job's master, or takes over the job that already exists under this id. Never makes a second one.

    Args:
        owner: who may stop the job by `stop(owner=...)`; a later launch with another owner takes it over.

    Raises:
        ClusterError: the cluster refused the pod, or the master did not come up.
    """
    name = pod_name(prepared.job_id, Role.MASTER)
    history = History(platform.tracking_uri, job_from_json(prepared.job_json).spec.history.experiment)
    run_id = history.start_run(prepared, allocation)
    existing = platform.cluster.get(name)
    if existing is None:
        request = launch_request(prepared, allocation, run_id, platform.tracking_uri)
        pod = master_pod(request, platform.cluster_config, platform.job_token(prepared.job_id))
        platform.cluster.create(pod)
        log.info("job_launched", job_id=prepared.job_id, run_id=run_id, owner=owner)
    else:
        log.info("job_reattached", job_id=prepared.job_id, run_id=run_id, owner=owner, phase=existing.phase)
    client = wait_for_master(platform, prepared.job_id)
    if owner:
        client.call(TakeOver(owner=owner), Done, timeout_seconds=15)
    client.close()
    return Launched(
        job_id=prepared.job_id, master_pod=name, run_id=run_id, run_url=history.run_url(run_id), owner=owner
    )


def wait_for_master(platform: Platform, job_id: str, timeout_seconds: float = _MASTER_START_SECONDS) -> RpcClient:
    """A client of the job's master as soon as its pod has an address.

    Raises:
        ClusterError: the pod failed, does not fit, or is not there within the time; says why.
    """
    name = pod_name(job_id, Role.MASTER)
    deadline = time.monotonic() + timeout_seconds
    while True:
        pod = platform.cluster.get(name)
        if pod is None:
            raise ClusterError(f"job {job_id}: its master {name} does not exist; it was stopped or never launched")
        if pod.phase is PodPhase.FAILED:
            tail = "\n".join(platform.cluster.logs(name, tail_lines=30))
            raise ClusterError(f"job {job_id}: its master failed: {pod.reason} {pod.message}\n{tail}")
        if pod.phase is PodPhase.RUNNING and pod.address:
            return master_client(platform, job_id, pod.address)
        if time.monotonic() > deadline:
            raise ClusterError(f"job {job_id}: its master is still {pod.phase.value}: {pod.reason} {pod.message}")
        time.sleep(0.1)


def master_client(platform: Platform, job_id: str, address: str) -> RpcClient:
    """A client with the job's own token."""
    return RpcClient(address, platform.job_token(job_id), platform.tls)


def stop(platform: Platform, job_id: str, reason: str, owner: str = "") -> bool:
    """Stops a job and removes its pods. True when it was stopped, false when it belongs to another owner or is gone.

    A master that does not answer is removed by force, its pods after it.
    """
    pod = platform.cluster.get(pod_name(job_id, Role.MASTER))
    if pod is not None and pod.phase is PodPhase.RUNNING and pod.address:
        try:
            answer = master_client(platform, job_id, pod.address).call(
                StopJob(reason=reason, owner=owner), Done, timeout_seconds=10
            )
        except TransportError as error:
            log.warning("master_unreachable", job_id=job_id, error=str(error), consequence="its pods are removed")
        else:
            if not answer.accepted:
                log.info("stop_refused", job_id=job_id, owner=owner, reason=answer.reason)
                return False
    removed = remove_pods(platform, job_id)
    if removed:
        log.info("job_stopped", job_id=job_id, reason=reason, pods=removed)
    return bool(removed)


def finish(platform: Platform, job_id: str) -> None:
    """Tells the master of an ended job that its result was read, and removes what is left of the job. Idempotent."""
    pod = platform.cluster.get(pod_name(job_id, Role.MASTER))
    if pod is not None and pod.phase is PodPhase.RUNNING and pod.address:
        try:
            master_client(platform, job_id, pod.address).call(FinishJob(), Done, timeout_seconds=10)
        except TransportError as error:
            log.warning("master_unreachable", job_id=job_id, error=str(error), consequence="its pods are removed")
    remove_pods(platform, job_id)


def remove_pods(platform: Platform, job_id: str) -> list[str]:
    """Deletes every pod of the job, the master first so that it does not replace the others; returns their names."""
    pods = sorted(platform.cluster.list(job_id), key=lambda pod: pod.role is not Role.MASTER)
    for pod in pods:
        platform.cluster.delete(pod.name)
    return [pod.name for pod in pods]
