"""A real job of one worker, scaled round by round while it trains: rounds to its best size, pauses, repeated rows.

    python -m benchmarks live_scaling [--round-seconds 20] [--picture FILE] [--output json]

The rounds are those of the DAG `auto_scaling`, called one after the other: profile, fit, candidates, choice, plan
handed to the master. The best number of workers is the choice of the same policy after it has measured every number, on
another job. Every pod has a fraction of a core by its control group, and pods have a higher CPU weight than other load.

Without the plans of the front in `propose` of `platform/scaling/search/candidates.py` (`range(0)`), one worker is the
best size, and `speed_up` is red. The tests have stories of jobs that pause, repeat rows or never reach their best size;
the other figures are red for them.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.common.configurations import Shape, measure_shapes
from benchmarks.common.figures import Figure, run_benchmark
from benchmarks.common.jobs import expect_limits, launched, private_platform
from elastrec.platform import jobs
from elastrec.platform.data.generating.generator import GenerateReport, GenerateSpec, generate, training_data_for
from elastrec.platform.history.scaling_figures import Decision, Timed, throughput
from elastrec.platform.jobs.scaling import rounds as scaling
from elastrec.platform.jobs.scaling import story as scaling_story
from elastrec.platform.jobs.scaling.learned import learned
from elastrec.platform.jobs.scaling.standing import room_of
from elastrec.platform.master.scaling.facts import observations_of, shape_of
from elastrec.platform.scaling.amounts import Allocation, Change
from elastrec.platform.scaling.policy import View, decide, load_policy
from elastrec.platform.scaling.types import JobProfile, Limits, Observation
from elastrec.platform.specs.job import TrainingJob
from elastrec.platform.specs.metrics import Phase, Role, TrainingMetrics
from elastrec.platform.specs.scaling import ScalingSettings

MOST_WORKERS = 4
_WORKER_CORES, _SERVER_CORES, _LEAST_STEPS, _WEIGHT, _ROUNDS = 0.3, 0.3, 30, 128, 5
_SETTLED_ROUNDS, _MOST_ROUNDS = 10, 3
_LEAST_SPEED_UP = 3.0
"""Of four workers; the best size is the policy's own choice, so one that never leaves a single worker has found it."""


def job_content(log: GenerateReport, epochs: int) -> dict[str, Any]:
    """One worker; its rows last as long as the rounds take."""
    spec = {
        "model": {
            "architecture": "dlrm",
            "embedding_dimension": 16,
            "options": {"bottom_layer_sizes": [128, 64], "top_layer_sizes": [128, 64]},
        },
        "data": json.loads(training_data_for(log.spec).model_dump_json(exclude_none=True)),
        # The steady state of a long job from the first step on: the shapes are measured in jobs of a few seconds.
        "training": {"batch_size": 512, "batches_per_shard": 10, "epochs": epochs, "overlap_pull": True},
        "resources": {
            "master": {"cores": 0.2, "memory": "512Mi"},
            "worker": {"count": 1, "cores": _WORKER_CORES, "memory": "2Gi"},
            "parameter_server": {"count": 1, "cores": _SERVER_CORES, "memory": "1Gi"},
        },
        "scaling": {"maximum_workers": MOST_WORKERS},
        "checkpoint": {"interval": "0s"},
        "continual": {"start_from": "nothing"},
    }
    return {"metadata": {"name": "live"}, "spec": spec}


class Watch:
    """Looks at a job several times a second."""

    def __init__(self, platform: jobs.Platform, job_id: str) -> None:
        self.seen: list[tuple[float, TrainingMetrics]] = []
        self._platform, self._job_id = platform, job_id
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stopped.wait(0.25):
            found = jobs.observe(self._platform, self._job_id)
            if found.reachable and found.metrics.samples_trained:
                self.seen.append((time.time(), found.metrics))

    def close(self) -> None:
        self._stopped.set()
        self._thread.join()

    @property
    def done(self) -> bool:
        return bool(self.seen) and self.seen[-1][1].shards_done == self.seen[-1][1].shards_total

    @property
    def training(self) -> list[tuple[float, TrainingMetrics]]:
        """From the first sample to the last."""
        return [(at, metrics) for at, metrics in self.seen if metrics.samples_trained < metrics.samples_total]

    def longest_standstill_seconds(self) -> float:
        """Longest time in which not one sample was trained."""
        longest, since, samples = 0.0, *((self.training[0][0], 0) if self.training else (0.0, 0))
        for at, metrics in self.training:
            longest = max(longest, at - since)
            if metrics.samples_trained > samples:
                since, samples = at, metrics.samples_trained
        return longest


