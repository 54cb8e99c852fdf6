"""What remote embeddings cost: one server and one worker ÷ torchrec's FusedEmbeddingBagCollection in one process.

The same network, ids, optimisers, thread, malloc and OpenMP settings on both sides; only where rows and dense
parameters live differs. Compared are samples per CPU second, of server and worker together, in rounds that take turns.
All steps overlap their pulls, as a job's do once its model has taken its first steps (`overlap_pull: auto`).

    python -m benchmarks.parameter_server [--rows 10000000] [--rounds 5] [--output json]

Three child processes do the work (`server`, `worker`, `torchrec`); each answers one line of JSON to one line of input.
"""

from __future__ import annotations

import argparse
import statistics
from dataclasses import dataclass

from benchmarks.figures import Figure, interleave, ratio, run_benchmark
from benchmarks.processes.child import Child, one_core

_DENSE, _FEATURES, _ROW = 13, 26, 16


@dataclass(frozen=True)
class Case:
    """A network at a batch size, and the share of torchrec's speed that it must reach."""

    network: str
    batch: int
    goal: float
    steps: int

    @property
    def name(self) -> str:
        return f"{self.network}_batch_{self.batch}"


CASES = (
    Case("dlrm", 512, 0.92, 48),
    Case("dlrm", 4096, 0.97, 24),
    Case("wide_and_deep", 512, 0.88, 96),
    Case("wide_and_deep", 4096, 0.88, 48),
)


def process(role: str, *arguments: str) -> Child:
    """A process of this benchmark: `server`, `worker` or `torchrec`."""
    return Child("benchmarks.processes.parameter_server", role, *arguments, environment=one_core())


def measure_case(case: Case, rows: int, rounds: int) -> list[Figure]:
    """Samples per CPU second of both sides, their ratio, and where the remote side's time goes."""
    settings = {
        "rows": rows, "batch": case.batch, "tables": _FEATURES, "row_dimension": _ROW, "ids": "zipf 1.1", "threads": 1,
        "rounds": rounds, "steps_per_round": case.steps,
    }  # fmt: skip
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

        sides = {"remote": remote, "torchrec": local}
        interleave(sides, 1)  # caches, allocators and code paths settle
        results = interleave(sides, rounds)
    finally:
        for child in reversed(children):
            child.close()
    samples = case.batch * case.steps
    speeds = {name: [samples / each["cpu"] for each in results[name]] for name in sides}
    figures = [
        Figure(
            f"parameter_server.{case.name}",
            ratio(speeds["remote"], speeds["torchrec"]),
            "of torchrec's samples per CPU second",
            at_least=case.goal,
            settings={**settings, "remote_each": [round(each) for each in speeds["remote"]],
                      "torchrec_each": [round(each) for each in speeds["torchrec"]]},
        )
    ]  # fmt: skip
    for name in sides:
        speed = statistics.median(speeds[name])
        figures.append(Figure(f"parameter_server.{case.name}.{name}", speed, "samples per CPU second"))
        for part in results[name][0]:
            if part != "cpu":
                value = statistics.median(1e3 * each[part] / case.steps for each in results[name])
                figures.append(Figure(f"parameter_server.{case.name}.{name}: {part}", value, "CPU ms per step"))
    return figures


def measure(arguments: argparse.Namespace) -> list[Figure]:
    """All cases, one after the other."""
    chosen = [case for case in CASES if not arguments.case or case.name in arguments.case]
    return [figure for case in chosen for figure in measure_case(case, arguments.rows, arguments.rounds)]


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rows", type=int, default=10_000_000, help="rows of all tables together (default 10,000,000)")
    parser.add_argument("--rounds", type=int, default=5, help="rounds of each side (default 5)")
    parser.add_argument("--case", action="append", choices=[case.name for case in CASES], help="default: all")


if __name__ == "__main__":
    run_benchmark(__doc__, measure, add_options)
