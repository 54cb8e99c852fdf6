"""Small workloads of unrelated jobs."""

from __future__ import annotations

import numpy as np

from elastrec.platform.scaling.amounts import GIBIBYTE, Allocation, Change
from elastrec.platform.scaling.types import Limits, ModelShape
from elastrec.platform.simulator.mixes import coefficients_of
from elastrec.platform.simulator.workload import JobToRun


def synthetic(
    count: int,
    seed: int = 0,
    mean_arrival_seconds: float = 60.0,
    mean_seconds: float = 3600.0,
    movable: frozenset[Change] = frozenset(Change),
) -> tuple[JobToRun, ...]:
    """A mix of jobs: Poisson arrivals, log-normal lengths, owners who request too much or too little.

    Args:
        mean_seconds: median length with the requested pods.
    """
    random = np.random.default_rng(seed)
    arrivals = np.cumsum(random.exponential(mean_arrival_seconds, count))
    jobs = []
    for index in range(count):
        shape = ModelShape(
            batch_size=int(random.choice([256, 512, 1024])),
            dense_bytes=int(10 ** random.uniform(6, 8)),
            embedding_dimension=int(random.choice([8, 16, 32])),
        )
        asked = Allocation(
            workers=int(random.choice([1, 2, 4, 8])),
            parameter_servers=int(random.choice([1, 2, 4])),
            worker_cores=float(random.choice([1, 2, 4])),
            parameter_server_cores=float(random.choice([1, 2, 4])),
            worker_memory_bytes=2 * GIBIBYTE,
            parameter_server_memory_bytes=4 * GIBIBYTE,
        )
        shares = random.dirichlet([4.0, 1.0, 1.0, 1.0, 1.0])
        seconds = float(random.uniform(0.02, 0.2))
        job = JobToRun(
            job_id=f"job-{index:05d}",
            arrival_seconds=float(arrivals[index]),
            samples=asked.workers * shape.batch_size / seconds * mean_seconds * float(random.lognormal(0.0, 0.8)),
            shape=shape,
            coefficients=coefficients_of(shape, asked, seconds, tuple(map(float, shares / shares.sum()))),
            allocation=asked,
            limits=Limits(workers=(1, 32), parameter_servers=(1, 8)),
            movable=movable,
        )
        jobs.append(job)
    return tuple(jobs)
