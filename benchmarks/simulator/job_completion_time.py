"""Simulated completion times against the papers' baselines: single jobs, a mixed workload, and where we lose.

    python -m benchmarks job_completion_time [--jobs 400] [--nodes 100] [--seeds 3] [--arrivals TRACE.csv]
        [--seed 0] [--part alone] [--part mixed] [--part sensitivity] [--picture FILE] [--output json]

`alone` is DLRover-RM's Fig. 7 and 10: each of three jobs by itself on 20 nodes of 32 cores, started from one worker;
elastic-scheduler and Optimus change one pod per round of three minutes, as they ship, and two and four for comparison.
`mixed` is Fig. 14 and 15: jobs with the paper's shares of oversized pods, starved and hot servers, stragglers, and
tables that outgrow their memory; «by hand» is a framework without elastrec. A well-tuned job is taken to have nothing
to gain beyond (`headroom` 1). `--arrivals` takes the times of arrival from a trace in minutes. The parameters are the
papers' where they have them, and assumptions that stand in `simulator.mixes` where they do not.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.common.figures import Figure, run_benchmark
from benchmarks.common.simulated_jobs import (
    BY_HAND_SIDE,
    COLD,
    ELASTIC,
    LOOKUP_SHARES,
    OPTIMUS,
    OURS,
    OURS_WARM,
    STATIC,
    TROUBLED,
    TUNED,
    Side,
    change,
    described,
    paper_job,
)
from elastrec.platform.jobs.what_if.job_table import read_arrivals
from elastrec.platform.scaling.policies.elastic_scheduler import ElasticScheduler
from elastrec.platform.scaling.policies.optimus import Optimus
from elastrec.platform.simulator.mixes import Habits, recurring
from elastrec.platform.simulator.report import Report
from elastrec.platform.simulator.settings import Settings
from elastrec.platform.simulator.workload import JobToRun

_PREFIX = "job_completion_time"
_PARTS = ("alone", "mixed", "sensitivity")
_ALONE_NODES = 20
_MEAN, _MEDIAN, _P90 = "completion_seconds_mean", "completion_seconds_median", "completion_seconds_p90"


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def alone(seeds: int) -> list[Figure]:
    """Fig. 7: means over the three models and the seeds."""
    sides = {side.name: side for side in (OURS, ELASTIC, OPTIMUS)}
    for step in (2, 4):
        sides[f"elastic_scheduler_step_{step}"] = Side("", ElasticScheduler(step))
        sides[f"optimus_step_{step}"] = Side("", Optimus(step))
    times: dict[str, list[float]] = {name: [] for name in (*sides, "tuned")}
    for seed in range(seeds):
        settings = Settings(seed=seed)
        for model in LOOKUP_SHARES:
            for name, side in sides.items():
                report = side.run([paper_job(model, COLD)], _ALONE_NODES, settings)
                times[name].append(report.jobs[0].completion_seconds)
            tuned = STATIC.run([paper_job(model, TUNED)], _ALONE_NODES, settings)
            times["tuned"].append(tuned.jobs[0].completion_seconds)
            _say(
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
            found.append(Figure(f"{_PREFIX}.alone.minutes", minutes, "min", simulated=True, settings=settings_shown))
        else:
            found.append(
                Figure(f"{_PREFIX}.alone.against_{name}", 100 * (ours / statistics.fmean(each) - 1), "%",
                       at_most=goals.get(name), simulated=True, settings={"their_minutes": minutes})
            )  # fmt: skip
    return found


def mixed(jobs: Sequence[JobToRun], nodes: int, settings: Settings) -> dict[str, Report]:
    """Every side on one workload."""
    reports = {}
    for side in (BY_HAND_SIDE, STATIC, ELASTIC, OPTIMUS, OURS, OURS_WARM):
        reports[side.name] = side.run(jobs, nodes, settings)
        found = reports[side.name].figures()
        _say(
            f"{side.name}: median {found[_MEDIAN]:.0f} s, p90 {found[_P90]:.0f} s, "
            f"{found['core_hours']:.0f} core-hours, {found['cores_used']:.0%} of the cores held, "
            f"{found['unfinished']:.0f} unfinished"
        )
    return reports


def mixed_figures(reports: dict[str, Report], shown: dict[str, Any]) -> list[Figure]:
    """Fig. 14 and 15."""
    ours, by_hand = reports[OURS_WARM.name], reports[BY_HAND_SIDE.name]
    found = [
        Figure(f"{_PREFIX}.mixed.median_against_by_hand", change(ours, by_hand, _MEDIAN), "%", at_most=-31.0,
               simulated=True, settings=shown),
        Figure(f"{_PREFIX}.mixed.p90_against_by_hand", change(ours, by_hand, _P90), "%", at_most=-35.7,
               simulated=True, settings={"p90_by_hand_s": round(by_hand.figures()[_P90])}),
        Figure(f"{_PREFIX}.mixed.out_of_memory", 100 * ours.figures()["out_of_memory_share"], "% of jobs",
               at_most=0.23, simulated=True,
               settings={"by_hand_%": round(100 * by_hand.figures()["out_of_memory_share"], 2)}),
    ]  # fmt: skip
    for name in (STATIC.name, ELASTIC.name, OPTIMUS.name):
        for quantile in (_MEAN, _MEDIAN, _P90):
            cold = change(reports[OURS.name], reports[name], quantile)
            short = quantile.removeprefix("completion_seconds_")
            found.append(
                Figure(f"{_PREFIX}.mixed.{short}_against_{name}", change(ours, reports[name], quantile), "%",
                       simulated=True, settings={"without_warm_start_%": round(cold, 1)})
            )  # fmt: skip
    for what in ("worker_cpu", "server_cpu", "worker_memory", "server_memory"):
        share = f"{what}_share"
        before = 100 * by_hand.figures()[share]
        found.append(
            Figure(f"{_PREFIX}.mixed.{what}_in_use", 100 * ours.figures()[share], "% of what is held", simulated=True,
                   settings={"by_hand_%": round(before, 1)})
        )  # fmt: skip
    for name in ("core_hours", "cost"):
        found.append(
            Figure(f"{_PREFIX}.mixed.{name}_against_by_hand", change(ours, by_hand, name), "%", simulated=True)
        )
    return found


def sensitivity(make: Callable[..., tuple[JobToRun, ...]], nodes: int) -> list[Figure]:
    """What becomes of the mean against static and Optimus when one thing differs; above 0 we lose."""
    calm = TROUBLED
    habits, few = Habits(), msgspec.structs.replace
    cases: dict[str, tuple[Habits, Settings, int]] = {
        "noise_0.2": (habits, few(calm, noise=0.2), nodes),
        "noise_0.4": (habits, few(calm, noise=0.4), nodes),
        "failures_x10": (habits, few(calm, hours_between_failures=160.0), nodes),
        "start_300_s": (habits, few(calm, start_seconds=300.0), nodes),
        "start_and_pause_900_s": (habits, few(calm, start_seconds=900.0, migration_pause_seconds=900.0), nodes),
        "short_jobs": (few(habits, steps=20_000.0), calm, nodes),
        "well_sized_owners": (
            few(habits, asked_spread=0.0, oversized_share=0.0, starved_server_share=0.0),
            calm,
            nodes,
        ),
        "headroom_2": (few(habits, headroom=2.0), calm, nodes),
        "cluster_half": (habits, calm, max(1, nodes // 2)),
        "cluster_double": (habits, calm, 2 * nodes),
    }  # fmt: skip
    found = []
    for name, (kind, settings, count) in cases.items():
        jobs = make(kind)
        reports = {side.name: side.run(jobs, count, settings) for side in (STATIC, OPTIMUS, OURS)}
        values = {other: change(reports[OURS.name], reports[other], _MEAN) for other in (STATIC.name, OPTIMUS.name)}
        _say(f"{name}: " + ", ".join(f"{value:+.1f} % against {other}" for other, value in values.items()))
        for other, value in values.items():
            cores = change(reports[OURS.name], reports[other], "core_hours")
            found.append(
                Figure(f"{_PREFIX}.sensitivity.{name}.mean_against_{other}", value, "%", simulated=True,
                       settings={"jobs": len(jobs), "nodes": count, "core_hours_%": round(cores, 1)})
            )  # fmt: skip
    return found


def measure(arguments: argparse.Namespace) -> list[Figure]:
    """The parts that were asked for."""
    parts = arguments.part or _PARTS
    arrivals = read_arrivals(Path(arguments.arrivals), 60.0) if arguments.arrivals else None

    def make(habits: Habits, count: int = arguments.jobs) -> tuple[JobToRun, ...]:
        return recurring(count, arguments.seed, habits, arguments.every, arrivals)

    found = alone(arguments.seeds) if "alone" in parts else []
    if "mixed" in parts:
        jobs = make(Habits())
        reports = mixed(jobs, arguments.nodes, TROUBLED)
        where = "a trace" if arrivals else f"Poisson, every {arguments.every:g} s"
        found += mixed_figures(
            reports,
            described(jobs, arguments.nodes, TROUBLED, arrivals=where, headroom=1.0, workload_seed=arguments.seed),
        )
        if arguments.picture:
            from elastrec.platform.cli.commands.simulate_picture import draw

            draw(list(reports.values()), arguments.picture)
    if "sensitivity" in parts:
        found += sensitivity(lambda habits: make(habits, max(1, arguments.jobs // 2)), arguments.nodes)
    return found


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--jobs", type=int, default=400, help="of the mixed workload (default 400)")
    parser.add_argument("--nodes", type=int, default=100, help="of the mixed workload's cluster (default 100)")
    parser.add_argument("--every", type=float, default=120.0, help="seconds between two arrivals (default 120)")
    parser.add_argument("--seed", type=int, default=0, help="of the mixed workload (default 0)")
    parser.add_argument("--seeds", type=int, default=3, help="of every single job (default 3)")
    parser.add_argument("--arrivals", help="CSV file of a trace, in minutes, whose arrivals are taken")
    parser.add_argument("--part", action="append", choices=_PARTS, help="default: all")
    parser.add_argument("--picture", help="PNG file for the mixed workload")


if __name__ == "__main__":
    run_benchmark(__doc__, measure, add_options)
