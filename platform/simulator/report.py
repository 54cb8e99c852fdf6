"""The result of a simulation: one row per job, and figures over all jobs. All of its numbers are simulated."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

import msgspec

from elastrec.platform.scaling.amounts import Allocation


class Used(msgspec.Struct, frozen=True):
    """Held and used by all pods of one role, in core-hours and byte-hours."""

    core_hours: float
    core_hours_used: float
    byte_hours: float
    byte_hours_used: float


class Use(msgspec.Struct, frozen=True, kw_only=True):
    """Resources of one job.

    Attributes:
        core_hours, cost: of all resources that it held, from its placement to its end or that of the simulation.
    """

    core_hours: float
    cost: float
    workers: Used
    servers: Used


class Ended(Use, frozen=True, kw_only=True):
    """A job that has trained its last sample. Times are seconds since the beginning of the simulation.

    Attributes:
        changes: plans that were applied to it.
        failures: pods that it lost.
        out_of_memory: number of its restarts after it ran out of memory.
        evictions: number of its evictions for jobs of higher priority.
        scaling_seconds: from its first step to its last change.
        started_with, allocation: its first and its last allocation.
    """

    job_id: str
    arrival_seconds: float
    placed_seconds: float
    ended_seconds: float
    changes: int
    failures: int
    out_of_memory: int
    evictions: int
    scaling_seconds: float
    started_with: Allocation
    allocation: Allocation

    @property
    def completion_seconds(self) -> float:
        """JCT: from its arrival to its end, including the wait for capacity."""
        return self.ended_seconds - self.arrival_seconds


class Moment(msgspec.Struct, frozen=True):
    """The cluster at one round of the policy.

    Attributes:
        cores: held by all jobs.
        samples_per_second: of all jobs.
    """

    seconds: float
    running: int
    waiting: int
    cores: float
    samples_per_second: float


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """One policy on one workload.

    Attributes:
        jobs: in the order of their ends.
        unfinished: jobs that had not ended when the time was over; `unfinished_use`: of those of them that have
            arrived.
        seconds: that were simulated.
        cores_held: share of the cluster's cores that were held, over that time.
        core_hours_there: of all nodes, over that time.
        moments: the cluster at every round.
        problems: number of rounds in which the policy failed or returned an invalid plan, by job; "" stands for all
            jobs.
    """

    policy: str
    jobs: tuple[Ended, ...]
    unfinished: tuple[str, ...]
    unfinished_use: tuple[Use, ...]
    seconds: float
    cores_held: float
    core_hours_there: float
    moments: tuple[Moment, ...]
    problems: dict[str, int]

    @property
    def makespan_seconds(self) -> float:
        """From the first arrival to the last end; 0 when no job ended."""
        ends = [job.ended_seconds for job in self.jobs]
        return max(ends) - min(job.arrival_seconds for job in self.jobs) if ends else 0.0

    @property
    def core_hours_used(self) -> float:
        """Of all jobs."""
        return sum(job.workers.core_hours_used + job.servers.core_hours_used for job in self.uses)

    @property
    def uses(self) -> tuple[Use, ...]:
        """Resources of all jobs, ended or not."""
        return (*self.jobs, *self.unfinished_use)

    def figures(self) -> dict[str, float]:
        """Means, quantiles and shares, by name with its unit.

        Completion times are those of all jobs. A job that has not ended counts as infinitely long: without it, a policy
        that ends only short jobs would be the fastest. Nor would it be the cheapest: resources are those of all jobs.
        Waits and counts are those of ended jobs.
        """
        times = [*sorted(job.completion_seconds for job in self.jobs), *[math.inf] * len(self.unfinished)]
        waits = [job.placed_seconds - job.arrival_seconds for job in self.jobs]
        count = max(len(self.jobs), 1)
        return {
            "jobs": float(len(self.jobs)),
            "unfinished": float(len(self.unfinished)),
            "completion_seconds_mean": statistics.fmean(times) if times else 0.0,
            "completion_seconds_median": quantile(times, 0.5),
            "completion_seconds_p90": quantile(times, 0.9),
            "waiting_seconds_mean": statistics.fmean(waits) if waits else 0.0,
            "core_hours": sum(job.core_hours for job in self.uses),
            "cost": sum(job.cost for job in self.uses),
            "changes": float(sum(job.changes for job in self.jobs)),
            "failures": float(sum(job.failures for job in self.jobs)),
            "evictions": float(sum(job.evictions for job in self.jobs)),
            "out_of_memory_share": sum(job.out_of_memory > 0 for job in self.jobs) / count,
            "makespan_seconds": self.makespan_seconds,
            "cores_held": self.cores_held,
            "cores_used": self.core_hours_used / max(self.core_hours_there, 1e-9),
            "worker_cpu_share": _share([(job.workers.core_hours_used, job.workers.core_hours) for job in self.uses]),
            "server_cpu_share": _share([(job.servers.core_hours_used, job.servers.core_hours) for job in self.uses]),
            "worker_memory_share": _share([(job.workers.byte_hours_used, job.workers.byte_hours) for job in self.uses]),
            "server_memory_share": _share([(job.servers.byte_hours_used, job.servers.byte_hours) for job in self.uses]),
        }


def quantile(rising: Sequence[float], share: float) -> float:
    """A quantile; for an even number, the median is the mean of the two middle values; 0 without values."""
    if not rising:
        return 0.0
    if share == 0.5:
        return statistics.median(rising)
    return rising[min(len(rising) - 1, int(share * len(rising)))]


def _share(pairs: Sequence[tuple[float, float]]) -> float:
    held = sum(each for _, each in pairs)
    return sum(used for used, _ in pairs) / held if held else 0.0
