"""The cost of remote embeddings: one server and one worker compared with torchrec's FusedEmbeddingBagCollection in one
process.

Both sides have the same network, ids, optimisers, and settings of threads, malloc and OpenMP; only the location of rows
and dense parameters differs. Figures are samples per CPU second, of server and worker together. All steps overlap their
pulls, as a job's do once its model has taken its first steps (`overlap_pull: auto`).

    python -m benchmarks parameter_server [--rows 10000000] [--groups 8] [--slices 20] [--output json]

The speed of a machine changes from second to second, and a process has a constant bias that depends on its memory
layout and its core. Therefore, the server has a core of its own, as it has on another machine, and the worker and
torchrec share the other one; the sides alternate in slices of about a quarter of a second, and all processes are
restarted for each group of slices. A figure is the mean of the medians of the groups, with a 95 % interval by Student's
t over the groups. A goal is met if the lower end of the interval meets it.

The ratio is higher where memory is slow, because a server fetches the rows of a request before it uses them: DLRM with
batches of 512 had 0.93 on a machine that copied 635 MB in 28 ms, and 1.12 on one that took 54 ms.

Three child processes do the work (`server`, `worker`, `torchrec`); each answers one line of JSON to one line of input.
"""

from __future__ import annotations

import argparse
import os
import statistics
from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.common.child import Child, one_core
from benchmarks.common.figures import Figure, mean_with_interval, run_benchmark, take_turns

_DENSE, _FEATURES, _ROW = 13, 26, 16


@dataclass(frozen=True)
class Case:
    """A network at a batch size, the share of torchrec's speed that it must reach, and the steps of one slice."""

    network: str
    batch: int
    goal: float
    steps: int

    @property
    def name(self) -> str:
        return f"{self.network}_batch_{self.batch}"


CASES = (
    Case("dlrm", 512, 0.95, 8),
    Case("dlrm", 4096, 0.98, 2),
    Case("wide_and_deep", 512, 0.92, 24),
    Case("wide_and_deep", 4096, 0.96, 6),
)


def process(role: str, *arguments: str) -> Child:
    """A process of this benchmark: `server`, `worker` or `torchrec`; the server has a core of its own."""
    cores = sorted(os.sched_getaffinity(0))
    core = cores[0] if role == "server" else cores[-1]
    return Child("benchmarks.processes.parameter_server", role, *arguments, environment=one_core(), core=core)


def measure_group(case: Case, rows: int, slices: int) -> dict[str, list[dict[str, float]]]:
    """CPU seconds of each slice of both sides, `cpu` in all and by part, from processes of their own."""
    describe = (case.network, str(case.batch), str(rows))
    children: list[Child] = []
    try:
        children.append(server := process("server", *describe))
        children.append(worker := process("worker", *describe, server.hello["address"]))
        children.append(peer := process("torchrec", *describe))

        def remote() -> dict[str, float]:
            server_before, worker_before = server.cpu_seconds(), worker.cpu_seconds()
            server.ask(reset=True)
            parts = worker.ask(steps=case.steps)
            spent_worker, spent_server = worker.cpu_seconds() - worker_before, server.cpu_seconds() - server_before
            parts |= server.ask(reset=False)
            parts["worker: threads that send and receive"] = spent_worker - parts.pop("main_thread")
            parts["server: transport"] = spent_server - sum(parts[name] for name in parts if name.startswith("server:"))
            return {"cpu": spent_worker + spent_server, **parts}

        def local() -> dict[str, float]:
            before = peer.cpu_seconds()
            parts = peer.ask(steps=case.steps)
            return {"cpu": peer.cpu_seconds() - before, **parts}

        sides: dict[str, Callable[[], dict[str, float]]] = {"remote": remote, "torchrec": local}
        take_turns(sides, 5)  # caches, allocators and code paths settle
        return take_turns(sides, slices)
    finally:
        for child in reversed(children):
            child.close()


def measure_case(case: Case, rows: int, groups: int, slices: int) -> list[Figure]:
    """Samples per CPU second of both sides, their ratio, and where the remote side's time goes."""
    settings = {
        "rows": rows, "batch": case.batch, "tables": _FEATURES, "row_dimension": _ROW, "ids": "zipf 1.1", "threads": 1,
        "groups": groups, "slices": slices, "steps_per_slice": case.steps,
    }  # fmt: skip
    measured = [measure_group(case, rows, slices) for _ in range(groups)]
    medians = [
        statistics.median(theirs["cpu"] / ours["cpu"] for ours, theirs in zip(*each.values(), strict=True))
        for each in measured
    ]
    value, half = mean_with_interval(medians)
    name = f"parameter_server.{case.name}"
    unit = "of torchrec's samples per CPU second"
    figures = [
        Figure(name, value, unit, settings={**settings, "medians": [round(each, 4) for each in medians]}),
        Figure(f"{name}.at_least", value - half, unit + ", lower end of the 95 % interval", at_least=case.goal),
    ]
    for side in ("remote", "torchrec"):
        results = [result for each in measured for result in each[side]]
        speed = statistics.median(case.batch * case.steps / each["cpu"] for each in results)
        figures.append(Figure(f"{name}.{side}", speed, "samples per CPU second"))
        for part in results[0]:
            if part != "cpu":
                spent = statistics.median(1e3 * each.get(part, 0.0) / case.steps for each in results)
                figures.append(Figure(f"{name}.{side}: {part}", spent, "CPU ms per step"))
    return figures


def measure(arguments: argparse.Namespace) -> list[Figure]:
    """All cases, one after the other."""
    chosen = [case for case in CASES if not arguments.case or case.name in arguments.case]
    size = (arguments.rows, arguments.groups, arguments.slices)
    return [figure for case in chosen for figure in measure_case(case, *size)]


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rows", type=int, default=10_000_000, help="rows of all tables together (default 10,000,000)")
    parser.add_argument("--groups", type=int, default=8, help="times that all processes are started (default 8)")
    parser.add_argument("--slices", type=int, default=20, help="slices of each side in a group (default 20)")
    parser.add_argument("--case", action="append", choices=[case.name for case in CASES], help="default: all")


if __name__ == "__main__":
    run_benchmark(__doc__, measure, add_options)
