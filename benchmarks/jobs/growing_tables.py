"""Kills in a job whose tables outgrow its servers' memory: with forecast, with forecast but no rounds, without.

    python -m benchmarks growing_tables [--rounds 3] [--output json]

All jobs have the same file except for `scaling.enabled`. Every server has a control group whose limit the kernel
enforces, and the rows of the log take more than that. Rounds of scaling are those of the DAG `auto_scaling`; they do
not change the job without forecast. The second job has no rounds, but its master checks its memory itself.

Mutations that turn it red: `if True` instead of `if high <= safe` in `platform.scaling.memory.forecast`, with which
servers of the first two jobs are killed, too; `pass` instead of `self._give_memory()` in
`platform.master.service.timed_work`, with which those of the second job are.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.common.figures import Figure, interleave, run_benchmark
from benchmarks.common.jobs import expect_limits, launched, private_platform
from elastrec.platform import jobs
from elastrec.platform.data.generating.generator import GenerateReport, GenerateSpec, generate, training_data_for
from elastrec.platform.jobs.scaling import rounds as scaling
from elastrec.platform.jobs.scaling.masters import ask_profile
from elastrec.platform.jobs.watching.observation import Observation
from elastrec.platform.scaling.memory_watch import MEMORY
from elastrec.platform.scaling.types import Plan
from elastrec.platform.specs.errors import ClusterError
from elastrec.platform.specs.metrics import Phase
from elastrec.platform.specs.scaling import ScalingSettings
from elastrec.platform.transport.messages.ledger import Explanation, OwnPlan
from elastrec.trainers.parameter_server.warm_up import warm_kernels

SERVERS = 2
SERVER_BYTES, MOST_SERVER_BYTES = 512 * 2**20, 2 * 2**30
"""Of each server when it starts, and at most."""
WEIGHT, _TIMEOUT_SECONDS, _LOOK_SECONDS = 128, 600.0, 0.5
SETTINGS = ScalingSettings(round_interval=5.0, least_steps=20, cool_down=2.0)
"""The job lasts a minute and not an hour: so many rounds of it are as many as an hour has of the default ones."""


def click_log(folder: Path) -> GenerateReport:
    """Few rows, hardly two of which have an id in common."""
    return generate(
        GenerateSpec(
            path=str(folder), rows_per_day=150_000, days=2, seed=1, dense=4, sparse=8, lists=0, heaps_factor=20.0,
            heaps_exponent=0.95, zipf_exponent=0.3,
        )
    )  # fmt: skip


def job_content(
    log: GenerateReport,
    *,
    forecast: bool,
    server_bytes: int = SERVER_BYTES,
    most_bytes: int = MOST_SERVER_BYTES,
    start_from: str = "nothing",
) -> dict[str, Any]:
    """The job file. Workers and the number of servers are fixed, so that memory is all that a plan can change."""
    spec = {
        "model": {"architecture": "wide_and_deep", "embedding_dimension": 255, "options": {"layer_sizes": [8]}},
        "data": json.loads(training_data_for(log.spec).model_dump_json(exclude_none=True)),
        "training": {"batch_size": 256, "batches_per_shard": 4},
        "optimizers": {"rows": {"kind": "adam", "learning_rate": 0.001}},
        "resources": {
            "master": {"cores": 0.2, "memory": "512Mi"},
            "worker": {"count": 1, "cores": 0.25, "memory": "2Gi"},
            "parameter_server": {"count": SERVERS, "cores": 0.3, "memory": server_bytes},
        },
        "scaling": {
            "enabled": forecast, "minimum_workers": 1, "maximum_workers": 1, "minimum_parameter_servers": SERVERS,
            "maximum_parameter_servers": SERVERS, "maximum_parameter_server_memory": most_bytes,
        },
        "checkpoint": {"interval": "10s"},
        "continual": {"start_from": start_from},
    }  # fmt: skip
    return {"metadata": {"name": "growing"}, "spec": spec}


@dataclass
class Run:
    """A job from its launch to its end.

    Attributes:
        seconds: from the launch until everything is trained and saved, without the evaluation.
        kills: number of servers that the kernel killed for memory.
        fullest: the largest observed share of its limit that a server used.
        fullest_at_plan: the same at the time of the first memory plan; None if there was none.
        seen: for every round: samples trained, and the used bytes and limit of every server.
    """

    seconds: float = 0.0
    kills: int = 0
    fullest: float = 0.0
    fullest_at_plan: float | None = None
    seen: list[tuple[int, list[tuple[int, int]]]] = field(default_factory=list)


def kills_of(story: Explanation) -> int:
    """The number of servers that the kernel killed for memory, from the job's explanation."""
    return sum(entry.what.startswith("lost ") and "OutOfMemory" in entry.cause for entry in story.timeline)


