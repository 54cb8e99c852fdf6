"""Synthetic workloads: equal seeds give equal jobs.

`recurring` is a month of teams that train their models again and again, with the statistics of DLRover-RM's production
cluster; assumptions beyond the paper are arguments or documented here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec
import numpy as np

from elastrec.platform.scaling.amounts import CORES_STEP, GIBIBYTE, MEMORY_STEP, Allocation, require
from elastrec.platform.scaling.model.columns import TERMS, Columns, features
from elastrec.platform.scaling.types import Coefficients, Limits, ModelShape
from elastrec.platform.scaling.warm_start import Features
from elastrec.platform.simulator.memory import MemoryTruth
from elastrec.platform.simulator.speed import service_of, steps_of
from elastrec.platform.simulator.workload import JobToRun


def coefficients_of(
    shape: ModelShape, allocation: Allocation, seconds: float, shares: tuple[float, ...]
) -> Coefficients:  # fmt: skip
    """Coefficients with which a step of this allocation has a given time, and its parts have these shares of it.

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


def with_queues(jobs: Sequence[JobToRun]) -> tuple[JobToRun, ...]:
    """The same jobs with servers that are queues; with its first owner's allocation, each job takes as long as
    before."""
    known: dict[Coefficients, float] = {}
    for job in jobs:
        if job.coefficients not in known:
            step = steps_of(job.shape, job.coefficients)(job.allocation)
            known[job.coefficients] = service_of(step, job.allocation.workers)
    return tuple(msgspec.structs.replace(job, service=known[job.coefficients]) for job in jobs)


def refined(jobs: Sequence[JobToRun], overlap: float = 2.0, request_share: float = 0.02) -> tuple[JobToRun, ...]:
    """The same jobs with steps of the refined form: parts overlap, and every request has a cost at both ends.

    Args:
        request_share: of a step, with a model's first owner's allocation, at either end (assumed).
    """
    known: dict[Coefficients, Coefficients] = {}
    for job in jobs:
        if job.coefficients in known:
            continue
        plain, now = job.coefficients, job.allocation
        seconds = steps_of(job.shape, plain)(now).seconds
        form = msgspec.structs.replace(
            plain,
            overlap=overlap,
            fan_out=request_share * seconds * now.worker_cores / now.parameter_servers,
            fan_in=request_share * seconds * now.parameter_server_cores / now.workers,
        )
        known[plain] = form.at_level(seconds / steps_of(job.shape, form)(now).seconds)
    return tuple(msgspec.structs.replace(job, coefficients=known[job.coefficients]) for job in jobs)


def features_of(name: str, shape: ModelShape, samples: float, architecture: str = "") -> Features:
    """Features for warm start: those of real jobs, as far as a simulated one has them."""
    return Features(
        categories={"name": name, "architecture": architecture},
        numbers={
            "training_rows": samples,
            "batch_size": float(shape.batch_size),
            "embedding_dimension": float(shape.embedding_dimension),
        },
    )


class Habits(msgspec.Struct, frozen=True, kw_only=True):
    """The statistics of a cluster's owners and models; `recurring` generates jobs from them.

    Attributes:
        models, teams: number of models that are trained repeatedly, and of their teams.
        steps: median of a job's steps, all workers together, and `steps_spread` of its logarithm between models (the
            paper's jobs have 200,000, §6); `again_spread` from one day of a model to the next.
        lookup_share: bounds of a step's share in the well-tuned allocation (§2.2: 30–48 %).
        headroom: limit of plans and of owners' requests, as a multiple of a job's well-tuned workers and servers. 1:
            «tuned until they almost reached the best throughput» (§6.1), so that more gives no gain.
        asked_spread: standard deviation of the logarithm of an owner's error in the number of workers (assumed).
        asks_beyond: limit of owners' requests, as a multiple of the workers that plans may give (assumed): 1, requests
            are only ever too small; 4, they are as often too large as too small.
        oversized_share, oversize: share of the models whose pods have more cores and memory than they use, and the
            bounds of the excess factor (§2.2: more than 80 % of the jobs use less than half).
        starved_server_share: share of the models whose servers have a quarter of the cores that they need (§6.3: 6 %).
        short_memory_share: share of the jobs whose tables exceed the memory in their job files (table 4: 4.7 %).
    """

    models: int = 40
    teams: int = 8
    steps: float = 200_000.0
    steps_spread: float = 0.7
    again_spread: float = 0.1
    batch_size: int = 512
    lookup_share: tuple[float, float] = (0.30, 0.48)
    headroom: float = 1.0
    asked_spread: float = 0.7
    asks_beyond: float = 1.0
    oversized_share: float = 0.8
    oversize: tuple[float, float] = (2.0, 5.0)
    starved_server_share: float = 0.06
    short_memory_share: float = 0.047

    def __post_init__(self) -> None:
        require(self.models >= self.teams >= 1, "habits.models, teams", (self.models, self.teams), "1 ≤ teams ≤ models",
                "every team has a model")  # fmt: skip
        for name in ("oversized_share", "starved_server_share", "short_memory_share"):
            value = getattr(self, name)
            require(0 <= value <= 1, f"habits.{name}", value, "a share of 0 to 1", "correct the habits")


