"""A small simulated cluster, and hand-made jobs for it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import msgspec

from elastrec.platform.scaling.amounts import GIBIBYTE, Allocation, PriceList, Resources
from elastrec.platform.scaling.policy import load_policy
from elastrec.platform.scaling.types import Limits, ModelShape
from elastrec.platform.simulator.memory import MemoryTruth
from elastrec.platform.simulator.mixes import coefficients_of
from elastrec.platform.simulator.nodes import Nodes
from elastrec.platform.simulator.report import Report
from elastrec.platform.simulator.settings import Settings
from elastrec.platform.simulator.simulation import Simulation
from elastrec.platform.simulator.workload import JobToRun

PRICES = PriceList(core_hour=0.04, gibibyte_hour=0.005)
QUIET = Settings(noise=0.0, start_spread=0.0, hours_between_failures=math.inf)
NODE = Resources(32.0, 192.0 * GIBIBYTE)
SHAPE = ModelShape(batch_size=512, dense_bytes=10_000_000, embedding_dimension=16)


def asked(workers: int = 4, servers: int = 2, cores: float = 2.0) -> Allocation:
    return Allocation(
        workers=workers, parameter_servers=servers, worker_cores=cores, parameter_server_cores=cores,
        worker_memory_bytes=2 * GIBIBYTE, parameter_server_memory_bytes=4 * GIBIBYTE,
    )  # fmt: skip


def job(name: str = "one", seconds: float = 3600.0, **changed: Any) -> JobToRun:
    """Takes so many seconds with four workers and two servers: half of a step computes, a tenth is fixed."""
    allocation = asked()
    coefficients = coefficients_of(SHAPE, allocation, 0.1, (0.5, 0.1, 0.1, 0.2, 0.1))
    made = JobToRun(
        job_id=name, arrival_seconds=0.0, samples=4 * 512 / 0.1 * seconds, shape=SHAPE, coefficients=coefficients,
        allocation=allocation, limits=Limits(workers=(1, 32), parameter_servers=(1, 8)),
    )  # fmt: skip
    return msgspec.structs.replace(made, **changed)


def growing(job: JobToRun, needed_at_end: float, exponent: float = 0.7) -> JobToRun:
    """The job with tables that fill so many times its servers' memory at its end."""
    room = needed_at_end * job.allocation.parameter_server_memory_bytes - 0.3e9
    rows = room * job.allocation.parameter_servers / (1.1 * 136.0)
    truth = MemoryTruth(
        worker_bytes=1e9, server_base_bytes=0.3e9, bytes_per_row=136.0, exponent=exponent,
        rows_scale=rows / job.samples**exponent,
    )  # fmt: skip
    return msgspec.structs.replace(job, memory=truth)


def run(policy: str, jobs: Sequence[JobToRun], nodes: int = 20, given: Settings = QUIET, **more: Any) -> Report:
    return Simulation(jobs, Nodes(nodes, NODE), load_policy(policy), PRICES, given, **more).run()
