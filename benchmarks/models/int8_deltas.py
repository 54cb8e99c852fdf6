"""The loss of a model that is restored from deltas with int8 rows, and the bytes that they save.

A model is trained for one pass over half of a generated log and saved as a full record. Then training continues, with
five delta records. The model restored from the chain of records is compared with the one in training; with float32,
they are equal bit for bit. `STEPS = 3` in `checkpoints/quantized.py` makes the goals red.

    python -m benchmarks int8_deltas [--rounds 5] [--model dlrm] [--output json]
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.common.child import Child, one_core
from benchmarks.common.figures import Figure, mean_with_interval, run_benchmark
from benchmarks.models.initial_range import BATCH, DIMENSION, ONE_SHARD, Log, model_of, write_log

_SEED, _STEPS, _KINDS = 201, 600, ("float32", "int8")
GOAL_AUC, GOAL_ENTROPY = 0.001, 0.01


def train(process: Child, log: Log, architecture: str, seed: int, kind: str) -> dict[str, Any]:
    """One model, before a restore and after it."""
    spec = {
        "model": model_of(architecture, log),
        "data": log.data,
        "training": {"batch_size": BATCH, "seed": seed, **ONE_SHARD},
        "checkpoint": {"deltas": 100, "delta_values": kind},
    }
    answer: dict[str, Any] = process.ask(content={"metadata": {"name": "deltas"}, "spec": spec}, steps=_STEPS)
    return answer


def figures_of(architecture: str, found: dict[str, list[dict[str, Any]]]) -> list[Figure]:
    """After a restore minus before it, and bytes of one kind over those of the other."""
    settings = {
        "seeds": len(found["int8"]), "steps": _STEPS, "batch": BATCH, "dimension": DIMENSION,
        "auc": [round(each["auc"], 4) for each in found["int8"]],
    }  # fmt: skip
    figures = []
    for metric, goal in (("auc", GOAL_AUC), ("normalized_entropy", GOAL_ENTROPY)):
        for kind in _KINDS:
            mean, interval = mean_with_interval([each[f"restored_{metric}"] - each[metric] for each in found[kind]])
            limit = goal if kind == "int8" else 0.0
            figures.append(
                Figure(f"int8_deltas.{architecture}.{kind}.{metric}", mean, f"{metric} above the model in training",
                       at_least=0.0 - limit, at_most=limit, settings=settings | {"interval_95": f"±{interval:.6f}"})
            )  # fmt: skip
    ratios = [
        mine["delta_bytes"] / theirs["delta_bytes"]
        for mine, theirs in zip(found["int8"], found["float32"], strict=True)
    ]
    return [
        *figures,
        Figure(f"int8_deltas.{architecture}.bytes", statistics.median(ratios), "of the bytes of deltas with float32"),
    ]


def measure(arguments: argparse.Namespace) -> list[Figure]:
    """Every model, both kinds, `rounds` seeds."""
    figures = []
    with tempfile.TemporaryDirectory() as folder:
        log = write_log("clicks", Path(folder) / "clicks", BATCH * _STEPS)
        for architecture in arguments.model:
            with Child("benchmarks.processes.restored_worker", environment=one_core()) as process:
                found = {
                    kind: [
                        train(process, log, architecture, seed, kind) for seed in range(_SEED, _SEED + arguments.rounds)
                    ]
                    for kind in _KINDS
                }
            figures += figures_of(architecture, found)
    return figures


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rounds", type=int, default=5, help="seeds (default 5)")
    parser.add_argument(
        "--model", nargs="+", choices=("dlrm", "wide_and_deep"), default=["dlrm", "wide_and_deep"], help="default: both"
    )


if __name__ == "__main__":
    run_benchmark(__doc__, measure, add_options)