class _Model(msgspec.Struct, frozen=True):
    """A model that a team trains every day; `tuned` is its well-tuned allocation."""

    name: str
    team: str
    shape: ModelShape
    coefficients: Coefficients
    tuned: Allocation
    steps: float
    exponent: float
    bytes_at_tuned: float


def recurring(
    count: int,
    seed: int = 0,
    habits: Habits | None = None,
    mean_arrival_seconds: float = 43.2,
    arrivals: Sequence[float] | None = None,
) -> tuple[JobToRun, ...]:
    """Jobs of a few models, each trained many times with rows that differ from day to day.

    Args:
        mean_arrival_seconds: Poisson arrivals; 43.2 s are the paper's 2000 jobs per day.
        arrivals: instead of Poisson arrivals, rising seconds since the beginning, for example from a trace.
    """
    habits = habits or Habits()
    require(count >= 1, "count", count, "at least 1", "give a number of jobs")
    if arrivals is not None:
        enough = len(arrivals) >= count
        require(enough, "arrivals", f"{len(arrivals)} arrivals", f"at least the {count} jobs", "ask for fewer jobs")
    random = np.random.default_rng([seed, 7])
    models = [_model(index, habits, random) for index in range(habits.models)]
    at = np.asarray(arrivals) if arrivals is not None else np.cumsum(random.exponential(mean_arrival_seconds, count))
    return tuple(_job(index, float(at[index]), models, habits, random) for index in range(count))


def _model(index: int, habits: Habits, random: np.random.Generator) -> _Model:
    shape = ModelShape(
        batch_size=habits.batch_size, dense_bytes=10_000_000, embedding_dimension=int(random.choice([8, 16, 32]))
    )
    tuned = Allocation(
        workers=int(random.choice([4, 8, 16])), parameter_servers=int(random.choice([2, 4])),
        worker_cores=4.0, parameter_server_cores=4.0,
        worker_memory_bytes=4 * GIBIBYTE, parameter_server_memory_bytes=8 * GIBIBYTE,
    )  # fmt: skip
    lookup = float(random.uniform(*habits.lookup_share))
    # Assumed: a tenth each for updates of servers and for the fixed part, a twentieth for dense parameters.
    shares = (1.0 - 0.25 - lookup, 0.1, 0.05, lookup, 0.1)
    return _Model(
        name=f"model-{index:03d}",
        team=f"team-{index % habits.teams}",
        shape=shape,
        coefficients=coefficients_of(shape, tuned, float(random.uniform(0.08, 0.16)), shares),
        tuned=tuned,
        steps=habits.steps * float(random.lognormal(0.0, habits.steps_spread)),
        exponent=float(random.uniform(0.5, 0.9)),
        bytes_at_tuned=float(random.uniform(0.4, 0.8)) * tuned.parameter_server_memory_bytes,
    )


def _job(
    index: int, arrival: float, models: Sequence[_Model], habits: Habits, random: np.random.Generator
) -> JobToRun:  # fmt: skip
    model = models[int(random.integers(len(models)))]
    samples = model.steps * habits.batch_size * float(random.lognormal(0.0, habits.again_spread))
    tuned, shape = model.tuned, model.shape
    # Job files are written by different people, so that the error is drawn for every job.
    most = (round(tuned.workers * habits.headroom), round(tuned.parameter_servers * habits.headroom))
    most_asked = round(most[0] * habits.asks_beyond)
    workers = min(max(1, round(tuned.workers * float(random.lognormal(0.0, habits.asked_spread)))), most_asked)
    oversize = float(random.uniform(*habits.oversize)) if random.uniform() < habits.oversized_share else 1.0
    starved = 0.25 if random.uniform() < habits.starved_server_share else oversize
    is_short = random.uniform() < habits.short_memory_share
    worker_cores = _stepped(tuned.worker_cores * oversize, CORES_STEP)
    server_cores = _stepped(tuned.parameter_server_cores * starved, CORES_STEP)
    used = model.bytes_at_tuned
    short = float(random.uniform(0.5, 0.9))
    given = used * short if is_short else max(1.25, oversize) * used
    memory = MemoryTruth(
        worker_bytes=1.5 * GIBIBYTE, server_base_bytes=0.05 * used, bytes_per_row=136.0, exponent=model.exponent,
        rows_scale=0.95 * used * tuned.parameter_servers / (1.1 * 136.0) / samples**model.exponent,
    )  # fmt: skip
    return JobToRun(
        job_id=f"{model.name}-{index:05d}",
        arrival_seconds=arrival,
        samples=samples,
        shape=shape,
        coefficients=model.coefficients,
        allocation=Allocation(
            workers=workers,
            parameter_servers=tuned.parameter_servers,
            worker_cores=worker_cores,
            parameter_server_cores=server_cores,
            worker_memory_bytes=math.ceil(2 * GIBIBYTE * oversize),
            parameter_server_memory_bytes=max(1, math.ceil(given / MEMORY_STEP)) * MEMORY_STEP,
        ),
        limits=Limits(workers=(1, max(most[0], workers)), parameter_servers=(1, most[1])),
        team=model.team,
        memory=memory,
        features=features_of(model.name, shape, samples),
    )


def _stepped(value: float, step: float) -> float:
    return max(step, round(value / step) * step)
