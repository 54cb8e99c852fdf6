"""Simulated completion times against the papers' baselines: single jobs, mixed workloads, and cases in which others are
better.

    python -m benchmarks job_completion_time [--jobs 60] [--nodes 60] [--seeds 20] [--part NAME ...] [--output json]

* `alone`: DLRover-RM's Fig. 7 and 10: three jobs, each alone on 20 nodes of 32 cores, started with one worker. Elastic
  Scheduler and Optimus change one pod per round, as they do by default, two and four; `optimus_greedy` changes as many
  as pay.
* `mixed`: Fig. 14 and 15: jobs with the papers' shares of oversized pods, starved and hot servers, stragglers, and
  tables that outgrow their memory. Owners request too many workers as often as too few. «By hand» is a framework
  without elastrec.
* `truths`: the default policy against greedy Optimus in clusters that do not follow the policies' own model: servers
  are queues, or step times have the refined form.
* `workers`: the same if plans may change only workers, as for jobs whose file has limits only for these. Servers still
  get the memory that a forecast requires.
* `steady`: the number of jobs that settle near the speed of a policy that knows their model.
* `sensitivity`: the headlines if one assumption changes; above 0 we lose.

Headlines come from seeds with which nothing was chosen, with intervals (`common/headlines.py`). Parameters are the
papers' if they name them; the assumptions are in `simulator.mixes`.

What turns figures red: no plans of the front in `propose` of `platform/scaling/search/candidates.py` (`range(0)`: the
goals against Optimus and Elastic Scheduler).
"""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path
from typing import NamedTuple

import msgspec

from benchmarks.common.figures import Figure, run_benchmark
from benchmarks.common.headlines import (
    CORE_HOURS,
    HEADLINE_SEEDS,
    KNOWING,
    MEAN,
    MEDIAN,
    P90,
    SIDES,
    SYMMETRIC,
    TABLE_SEEDS,
    TRUTHS,
    WORKERS_ONLY,
    Jobs,
    against_greedy,
    compared,
    moved,
    out_of_memory,
    run_all,
    say,
    steady_share,
)
from benchmarks.common.simulated_jobs import (
    BY_HAND_SIDE,
    COLD,
    ELASTIC,
    GREEDY,
    GREEDY_WARM,
    LOOKUP_SHARES,
    OPTIMUS,
    OPTIMUS_2,
    OPTIMUS_4,
    OURS,
    OURS_WARM,
    STATIC,
    TROUBLED,
    TUNED,
    Side,
    paper_job,
)
from elastrec.platform.scaling.policies.elastic_scheduler import ElasticScheduler
from elastrec.platform.simulator.mixes import Habits, recurring
from elastrec.platform.simulator.settings import Settings

_PREFIX = "job_completion_time"
_PARTS = ("alone", "mixed", "truths", "workers", "steady", "sensitivity")
_ALONE_NODES = 20


def alone(seeds: int) -> list[Figure]:
    """Fig. 7: means over the three models and the seeds."""
    sides = {side.name: side for side in (OURS, ELASTIC, OPTIMUS, OPTIMUS_2, OPTIMUS_4, GREEDY)}
    for step in (2, 4):
        sides[f"elastic_scheduler_step_{step}"] = Side("", ElasticScheduler(step))
    times: dict[str, list[float]] = {name: [] for name in (*sides, "tuned")}
    for seed in HEADLINE_SEEDS[:seeds]:
        settings = Settings(seed=seed)
        for model in LOOKUP_SHARES:
            for name, side in sides.items():
                report = side.run([paper_job(model, COLD)], _ALONE_NODES, settings)
                times[name].append(report.jobs[0].completion_seconds)
            tuned = STATIC.run([paper_job(model, TUNED)], _ALONE_NODES, settings)
            times["tuned"].append(tuned.jobs[0].completion_seconds)
            say(
                f"seed {seed}, model {model}: "
                + ", ".join(f"{name} {each[-1] / 60:.1f}" for name, each in times.items())
            )
    ours = statistics.fmean(times["three_stage"])
    goals = {"elastic_scheduler": -17.7, "optimus": -28.5}
    settings_shown = {"models": "X, Y, Z", "seeds": seeds, "nodes": _ALONE_NODES, "start": str(COLD), "round_s": 180}
    found = []
    for name, each in times.items():
        minutes = round(statistics.fmean(each) / 60, 2)
        if name == "three_stage":
            found.append(
                Figure(f"{_PREFIX}.alone.minutes", minutes, "min", simulated=True, settings=settings_shown,
                       compared=True)
            )  # fmt: skip
        else:
            found.append(
                Figure(f"{_PREFIX}.alone.against_{name}", 100 * (ours / statistics.fmean(each) - 1), "%",
                       at_most=goals.get(name), simulated=True, settings={"their_minutes": minutes}, compared=True)
            )  # fmt: skip
    return found


