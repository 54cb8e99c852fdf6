"""What workers that join do to a model under training, with pulls that overlap and with the default.

One worker trains DLRM on generated clicks; then there are two, or four. `thrown_back` is how far the loss before the
update rises in the first steps together, over the last steps alone. `worse` compares the models in the end, by the
normalised entropy of the next day: `overlap_pull: true` − the default. The steps' order is fixed, so that a step of one
of n workers lacks the gradients of n − 1 others, and with overlapping pulls of 2 n − 1.

    python -m benchmarks joining_workers [--seeds 5] [--output json]

`overlaps` of `trainers/worker/parameter_server_trainer.py` without its look at `trains_alone` makes the goals red.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.common.child import Child, one_core
from benchmarks.common.figures import Figure, mean_difference, run_benchmark
from benchmarks.models.short_jobs import BATCH, click_data, job_content

_ALONE, _TOGETHER, _FIRST_SEED = 800, 640, 101
_WORKERS = (2, 4)
_GOAL = 0.01


def measure(arguments: argparse.Namespace) -> list[Figure]:
    """Every number of workers, both ways, by turns of the seeds."""
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


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seeds", type=int, default=5, help="trainings of each kind (default 5)")


if __name__ == "__main__":
    run_benchmark(__doc__, measure, _add_options)
