"""The CPU time of an exported model relative to its scorer, and the memory of an export.

    python -m benchmarks export [--rows 4000000] [--rounds 10] [--output json]

The evaluator exports a generated record of DLRM with rows of 16 numbers (`processes/exported_model.py`), in a process
with one thread. CPU seconds of `predict` of the loaded MLflow model are compared, in turns, with those of its scorer,
which gets the same rows as an Arrow table. Memory is the process's peak above its memory before the export, for all
rows and for those of one of their shards, each in its own process. Shards have one size in both, so the difference is
memory per row.

What turns each figure red: `pa.Table.from_pylist(model_input.to_dict("records"))` in `trainers/export/scorer.py`
(`10000_rows`), a signature with the types of inputs (`1_row`); in `trainers/export/shards.py` `_COPIED_BYTES = 2**40`
(`peak`) and `shards=1` for each table (`memory_per_row`).
"""

from __future__ import annotations

import argparse
from functools import partial

from benchmarks.common.child import Child, one_core
from benchmarks.common.figures import Figure, ratio, run_benchmark, take_turns
from elastrec.trainers.export.shards import SHARD_ROWS

_TIMES = {10_000: 5, 1: 200}
"""Predictions of a slice, by the rows of a request: CPU seconds of a single small one are not exact."""
_SCORED_TABLE_ROWS = 100_000
_FEWEST_SHARDS = 4


def measure(arguments: argparse.Namespace) -> list[Figure]:
    """CPU seconds, then memory."""
    return [*measure_cpu(arguments.rounds), *measure_memory(arguments.rows)]


def measure_cpu(rounds: int) -> list[Figure]:
    figures = []
    with Child("benchmarks.processes.exported_model", environment=one_core()) as process:
        process.ask(export=_SCORED_TABLE_ROWS)
        for rows, times in _TIMES.items():
            sides = {side: partial(process.ask, score=[side, rows, times]) for side in ("pyfunc", "scorer")}
            for warm_up in sides.values():
                warm_up()
            seconds = take_turns(sides, rounds)
            figures.append(
                Figure(
                    f"export.pyfunc_cpu.{rows}_row{'s' if rows > 1 else ''}",
                    ratio(seconds["pyfunc"], seconds["scorer"]),
                    "× the scorer's CPU seconds",
                    at_most=2,
                    settings={"slices": rounds, "scorer_ms": round(1e3 * min(seconds["scorer"]) / times, 3)},
                )
            )
    return figures


def measure_memory(rows: int) -> list[Figure]:
    shards = -(-rows // SHARD_ROWS)
    if shards < _FEWEST_SHARDS:
        raise SystemExit(
            f"--rows: {rows} is not allowed; allowed: more than {(_FEWEST_SHARDS - 1) * SHARD_ROWS}, which make "
            f"{_FEWEST_SHARDS} shards: with fewer, memory per row can hardly be distinguished from what a shard needs"
        )
    found = {}
    for size in (rows // shards, rows):
        with Child("benchmarks.processes.exported_model", environment=one_core()) as process:
            process.ask(export=1_000)  # what is imported and kept once is not of the rows
            found[size] = process.ask(export=size)
    less, most = found.values()
    per_row = (most["grown_bytes"] - less["grown_bytes"]) / (rows - rows // shards)
    settings = {
        "rows": rows, "shards": most["shards"], "shard_mb": round(most["shard_bytes"] / 1e6, 1),
        "peak_mb": [round(each["grown_bytes"] / 1e6, 1) for each in found.values()],
    }  # fmt: skip
    return [
        Figure("export.peak", most["grown_bytes"] / most["shard_bytes"], "× a shard, above the process before",
               at_most=2, settings=settings),
        Figure("export.memory_per_row", per_row, "bytes per row of the table beyond its first shard", at_most=8,
               settings=settings),
    ]  # fmt: skip


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rows", type=int, default=4_000_000, help="of the largest table (default 4,000,000)")
    parser.add_argument("--rounds", type=int, default=10, help="slices of each side (default 10)")


if __name__ == "__main__":
    run_benchmark(__doc__, measure, add_options)