def workloads(
    arguments: argparse.Namespace,
    habits: Habits = SYMMETRIC,
    every_seconds: float | None = None,
    seeds: int = len(HEADLINE_SEEDS),
) -> dict[int, Jobs]:
    """Jobs by seed; as many seeds as are asked for, at most `seeds`, with as many seconds between arrivals."""
    every = arguments.every if every_seconds is None else every_seconds
    count = min(arguments.seeds, seeds)
    return {seed: recurring(arguments.jobs, seed, habits, every) for seed in HEADLINE_SEEDS[:count]}


def _shown(arguments: argparse.Namespace) -> dict[str, object]:
    return {
        "jobs": arguments.jobs, "nodes": arguments.nodes, "every_s": arguments.every,
        "seeds": ", ".join(map(str, HEADLINE_SEEDS[: arguments.seeds])), "asks_beyond": SYMMETRIC.asks_beyond,
        "asked_spread": SYMMETRIC.asked_spread,
    }  # fmt: skip


def mixed(arguments: argparse.Namespace) -> list[Figure]:
    """Fig. 14 and 15."""
    reports = run_all(workloads(arguments), arguments.nodes, (*SIDES, GREEDY_WARM, KNOWING))
    if arguments.picture:
        from elastrec.platform.cli.commands.simulate_picture import png

        Path(arguments.picture).write_bytes(png([mine[0] for mine in reports.values()]))
    prefix, shown = f"{_PREFIX}.mixed", _shown(arguments)
    found = against_greedy(prefix, reports, shown)
    found += compared(prefix, reports, OURS_WARM, BY_HAND_SIDE, {MEDIAN: -25.0, P90: -30.0}, shown)
    for other in (OPTIMUS, OPTIMUS_2, OPTIMUS_4, STATIC):
        found += compared(prefix, reports, OURS, other, {}, {})
    found += compared(prefix, reports, KNOWING, GREEDY, {}, {})
    found += [out_of_memory(prefix, reports, side) for side in (OURS, OURS_WARM)]
    for what in ("worker_cpu", "server_cpu", "worker_memory", "server_memory"):
        mine, by_hand = (
            statistics.fmean(100 * each.figures()[f"{what}_share"] for each in reports[side.name])
            for side in (OURS_WARM, BY_HAND_SIDE)
        )
        found.append(
            Figure(f"{prefix}.{what}_in_use", mine, "% of what is held", simulated=True,
                   settings={"by_hand_%": round(by_hand, 1)}, compared=True)
        )  # fmt: skip
    return found


def truths(arguments: argparse.Namespace) -> list[Figure]:
    """The same if the measured step times do not have the form of the policies' model."""
    found = []
    for name, truth in TRUTHS.items():
        if name == "equation":
            continue
        jobs = {seed: truth(each) for seed, each in workloads(arguments).items()}
        reports = run_all(jobs, arguments.nodes, (GREEDY, OURS))
        found += compared(f"{_PREFIX}.truths.{name}", reports, OURS, GREEDY, {MEDIAN: -10.0, CORE_HOURS: 0.0}, {})
    return found


def workers(arguments: argparse.Namespace) -> list[Figure]:
    """With workers alone movable."""
    jobs = {
        seed: tuple(msgspec.structs.replace(job, movable=WORKERS_ONLY) for job in each)
        for seed, each in workloads(arguments).items()
    }
    reports = run_all(jobs, arguments.nodes, (BY_HAND_SIDE, OPTIMUS, GREEDY, OURS))
    goals = {MEDIAN: 0.0, MEAN: 0.0, CORE_HOURS: 0.0}
    prefix = f"{_PREFIX}.workers"
    found = compared(prefix, reports, OURS, GREEDY, goals, _shown(arguments))
    return found + compared(prefix, reports, OURS, OPTIMUS, {}, {}) + [out_of_memory(prefix, reports, OURS)]


