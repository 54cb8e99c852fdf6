"""Workloads that are made up: equal seeds give equal jobs.

`synthetic` is for trying things out. `recurring` is a month of teams that train their models again and again, with the
habits that DLRover-RM reports of one production cluster; whatever the paper does not say is an argument or stated here.
"""

from __future__ import annotations

import math

import numpy as np

from elastrec.platform.scaling.amounts import GIBIBYTE, Allocation, Change, require
from elastrec.platform.scaling.columns import TERMS, Columns, features
from elastrec.platform.scaling.types import Coefficients, Limits, ModelShape
from elastrec.platform.simulator.workload import JobToRun

_MEMORY_STEP = 256 * 2**20


def coefficients_of(
    shape: ModelShape, allocation: Allocation, seconds: float, shares: tuple[float, ...]
) -> Coefficients:  # fmt: skip
    """Coefficients with which a step of this allocation takes so long, and its parts have these shares of it.

    Args:
        shares: of TERMS, then of the fixed part; they add up to 1.
    """
    require(
        len(shares) == len(TERMS) + 1 and math.isclose(sum(shares), 1.0, rel_tol=1e-6) and min(shares) >= 0,
        "shares", shares, "five shares that add up to 1", "compute, update, network, lookup, fixed",
    )  # fmt: skip
    row = features(shape, Columns.of([allocation]))[0]
    alpha = {
        term: share * seconds / float(feature) if feature else 0.0
        for term, share, feature in zip(TERMS, shares, row, strict=False)
    }
    return Coefficients(**alpha, fixed=shares[-1] * seconds)


def synthetic(
    count: int,
    seed: int = 0,
    mean_arrival_seconds: float = 60.0,
    mean_seconds: float = 3600.0,
    movable: frozenset[Change] = frozenset(Change),
) -> tuple[JobToRun, ...]:
    """A mix of jobs: Poisson arrivals, log-normal lengths, owners who ask for too much or too little.

    Args:
        mean_seconds: median length with what the owner asks for.
    """
    require(count >= 1, "count", count, "at least 1", "give a number of jobs")
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
