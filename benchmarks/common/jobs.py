"""Whole jobs for benchmarks: a node agent of their own, jobs from start to end, and their results.

They use the product's real pods, limits and checkpoints. Only the export and the registration of the model are left
out, because no figure here depends on them.
"""

from __future__ import annotations

import contextlib
import shutil
import signal
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import pyarrow as pa
import structlog

from benchmarks.common.groups import outweigh_other_load
from elastrec.platform import jobs
from elastrec.platform.clusters import ClusterConfig
from elastrec.platform.clusters.local import start_agent, stop_agent
from elastrec.platform.clusters.nodes import limits_enforced
from elastrec.platform.clusters.pods import PodPhase
from elastrec.platform.jobs.scaling.masters import ask_profile
from elastrec.platform.jobs.watching.masters import pod_of_master
from elastrec.platform.specs.errors import ClusterError
from elastrec.platform.specs.job import TrainingJob
from elastrec.platform.specs.metrics import Phase, TrainingMetrics
from elastrec.platform.transport.messages.ledger import Explanation
from elastrec.platform.transport.messages.profile import Profile

_POLL_SECONDS = 0.2


def _end(number: int, frame: FrameType | None) -> None:
    sys.exit(128 + number)


@dataclass(frozen=True)
class Ended:
    """A job that succeeded, or was ended after its purpose.

    Attributes:
        ledger: one row per attempt at a shard; `began` and `ended` are seconds on the job's clock.
        profile: its master's measurements at the end; None if the master no longer runs.
    """

    metrics: TrainingMetrics
    ledger: pa.Table
    explanation: Explanation
    profile: Profile | None


@contextlib.contextmanager
def private_home() -> Iterator[Path]:
    """A folder that is removed afterwards, however the benchmark ends."""
    signal.signal(signal.SIGTERM, _end)
    # Decisions are no part of a benchmark's output.
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(40))
    home = Path(tempfile.mkdtemp(prefix="elastrec-benchmark-"))
    try:
        yield home
    finally:
        shutil.rmtree(home, ignore_errors=True)


@contextlib.contextmanager
def private_platform(cores: float = 16.0, weight: int = 8) -> Iterator[jobs.Platform]:
    """A node agent in a folder of its own; agent, pods and folder are removed afterwards, however the benchmark ends.

    Args:
        cores: that the agent may grant; the machine may have fewer.
        weight: of all pods together against other load, in busy processes.
    """
    with private_home() as home:
        cluster = start_agent(home / "agent", cores=cores, memory_bytes=64 * 2**30)
        try:
            outweigh_other_load(cluster.agent().agent_id, weight)
            yield platform_on(home, cluster.config)
        finally:
            cluster.close()
            stop_agent(home / "agent")


def platform_on(home: Path, config: ClusterConfig) -> jobs.Platform:
    """The platform of a cluster, with history and work folder in `home`."""
    work = home / "work"
    work.mkdir(exist_ok=True)
    return jobs.Platform.connect(config, f"sqlite:///{home}/mlflow.db", str(work))


def expect_limits(platform: jobs.Platform, benchmark: str) -> None:
    """Ends a benchmark that needs enforced limits of its pods.

    Raises:
        SystemExit: this machine does not enforce them.
    """
    if not limits_enforced(platform.launcher.nodes()):
        raise SystemExit(f"{benchmark}: this machine's control groups cannot be written, so pods have no limits")


def launch(
    platform: jobs.Platform,
    prepared: jobs.Prepared,
    allocation: jobs.Allocation,
    room_seconds: float = 0.0,
    earlier_terms: int = 0,
) -> None:
    """Launches a job.

    Args:
        room_seconds: time in which the launch is retried while the job's master does not fit on the cluster, as Airflow
            retries a task.
        earlier_terms: as of `jobs.launch`.
    """
    deadline = time.monotonic() + room_seconds
    while True:
        try:
            jobs.launch(platform, prepared, allocation, earlier_terms=earlier_terms)
            return
        except ClusterError:
            master = pod_of_master(platform, prepared.job_id)
            if master is None or master.phase is not PodPhase.PENDING or time.monotonic() > deadline:
                raise


@contextlib.contextmanager
def launched(platform: jobs.Platform, content: dict[str, Any], room_seconds: float = 0.0) -> Iterator[str]:
    """A launched job, by its id; its pods are removed in any case, also after a failed launch.

    Args:
        content: the job file.
        room_seconds: see `launch`.
    """
    job = TrainingJob.model_validate(content)
    job_id = jobs.job_id_for(job.metadata.name, uuid.uuid4().hex)
    try:
        prepared = jobs.prepare(platform, job, job_id)
        launch(platform, prepared, jobs.warm_start(platform, prepared), room_seconds)
        yield job_id
    finally:
        jobs.stop(platform, job_id, "the benchmark is done with it")


def run_job(
    platform: jobs.Platform,
    content: dict[str, Any],
    until: Callable[[TrainingMetrics], bool] | None = None,
    timeout_seconds: float = 900.0,
) -> Ended:
    """Trains and evaluates a job; its pods are removed whatever happens.

    Args:
        content: the job file.
        until: called with the job's state a few times a second; true ends the job before its own end.

    Raises:
        RuntimeError: the job failed or did not end in time; holds the last lines of its pods.
    """
    with launched(platform, content) as job_id:
        deadline = time.monotonic() + timeout_seconds
        while True:
            seen = jobs.observe(platform, job_id)
            is_enough = until is not None and seen.reachable and until(seen.metrics)
            if is_enough or seen.metrics.phase is Phase.SUCCEEDED:
                break
            if seen.metrics.phase.is_final or time.monotonic() > deadline:
                raise RuntimeError(
                    f"the job did not succeed within {timeout_seconds:.0f} s:\n{jobs.failure_report(platform, job_id)}"
                )
            time.sleep(_POLL_SECONDS)
        return Ended(
            metrics=seen.metrics,
            ledger=jobs.ledger(platform, job_id),
            explanation=jobs.explanation(platform, job_id),
            profile=ask_profile(platform, job_id),
        )
