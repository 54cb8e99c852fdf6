"""Simulated workloads whose jobs arrive as on a shared cluster: by day and night, and many at once.

    python -m benchmarks arrival_traces [--jobs 60] [--nodes 72] [--seeds 20] [--trace FILE --time-unit 60]
        [--speed 1000] [--many 30000] [--only sensitivity] [--output json]

Arrivals are generated: a rate that follows the hour of the day, and bursts in which one person submits many jobs within
minutes. `--trace` uses a window of a trace's arrivals for each seed instead (columns `submit_time` or
`arrival_seconds`). Jobs are those of `job_completion_time`: owners request too many workers as often as too few. The
goals are the same, on workloads with which nothing was chosen (`common/headlines.py`).

`sensitivity` is the change of the headlines if one assumption changes: the size of the cluster, the duration of starts
and pauses, or the noise of measurements; against Optimus with one, two and four pods per round and the greedy one.
Above 0, the other policy is better.

`speed` is the number of jobs that a CPU minute simulates, with the default policy asked about every job in every round,
and with a patience of eight rounds. It is measured over a whole simulation. A thousand jobs are a day and a half of
arrivals; the 30,000 of `many_jobs` are six weeks, as in a trace of real size, and hundreds of them wait at once. A
simulation with unfinished jobs has no speed.

What turns figures red: no plans of the front in `propose` of `platform/scaling/search/candidates.py` (`range(0)`: the
goals against Optimus).
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np

from benchmarks.common.figures import Figure, run_benchmark
from benchmarks.common.headlines import (
    CORE_HOURS,
    HEADLINE_SEEDS,
    KNOWING,
    MEAN,
    MEDIAN,
    P90,
    SYMMETRIC,
    TABLE_SEEDS,
    WORKERS_ONLY,
    Jobs,
    against_greedy,
    compared,
    moved,
    out_of_memory,
    run_all,
)
from benchmarks.common.simulated_jobs import (
    BY_HAND_SIDE,
    GREEDY,
    GREEDY_WARM,
    OPTIMUS,
    OPTIMUS_2,
    OPTIMUS_4,
    OURS,
    OURS_WARM,
    TROUBLED,
    change,
)
from elastrec.platform.jobs.what_if.job_table import read_arrivals
from elastrec.platform.simulator.mixes import recurring
from elastrec.platform.simulator.report import Report
from elastrec.platform.simulator.workload import JobToRun

_PREFIX = "arrival_traces"
_LOADING = 8
"""Jobs with which kernels are loaded."""
_DAY_SECONDS = 86_400.0
_SWING = 0.8
"""Of the rate over a day: at night a ninth of the rate at noon (assumed)."""
_BURST_SHARE, _BURST_JOBS, _BURST_SECONDS = 0.2, 6.0, 300.0
"""One arrival in five is a sweep, of so many jobs in the mean, spread over so many seconds (assumed)."""


def bursty(count: int, seed: int, every_seconds: float) -> list[float]:
    """Rising seconds of arrivals, the first at 0; `every_seconds` is the mean between two jobs over a whole day."""
    random = np.random.default_rng([seed, 11])
    jobs_per_arrival = 1.0 + _BURST_SHARE * (_BURST_JOBS - 1.0)
    highest, found, now = (1.0 + _SWING) / (every_seconds * jobs_per_arrival), list[float](), 0.0
    while len(found) < count:
        # Thinning (Lewis and Shedler 1979): arrivals at the highest rate, each kept with the share that the hour has.
        now += float(random.exponential(1.0 / highest))
        share = (1.0 - _SWING * np.cos(2 * np.pi * now / _DAY_SECONDS)) / (1.0 + _SWING)
        if random.uniform() >= share:
            continue
        jobs = int(random.geometric(1.0 / _BURST_JOBS)) if random.uniform() < _BURST_SHARE else 1
        found += (now + _BURST_SECONDS * random.uniform(size=jobs)).tolist() if jobs > 1 else [now]
    rising = sorted(found)[:count]
    return [each - rising[0] for each in rising]


def window(arrivals: Sequence[float], count: int, seed: int) -> list[float]:
    """A number of consecutive arrivals of a trace from a random position, with the first one at 0.

    Raises:
        ValueError: the trace has fewer.
    """
    if len(arrivals) < count:
        raise ValueError(f"the trace has {len(arrivals)} arrivals; allowed: at least the {count} jobs; ask for fewer")
    first = int(np.random.default_rng([seed, 13]).integers(len(arrivals) - count + 1))
    return [each - arrivals[first] for each in arrivals[first : first + count]]


def workloads(arguments: argparse.Namespace, seeds: int) -> dict[int, Jobs]:
    """Jobs by seed, of so many seeds."""
    trace = read_arrivals(Path(arguments.trace), arguments.time_unit) if arguments.trace else None
    found = {}
    for seed in HEADLINE_SEEDS[:seeds]:
        count = arguments.jobs
        arrivals = bursty(count, seed, arguments.every) if trace is None else window(trace, count, seed)
        found[seed] = recurring(count, seed, SYMMETRIC, arrivals=arrivals)
    return found


def headlines(arguments: argparse.Namespace) -> list[Figure]:
    """The goals, where everything is movable and where workers are."""
    jobs = workloads(arguments, arguments.seeds)
    shown = {"jobs": arguments.jobs, "nodes": arguments.nodes, "seeds": arguments.seeds,
             "arrivals": "a trace" if arguments.trace else "made"}  # fmt: skip
    sides = (BY_HAND_SIDE, OPTIMUS, OPTIMUS_4, GREEDY, GREEDY_WARM, OURS, OURS_WARM, KNOWING)
    reports = run_all(jobs, arguments.nodes, sides)
    found = against_greedy(_PREFIX, reports, shown)
    found += compared(_PREFIX, reports, OURS_WARM, BY_HAND_SIDE, {MEDIAN: -25.0, P90: -30.0}, shown)
    for other in (OPTIMUS, OPTIMUS_4):
        found += compared(_PREFIX, reports, OURS, other, {}, {})
    found += compared(_PREFIX, reports, KNOWING, GREEDY, {}, {})
    found += [out_of_memory(_PREFIX, reports, side) for side in (OURS, OURS_WARM)]
    few = {
        seed: tuple(msgspec.structs.replace(job, movable=WORKERS_ONLY) for job in each) for seed, each in jobs.items()
    }
    reports = run_all(few, arguments.nodes, (GREEDY, OURS))
    goals = {MEDIAN: 0.0, MEAN: 0.0, CORE_HOURS: 0.0}
    return found + compared(f"{_PREFIX}.workers", reports, OURS, GREEDY, goals, shown)


def sensitivity(arguments: argparse.Namespace) -> list[Figure]:
    """The same jobs on another cluster, or with other habits of it."""
    jobs, other = workloads(arguments, min(arguments.seeds, TABLE_SEEDS)), msgspec.structs.replace
    cases = {
        "as_it_is": (1.0, TROUBLED),
        # No smaller one: the largest jobs would never start (`--nodes`).
        "cluster_double": (2.0, TROUBLED),
        "start_and_pause_x3": (1.0, other(TROUBLED, start_seconds=180.0, migration_pause_seconds=90.0)),
        "noise_0.2": (1.0, other(TROUBLED, noise=0.2)),
    }
    others, found = (OPTIMUS, OPTIMUS_2, OPTIMUS_4, GREEDY), list[Figure]()
    for name, (times, settings) in cases.items():
        nodes = round(times * arguments.nodes)
        reports = run_all(jobs, nodes, (*others, OURS), settings)
        found += moved(f"{_PREFIX}.sensitivity.{name}", reports, others, {"nodes": nodes, "jobs": arguments.jobs})
    return found


def _simulated(jobs: Sequence[JobToRun], patience: int, seed: int, nodes: int) -> tuple[Report, float]:
    """What came out of the default policy, and the CPU seconds that it took."""
    settings = msgspec.structs.replace(
        TROUBLED, seed=seed, patience_rounds=patience,
        until_seconds=jobs[-1].arrival_seconds + TROUBLED.until_seconds,
    )  # fmt: skip
    before = time.process_time()
    report = OURS.run(jobs, nodes, settings)
    return report, time.process_time() - before


def speed(arguments: argparse.Namespace) -> list[Figure]:
    """Jobs per CPU minute on the first headline seed, with the policy asked in every round, and with patience; with
    patience, also for a trace of real size, in which more jobs wait at once."""
    seed, found, reports = HEADLINE_SEEDS[0], [], []
    few, many = (
        recurring(count, seed, SYMMETRIC, arrivals=bursty(count, seed, arguments.every))
        for count in (arguments.speed, arguments.many)
    )
    # Kernels are loaded, or compiled, before anything is measured.
    _simulated(few[:_LOADING], 1, seed, arguments.nodes)
    for name, jobs, patience in (("every_round", few, 1), ("patient", few, 8), ("many_jobs", many, 8)):
        report, seconds = _simulated(jobs, patience, seed, arguments.nodes)
        reports.append(report)
        shown = {"jobs": len(jobs), "nodes": arguments.nodes, "cpu_s": round(seconds, 1)}
        if name == "patient":
            shown["mean_differs_%"] = round(change(report, reports[0], MEAN), 2)
        # 30,000 jobs in three CPU minutes.
        found.append(
            Figure(f"{_PREFIX}.speed.{name}", 60 * len(jobs) / seconds, "jobs per CPU minute", at_least=10_000.0,
                   simulated=True, settings=shown)
        )  # fmt: skip
    return found


def measure(arguments: argparse.Namespace) -> list[Figure]:
    """The headlines, their sensitivity, and the speed of the simulation."""
    parts = {"headlines": headlines, "sensitivity": sensitivity, "speed": speed}
    return [figure for part in arguments.only or parts for figure in parts[part](arguments)]


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--jobs", type=int, default=60, help="of every workload (default 60)")
    parser.add_argument("--nodes", type=int, default=72,
                        help="of its cluster, of 32 cores each; the largest job takes 65 (default 72)")  # fmt: skip
    parser.add_argument("--every", type=float, default=120.0, help="mean seconds between two jobs (default 120)")
    parser.add_argument("--seeds", type=int, default=len(HEADLINE_SEEDS), choices=range(2, len(HEADLINE_SEEDS) + 1),
                        help=f"headline seeds; at most {TABLE_SEEDS} for tables (default: all)")  # fmt: skip
    parser.add_argument("--trace", help="CSV file whose arrivals are taken")
    parser.add_argument("--time-unit", type=float, default=1.0, help="seconds that the trace counts in (default 1)")
    parser.add_argument("--speed", type=int, default=1000, help="jobs of the speed figures (default 1000)")
    parser.add_argument("--many", type=int, default=30_000, help="jobs of the figure `many_jobs` (default 30000)")
    parser.add_argument("--only", nargs="+", choices=("headlines", "sensitivity", "speed"),
                        help="some parts (default: all)")  # fmt: skip


if __name__ == "__main__":
    run_benchmark(__doc__, measure, add_options)
