"""Flash checkpoint (DLRover-RM §5.2): for how long a save blocks a parameter server, and what becomes of its bytes.

One server full of rows. Its part of a record is copied into memory of the node, whose pages exist, and goes to the
disk from there by a niced process. It blocks until its cut is frozen; then requests are served beside the copy. Beside
it, in turns, the same bytes are copied in memory and written to the same disk, synchronised likewise. A restore reads
the part from memory, or from a disk whose cache does not hold it. Beside that, a whole job trains and saves every ten
seconds: how much of its time was not a pause for a save.

What turns a figure red: calling `froze` after the loop over `_copied` in `records/share.py` (blocked_to_memcpy); no
`base` for `save_part` (changes_to_full); opening the local store's files with O_SYNC and writing pieces of 64 KiB
(durable_to_raw_write); `PartMemory.find` that returns None (restores); the mutant `pause-for-the-store` with a store
that is slow (goodput).

    python -m benchmarks flash_checkpoint [--rows 7000000] [--rounds 3] [--folder DISK] [--output json]
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import uuid
from collections.abc import Callable
from pathlib import Path

from benchmarks.common.child import Child, one_core
from benchmarks.common.figures import Figure, OtherLoad, interleave, ratio, run_benchmark
from benchmarks.common.jobs import private_platform, run_job
from elastrec.platform.data.generating.generator import GenerateSpec, generate, training_data_for
from elastrec.platform.specs.job import API_VERSION
from elastrec.platform.specs.metrics import TrainingMetrics

_SIDES = ("full", "flush", "memcpy", "raw_write", "restore_memory", "restore_store", "full", "changes")
CHANGED = 0.05
_INTERVAL_SECONDS = 10


def measure(arguments: argparse.Namespace) -> list[Figure]:
    """All sides in turns."""
    volume = Path("/dev/shm") / f"elastrec-benchmark-{uuid.uuid4().hex[:8]}"
    try:
        with (
            OtherLoad() as load,
            tempfile.TemporaryDirectory(prefix="elastrec-benchmark-", dir=arguments.folder) as folder,
            Child(
                "benchmarks.processes.flash_checkpoint", folder, str(volume), str(arguments.rows), str(CHANGED),
                environment=one_core(),
            ) as server,
        ):  # fmt: skip
            size_bytes, first = server.hello["bytes"], server.hello["first"]

            def side(name: str) -> Callable[[], dict[str, float]]:
                return lambda: server.ask(do=name)

            # A second full part before the changes: they build on one that is in memory.
            sides = {f"{number}.{name}": side(name) for number, name in enumerate(_SIDES)}
            results = interleave(sides, arguments.rounds)
    finally:
        volume.unlink(missing_ok=True)
    by_name = {name.partition(".")[2]: values for name, values in reversed(results.items())}
    seconds = {name: [each["seconds"] for each in values] for name, values in by_name.items()}
    blocked = [first["blocked_seconds"], *(each["blocked_seconds"] for each in by_name["full"])]
    settings = {
        "rows": arguments.rows, "bytes": size_bytes, "rounds": arguments.rounds,
        "others_cores": round(load.cores, 2),
    }  # fmt: skip
    memcpy = statistics.median(seconds["memcpy"])
    figures = [
        Figure("flash_checkpoint.blocked_to_memcpy", max(blocked) / memcpy, "× seconds of a memcpy of its bytes, the "
               "longest of all saves, the first one included", at_most=1.2,
               settings={**settings, "each_seconds": [round(value, 4) for value in blocked]}),
        Figure("flash_checkpoint.changes_to_full", ratio(seconds["changes"], seconds["full"]),
               "× seconds of copying everything, of 5 % changed rows", at_most=0.15, settings=settings),
        Figure("flash_checkpoint.durable_to_raw_write",
               ratio([copy + flush for copy, flush in zip(seconds["full"], seconds["flush"], strict=True)],
                     seconds["raw_write"]),
               "× seconds of writing its bytes, from the beginning of the save", at_most=2.0, settings=settings),
        Figure("flash_checkpoint.restore_to_memcpy", ratio(seconds["restore_memory"], seconds["memcpy"]),
               "× seconds of a memcpy of its bytes", at_most=1.5, settings=settings),
        Figure("flash_checkpoint.restore_store_to_memory", ratio(seconds["restore_store"], seconds["restore_memory"]),
               "× seconds of a restore from memory", at_least=5.0, settings=settings),
    ]  # fmt: skip
    figures.append(goodput(arguments.seconds))
    for name, values in seconds.items():
        each = {"each": [round(value, 3) for value in values]}
        figures.append(Figure(f"flash_checkpoint.{name}", statistics.median(values), "s", settings=each))
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
    parser.add_argument("--rows", type=int, default=7_000_000, help="rows of 76 bytes each (default 7,000,000)")
    parser.add_argument("--rounds", type=int, default=3, help="rounds of each side (default 3)")
    parser.add_argument("--seconds", type=float, default=60.0, help="that the job trains (default 60)")
    parser.add_argument("--folder", help="where on the disk to write (default: the system's temporary folder)")


if __name__ == "__main__":
    run_benchmark(__doc__, measure, add_options)
