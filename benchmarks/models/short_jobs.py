"""Whether a job of few steps gives the model of one process, and the cost of overlapping its pulls.

Real jobs of one worker train DLRM for 16 and for 53 steps on generated clicks: with the defaults, and with
`overlap_pull: true`, where each step lacks the gradients of the one before it. One process that takes the same
minibatches in the same order is the reference. Compared is the normalised entropy of the next day, seed by seed.
`OVERLAP_AFTER_STEPS = 0` in `trainers/worker/parameter_server_trainer.py` makes the goals red.

    python -m benchmarks short_jobs [--rounds 5] [--output json]
    python -m benchmarks short_jobs --choose    # the same cost, in one process, by the step where overlapping begins

The seeds of `--choose`, by which the default can be judged, are not those of the figures.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.common.child import Child, one_core
from benchmarks.common.figures import Figure, mean_difference, run_benchmark
from benchmarks.common.jobs import private_platform, run_job
from elastrec.platform.data.generating.generator import GenerateSpec, generate, training_data_for

BATCH, STEPS = 512, (16, 53)
_FIRST_SEED, _CHOOSING_SEEDS = 101, (1, 2, 3)
_CHOOSING = {106: (0, 53), 424: (0, 53, 212), 1600: (0, 200, 500, 1000)}
"""By steps of a job: steps after which its pulls overlap."""


def click_data(folder: Path, rows: int) -> dict[str, Any]:
    """A day to train on and one to score, by the same truth."""
    spec = GenerateSpec(
        path=str(folder), rows_per_day=rows, days=2, seed=1, dense=4, sparse=12, lists=1, drift_radians=0.0
    )
    generate(spec)
    content: dict[str, Any] = json.loads(training_data_for(spec).model_dump_json(exclude_none=True))
    return content


def job_content(data: dict[str, Any], steps: int, seed: int, **training: Any) -> dict[str, Any]:
    """One worker and one server; the day is one shard, so that the order of the rows is that of the seed."""
    spec = {
        "model": {"architecture": "dlrm"},
        "data": data,
        "training": {"batch_size": BATCH, "batches_per_shard": steps, "seed": seed, **training},
        "checkpoint": {"interval": "0s"},
        "continual": {"start_from": "nothing"},
    }
    return {"metadata": {"name": "short"}, "spec": spec}


def measure(arguments: argparse.Namespace) -> list[Figure]:
    """Both lengths, `rounds` seeds of each side."""
    if arguments.choose:
        return choose()
    seeds = range(_FIRST_SEED, _FIRST_SEED + arguments.rounds)
    figures = []
    with (
        tempfile.TemporaryDirectory() as folder,
        private_platform() as platform,
        Child("benchmarks.processes.one_worker", environment=one_core()) as process,
    ):
        for steps in STEPS:
            data = click_data(Path(folder) / str(steps), steps * BATCH)
            found: dict[str, list[float]] = {"one_process": [], "default": [], "overlapped": []}
            for seed in seeds:
                content = job_content(data, steps, seed)
                found["one_process"].append(process.ask(content=content)["normalized_entropy"][0])
                for name, of in (("default", {}), ("overlapped", {"overlap_pull": True})):
                    ended = run_job(platform, job_content(data, steps, seed, **of)).metrics
                    if ended.normalized_entropy is None or ended.samples_trained != steps * BATCH:
                        raise RuntimeError(f"{name}, seed {seed}: trained {ended.samples_trained} samples")
                    found[name].append(ended.normalized_entropy)
                print(
                    f"{steps} steps, seed {seed}: { ({k: round(v[-1], 4) for k, v in found.items()}) }", file=sys.stderr
                )
            figures += figures_of(steps, found)
    return figures


def figures_of(steps: int, found: dict[str, list[float]]) -> list[Figure]:
    """Differences of the normalised entropy; positive is worse than one process."""
    unit, settings = "normalised entropy", {"seeds": len(found["default"]), "batch": BATCH, "network": "dlrm"}
    cost, interval = mean_difference(found["overlapped"], found["one_process"])
    difference, _ = mean_difference(found["default"], found["one_process"])
    return [
        Figure(f"short_jobs.{steps}_steps.worse_than_one_process", difference, unit, at_most=0.001,
               settings={**settings, **found}),
        Figure(f"short_jobs.{steps}_steps.overlapped.worse_than_one_process", cost, unit,
               settings={"interval_95": f"±{interval:.4f}"}),
    ]  # fmt: skip


def choose() -> list[Figure]:
    """What overlapping costs by the number of steps, and by the step where it begins; in one process."""
    figures = []
    with (
        tempfile.TemporaryDirectory() as folder,
        Child("benchmarks.processes.one_worker", environment=one_core()) as process,
    ):
        data = click_data(Path(folder), max(_CHOOSING) * BATCH)
        for steps, starts in _CHOOSING.items():
            answers: dict[int | None, list[dict[str, Any]]] = {start: [] for start in (None, *starts)}
            for seed in _CHOOSING_SEEDS:
                content = job_content(data, steps, seed)
                for start, so_far in answers.items():
                    so_far.append(process.ask(content=content, steps=steps, overlap_after=start))
            for start in starts:
                for metric in ("normalized_entropy", "auc"):
                    late, fresh = ([each[metric][0] for each in answers[side]] for side in (start, None))
                    change, interval = mean_difference(late, fresh)
                    name = f"short_jobs.choose.{steps}_steps.overlapped_after_{start}.{metric}"
                    settings = {"interval_95": f"±{interval:.4f}", "fresh": statistics.fmean(fresh)}
                    figures.append(Figure(name, change, metric, settings=settings))
    return figures


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rounds", type=int, default=5, help="seeds of each side (default 5)")
    parser.add_argument("--choose", action="store_true", help="what the default was chosen from")


if __name__ == "__main__":
    run_benchmark(__doc__, measure, add_options, has_pods=True)
