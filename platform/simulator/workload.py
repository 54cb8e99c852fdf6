"""Jobs to simulate: a value, and a synthetic mix of them. Arrivals of your own are made the same way."""

from __future__ import annotations

import msgspec
import numpy as np

from elastrec.platform.scaling.amounts import GIBIBYTE, Allocation, Change, is_positive, require
from elastrec.platform.scaling.columns import TERMS, Columns, features
from elastrec.platform.scaling.types import Coefficients, Limits, ModelShape


class JobToRun(msgspec.Struct, frozen=True, kw_only=True):
    """One job as it is submitted, and how it truly behaves.

    Attributes:
        coefficients: of eq. 2–5; a policy never sees them, only times with noise.
        allocation: what its owner asks for.
    """

    job_id: str
    arrival_seconds: float
    samples: float
    shape: ModelShape
    coefficients: Coefficients
    allocation: Allocation
    limits: Limits = Limits()
    movable: frozenset[Change] = frozenset(Change)
    priority: float = 1.0
    team: str = "default"

    def __post_init__(self) -> None:
        require(is_positive(self.samples), f"{self.job_id}.samples", self.samples, "above 0", "correct the workload")
        arrival = self.arrival_seconds
        require(0 <= arrival < float("inf"), f"{self.job_id}.arrival_seconds", arrival, "0 or more", "correct it")

    def step_seconds(self, allocation: Allocation) -> float:
        """T_iter of eq. 1, without noise."""
        row = features(self.shape, Columns.of([allocation]))[0]
        terms = sum(getattr(self.coefficients, term) * value for term, value in zip(TERMS, row, strict=True))
        return float(terms + self.coefficients.fixed)


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
        alpha = shares[: len(TERMS)] * seconds / features(shape, Columns.of([asked]))[0]
        job = JobToRun(
            job_id=f"job-{index:05d}",
            arrival_seconds=float(arrivals[index]),
            samples=asked.workers * shape.batch_size / seconds * mean_seconds * float(random.lognormal(0.0, 0.8)),
            shape=shape,
            coefficients=Coefficients(
                **dict(zip(TERMS, map(float, alpha), strict=True)), fixed=float(shares[-1] * seconds)
            ),
            allocation=asked,
            limits=Limits(workers=(1, 32), parameter_servers=(1, 8)),
            movable=movable,
        )
        jobs.append(job)
    return tuple(jobs)
