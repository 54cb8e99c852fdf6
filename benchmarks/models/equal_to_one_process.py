"""The quality of a job's model compared with torchrec in one process: all built-in models, short and long trainings.

A worker and a server (`one_worker`: the product's reader, steps, client, server and update rules) and torchrec's own
tables and optimizers (`torchrec_alone`) train the same network on the same minibatches in the same order, on generated
clicks and ratings; both sides of a seed start from the same values. Pulls overlap where a job's do by default. Compared
are AUC and normalised entropy of the third day, the means over the seeds.

    python -m benchmarks equal_to_one_process [--rounds 5] [--steps 20 1000] [--log clicks] [--model dlrm]

`OVERLAP_AFTER_STEPS = 0` in `trainers/worker/parameter_server_trainer.py` makes the goals of DLRM's 20 steps red. What
a master, several workers and several servers change is measured by `short_jobs` and `equal_models`.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from itertools import product
from pathlib import Path
from typing import Any

from benchmarks.common.child import Child, one_core
from benchmarks.common.figures import Figure, mean_difference, run_benchmark
from benchmarks.models.initial_range import BATCH, DIMENSION, LOGS, ONE_SHARD, Log, model_of, write_log
from elastrec.platform.specs.job import BUILT_IN_MODELS
from elastrec.trainers.worker.parameter_server_trainer import OVERLAP_AFTER_STEPS

_SEED, _SCORED_DAY = 101, 2
_GOALS = {"auc": 0.001, "normalized_entropy": 0.01}
SIDES = {"job": "benchmarks.processes.one_worker", "one_process": "benchmarks.processes.torchrec_alone"}
Answers = Mapping[str, list[dict[str, Any]]]
"""By side, a seed each."""


def train(process: Child, log: Log, architecture: str, steps: int, seed: int) -> dict[str, Any]:
    """One model, scored on the third day."""
    training = {"batch_size": BATCH, "seed": seed, **ONE_SHARD}
    content = {
        "metadata": {"name": "equal"},
        "spec": {"model": model_of(architecture, log), "data": log.data, "training": training},
    }
    answer: dict[str, Any] = process.ask(
        content=content, steps=steps, overlap_after=OVERLAP_AFTER_STEPS, days=[_SCORED_DAY]
    )
    if answer["steps"] != steps:
        raise RuntimeError(f"{architecture} took {answer['steps']} steps instead of {steps}")
    return answer


def measure(arguments: argparse.Namespace) -> list[Figure]:
    """All models on all logs, both lengths, `rounds` seeds."""
    figures = []
    with tempfile.TemporaryDirectory() as folder:
        logs = {name: write_log(name, Path(folder) / name, BATCH * max(arguments.steps)) for name in arguments.log}
        for name, architecture in product(logs, arguments.model):
            # Processes for each: they keep memory of the servers and tables that they held.
            with ExitStack() as stack:
                processes = {
                    side: stack.enter_context(Child(module, environment=one_core())) for side, module in SIDES.items()
                }
                for steps in arguments.steps:
                    answers: dict[str, list[dict[str, Any]]] = {side: [] for side in SIDES}
                    for seed in range(_SEED, _SEED + arguments.rounds):
                        for side, process in processes.items():
                            answers[side].append(train(process, logs[name], architecture, steps, seed))
                    label = f"{name}.{architecture}.{steps}_steps"
                    print(json.dumps({label: answers}), file=sys.stderr, flush=True)
                    figures += figures_of(label, answers)
    return figures


def figures_of(label: str, answers: Answers) -> list[Figure]:
    """The job's mean minus torchrec's; the sign says which side is higher."""
    figures = []
    for metric, goal in _GOALS.items():
        each = {side: [answer[metric][0] for answer in found] for side, found in answers.items()}
        difference, interval = mean_difference(each["job"], each["one_process"])
        settings = {
            "interval_95": f"±{interval:.5f}", "seeds": len(each["job"]), "batch": BATCH, "dimension": DIMENSION,
            **{side: [round(value, 4) for value in values] for side, values in each.items()},
        }  # fmt: skip
        figures.append(
            Figure(f"equal_to_one_process.{label}.{metric}", difference, f"{metric} above one process",
                   at_least=-goal, at_most=goal, settings=settings)
        )  # fmt: skip
    return figures


def add_options(parser: argparse.ArgumentParser) -> None:
    models = list(BUILT_IN_MODELS)
    parser.add_argument("--rounds", type=int, default=5, help="seeds (default 5)")
    parser.add_argument("--steps", type=int, nargs="+", default=[20, 1000], help="lengths (default 20 1000)")
    parser.add_argument("--log", choices=LOGS, nargs="+", default=list(LOGS), help="default: both")
    parser.add_argument("--model", choices=models, nargs="+", default=models, help="default: all")


if __name__ == "__main__":
    run_benchmark(__doc__, measure, add_options)
