"""The effect of workers that join during training on the model, with overlapping pulls and with the default.

    python -m benchmarks joining_workers [--seeds 5] [--output json]
    python -m benchmarks joining_workers --choose    # ways to join against the same steps of one worker alone

One worker trains DLRM on generated clicks; then there are two, or four. `thrown_back` is the increase of the loss
before the update in the joint first steps over the last steps of the single worker. `worse` compares the final models
by the normalised entropy of the next day: `overlap_pull: true` − the default. The order of the steps is fixed: a step
of one of n workers lacks the gradients of n − 1 others, and with overlapping pulls of 2 n − 1.

`--choose` uses other seeds than the figures. A ramp may only delay a loss beyond the first steps, so `--choose` reports
the worst of eight windows of the joint steps, each compared with one worker alone.

Without `trains_alone` in `overlaps` of `trainers/worker/parameter_server_trainer.py`, the goals are red.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks.common.child import Child, one_core
from benchmarks.common.figures import Figure, mean_difference, run_benchmark
from benchmarks.models.short_jobs import BATCH, click_data, job_content

_ALONE, _TOGETHER, _FIRST_SEED = 800, 640, 101
_WORKERS = (2, 4)
_GOAL = 0.01
_CHOOSING_SEEDS = (1, 2)
_CHOOSING: dict[str, dict[str, float]] = {
    "at_once": {},
    "one_by_one": {"apart": 100},
    "newcomers_ramp_25": {"ramp_steps": 25},
    "newcomers_ramp_50": {"ramp_steps": 50},
    "newcomers_ramp_100": {"ramp_steps": 100},
    "all_ramp_from_staleness_80": {"ramp_steps": 80, "ramp_from": 1 / (max(_WORKERS) - 1), "all_ramp": True},
    "all_ramp_from_staleness_160": {"ramp_steps": 160, "ramp_from": 1 / (max(_WORKERS) - 1), "all_ramp": True},
    "divided_by_staleness": {"rate_scale": 1 / (max(_WORKERS) - 1)},
    "divided_by_root_of_workers": {"rate_scale": max(_WORKERS) ** -0.5},
}
"""Ways to join, for the most workers.

Learning rates ÷ staleness: Zhang, Gupta, Lian and Liu, Staleness-aware Async-SGD for Distributed Deep Learning, IJCAI
2016 (arXiv 1511.05950).
"""


def measure(arguments: argparse.Namespace) -> list[Figure]:
    """Every number of workers, both ways, by turns of the seeds."""
    if arguments.choose:
        return choose()
    figures = []
    steps = _ALONE + _TOGETHER
    with (
        tempfile.TemporaryDirectory() as folder,
        Child("benchmarks.processes.joining_workers", environment=one_core()) as process,
    ):
        data = click_data(Path(folder), steps * BATCH)
        for workers in _WORKERS:
            found: dict[bool, list[dict[str, Any]]] = {False: [], True: []}
            for seed in range(_FIRST_SEED, _FIRST_SEED + arguments.seeds):
                for overlaps, answers in found.items():
                    content = job_content(data, steps, seed, overlap_pull=overlaps or "auto")
                    answers.append(process.ask(content=content, alone=_ALONE, together=_TOGETHER, workers=workers))
                print(f"{workers} workers, seed {seed}: {[each[-1] for each in found.values()]}", file=sys.stderr)
            figures += figures_of(workers, found)
    return figures


def figures_of(workers: int, found: dict[bool, list[dict[str, Any]]]) -> list[Figure]:
    """Of one number of workers; answers of `processes.joining_workers.join` by whether pulls overlapped."""
    settings = {"seeds": len(found[False]), "batch": BATCH, "alone": _ALONE, "together": _TOGETHER}
    name = f"joining_workers.{workers}_workers"

    def of(field: str, overlaps: bool) -> list[float]:
        return [each[field] for each in found[overlaps]]

    figures = []
    for overlaps, what in ((False, "thrown_back"), (True, "overlapped.thrown_back")):
        rise, interval = mean_difference(of("after", overlaps), of("before", overlaps))
        goal = None if overlaps else _GOAL
        settings_of = {**settings, "interval_95": f"±{interval:.4f}"}
        figures.append(Figure(f"{name}.{what}", rise, "loss", at_most=goal, settings=settings_of))
    worse, interval = mean_difference(of("normalized_entropy", True), of("normalized_entropy", False))
    figures.append(
        Figure(f"{name}.overlapped.worse", worse, "normalised entropy", settings={"interval_95": f"±{interval:.4f}"})
    )
    return figures


def choose() -> list[Figure]:
    """What each way to join costs: loss in the worst window, and the model in the end."""
    steps, found = _ALONE + _TOGETHER, dict[str, list[dict[str, Any]]]()
    with (
        tempfile.TemporaryDirectory() as folder,
        Child("benchmarks.processes.joining_workers", environment=one_core()) as process,
    ):
        data = click_data(Path(folder), steps * BATCH)
        for seed in _CHOOSING_SEEDS:
            content = job_content(data, steps, seed, overlap_pull="auto")
            for name, joining in {"alone": {}, **_CHOOSING}.items():
                workers = 1 if name == "alone" else max(_WORKERS)
                answer = process.ask(
                    content=content, alone=_ALONE, together=_TOGETHER, workers=workers, joining=joining
                )
                found.setdefault(name, []).append(answer)
                print(f"seed {seed}: {name}: {answer}", file=sys.stderr)
    alone, figures = found.pop("alone"), []
    for name, answers in found.items():
        rises = zip(
            *([ours - theirs for ours, theirs in zip(mine["windows"], other["windows"], strict=True)]
              for mine, other in zip(answers, alone, strict=True)),
            strict=True,
        )  # fmt: skip
        worst = max(fmean(window) for window in rises)
        figures.append(Figure(f"joining_workers.choose.{name}.worst_window", worst, "loss"))
        for metric in ("normalized_entropy", "auc"):
            change, interval = mean_difference([each[metric] for each in answers], [each[metric] for each in alone])
            settings = {"interval_95": f"±{interval:.4f}"}
            figures.append(Figure(f"joining_workers.choose.{name}.{metric}", change, metric, settings=settings))
    return figures


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seeds", type=int, default=5, help="trainings of each kind (default 5)")
    parser.add_argument("--choose", action="store_true", help="ways to join that were tried")


if __name__ == "__main__":
    run_benchmark(__doc__, measure, _add_options)