def working(metrics: TrainingMetrics) -> int:
    return sum(pod.role is Role.WORKER and pod.state == "Running" and pod.samples > 0 for pod in metrics.pods)


@dataclass(frozen=True)
class Story:
    """What a scaled job did; `workers` are those wanted after each round."""

    watch: Watch
    decisions: list[Decision]
    workers: list[int]


def scaled(platform: jobs.Platform, content: dict[str, Any], settings: ScalingSettings) -> Story:
    """Trains the job to its end with a round every `settings.round_interval` seconds."""
    decisions, workers = list[Decision](), list[int]()
    with launched(platform, content) as job_id, contextlib.closing(Watch(platform, job_id)) as watch:
        deadline = time.monotonic() + 900
        due: float | None = None
        while not watch.done:
            if time.monotonic() > deadline:
                raise RuntimeError(f"the job did not end:\n{jobs.failure_report(platform, job_id)}")
            time.sleep(0.25)
            if due is None and watch.seen:
                due = time.monotonic() + settings.round_interval
            if due is None or time.monotonic() < due or len(workers) == _ROUNDS:
                continue
            due += settings.round_interval
            decided, left_alone = scaling.plan(platform, settings, [job_id])
            for plan in decided.plans:
                applied = scaling.apply(platform, plan)
                scaling_story.log_decision(platform, plan, is_changed=applied.changed, reason=applied.reason)
                decisions.append(
                    Decision(
                        unix_seconds=time.time(), samples_trained=watch.seen[-1][1].samples_trained, policy=plan.policy,
                        before=plan.before, after=plan.allocation, changed=applied.changed, reason=applied.reason,
                    )
                )  # fmt: skip
                workers.append(plan.allocation.workers if applied.changed else plan.before.workers)
                print(f"round {len(workers)}: {plan.before.workers} → {workers[-1]}: {applied.reason}", file=sys.stderr)
            for other in left_alone:
                workers.append(workers[-1] if workers else 1)
                print(f"round {len(workers)}: left alone: {other.reason}", file=sys.stderr)
    return Story(watch, decisions, workers)


def best_count(observations: Sequence[Observation], profile: JobProfile, view: View, policy: str) -> int:
    """Where the policy settles that has measured every number of workers, from one worker on."""
    now = min((each.allocation for each in observations), key=lambda each: each.workers)
    for _ in range(_SETTLED_ROUNDS):
        job = msgspec.structs.replace(profile, allocation=now, observations=tuple(observations))
        (plan,) = decide(load_policy(policy), [job], view).plans
        if not plan.changes:
            return now.workers
        now = plan.allocation
    raise RuntimeError(f"the policy {policy} does not settle")


def draw(file: Path, story: Story) -> None:
    """Speed over time with every decision."""
    speed = [Timed(at, metrics.samples_per_second) for at, metrics in story.watch.training]
    workers = [Timed(at, float(working(metrics))) for at, metrics in story.watch.training]
    figure = throughput(speed, workers, story.decisions)
    if figure is not None:
        file.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(file)


