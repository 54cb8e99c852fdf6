"""Flash checkpoint (DLRover-RM §5.2): how long a save blocks a server, and how fast it is written and restored.

    python -m benchmarks flash_checkpoint --install
    python -m benchmarks flash_checkpoint [--rows 7000000] [--rounds 7] [--folder DISK] [--output json]

Saves: one server full of rows copies its part of a record into the node's memory, and a niced process writes it to the
disk. The save blocks the server until its cut is frozen; then requests are served during the copy. In turns with it,
one thread copies the same bytes in memory, and writes them to the same disk, synchronised.

Restores: a server reads the part from memory, from a store, or from a local disk without cached pages, with as many
threads as cores. A server on another machine would read from an object store or a network file system. So
`restore_store_to_memory` has a goal, for an S3 server (Versity's gateway to files on the same disk, from
`tools.stores`) over loopback that shares the cores with the restore. `restore_disk_to_memory` depends only on the disk
and has none.

Restart: a restarted server creates the pages of its rows while it loads its kernels. Its restore is measured from the
restore order, which comes once it is ready; `pages_seconds` and `ready_seconds` are the time until the pages exist and
until the server is ready. A pod registers in between, which takes longer.

Goodput: a whole job saves every ten seconds; the share of its time without pauses for saves.

DLRover: its own engine takes turns with ours, with as many bytes in tensors of one rank and as many threads. Its save
ends when its tracker names the step, while its file may be only in the system's cache; ours ends when file and folder
are on the disk. So `durable_to_dlrover` has no goal; `durable_to_synced_dlrover`, which waits for DLRover's file, has
one. Its restore copies arrays, without checksums or ids. It runs in its own environment, which `--install` creates
(about 5 GB); `--install` also builds the S3 server, which needs Go. Without them, their figures are missing.

The process that writes to the disk has the lowest priority, so figures of durability need an idle machine.

What turns a figure red: calling `froze` after the loop over `_copied` in `records/share.py` (blocked_to_memcpy); no
`base` for `save_part` (changes_to_full); opening the local store's files with O_SYNC and writing pieces of 64 KiB
(durable_to_raw_write); `PartMemory.find` that returns None (restores); no `note` for `MemoryStore` (restart_to_memcpy);
the mutant `pause-for-the-store` with a store that is slow (goodput).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import sys
import tempfile
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.common.child import Child
from benchmarks.common.environments import install, python_of
from benchmarks.common.figures import Figure, OtherLoad, interleave, ratio, run_benchmark
from benchmarks.common.jobs import private_platform, run_job
from elastrec.platform.data.generating.generator import GenerateSpec, generate, training_data_for
from elastrec.platform.specs.environment import CORES
from elastrec.platform.specs.job import API_VERSION
from elastrec.platform.specs.metrics import TrainingMetrics
from elastrec.trainers.threads import process_settings
from tools.stores.fetching import fetch_versity, missing
from tools.stores.servers import S3

ENVIRONMENT = Path(".venv-dlrover")
# DLRover's wheel names neither gRPC nor protobuf, which its engine imports. PyTorch is that of `requirements.lock`.
PACKAGES = ("dlrover==0.6.1", "torch==2.13.0", "numpy==2.4.6", "grpcio==1.85.1", "protobuf==7.36.2")
_SIDES = {
    "full": "full", "flush": "flush", "memcpy": "memcpy", "raw_write": "raw_write", "restore_memory": "restore_memory",
    "restore_disk": "restore_store", "full_before_changes": "full", "changes": "changes",
}  # fmt: skip
"""The request to the child for each side, in the order of a round."""
_DLROVER_SIDES = ("memory", "disk", "restore", "memcpy")
CHANGED = 0.05
_INTERVAL_SECONDS = 10
_BUCKET = "benchmark"


def measure(arguments: argparse.Namespace) -> list[Figure]:
    """All sides in turns."""
    if arguments.install:
        install(arguments.environment, PACKAGES, "flash_checkpoint")
        fetch_versity()
    python = peer_python(arguments.environment)
    threads = {CORES: str(os.cpu_count() or 1)}
    threads |= process_settings(threads)
    volume = Path("/dev/shm") / f"elastrec-benchmark-{uuid.uuid4().hex[:8]}"
    with contextlib.ExitStack() as stack:
        stack.callback(volume.unlink, missing_ok=True)
        load = stack.enter_context(OtherLoad())
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="elastrec-benchmark-", dir=arguments.folder))
        remote: dict[str, str] = {}
        if not (lacking := missing("s3")):
            gateway = stack.enter_context(S3(Path(folder)))
            gateway.make_bucket(_BUCKET)
            remote = gateway.environment
        else:
            sys.stderr.write(f"flash_checkpoint: {lacking}; restore_store_to_memory is left out\n")
        server = stack.enter_context(
            Child(
                "benchmarks.processes.flash_checkpoint", "server", folder, str(volume), str(arguments.rows),
                str(CHANGED), f"s3://{_BUCKET}/checkpoints" if remote else "", environment=threads | remote,
            )
        )  # fmt: skip
        # A second full part before the changes: they build on one that is in memory, and are compared with it.
        works = _SIDES | ({"restore_store": "restore_remote"} if remote else {})
        sides = {name: _side(server, work) for name, work in works.items()}
        dlrover: Mapping[str, Any] | None = None
        if python is not None:
            place = Path(folder, "dlrover")
            place.mkdir()
            peer = stack.enter_context(
                Child(
                    "benchmarks.processes.dlrover_peer", str(place), str(server.hello["bytes"]), environment=threads,
                    python=str(python),
                )
            )  # fmt: skip
            dlrover = peer.hello
            sides |= {f"dlrover_{name}": _side(peer, name) for name in _DLROVER_SIDES}
        results = interleave(sides, arguments.rounds)
        restarted = _restarted(server, volume, arguments.rows, arguments.rounds, threads)
    by_name = results | {"restart": restarted}
    settings = {
        "rows": arguments.rows, "bytes": server.hello["bytes"], "rounds": arguments.rounds,
        "threads": threads[CORES], "others_cores": round(load.cores, 2),
    }  # fmt: skip
    figures = figures_of(by_name, server.hello["first"]["blocked_seconds"], settings)
    if dlrover is not None:
        versions = {name: dlrover[name] for name in ("dlrover", "torch")}
        figures += peer_figures(by_name, server.hello["first"], dlrover["first"], {**settings, **versions})
    figures.append(goodput(arguments.seconds))
    for name, values in by_name.items():
        each = [round(value["seconds"], 4) for value in values]
        figures.append(Figure(f"flash_checkpoint.{name}", statistics.median(each), "s", settings={"each": each}))
    return figures


def peer_python(environment: Path) -> Path | None:
    """The interpreter of the environment with DLRover; None, and a line on standard error, where there is none."""
    python = python_of(environment)
    if python.exists():
        return python
    sys.stderr.write(
        f"flash_checkpoint: there is no DLRover in {environment}; its figures are left out; "
        "python -m benchmarks flash_checkpoint --install puts it there\n"
    )
    return None


def _restarted(
    server: Child, volume: Path, rows: int, rounds: int, environment: Mapping[str, str]
) -> list[dict[str, float]]:
    """The first restores of servers that are started again, one after the other, once the one before has ended."""
    uri: str = server.ask(do="record")["uri"]
    server.close()
    answers = []
    for _ in range(rounds):
        arguments = "restarted", uri, str(volume), str(rows)
        with Child("benchmarks.processes.flash_checkpoint", *arguments, environment=environment) as again:
            answers.append(again.ask())
    return answers


def _side(child: Child, name: str) -> Callable[[], dict[str, float]]:
    return lambda: child.ask(do=name)


Measured = Mapping[str, Sequence[Mapping[str, float]]]
"""What each round of each side has answered."""


def _values(measured: Measured, side: str, name: str = "seconds") -> list[float]:
    return [each[name] for each in measured[side]]


def _durable(measured: Measured) -> list[float]:
    """Seconds from the beginning of each save until it is on the disk."""
    pairs = zip(_values(measured, "full"), _values(measured, "flush"), strict=True)
    return [copy + flush for copy, flush in pairs]


def _starts(measured: Measured) -> dict[str, float]:
    """What servers that are started again do before a restore is ordered."""
    return {
        name: round(statistics.median(_values(measured, "restart", name)), 3)
        for name in ("ready_seconds", "pages_seconds", "pages_bytes")
    }


def figures_of(measured: Measured, first_blocked: float, settings: Mapping[str, Any]) -> list[Figure]:
    """Ratios against memory and disk.

    Args:
        first_blocked: seconds for which the first save of the process blocked.
    """
    memcpy = _values(measured, "memcpy")
    blocked = [first_blocked, *_values(measured, "full", "blocked_seconds")]
    memory = _values(measured, "restore_memory")
    figures = [
        Figure("flash_checkpoint.blocked_to_memcpy", max(blocked) / statistics.median(memcpy),
               "× seconds of a memcpy of its bytes, the longest of all saves, the first one included", at_most=1.2,
               settings={**settings, "each_seconds": [round(value, 4) for value in blocked]}),
        Figure("flash_checkpoint.changes_to_full",
               ratio(_values(measured, "changes"), _values(measured, "full_before_changes")),
               "× seconds of copying everything just before, of 5 % changed rows", at_most=0.15, settings=settings),
        Figure("flash_checkpoint.durable_to_raw_write", ratio(_durable(measured), _values(measured, "raw_write")),
               "× seconds of writing its bytes, from the beginning of the save", at_most=2.0, settings=settings),
        Figure("flash_checkpoint.restore_to_memcpy", ratio(memory, memcpy), "× seconds of a memcpy of its bytes",
               at_most=1.5, settings=settings),
        Figure("flash_checkpoint.restart_to_memcpy",
               ratio(_values(measured, "restart"), _values(measured, "restart", "memcpy_seconds")),
               "× seconds of a memcpy of its bytes, from the restore order of a process that was started again",
               at_most=1.5, settings=settings | _starts(measured)),
        Figure("flash_checkpoint.restore_disk_to_memory", ratio(_values(measured, "restore_disk"), memory),
               "× seconds of a restore from memory, from a disk of the same machine", settings=settings),
    ]  # fmt: skip
    if "restore_store" in measured:
        figures.append(
            Figure("flash_checkpoint.restore_store_to_memory", ratio(_values(measured, "restore_store"), memory),
                   "× seconds of a restore from memory, from an S3 server", at_least=5.0, settings=settings)
        )  # fmt: skip
    return figures


def peer_figures(
    measured: Measured, first: Mapping[str, float], peer_first: Mapping[str, float], settings: Mapping[str, Any]
) -> list[Figure]:
    """Ours ÷ DLRover's, and DLRover's against a memcpy of its bytes in its process.

    Args:
        first, peer_first: the first save of each process.
    """
    blocked, peer_blocked = _values(measured, "full", "blocked_seconds"), _values(measured, "dlrover_memory")
    peer_memcpy = _values(measured, "dlrover_memcpy")
    pairs = {
        "blocked": (blocked, peer_blocked),
        "first_blocked": ([first["blocked_seconds"]], [peer_first["seconds"]]),
        "durable": (_durable(measured), _values(measured, "dlrover_disk")),
        "restore": (_values(measured, "restore_memory"), _values(measured, "dlrover_restore")),
    }
    figures = [
        Figure(f"flash_checkpoint.{name}_to_dlrover", ratio(ours, theirs), "× seconds of DLRover's flash checkpoint",
               at_most=None if name == "durable" else 1.0, settings=settings)
        for name, (ours, theirs) in pairs.items()
    ]  # fmt: skip
    figures.append(
        Figure("flash_checkpoint.durable_to_synced_dlrover",
               ratio(pairs["durable"][0], _values(measured, "dlrover_disk", "synced_seconds")),
               "× seconds until DLRover's file is on the disk, too", at_most=1.0, settings=settings)
    )  # fmt: skip
    for name, (_, theirs) in pairs.items():
        memcpy = peer_memcpy if len(theirs) == len(peer_memcpy) else [statistics.median(peer_memcpy)]
        figures.append(
            Figure(f"flash_checkpoint.dlrover.{name}_to_memcpy", ratio(theirs, memcpy),
                   "× seconds of a memcpy of its bytes, of DLRover's", settings=settings)
        )  # fmt: skip
    return figures


def goodput(seconds: float) -> Figure:
    """A job of one worker and one server on a node agent of its own, whose records go through memory."""
    # Its pods are no children of this process.
    with private_platform() as platform, OtherLoad() as load:
        log = generate(
            GenerateSpec(path=f"{platform.work_uri}/clicks", days=2, rows_per_day=20_000, dense=13, sparse=26)
        )
        content = {
            "apiVersion": API_VERSION,
            "kind": "TrainingJob",
            "metadata": {"name": "goodput"},
            "spec": {
                "model": {"architecture": "dlrm", "embedding_dimension": 16},
                "data": json.loads(training_data_for(log.spec).model_dump_json(exclude_none=True)),
                "training": {"epochs": 1000},
                "checkpoint": {"interval": f"{_INTERVAL_SECONDS}s", "memory": "256Mi"},
                "continual": {"start_from": "nothing"},
            },
        }
        began: list[float] = []

        def is_over(metrics: TrainingMetrics) -> bool:
            if metrics.samples_trained and not began:
                began.append(metrics.elapsed_seconds)
            return bool(began) and metrics.elapsed_seconds - began[0] > seconds

        ended = run_job(platform, content, until=is_over)
    parts = ended.explanation.parts
    working = ended.explanation.wall_seconds - sum(parts.get(part, 0.0) for part in ("pending", "starting"))
    saves = sum(entry.what.startswith("saved") for entry in ended.explanation.timeline)
    return Figure(
        "flash_checkpoint.goodput", 1.0 - parts.get("checkpointing", 0.0) / working,
        "share of the time since the first row in which workers did not pause for a save", at_least=0.97,
        settings={"interval_seconds": _INTERVAL_SECONDS, "seconds": round(working, 1), "saves": saves,
                  "paused_seconds": round(parts.get("checkpointing", 0.0), 2),
                  "all_cores": round(load.cores, 2)},
    )  # fmt: skip


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--install", action="store_true", help="make DLRover's environment and the S3 server first")
    parser.add_argument("--environment", type=Path, default=ENVIRONMENT, help=f"default {ENVIRONMENT}")
    parser.add_argument("--rows", type=int, default=7_000_000, help="rows of 76 bytes each (default 7,000,000)")
    parser.add_argument("--rounds", type=int, default=7, help="rounds of each side (default 7)")
    parser.add_argument("--seconds", type=float, default=60.0, help="that the job trains (default 60)")
    parser.add_argument("--folder", help="where on the disk to write (default: the system's temporary folder)")


if __name__ == "__main__":
    run_benchmark(__doc__, measure, add_options, has_pods=True)
