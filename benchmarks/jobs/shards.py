"""The costs and the capacity of the job master: shards per second, heartbeats, memory.

A real master with its journal on disk answers over a socket; its workers are simulated (see `processes.shards`): they
send the messages of real workers and train nothing. CPU seconds are only those of the master's process.

What turns figures red: `heartbeat_seconds` in `platform/master/pods/pace.py` that ignores the number of pods
(`master_with_1000_beating`); `advance` in `platform/master/machine/shards.py` that keeps an entry for each finished
shard (`memory_per_finished_shard`); `lease` in `platform/master/pods/calls.py` that hands out at most four shards at a
time (`per_second`).

    python -m benchmarks shards [--shards 400000] [--seconds 10] [--output json]
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import time
from collections.abc import Iterator

from benchmarks.common.child import Child
from benchmarks.common.figures import Figure, run_benchmark

_MODULE = "benchmarks.processes.shards"
_LEASE, _LEASING_WORKERS = 64, 4
_BATCH, _BATCHES_PER_SHARD = 512, 100
# A worker with one core and a DLRM of Criteo's shape: 30,000 samples per CPU second.
_STEPS_PER_SECOND = 30_000 / _BATCH
_SHARD_SECONDS = _BATCHES_PER_SHARD / _STEPS_PER_SECOND


@contextlib.contextmanager
def played_job(workers: int, rows: int, batch: int, batches_per_shard: int) -> Iterator[tuple[Child, Child]]:
    """Master and players of a job that trains."""
    settings = {"workers": workers, "rows": rows, "batch": batch, "batches_per_shard": batches_per_shard}
    with (
        Child(_MODULE, "master", json.dumps(settings)) as master,
        Child(_MODULE, "players", json.dumps({"master": master.hello["address"], "workers": workers})) as players,
    ):
        yield master, players


def leasing(shards: int, rounds: int) -> list[Figure]:
    """Shards granted and completed per second, and the memory that a finished shard keeps."""
    each = shards // (rounds + 1)
    rates, cpu, resident = [], [], []
    # One row per shard, because rows do not matter here.
    with played_job(_LEASING_WORKERS, 2 * shards, 1, 1) as (master, players):
        for _ in range(rounds + 1):
            before = master.cpu_seconds()
            answer = players.ask(do="lease", shards=each, count=_LEASE)
            rates.append(answer["shards"] / answer["seconds"])
            cpu.append((master.cpu_seconds() - before) / answer["shards"])
            resident.append(master.resident_bytes())
        done = master.ask()["done"]
    settings = {"lease": _LEASE, "workers": _LEASING_WORKERS, "finished": done, "journal": "on disk"}
    grown = (resident[-1] - resident[0]) / (each * rounds)
    return [
        Figure("shards.per_second", statistics.median(rates[1:]), "shards granted and completed per second",
               at_least=20_000, simulated=True, settings={**settings, "each": [round(rate) for rate in rates[1:]]}),
        Figure("shards.master_cpu", 1e6 * statistics.median(cpu[1:]), "CPU µs of the master per shard", simulated=True),
        # A shard that stays in memory would cost more than a hundred bytes.
        Figure("shards.memory_per_finished_shard", grown, "bytes", at_most=16.0, simulated=True,
               settings={"after_first_round_bytes": resident[0], "at_the_end_bytes": resident[-1]}),
    ]  # fmt: skip


def heartbeats(name: str, workers: int, seconds: float, rounds: int, at_most: float, shards: bool) -> list[Figure]:
    """Share of a core that the master takes while its workers beat, and train when `shards` says so."""
    rows = int(3 * workers * seconds * (rounds + 1) * _STEPS_PER_SECOND * _BATCH) + 10 * workers * _BATCH * 100
    shares, beats = [], []
    with played_job(workers, rows, _BATCH, _BATCHES_PER_SHARD) as (master, players):
        # The first round warms the master up.
        for _ in range(rounds + 1):
            before, began = master.cpu_seconds(), time.monotonic()
            answer = players.ask(
                do="train", seconds=seconds, steps_per_second=_STEPS_PER_SECOND, batch=_BATCH,
                shard_seconds=_SHARD_SECONDS if shards else 0.0,
            )  # fmt: skip
            passed = time.monotonic() - began
            shares.append(100 * (master.cpu_seconds() - before) / passed)
            beats.append(answer["beats"] / passed)
    settings = {
        "workers": workers, "beat_seconds": answer["beat_seconds"], "beats_per_second": statistics.median(beats[1:]),
        "shards_per_second": answer["leases"] / passed, "each": [round(share, 2) for share in shares[1:]],
    }  # fmt: skip
    return [
        Figure(f"shards.{name}", statistics.median(shares[1:]), "% of a core", at_most=at_most, simulated=True,
               settings=settings)
    ]  # fmt: skip


def measure(arguments: argparse.Namespace) -> list[Figure]:
    """One job after the other."""
    return [
        *leasing(arguments.shards, arguments.rounds),
        *heartbeats("master_with_8_workers", 8, arguments.seconds, arguments.rounds, at_most=2.0, shards=True),
        *heartbeats(
            f"master_with_{arguments.workers}_beating", arguments.workers, arguments.seconds, arguments.rounds,
            at_most=5.0, shards=False,
        ),
    ]  # fmt: skip


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--shards", type=int, default=400_000, help="shards to finish (default 400,000)")
    parser.add_argument("--workers", type=int, default=1000, help="workers that only beat (default 1,000)")
    parser.add_argument("--seconds", type=float, default=10.0, help="of each round of heartbeats (default 10)")
    parser.add_argument("--rounds", type=int, default=3, help="rounds of each part (default 3)")


if __name__ == "__main__":
    run_benchmark(__doc__, measure, add_options)
