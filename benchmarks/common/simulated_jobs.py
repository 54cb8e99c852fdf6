"""Common code of the simulated benchmarks: the cluster and the three models of DLRover-RM §6, and compared sides."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from elastrec.platform.scaling.amounts import GIBIBYTE, Allocation, PriceList, Resources
from elastrec.platform.scaling.policies.optimus import Optimus
from elastrec.platform.scaling.policies.optimus_greedy import GreedyOptimus
from elastrec.platform.scaling.policy import ScalingPolicy, load_policy
from elastrec.platform.scaling.types import Limits, ModelShape
from elastrec.platform.scaling.warm_start import WarmStartSettings
from elastrec.platform.simulator.mixes import coefficients_of
from elastrec.platform.simulator.nodes import Nodes
from elastrec.platform.simulator.report import Report
from elastrec.platform.simulator.settings import BY_HAND, Handling, Settings
from elastrec.platform.simulator.simulation import Simulation
from elastrec.platform.simulator.workload import JobToRun
from elastrec.platform.specs.errors import ScalingError

NODE = Resources(32.0, 192.0 * GIBIBYTE)
PRICES = PriceList(core_hour=0.04, gibibyte_hour=0.005)
STEPS, BATCH = 200_000, 512
TROUBLED = Settings(straggler_share=0.07, hot_server_share=0.13)
"""Table 4 and §6.3 of the paper; pods fail as in §2.2, which is the default."""

# Lookups take 30–48 % of a step (§2.2): one model at each end, one between. What else a step consists of is assumed.
LOOKUP_SHARES = {"X": 0.48, "Y": 0.30, "Z": 0.39}
TUNED_MINUTES = {"X": 27.36, "Y": 27.36, "Z": 27.36}
"""Model X: 27.74 minutes, which were 1.4 % more than well tuned (§6.1). The other two are only drawn in a figure."""
TUNED = Allocation(
    workers=16, parameter_servers=8, worker_cores=8.0, parameter_server_cores=8.0,
    worker_memory_bytes=8 * GIBIBYTE, parameter_server_memory_bytes=16 * GIBIBYTE,
)  # fmt: skip
COLD = msgspec.structs.replace(TUNED, workers=1, parameter_servers=4)
"""Where jobs begin that are «trained from scratch» (§6.2; no numbers given): one worker. Half of the well-tuned
servers, because Elastic Scheduler never changes them: a start with one would settle the comparison with it."""


def paper_job(model: str, start: Allocation) -> JobToRun:
    """One of the paper's three jobs: 200,000 steps of 512 samples, as long as the paper's when well tuned."""
    shape = ModelShape(batch_size=BATCH, dense_bytes=10_000_000, embedding_dimension=16)
    lookup = LOOKUP_SHARES[model]
    step = TUNED_MINUTES[model] * 60.0 / STEPS * TUNED.workers
    return JobToRun(
        job_id=f"model-{model}", arrival_seconds=0.0, samples=float(STEPS * BATCH), shape=shape,
        coefficients=coefficients_of(shape, TUNED, step, (0.75 - lookup, 0.1, 0.05, lookup, 0.1)),
        allocation=start,
        # «Almost the best throughput» is the tuned one's: nothing lies beyond.
        limits=Limits(workers=(1, TUNED.workers), parameter_servers=(1, TUNED.parameter_servers),
                      worker_cores=(1.0, 8.0), parameter_server_cores=(1.0, 8.0)),
    )  # fmt: skip


@dataclass(frozen=True)
class Side:
    """One way of running a workload.

    Attributes:
        policy: its name, the policy, or what makes one of the jobs.
    """

    name: str
    policy: str | ScalingPolicy | Callable[[Sequence[JobToRun]], ScalingPolicy]
    handling: Handling = Handling()  # noqa: RUF009 - frozen
    warm: bool = False

    def run(self, jobs: Sequence[JobToRun], nodes: int, settings: Settings) -> Report:
        """Simulates it to the end of all jobs.

        Raises:
            ScalingError: some jobs did not end, so that sides would be compared by different jobs.
        """
        handled = msgspec.structs.replace(settings, handling=self.handling)
        simulation = Simulation(
            jobs, Nodes(nodes, NODE), self.policy_for(jobs), PRICES, handled,
            warm_start=WarmStartSettings() if self.warm else None,
        )  # fmt: skip
        report = msgspec.structs.replace(simulation.run(), policy=self.name)
        if report.unfinished:
            raise ScalingError(
                f"{self.name}: {len(report.unfinished)} of {len(jobs)} jobs did not end on {nodes} nodes, "
                f"{report.unfinished[0]} for one; allowed: none; give the simulation more nodes (--nodes)"
            )
        return report

    def policy_for(self, jobs: Sequence[JobToRun]) -> ScalingPolicy:
        """The policy that decides about these jobs."""
        if isinstance(self.policy, str):
            return load_policy(self.policy)
        return self.policy(jobs) if callable(self.policy) else self.policy


BY_HAND_SIDE = Side("by_hand", "static", BY_HAND)
STATIC = Side("static", "static")
ELASTIC = Side("elastic_scheduler", "elastic-scheduler")
OPTIMUS = Side("optimus", "optimus")
OPTIMUS_2, OPTIMUS_4 = (Side(f"optimus_step_{step}", Optimus(step)) for step in (2, 4))
GREEDY = Side("optimus_greedy", GreedyOptimus())
GREEDY_WARM = replace(GREEDY, name="optimus_greedy_warm", warm=True)
OURS = Side("three_stage", "three-stage")
OURS_WARM = replace(OURS, name="three_stage_warm", warm=True)


def change(ours: Report, theirs: Report, name: str) -> float:
    """The difference of a figure in per cent; negative: ours is lower."""
    value, base = ours.figures()[name], theirs.figures()[name]
    return 100.0 * (value / base - 1.0) if base else math.nan


def described(jobs: Sequence[JobToRun], nodes: int, settings: Settings, **more: Any) -> dict[str, Any]:
    """For a figure's settings."""
    return {
        "jobs": len(jobs), "nodes": nodes, "cores_per_node": NODE.cores, "seed": settings.seed, "noise": settings.noise,
        "start_s": settings.start_seconds, "pod_hours_between_failures": settings.hours_between_failures, **more,
    }  # fmt: skip
