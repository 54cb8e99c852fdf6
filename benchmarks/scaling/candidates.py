"""The quality and the time of the plan search of a round and of NSGA-II, compared with an exhaustive search, for one
job.

    python -m benchmarks candidates [--problems 50] [--output json]

Jobs and clusters are random, so the figures count as simulated; the search is that of the product. Each space has about
10^5 plans: more than production searches exhaustively, but few enough to do so here. The hypervolume is that of (cost,
−gain), with a reference point a tenth beyond the ends of the exact front.

What turns each figure red, in `coarse_front` of `platform/scaling/search/front.py`: no rounds among the neighbours of
the front, 0 instead of `settings.polish_rounds` (`hypervolume.least`); `exhaustive_front` in its place
(`cpu_seconds_to_exhaustive`).
"""

from __future__ import annotations

import argparse
import statistics
import time

import numpy as np

from benchmarks.common.figures import Figure, ratio, run_benchmark
from elastrec.platform.scaling.amounts import GIBIBYTE, Allocation, Capacity, PriceList, Resources
from elastrec.platform.scaling.model.columns import TERMS, Columns, features
from elastrec.platform.scaling.model.throughput import fit
from elastrec.platform.scaling.search.front import Front, SearchSettings, coarse_front, exhaustive_front
from elastrec.platform.scaling.search.genetic import genetic_front
from elastrec.platform.scaling.search.objectives import Situation
from elastrec.platform.scaling.search.pareto import hypervolume
from elastrec.platform.scaling.search.space import space_of
from elastrec.platform.scaling.types import JobProfile, Limits, MemoryNeed, ModelShape, Observation

_LIMITS = Limits(workers=(1, 24), parameter_servers=(1, 8), worker_cores=(0.5, 8), parameter_server_cores=(0.5, 8))


def problem(seed: int) -> tuple[Situation, Capacity]:
    """A job with known behaviour, a fitted model of it, and a cluster with some room."""
    random = np.random.default_rng(seed)

    def allocation(workers: int, servers: int, worker_cores: float, server_cores: float) -> Allocation:
        return Allocation(
            workers=workers,
            parameter_servers=servers,
            worker_cores=worker_cores,
            parameter_server_cores=server_cores,
            worker_memory_bytes=2 * GIBIBYTE,
            parameter_server_memory_bytes=4 * GIBIBYTE,
        )

    def drawn() -> Allocation:
        cores = random.choice([0.5, 1.0, 2.0, 4.0], size=2)
        return allocation(int(random.integers(1, 13)), int(random.integers(1, 7)), float(cores[0]), float(cores[1]))

    shape = ModelShape(batch_size=512, dense_bytes=int(10 ** random.uniform(6, 8)), embedding_dimension=16)
    now, seen = drawn(), [drawn() for _ in range(20)]
    shares = random.dirichlet([3.0, 1.0, 1.0, 1.0, 1.0])
    alpha = shares[: len(TERMS)] * 0.05 / features(shape, Columns.of([now]))[0]
    seconds = features(shape, Columns.of(seen)) @ alpha + shares[-1] * 0.05
    observations = tuple(
        Observation(allocation=each, iteration_seconds=float(step * np.exp(0.05 * random.standard_normal())))
        for each, step in zip(seen, seconds, strict=True)
    )
    job = JobProfile(
        job_id=str(seed),
        shape=shape,
        allocation=now,
        remaining_samples=float(10 ** random.uniform(8, 9)),
        observations=observations,
        memory=MemoryNeed(
            worker_bytes=GIBIBYTE,
            server_base_bytes=GIBIBYTE // 2,
            embedding_bytes=int(random.uniform(2, 20) * GIBIBYTE),
        ),
        limits=_LIMITS,
        until_next_change_seconds=600.0,
    )
    free = Resources(float(random.uniform(10, 200)), float(random.uniform(20, 800)) * GIBIBYTE)
    situation = Situation(job, fit(shape, observations), PriceList(core_hour=0.04, gibibyte_hour=0.005))
    return situation, Capacity(free=free)


def _covered(found: Front, exact: Front) -> float:
    """Hypervolume of one front over that of the exact one."""
    cost, loss = exact.outcomes.cost_per_hour, -exact.outcomes.gain
    reference = (float(cost.max() + 0.1 * np.ptp(cost)), float(loss.max() + 0.1 * np.ptp(loss)))
    ours = hypervolume(found.outcomes.cost_per_hour, -found.outcomes.gain, reference)
    return ours / hypervolume(cost, loss, reference)


def measure(arguments: argparse.Namespace) -> list[Figure]:
    """Least and median hypervolume, and seconds per job, over random problems."""
    covered, genetic, wall, cpu, genetic_cpu, exact_cpu, sizes, skipped = [], [], [], [], [], [], [], 0
    seed = 0
    while len(covered) < arguments.problems:
        situation, capacity = problem(seed)
        space = space_of(situation.job, capacity)
        began_cpu = time.process_time()
        exact = exhaustive_front(situation, capacity, space)
        exact_seconds = time.process_time() - began_cpu
        seed += 1
        if len(exact.points) < 5:
            # A job that is well off has no front to compare with.
            skipped += 1
            continue
        settings = SearchSettings(seed=seed)
        began, began_cpu = time.perf_counter(), time.process_time()
        found = coarse_front(situation, capacity, space, settings)
        wall.append(time.perf_counter() - began)
        cpu.append(time.process_time() - began_cpu)
        exact_cpu.append(exact_seconds)
        covered.append(_covered(found, exact))
        began_cpu = time.process_time()
        genetic.append(_covered(genetic_front(situation, capacity, space, settings), exact))
        genetic_cpu.append(time.process_time() - began_cpu)
        sizes.append(space.size)
    settings_shown = {
        "problems": len(covered), "skipped": skipped, "plans": round(statistics.median(sizes)),
        "coarse_points": SearchSettings().coarse_points, "polish_rounds": SearchSettings().polish_rounds,
    }  # fmt: skip
    return [
        Figure("candidates.hypervolume.least", min(covered), "of exhaustive", at_least=0.99, simulated=True,
               settings=settings_shown),
        Figure("candidates.hypervolume.median", statistics.median(covered), "of exhaustive", simulated=True),
        Figure("candidates.nsga2.hypervolume.least", min(genetic), "of exhaustive", simulated=True,
               settings={"population": SearchSettings().population, "generations": SearchSettings().generations}),
        Figure("candidates.nsga2.cpu_seconds_per_job", statistics.median(genetic_cpu), "CPU s"),
        Figure("candidates.cpu_seconds_to_exhaustive", ratio(cpu, exact_cpu), "of the exhaustive search's CPU seconds",
               at_most=0.5, settings=settings_shown),
        Figure("candidates.cpu_seconds_per_job", statistics.median(cpu), "CPU s",
               settings={**settings_shown, "most": round(max(cpu), 2), "wall_s": round(statistics.median(wall), 3)}),
    ]  # fmt: skip


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--problems", type=int, default=50, help="random problems (default 50)")


if __name__ == "__main__":
    run_benchmark(__doc__, measure, add_options)