def steady(arguments: argparse.Namespace) -> list[Figure]:
    """Under each truth, some jobs of every seed."""
    few = {
        seed: recurring(min(arguments.jobs, 40), seed, SYMMETRIC, arguments.every)
        for seed in HEADLINE_SEEDS[: arguments.seeds]
    }
    return [
        steady_share(f"{_PREFIX}.steady.{name}", {seed: truth(jobs) for seed, jobs in few.items()}, at_least=95.0)
        for name, truth in TRUTHS.items()
    ]


class Case(NamedTuple):
    """Differences from the mix.

    Attributes:
        nodes: factor of the number of nodes.
        every: factor of the seconds between two arrivals.
    """

    habits: Habits = SYMMETRIC
    settings: Settings = TROUBLED
    nodes: float = 1.0
    every: float = 1.0


def sensitivity(arguments: argparse.Namespace) -> list[Figure]:
    """Mean and core-hours against static and both kinds of Optimus when one thing differs; above 0 we lose."""
    calm, few = TROUBLED, msgspec.structs.replace
    exact = few(SYMMETRIC, asked_spread=0.0)
    cases = {
        "as_it_is": Case(),
        "owners_ask_for_too_little": Case(Habits()),
        "owners_who_know": Case(exact),
        "owners_who_miss_by_half": Case(few(SYMMETRIC, asked_spread=0.35)),
        "well_sized_owners": Case(few(exact, oversized_share=0.0, starved_server_share=0.0)),
        "noise_0.2": Case(settings=few(calm, noise=0.2)),
        "failures_x10": Case(settings=few(calm, hours_between_failures=160.0)),
        "start_and_pause_x3": Case(settings=few(calm, start_seconds=180.0, migration_pause_seconds=90.0)),
        "start_and_pause_900_s": Case(settings=few(calm, start_seconds=900.0, migration_pause_seconds=900.0)),
        "short_jobs": Case(few(SYMMETRIC, steps=20_000.0)),
        "headroom_2": Case(few(SYMMETRIC, headroom=2.0)),
        # Not half of the nodes: the largest jobs have as many pods, of which a node takes one, and would never start.
        "arrivals_x2": Case(every=0.5),
        "cluster_double": Case(nodes=2.0),
    }
    found = []
    for name, case in cases.items():
        count = round(case.nodes * arguments.nodes)
        jobs = workloads(arguments, case.habits, case.every * arguments.every, TABLE_SEEDS)
        reports = run_all(jobs, count, (STATIC, OPTIMUS, GREEDY, OURS), case.settings)
        shown = {"nodes": count, "every_s": case.every * arguments.every}
        found += moved(f"{_PREFIX}.sensitivity.{name}", reports, (STATIC, OPTIMUS, GREEDY), shown)
    return found


def measure(arguments: argparse.Namespace) -> list[Figure]:
    """Measures the requested parts."""
    parts = {"mixed": mixed, "truths": truths, "workers": workers, "steady": steady, "sensitivity": sensitivity}
    asked = arguments.part or _PARTS
    found = alone(min(arguments.seeds, TABLE_SEEDS)) if "alone" in asked else []
    for name, part in parts.items():
        if name in asked:
            found += part(arguments)
    return found


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--jobs", type=int, default=60, help="of every mixed workload (default 60)")
    parser.add_argument("--nodes", type=int, default=60, help="of its cluster, of 32 cores each (default 60)")
    parser.add_argument("--every", type=float, default=120.0, help="seconds between two arrivals (default 120)")
    parser.add_argument("--seeds", type=int, default=len(HEADLINE_SEEDS), choices=range(2, len(HEADLINE_SEEDS) + 1),
                        help=f"headline seeds; at most {TABLE_SEEDS} for `alone` and tables (default all)")  # fmt: skip
    parser.add_argument("--part", action="append", choices=_PARTS, help="default: all")
    parser.add_argument("--picture", help="PNG file for the mixed workload of the first seed")


if __name__ == "__main__":
    run_benchmark(__doc__, measure, add_options)
