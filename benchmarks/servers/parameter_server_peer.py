"""The same Wide & Deep on TensorFlow's ParameterServerStrategy: samples per CPU second, ours ÷ theirs.

One server and one worker on both sides, theirs with its coordinator; the same network, tables, kind of ids, update
rules, and one thread each. Their CPU seconds include the coordinator, which only schedules steps. The goal is for a
variable per table and eight steps per scheduled function. Other figures are for one step per function, as in
TensorFlow's guide, and for all tables in one variable, which is fastest for TensorFlow.

TensorFlow has a separate environment, which this command creates (about 1 GB, from the configured package index):

    python -m benchmarks parameter_server_peer --install
    python -m benchmarks parameter_server_peer [--rounds 5] [--output json]
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.common.child import Child
from benchmarks.common.environments import install, python_of
from benchmarks.common.figures import Figure, interleave, ratio, run_benchmark
from benchmarks.servers.parameter_server import process

ENVIRONMENT = Path(".venv-tensorflow")
PACKAGES = ("tensorflow-cpu==2.21.0",)
_FEATURES, _ROW, _STEPS = 26, 16, 96
# Variables for all tables, and steps per scheduled function.
_FORMS = {"tensorflow": (_FEATURES, 8), "tensorflow_single_steps": (_FEATURES, 1), "tensorflow_merged_tables": (1, 8)}


def coordinator(python: Path, batch: int, rows: int, tables: int, steps_per_call: int) -> Child:
    """TensorFlow's coordinator, with the server and the worker that it starts; answers as our processes do."""
    return Child(
        "benchmarks.processes.tensorflow_peer", "coordinator", str(batch), str(rows), str(tables), str(steps_per_call),
        environment={"TF_CPP_MIN_LOG_LEVEL": "2", "CUDA_VISIBLE_DEVICES": ""}, python=str(python),
    )  # fmt: skip


def measure(arguments: argparse.Namespace) -> list[Figure]:
    """Measures our side and both forms of theirs, in alternating rounds.

    Raises:
        SystemExit: TensorFlow is not installed; the message says how to install it.
    """
    if arguments.install:
        install(arguments.environment, PACKAGES, "parameter_server_peer")
    python = python_of(arguments.environment)
    if not python.exists():
        raise SystemExit(
            f"parameter_server_peer: there is no TensorFlow in {arguments.environment}; "
            "python -m benchmarks parameter_server_peer --install puts it there"
        )
    return compare(python, arguments.batch, arguments.rows, arguments.rounds)


def compare(python: Path, batch: int, rows: int, rounds: int) -> list[Figure]:
    """Samples per CPU second of every side, and the ratios."""
    describe = ("wide_and_deep", str(batch), str(rows))
    children: list[Child] = []
    try:
        children.append(server := process("server", *describe))
        children.append(worker := process("worker", *describe, server.hello["address"]))
        peers = {}
        for name, (tables, steps_per_call) in _FORMS.items():
            peers[name] = coordinator(python, batch, rows, tables, steps_per_call)
            children.append(peers[name])

        def ours() -> float:
            before = server.cpu_seconds() + worker.cpu_seconds()
            worker.ask(steps=_STEPS)
            return batch * _STEPS / (server.cpu_seconds() + worker.cpu_seconds() - before)

        def theirs(peer: Child) -> float:
            done: dict[str, Any] = peer.ask(steps=_STEPS)
            return float(batch * done["steps"] / done["cpu"])

        sides = {"elastrec": ours, **{name: lambda peer=peer: theirs(peer) for name, peer in peers.items()}}
        interleave(sides, 1)  # caches, allocators and code paths settle
        speeds = interleave(sides, rounds)
        version = peers["tensorflow"].hello["tensorflow"]
    finally:
        for child in reversed(children):
            child.close()
    return figures_of(speeds, {"batch": batch, "rows": rows, "rounds": rounds, "tensorflow": version, "threads": 1})


def figures_of(speeds: Mapping[str, Sequence[float]], settings: dict[str, Any]) -> list[Figure]:
    """The ratio that has a goal, the other one, and the speeds behind them."""
    settings = {**settings, "tables": _FEATURES, "row_dimension": _ROW, "ids": "zipf 1.1", "steps_per_round": _STEPS}
    unit = "times their samples per CPU second"
    return [
        Figure("parameter_server_peer.wide_and_deep", ratio(speeds["elastrec"], speeds["tensorflow"]), unit,
               at_least=3.0, settings=settings),
        *(Figure(f"parameter_server_peer.wide_and_deep.{name.removeprefix('tensorflow_')}",
                 ratio(speeds["elastrec"], speeds[name]), unit) for name in _FORMS if name != "tensorflow"),
        *(Figure(f"parameter_server_peer.{name}", statistics.median(each), "samples per CPU second",
                 settings={"each": json.dumps([round(one) for one in each])}) for name, each in speeds.items()),
    ]  # fmt: skip


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--install", action="store_true", help="make the environment first")
    parser.add_argument("--environment", type=Path, default=ENVIRONMENT, help=f"default {ENVIRONMENT}")
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--rows", type=int, default=1_000_000, help="rows of all tables together (default 1,000,000)")
    parser.add_argument("--rounds", type=int, default=5, help="rounds of each side (default 5)")


if __name__ == "__main__":
    run_benchmark(__doc__, measure, add_options)
