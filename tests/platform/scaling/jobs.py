"""Jobs with known true behaviour, for the evaluation of plans."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

from elastrec.platform.scaling.amounts import Allocation, Capacity, PriceList, Resources
from elastrec.platform.scaling.model.columns import TERMS, Columns, features
from elastrec.platform.scaling.model.least_squares import fit_plain, rmsle
from elastrec.platform.scaling.model.profile import summarise
from elastrec.platform.scaling.model.step_form import Form
from elastrec.platform.scaling.model.throughput import ThroughputModel, fit
from elastrec.platform.scaling.search.objectives import Situation
from elastrec.platform.scaling.types import Coefficients, JobProfile, ModelShape, Observation

GIB = 2**30
SHAPE = ModelShape(batch_size=512, dense_bytes=10_000_000, embedding_dimension=16)
PRICES = PriceList(core_hour=0.04, gibibyte_hour=0.005)
PLENTY = Capacity(free=Resources(1000.0, 4000.0 * GIB))


def allocation(workers: int = 2, servers: int = 1, worker_cores: float = 1.0, server_cores: float = 1.0) -> Allocation:
    return Allocation(
        workers=workers,
        parameter_servers=servers,
        worker_cores=worker_cores,
        parameter_server_cores=server_cores,
        worker_memory_bytes=2 * GIB,
        parameter_server_memory_bytes=4 * GIB,
    )


def coefficients(shares: Sequence[float] = (0.6, 0.1, 0.05, 0.15, 0.1), seconds: float = 0.05) -> Coefficients:
    """Such that one worker and one server of one core take these shares of `seconds`, in the order TERMS, fixed."""
    row = features(SHAPE, Columns.of([allocation(1, 1)]))[0]
    values = {term: float(share * seconds / each) for term, share, each in zip(TERMS, shares, row, strict=False)}
    return Coefficients(**values, fixed=shares[4] * seconds)


def plain_rmsle(shape: ModelShape, observations: Sequence[Observation]) -> float:
    """Of plain NNLS on the measured steps, which a fit is compared with."""
    profile = summarise(observations)
    rows_CK, seconds_C = Form().rows(shape, profile.columns), profile.iteration_seconds
    return rmsle(rows_CK, seconds_C, fit_plain(rows_CK, seconds_C))


def step_seconds(true: Coefficients, of: Allocation) -> float:
    row = features(SHAPE, Columns.of([of]))[0]
    return float(sum(getattr(true, term) * each for term, each in zip(TERMS, row, strict=True)) + true.fixed)


def speed(true: Coefficients, of: Allocation) -> float:
    return of.workers * SHAPE.batch_size / step_seconds(true, of)


def measure(
    true: Coefficients, allocations: Sequence[Allocation], noise: float = 0.0, seed: int = 0, compute: bool = False
) -> tuple[Observation, ...]:
    random = np.random.default_rng(seed)
    found = []
    for each in allocations:
        factor = float(np.exp(noise * random.standard_normal()))
        row = features(SHAPE, Columns.of([each]))[0]
        part = (true.gradient * row[0] + (true.compute_fixed or 0.0)) * factor if compute else None
        found.append(
            Observation(allocation=each, iteration_seconds=step_seconds(true, each) * factor, compute_seconds=part)
        )
    return tuple(found)


def spread(count: int = 12, seed: int = 0) -> list[Allocation]:
    """Different configurations that determine every coefficient."""
    random = np.random.default_rng(seed)
    return [
        allocation(
            int(random.integers(1, 17)),
            int(random.integers(1, 9)),
            float(random.choice([0.5, 1, 2, 4, 8])),
            float(random.choice([0.25, 0.5, 1, 2, 4])),
        )
        for _ in range(count)
    ]


def known_model(true: Coefficients | None = None) -> ThroughputModel:
    return fit(SHAPE, measure(true or coefficients(), spread(20)))


def profile(**changes: Any) -> JobProfile:
    job = JobProfile(
        job_id="job",
        shape=SHAPE,
        allocation=allocation(),
        remaining_samples=1e9,
        observations=measure(coefficients(), spread(20)),
        until_next_change_seconds=600.0,
    )
    return msgspec.structs.replace(job, **changes)


def situation(true: Coefficients | None = None, **changes: Any) -> Situation:
    """Of a job that has trained with nothing but what it has, and whose model is known all the same."""
    return Situation(profile(**({"observations": ()} | changes)), known_model(true), PRICES)


def horizon_seconds(asked: Situation) -> float:
    """h of `objectives`, for a plan that does not change the speed."""
    now: Any = asked.present(asked.rules.payback_seconds)
    return float(min(now.remaining / now.speed, now.payback))