def train(
    platform: jobs.Platform,
    content: dict[str, Any],
    run: Run,
    *,
    settings: ScalingSettings | None = SETTINGS,
    until: Callable[[Observation, str], bool] | None = None,
) -> None:
    """Trains and evaluates a job, with rounds of scaling as in the DAG.

    Args:
        run: is filled in; seconds are added.
        settings: settings of the rounds; None: no rounds.
        until: called with the observations and the id of the job; true ends the job early.

    Raises:
        RuntimeError: the job failed or did not end in time.
    """
    began = time.monotonic()
    interval = math.inf if settings is None else settings.round_interval
    due, deadline = began + interval, began + _TIMEOUT_SECONDS
    trained_at: float | None = None
    with launched(platform, content) as job_id:
        while True:
            seen = jobs.observe(platform, job_id)
            phase = seen.metrics.phase
            if trained_at is None and phase in (Phase.EVALUATING, Phase.SUCCEEDED):
                trained_at = time.monotonic()
            if phase is Phase.SUCCEEDED or (until is not None and until(seen, job_id)):
                break
            if phase.is_final or time.monotonic() > deadline:
                raise RuntimeError(f"the job did not succeed:\n{jobs.failure_report(platform, job_id)}")
            if settings is not None and phase is Phase.TRAINING and time.monotonic() >= due:
                due = time.monotonic() + interval
                _round(platform, settings, job_id, run)
            time.sleep(_LOOK_SECONDS)
        run.seconds += (trained_at or time.monotonic()) - began
        story = jobs.explanation(platform, job_id)
        run.kills += kills_of(story)
        if run.fullest_at_plan is None and story.own_plans:
            run.fullest_at_plan = fullest_at(story.own_plans[0])


def fullest_at(own: OwnPlan) -> float:
    """The use of the fullest server when a master decided to add memory, as a share of its limit."""
    plan = msgspec.json.decode(own.plan_json, type=Plan)
    assert plan.memory is not None
    return plan.memory.likely[0] / plan.before.parameter_server_memory_bytes


def _round(platform: jobs.Platform, settings: ScalingSettings, job_id: str, run: Run) -> None:
    """One round; it is skipped if the master does not answer."""
    with contextlib.suppress(ClusterError):
        profile = ask_profile(platform, job_id)
        if profile is None or not profile.servers:
            return
        uses = [(server.used_bytes, server.limit_bytes) for server in profile.servers]
        fullest = max(used / limit for used, limit in uses)
        run.fullest = max(run.fullest, fullest)
        run.seen.append((profile.trained_samples, uses))
        decided, left_alone = scaling.plan(platform, settings, [job_id])
        said = [f"left alone: {each.reason}" for each in left_alone]
        for plan in decided.plans:
            applied = scaling.apply(platform, plan)
            said.append(f"{plan.policy}: {applied.reason}")
            if applied.changed and plan.policy == MEMORY and run.fullest_at_plan is None:
                run.fullest_at_plan = fullest
        print(f"{profile.trained_samples} samples, fullest server {fullest:.2f}: {'; '.join(said)}", file=sys.stderr)


def figures_of(with_forecast: list[Run], by_master: list[Run], without: list[Run]) -> list[Figure]:
    """The kills of all rounds, and the used share of memory.

    Args:
        by_master: runs with the forecast but without rounds of scaling.
    """
    at_plan = [
        1.0 if run.fullest_at_plan is None else run.fullest_at_plan for run in (*with_forecast, *by_master)
    ]  # fmt: skip
    settings = {
        "rounds": len(with_forecast), "servers": SERVERS, "server_mebibytes": SERVER_BYTES >> 20,
        "seconds": [round(run.seconds, 1) for run in with_forecast],
        "seconds_by_master": [round(run.seconds, 1) for run in by_master],
        "seconds_without": [round(run.seconds, 1) for run in without],
    }  # fmt: skip
    return [
        Figure("growing_tables.kills", sum(run.kills for run in with_forecast), "by the kernel, in all rounds",
               at_most=0, settings=settings),
        Figure("growing_tables.kills_without_rounds", sum(run.kills for run in by_master),
               "by the kernel, in all rounds of the benchmark", at_most=0),
        Figure("growing_tables.kills_without_forecast", min(run.kills for run in without),
               "by the kernel, in the round with the fewest", at_least=1),
        Figure("growing_tables.fullest_at_plan", max(at_plan), "of its limit, the fullest server when memory was given",
               at_most=0.9, settings={"each": [round(share, 3) for share in at_plan]}),
        Figure("growing_tables.fullest", statistics.median(run.fullest for run in with_forecast), "of its limit",
               settings={"without_forecast": [round(run.fullest, 3) for run in without]}),
    ]  # fmt: skip


def measure(arguments: argparse.Namespace) -> list[Figure]:
    """The three jobs in turn."""
    with tempfile.TemporaryDirectory() as folder, private_platform(weight=WEIGHT) as platform:
        expect_limits(platform, "growing_tables")
        # Servers that compile their kernels have taken more than their limit before the first row.
        warm_kernels()
        log = click_log(Path(folder) / "clicks")

        def side(name: str, settings: ScalingSettings | None, *, forecast: bool) -> Callable[[], Run]:
            def run() -> Run:
                found = Run()
                train(platform, job_content(log, forecast=forecast), found, settings=settings)
                print(f"{name}: {found.seconds:.1f} s, {found.kills} kills", file=sys.stderr)
                return found

            return run

        sides = {
            "with forecast": side("with forecast", SETTINGS, forecast=True),
            "without rounds": side("without rounds", None, forecast=True),
            "without forecast": side("without forecast", SETTINGS, forecast=False),
        }
        runs = interleave(sides, arguments.rounds)
    return figures_of(*(runs[name] for name in sides))


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rounds", type=int, default=3, help="of each job (default 3)")


if __name__ == "__main__":
    run_benchmark(__doc__, measure, add_options, has_pods=True)
