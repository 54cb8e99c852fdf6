"""What a simulation found: a line per job, and the figures over all of them. Every number in it is simulated."""

from __future__ import annotations

import statistics

import msgspec

from elastrec.platform.scaling.amounts import Allocation


class Ended(msgspec.Struct, frozen=True, kw_only=True):
    """A job that has trained its last sample. Times are seconds since the simulation's begin.

    Attributes:
        cost: of all that it held, from its placement to its end.
        changes: plans that were applied to it.
        allocation: the last one it held.
    """

    job_id: str
    arrival_seconds: float
    placed_seconds: float
    ended_seconds: float
    core_hours: float
    cost: float
    changes: int
    failures: int
    allocation: Allocation

    @property
    def completion_seconds(self) -> float:
        """JCT: from its arrival to its end, waiting for room included."""
        return self.ended_seconds - self.arrival_seconds


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """One policy on one workload.

    Attributes:
        unfinished: jobs that had not ended when the time was over.
        seconds: that were simulated.
        cores_used: share of the cluster's cores that were held, over that time.
        problems: rounds in which the policy had none or a wrong plan, by job; "" stands for all jobs.
    """

    policy: str
    jobs: tuple[Ended, ...]
    unfinished: tuple[str, ...]
    seconds: float
    cores_used: float
    problems: dict[str, int]

    def figures(self) -> dict[str, float]:
        """Means and quantiles; completion times are 0 when no job ended."""
        times = sorted(job.completion_seconds for job in self.jobs)
        waits = [job.placed_seconds - job.arrival_seconds for job in self.jobs]
        return {
            "jobs": float(len(times)),
            "unfinished": float(len(self.unfinished)),
            "completion_seconds_mean": statistics.fmean(times) if times else 0.0,
            "completion_seconds_median": statistics.median(times) if times else 0.0,
            "completion_seconds_p90": times[min(len(times) - 1, int(0.9 * len(times)))] if times else 0.0,
            "waiting_seconds_mean": statistics.fmean(waits) if waits else 0.0,
            "core_hours": sum(job.core_hours for job in self.jobs),
            "cost": sum(job.cost for job in self.jobs),
            "changes": float(sum(job.changes for job in self.jobs)),
            "failures": float(sum(job.failures for job in self.jobs)),
            "cores_used": self.cores_used,
        }
