"""The quality of the greedy choice across jobs compared with the exact one, and its time for 10,000 jobs.

    python -m benchmarks selection [--instances 50] [--jobs 10000] [--candidates 20] [--output json]

Jobs are random, so the figures count as simulated; both algorithms are those of the product. Instances differ in size,
in the free share of the requested resources (5–80 %), in the scarce resource, and in ρ.
"""

from __future__ import annotations

import argparse
import statistics
import time

import numpy as np

from benchmarks.common.figures import Figure, run_benchmark
from elastrec.platform.scaling.across_jobs.selection import Weights, choose, exact, greedy, items_of
from elastrec.platform.scaling.amounts import GIBIBYTE, Allocation, Resources
from elastrec.platform.scaling.explain import plans_of
from elastrec.platform.scaling.types import Candidate, CandidateKind, Proposal

_ALLOCATION = Allocation(
    workers=2, parameter_servers=1, worker_cores=1.0, parameter_server_cores=1.0,
    worker_memory_bytes=2 * GIBIBYTE, parameter_server_memory_bytes=4 * GIBIBYTE,
)  # fmt: skip
_STAY = Candidate(
    allocation=_ALLOCATION, kind=CandidateKind.STAY, samples_per_second=0.0, gain=0.0, overhead=0.0,
    cost_per_hour=0.0, needs=Resources(),
)  # fmt: skip


def proposals(jobs: int, candidates: int, random: np.random.Generator) -> list[Proposal]:
    """Jobs with concave fronts: twice the resources bring less than twice the gain."""
    found = []
    for job in range(jobs):
        speed, elasticity = 10 ** random.uniform(3, 5), random.uniform(0.3, 0.95)
        cores = np.sort(random.uniform(0.5, 64, candidates))
        gib = cores * random.uniform(0.5, 8, candidates)
        gain = speed * ((1 + cores / 8) ** elasticity - 1) * random.uniform(0.9, 1.1, candidates)
        cost = 0.04 * cores + 0.005 * gib
        grow = tuple(
            Candidate(
                allocation=_ALLOCATION,
                kind=CandidateKind.GROW,
                samples_per_second=float(speed + g),
                gain=float(g),
                overhead=0.0,
                cost_per_hour=float(c),
                needs=Resources(float(k), float(m) * GIBIBYTE),
            )
            for g, c, k, m in zip(gain, cost, cores, gib, strict=True)
        )
        found.append(
            Proposal(
                job_id=str(job),
                allocation=_ALLOCATION,
                remaining_samples=float(speed * 10 ** random.uniform(2, 4.5)),
                samples_per_second=float(speed),
                candidates=(_STAY, *grow),
                priority=float(random.choice([0.5, 1.0, 2.0])),
            )
        )
    return found


def quality(instances: int) -> list[Figure]:
    """Value of the greedy choice over that of the exact one."""
    ratios, milliseconds, exact_milliseconds = [], [], []
    for seed in range(instances):
        random = np.random.default_rng(seed)
        jobs = proposals(int(random.integers(5, 60)), int(random.integers(3, 12)), random)
        items = items_of(jobs, Weights(rho=float(random.choice([0.0, 0.5, 1.0, 2.5]))))
        wanted = {name: getattr(items, name).sum() / 6 for name in ("cores", "memory_bytes")}
        free = Resources(*(float(amount * random.uniform(0.05, 0.8)) for amount in wanted.values()))
        began = time.process_time()
        ours = items.value[greedy(items, free)].sum()
        milliseconds.append(1e3 * (time.process_time() - began))
        began = time.process_time()
        best = items.value[exact(items, free)].sum()
        exact_milliseconds.append(1e3 * (time.process_time() - began))
        ratios.append(float(ours / best))
    settings = {"instances": instances, "jobs": "5–59", "candidates": "3–11", "rho": "0, 0.5, 1, 2.5"}
    timing = {"greedy_cpu_ms": round(statistics.median(milliseconds), 2),
              "exact_cpu_ms": round(statistics.median(exact_milliseconds), 2)}  # fmt: skip
    return [
        Figure("selection.greedy_value.least", min(ratios), "of MILP", at_least=0.95, simulated=True,
               settings={**settings, **timing}),
        Figure("selection.greedy_value.median", statistics.median(ratios), "of MILP", simulated=True),
    ]  # fmt: skip


def speed(jobs: int, candidates: int, rounds: int) -> list[Figure]:
    """CPU seconds to choose from many jobs, and to explain every candidate of all of them."""
    made = proposals(jobs, candidates, np.random.default_rng(0))
    free = Resources(jobs * 4.0, jobs * 16.0 * GIBIBYTE)
    chosen_in, explained_in, wall = [], [], []
    for _ in range(rounds):
        began, began_wall = time.process_time(), time.perf_counter()
        choice = choose(made, free)
        chosen_in.append(time.process_time() - began)
        wall.append(time.perf_counter() - began_wall)
        began = time.process_time()
        plans_of("three-stage", made, choice, free, Weights())
        explained_in.append(time.process_time() - began)
    settings = {
        "jobs": jobs, "candidates": candidates, "changed": sum(map(bool, choice.chosen)), "rounds": rounds,
        "wall_s": round(statistics.median(wall), 3),
    }  # fmt: skip
    return [
        Figure("selection.cpu_seconds", statistics.median(chosen_in), "CPU s", at_most=1.0, settings=settings),
        Figure("selection.cpu_seconds_to_explain_all", statistics.median(explained_in), "CPU s", settings=settings),
    ]


def measure(arguments: argparse.Namespace) -> list[Figure]:
    """Both parts."""
    return [*quality(arguments.instances), *speed(arguments.jobs, arguments.candidates, arguments.rounds)]


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--instances", type=int, default=50, help="instances compared with MILP (default 50)")
    parser.add_argument("--jobs", type=int, default=10_000)
    parser.add_argument("--candidates", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=5)


if __name__ == "__main__":
    run_benchmark(__doc__, measure, add_options)
