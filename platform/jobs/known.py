"""Names of the jobs in the cluster and in a checkpoint store, for messages and shell completion."""

from __future__ import annotations

import difflib

import structlog

from elastrec.platform.jobs.starting.kept_launch import launched
from elastrec.platform.jobs.starting.preparation import resolved
from elastrec.platform.jobs.surroundings import DEFAULT_STORE, Platform
from elastrec.platform.specs.errors import CheckpointError, ClusterError, FieldProblem, SpecError
from elastrec.platform.specs.metrics import Role
from elastrec.platform.specs.text.some import some

log = structlog.get_logger(__name__)
_NAMED = 20


def jobs_of_cluster(platform: Platform) -> list[str]:
    """Ids of the jobs whose master is in the cluster, sorted.

    Raises:
        ClusterError: the cluster does not answer.
    """
    return sorted(pod.job for pod in platform.launcher.jobs() if pod.role is Role.MASTER)


def jobs_of_store(platform: Platform, store: str = DEFAULT_STORE) -> list[str]:
    """Ids of the jobs that were launched with a checkpoint store, sorted; empty if it cannot be asked.

    Args:
        store: URI; relative as in job files.
    """
    try:
        return sorted(job_id for ids in launched(resolved(store, platform.work_uri)).values() for job_id in ids)
    except CheckpointError as error:
        log.info("store_not_asked", store=store, error=str(error))
        return []


def not_in_cluster(platform: Platform, job: str) -> SpecError:
    """The error of a command that needs a job's pods; for a job that has ended, it names commands that work.

    Args:
        job: its id, or the name of one of its pods.

    Raises:
        ClusterError: the cluster does not answer.
    """
    running, left = jobs_of_cluster(platform), jobs_of_store(platform)
    allowed = _listed("a job of the cluster", running, "the cluster has no jobs")
    over = next((name for name in left if job == name or job.startswith(f"{name}-")), "")
    if over:
        commands = ", ".join(f"`elastrec {command} {over}`" for command in ("explain", "report", "ledger"))
        return _refused(f"{job!r}, which is over and has no pods,", allowed, f"what it did: {commands}")
    near = _near(job, running)
    if near:
        return _refused(repr(job), allowed, f"did you mean {near!r}?")
    remedy = f"`elastrec explain` knows jobs that are over: {some(left, _NAMED, last=True)}" if left else ""
    return _refused(repr(job), allowed, remedy)


def unknown(platform: Platform, job: str, store: str = DEFAULT_STORE) -> SpecError:
    """The error for a job that is not in the cluster and has left nothing in the store but perhaps its launch.

    Raises:
        ClusterError: the cluster does not answer.
    """
    job_ids = sorted({*jobs_of_cluster(platform), *jobs_of_store(platform, store)})
    where = resolved(store, platform.work_uri)
    if job in job_ids:
        value = f"{job!r}, which was launched but has left nothing else in {where},"
        remedy = (
            "if it still trains on this machine, start the node agent, which finds its pods: `elastrec agent start`"
        )
        return _refused(value, "a job of the cluster, or one that has ended", remedy)
    allowed = _listed(f"a job of the cluster or of {where}", job_ids, "there are none")
    near = _near(job, job_ids)
    return _refused(repr(job), allowed, f"did you mean {near!r}?" if near else "--store names another checkpoint store")


def without_run(platform: Platform, job: str, experiment: str, store: str = DEFAULT_STORE) -> SpecError:
    """The error for a job that has no run in an experiment of MLflow."""
    try:
        running = jobs_of_cluster(platform)
    except ClusterError as error:
        # A report of a job that is over needs no cluster.
        log.info("cluster_not_asked", error=str(error))
        running = []
    job_ids = sorted({*running, *jobs_of_store(platform, store)})
    near = "" if job in job_ids else _near(job, job_ids)
    allowed = f"a job with a run in MLflow's experiment {experiment!r}"
    return _refused(repr(job), allowed, f"did you mean {near!r}?" if near else "--experiment names another")


def _refused(value: str, allowed: str, remedy: str) -> SpecError:
    return SpecError([FieldProblem("JOB", value, allowed, remedy)], "the command line")


def _listed(place: str, job_ids: list[str], none: str) -> str:
    return f"{place}: {some(job_ids, _NAMED, last=True)}" if job_ids else f"{place} ({none})"


def _near(job: str, job_ids: list[str]) -> str:
    """The job that was probably meant; also found by its name without the id."""
    close = difflib.get_close_matches(job, job_ids, n=1) or [
        job_id for job_id in job_ids if job_id.startswith(f"{job}-")
    ]
    return close[-1] if close else ""