def measure(arguments: argparse.Namespace) -> list[Figure]:
    """Every number of workers for itself, then the job that is scaled."""
    settings = ScalingSettings(
        round_interval=arguments.round_seconds, least_steps=_LEAST_STEPS, cool_down=0.5 * arguments.round_seconds,
        no_reversal=5.0 * arguments.round_seconds,
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder, private_platform(cores=6.0, weight=_WEIGHT) as platform:
        expect_limits(platform, "live_scaling")
        log = generate(
            GenerateSpec(path=f"{folder}/clicks", rows_per_day=60_000, days=2, seed=1, dense=8, sparse=12, lists=0)
        )
        content = job_content(log, epochs=1000)
        content["spec"]["resources"]["worker"] = {"count": MOST_WORKERS, "cores": 1.0, "memory": "2Gi"}
        shapes = [Shape(count, _WORKER_CORES, _SERVER_CORES) for count in range(MOST_WORKERS, 0, -1)]
        measured = measure_shapes(platform, content, shapes, seconds=6.0, least_steps=_LEAST_STEPS)
        counts = [
            each
            for each in observations_of(measured)
            if (each.allocation.worker_cores, each.allocation.parameter_server_cores) == (_WORKER_CORES, _SERVER_CORES)
        ]
        speeds = {each.allocation.workers: each.allocation.workers * 512 / each.iteration_seconds for each in counts}
        # So many rows that the job lasts some rounds after it has reached its best size.
        seconds = 3.0 * arguments.round_seconds
        epochs = max(1, round((seconds * speeds[1] + seconds * speeds[MOST_WORKERS]) / log.days[0].rows))
        story = scaled(platform, job_content(log, epochs), settings)
        profile = JobProfile(
            job_id="best", shape=shape_of(TrainingJob.model_validate(content), measured),
            allocation=_smallest(counts), remaining_samples=1e12, limits=Limits(workers=(1, MOST_WORKERS)),
            movable=frozenset({Change.WORKERS}), until_next_change_seconds=settings.round_interval,
        )  # fmt: skip
        best = best_count(
            counts, profile,
            scaling.view(room_of(platform.launcher.nodes()), settings, learned(platform, settings).overheads),
            settings.policy,
        )  # fmt: skip
    if arguments.picture is not None:
        draw(arguments.picture, story)
    return figures_of(story, best, speeds)


def _smallest(observations: Sequence[Observation]) -> Allocation:
    return min((each.allocation for each in observations), key=lambda each: each.workers)


def figures_of(story: Story, best: int, speeds: dict[int, float]) -> list[Figure]:
    """Rounds, pauses, rows.

    Raises:
        RuntimeError: the job ended before it could have missed the goal.
    """
    if len(story.workers) < _MOST_ROUNDS:
        raise RuntimeError(f"the job ended after {len(story.workers)} of {_MOST_ROUNDS} rounds; train more rows")
    # A size that the job leaves again does not count.
    kept = sum(1 for _ in itertools.takewhile(lambda count: count == best, reversed(story.workers)))
    reached = len(story.workers) + 1 - kept
    last = story.watch.seen[-1][1]
    begun, training = story.watch.training[0][0], story.watch.training
    outside = sum(
        later - earlier
        for (earlier, _), (later, metrics) in itertools.pairwise(training)
        if metrics.phase is not Phase.TRAINING
    )
    settings = {
        "best": best, "workers_after_rounds": story.workers, "alone": {w: round(s) for w, s in sorted(speeds.items())},
        "worker_cores": _WORKER_CORES,
    }  # fmt: skip
    return [
        Figure("live_scaling.rounds_to_best", reached, "rounds, from which on it has its best size",
               at_most=_MOST_ROUNDS, settings=settings),
        Figure("live_scaling.seconds_not_training", outside, "s from first to last sample", at_most=0.0),
        Figure(
            "live_scaling.repeated_rows", last.samples_trained - last.samples_total, "rows trained more than once",
            at_least=0, at_most=0,
            settings={"shards": last.shards_total, "samples_total": last.samples_total, "rollbacks": last.generation},
        ),
        Figure(
            "live_scaling.longest_standstill", story.watch.longest_standstill_seconds(), "s without a sample",
            settings={"of_seconds": round(training[-1][0] - begun, 1)},
        ),
        Figure("live_scaling.speed_up", speeds[best] / speeds[1], "× one worker, measured alone",
               at_least=_LEAST_SPEED_UP),
    ]  # fmt: skip


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--round-seconds", type=float, default=20.0, help="between two rounds (default 20)")
    parser.add_argument("--picture", type=Path, help="PNG of throughput over time with the decisions")


if __name__ == "__main__":
    run_benchmark(__doc__, measure, add_options, has_pods=True)
