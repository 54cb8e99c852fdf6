"""Completion time of a job whose servers run out of memory: forecast, doubling after a kill, restart by hand.

    python -m benchmarks out_of_memory [--rounds 3] [--output json]

The job is that of `growing_tables`; its time ends when all is trained and saved. It ends in one of three ways:

- `forecast`: servers get memory before they run out of it, as by default.
- `doubled`: no forecast; the replacement of a server that the kernel killed has twice the memory.
- `by_hand`: neither; an operator who watches all the time stops the job when a server was killed and restarts it from
  its newest record, with twice the memory. Only the time of the machines counts.

Without intervention the job has no completion time, because its servers are killed again until it fails. The goal
against `by_hand` is DLRover-RM's figure against stop-and-restart, which the paper has for a slow server (Fig. 12).

If the condition `if high <= safe` in `platform.scaling.memory.forecast` is always true, the job of `forecast` is one of
`doubled`, and the ratio of both is 1: red.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from benchmarks.common.figures import Figure, interleave, ratio, run_benchmark
from benchmarks.common.jobs import expect_limits, private_platform
from benchmarks.jobs.growing_tables import (
    MOST_SERVER_BYTES,
    SERVER_BYTES,
    WEIGHT,
    Run,
    add_options,
    click_log,
    job_content,
    kills_of,
    train,
)
from elastrec.platform import jobs
from elastrec.platform.data.generating.generator import GenerateReport
from elastrec.platform.jobs.watching.observation import Observation
from elastrec.trainers.parameter_server.warm_up import warm_kernels

GOAL_DOUBLED, GOAL_BY_HAND = 1.0, 1 - 0.276
"""Of the completion time. Chosen: a forecast is worth nothing where it makes a job slower than kills do. DLRover-RM
§6.2, against stop-and-restart.
"""


def restarted_by_hand(platform: jobs.Platform, log: GenerateReport) -> Run:
    """A job that is stopped at the first kill, and started again with twice the memory."""
    run, record = Run(), "nothing"

    def is_killed(seen: Observation, job_id: str) -> bool:
        nonlocal record
        record = seen.metrics.checkpoint or record
        return seen.reachable and kills_of(jobs.explanation(platform, job_id)) > 0

    train(platform, job_content(log, forecast=False, most_bytes=SERVER_BYTES), run, until=is_killed)
    if run.kills:
        more = job_content(
            log, forecast=False, server_bytes=2 * SERVER_BYTES, most_bytes=MOST_SERVER_BYTES, start_from=record
        )
        train(platform, more, run)
    return run


def figures_of(runs: dict[str, list[Run]]) -> list[Figure]:
    """Ratios of completion times of rounds that ran next to each other."""
    seconds = {name: [run.seconds for run in of_side] for name, of_side in runs.items()}
    kills = {name: [run.kills for run in of_side] for name, of_side in runs.items()}
    settings = {"rounds": len(runs["forecast"]), "kills": kills}
    figures = [
        Figure(f"out_of_memory.against_{name}", ratio(seconds["forecast"], seconds[name]), "of its completion time",
               at_most=goal,
               settings=settings
               | {"each": [round(mine / other, 3)
                           for mine, other in zip(seconds["forecast"], seconds[name], strict=True)]})
        for name, goal in (("doubled", GOAL_DOUBLED), ("by_hand", GOAL_BY_HAND))
    ]  # fmt: skip
    return figures + [
        Figure(f"out_of_memory.{name}.seconds", statistics.median(each), "s from launch to the last record",
               settings={"each": [round(one, 1) for one in each]})
        for name, each in seconds.items()
    ]  # fmt: skip


def measure(arguments: argparse.Namespace) -> list[Figure]:
    """The three in turn."""
    with tempfile.TemporaryDirectory() as folder, private_platform(weight=WEIGHT) as platform:
        expect_limits(platform, "out_of_memory")
        # Servers that compile their kernels have taken more than their limit before the first row.
        warm_kernels()
        log = click_log(Path(folder) / "clicks")

        def trained(*, forecast: bool) -> Run:
            run = Run()
            train(platform, job_content(log, forecast=forecast), run)
            return run

        sides: dict[str, Callable[[], Run]] = {
            "forecast": lambda: trained(forecast=True),
            "doubled": lambda: trained(forecast=False),
            "by_hand": lambda: restarted_by_hand(platform, log),
        }

        def spoken(name: str, side: Callable[[], Run]) -> Callable[[], Run]:
            def run() -> Run:
                found = side()
                print(f"{name}: {found.seconds:.1f} s, {found.kills} kills", file=sys.stderr)
                return found

            return run

        runs = interleave({name: spoken(name, side) for name, side in sides.items()}, arguments.rounds)
    return figures_of(runs)


if __name__ == "__main__":
    run_benchmark(__doc__, measure, add_options, has_pods=True)
