"""What remote embeddings cost: one server and one worker ÷ torchrec's FusedEmbeddingBagCollection in one process.

The same network, ids, optimisers, thread, malloc and OpenMP settings on both sides; only where rows and dense
parameters live differs. Compared are samples per CPU second, of server and worker together, in rounds that take turns.

    python -m benchmarks.parameter_server [--rows 10000000] [--rounds 9] [--output json]

Three child processes do the work (`server`, `worker`, `torchrec`); each answers one line of JSON to one line of input.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass
from typing import Any

from benchmarks.figures import Figure, interleave, ratio, run_benchmark
from elastrec.trainers.threads import process_settings

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
    Case("dlrm", 4096, 0.97, 8),
    Case("wide_and_deep", 512, 0.88, 96),
    Case("wide_and_deep", 4096, 0.88, 16),
)


class Child:
    """One process of the benchmark."""

    def __init__(self, role: str, *arguments: str) -> None:
        # One thread each: CPU seconds then do not depend on how many cores happen to be free.
        environment = {**os.environ, "ELASTREC_CORES": "1"}
        environment = {**environment, **process_settings(environment)}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.processes.parameter_server", role, *arguments],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.hello = self._read()

    def ask(self, **request: Any) -> Any:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return self._read()

    def _read(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self._process.args} ended with {self._process.wait()}; see its errors above")
        return json.loads(line)

    def cpu_seconds(self) -> float:
        """CPU time of all threads of the process, in nanosecond resolution."""
        # How Linux numbers the CPU clock of another process (clock_getcpuclockid).
        return time.clock_gettime((~self._process.pid << 3) | 2)

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def measure_case(case: Case, rows: int, rounds: int) -> list[Figure]:
    """Samples per CPU second of both sides, their ratio, and where the remote side's time goes."""
    settings = {
        "rows": rows, "batch": case.batch, "tables": _FEATURES, "row_dimension": _ROW, "ids": "zipf 1.1", "threads": 1,
        "rounds": rounds, "steps_per_round": case.steps,
    }  # fmt: skip
    describe = (case.network, str(case.batch), str(rows))
    children: list[Child] = []
    try:
        children.append(server := Child("server", *describe))
        children.append(worker := Child("worker", *describe, server.hello["address"]))
        children.append(peer := Child("torchrec", *describe))

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
    parser.add_argument("--rows", type=int, default=1_000_000, help="rows of all tables together (default 1,000,000)")
    parser.add_argument("--rounds", type=int, default=5, help="rounds of each side (default 5)")
    parser.add_argument("--case", action="append", choices=[case.name for case in CASES], help="default: all")


if __name__ == "__main__":
    run_benchmark(__doc__, measure, add_options)
