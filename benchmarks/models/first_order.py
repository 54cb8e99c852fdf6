"""Which rule first-order weights should have: the product's default, against the rule of the embeddings.

One process trains Wide & Deep, DeepFM and xDeepFM for one pass over a generated click log and a generated ratings log
(as `initial_range`), a seed for each round. Both sides of a seed see the same rows in the same order and start from the
same parameters; on both sides the weights start at zero and have a state of their own.

    python -m benchmarks first_order [--rounds 5] [--log clicks] [--steps 160] [--output json]
    python -m benchmarks first_order --choose '{"kind": "sgd"}' '{"kind": "ftrl", "beta": 0.1}'

The default was chosen by `--choose` on Wide & Deep and clicks alone: seeds 1 to 3, the second day of the log. The
figures are of seeds 101 to 105 and the third day. A learning rate of 10.0 in `FIRST_ORDER_RULE` of
`platform/specs/optimizers.py` makes them red.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

from benchmarks.common.child import Child, one_core
from benchmarks.common.figures import Figure, run_benchmark
from benchmarks.models.initial_range import BATCH, LOGS, ONE_SHARD, STEPS, Log, gain_figure, model_of, write_log
from elastrec.platform.specs.job import FIRST_ORDER_MODELS

_CHOOSING_SEED, _REPORTED_SEED = 1, 101
_VALIDATION, _TEST = 0, 1
_AS_EMBEDDINGS, _DEFAULT = "{}", "default"


def train(process: Child, log: Log, architecture: str, rule: str, seed: int) -> dict[str, Any]:
    """One model; `rule` is JSON, or _DEFAULT."""
    optimizers = {} if rule == _DEFAULT else {"first_order": json.loads(rule)}
    content = {
        "metadata": {"name": "first-order"},
        "spec": {
            "model": model_of(architecture, log),
            "data": log.data,
            "training": {"batch_size": BATCH, "seed": seed, **ONE_SHARD},
            "optimizers": optimizers,
        },
    }
    answer: dict[str, Any] = process.ask(content=content)
    return answer


Found = dict[tuple[str, str, str], list[dict[str, Any]]]
"""Answers of the seeds by (log, architecture, rule)."""


def compare(arguments: argparse.Namespace, rules: Sequence[str], seeds: range) -> Found:
    """The embeddings' rule and `rules` on every log, model and seed."""
    found: Found = {}
    with tempfile.TemporaryDirectory() as folder:
        logs = {name: write_log(name, Path(folder) / name, BATCH * arguments.steps) for name in arguments.log or LOGS}
        for seed, architecture, name in product(seeds, arguments.model or FIRST_ORDER_MODELS, logs):
            # A process for each: it keeps the memory of the servers that it held.
            with Child("benchmarks.processes.one_worker", environment=one_core()) as process:
                for rule in (_AS_EMBEDDINGS, *rules):
                    answer = train(process, logs[name], architecture, rule, seed)
                    found.setdefault((name, architecture, rule), []).append(answer)
                    line = {"log": name, "model": architecture, "rule": rule, "seed": seed, **answer}
                    print(json.dumps(line), file=sys.stderr, flush=True)
    return found


def figures_of(found: Found, day: int, *, has_goals: bool) -> list[Figure]:
    """Per model and rule the mean gain in AUC over the embeddings' rule, its interval, and normalised entropy."""
    figures = []
    for (name, architecture, rule), answers in found.items():
        if rule == _AS_EMBEDDINGS:
            continue
        base = found[name, architecture, _AS_EMBEDDINGS]
        label = f"first_order.{name}.{architecture}.{rule}"
        figures.append(
            gain_figure(label, "AUC above the embeddings' rule", answers, base, day,
                        base_name="embeddings_rule", has_goal=has_goals)
        )  # fmt: skip
    return figures


def measure(arguments: argparse.Namespace) -> list[Figure]:
    """The product's default, or the candidates of `--choose`."""
    if arguments.choose:
        seeds = range(_CHOOSING_SEED, _CHOOSING_SEED + arguments.rounds)
        return figures_of(compare(arguments, arguments.choose, seeds), _VALIDATION, has_goals=False)
    seeds = range(_REPORTED_SEED, _REPORTED_SEED + arguments.rounds)
    return figures_of(compare(arguments, [_DEFAULT], seeds), _TEST, has_goals=True)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rounds", type=int, default=5, help="seeds of each side (default 5)")
    parser.add_argument("--steps", type=int, default=STEPS, help=f"of {BATCH} rows (default {STEPS})")
    parser.add_argument("--log", action="append", choices=LOGS, help="default: both")
    parser.add_argument("--model", action="append", choices=FIRST_ORDER_MODELS, help="default: all")
    parser.add_argument("--choose", nargs="+", metavar="JSON", help="compare these rules instead")


if __name__ == "__main__":
    run_benchmark(__doc__, measure, add_options)
