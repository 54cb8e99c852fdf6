"""First allocations of simulated jobs: from their owners, or from similar finished jobs (Algorithm 1)."""

from __future__ import annotations

from collections import deque

import msgspec

from elastrec.platform.scaling.amounts import Allocation, Capacity
from elastrec.platform.scaling.job_profile import job_profile
from elastrec.platform.scaling.model.throughput import fit_job
from elastrec.platform.scaling.types import Prior
from elastrec.platform.scaling.warm_start import PastJob, WarmStartSettings, prior_of, warm_start, with_memory_used
from elastrec.platform.simulator.running import Running
from elastrec.platform.simulator.workload import JobToRun
from elastrec.platform.specs.errors import ScalingError

_LOOKED_AT = 200


class Starting:
    """Keeps the jobs that have ended, as MLflow does for real ones.

    Args:
        settings: of the warm start; None: every job starts with its owner's allocation.
    """

    def __init__(self, settings: WarmStartSettings | None = None) -> None:
        self._settings = settings
        self._past: deque[PastJob] = deque(maxlen=_LOOKED_AT)

    def of(self, job: JobToRun, capacity: Capacity) -> tuple[Allocation, Prior | None]:
        """Its first allocation, within its limits, and the prior of its throughput model."""
        if self._settings is None:
            return job.allocation, None
        past = tuple(self._past)
        found = warm_start(
            job.features, past, job.allocation, capacity, self._settings, servers=job.limits.parameter_servers
        )
        low, high = job.limits.workers
        few, many = job.limits.parameter_servers
        allocation = msgspec.structs.replace(
            found.allocation,
            workers=min(max(found.allocation.workers, low), high),
            parameter_servers=min(max(found.allocation.parameter_servers, few), many),
        )
        return allocation, prior_of(job.features, past, self._settings)

    def remember(self, running: Running, now: float) -> None:
        """Adds a job that has ended."""
        if self._settings is None:
            return
        try:
            coefficients = fit_job(job_profile(running.facts(1.0, None))).coefficients
        except ScalingError:
            coefficients = None
        self._past.append(
            PastJob(
                job_id=running.job.job_id,
                features=running.job.features,
                allocation=running.held,
                needed=_needed(running),
                coefficients=coefficients,
                ended_unix_seconds=now,
            )
        )


def _needed(running: Running) -> Allocation | None:
    """The master's measurements at the end of the job."""
    memory, held = running.job.memory, running.held
    if memory is None:
        return None
    used = memory.server_bytes(held.parameter_servers, running.job.samples)
    return with_memory_used(held, used)
