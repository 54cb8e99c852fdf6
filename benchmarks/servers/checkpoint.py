"""The cost of a save and a restore of a parameter server, relative to plain copies of the same bytes.

One server full of rows writes its part of a record, synchronised to disk, and the record is committed; nothing is
served meanwhile, so the save's seconds are those for which it blocks. For comparison, in alternation, the same bytes
are copied in memory, and written to the same disk and synchronised; restores are compared with a copy in memory and a
read of the file.

    python -m benchmarks checkpoint [--rows 14000000] [--rounds 3] [--folder DISK] [--output json]
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections.abc import Callable

from benchmarks.common.child import Child, one_core
from benchmarks.common.figures import Figure, interleave, ratio, run_benchmark

_SIDES = ("save", "memcpy", "raw_write", "restore", "raw_read")


def measure(arguments: argparse.Namespace) -> list[Figure]:
    """All sides in turns."""
    with (
        tempfile.TemporaryDirectory(prefix="elastrec-benchmark-", dir=arguments.folder) as folder,
        Child("benchmarks.processes.checkpoint", folder, str(arguments.rows), environment=one_core()) as server,
    ):
        size_bytes = server.hello["bytes"]

        def side(name: str) -> Callable[[], dict[str, float]]:
            return lambda: server.ask(do=name)

        sides = {name: side(name) for name in _SIDES}
        interleave(sides, 1)  # pages of a second set of rows, compiled kernels, the disk's own caches
        results = interleave(sides, arguments.rounds)
    wall = {name: [each["seconds"] for each in results[name]] for name in _SIDES}
    cpu = {name: [each["cpu_seconds"] for each in results[name]] for name in _SIDES}
    settings = {"rows": arguments.rows, "bytes": size_bytes, "rounds": arguments.rounds, "synchronised": "both sides"}
    figures = []
    for name, peer, unit in (
        ("save", "memcpy", "of a memcpy of its bytes"),
        ("save", "raw_write", "of writing its bytes"),
        ("restore", "memcpy", "of a memcpy of its bytes"),
        ("restore", "raw_read", "of reading its bytes"),
    ):
        figures.append(Figure(f"checkpoint.{name}_to_{peer}", ratio(wall[name], wall[peer]), f"× seconds {unit}",
                              settings=settings))  # fmt: skip
    for name in _SIDES:
        seconds = statistics.median(wall[name])
        speed = size_bytes / seconds / 1e9
        each = {"gigabytes_per_second": round(speed, 2), "each": [round(value, 3) for value in wall[name]]}
        figures.append(Figure(f"checkpoint.{name}", seconds, "s", settings=each))
        figures.append(Figure(f"checkpoint.{name}_cpu", statistics.median(cpu[name]), "CPU s"))
    return figures


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rows", type=int, default=14_000_000, help="rows of 76 bytes each (default 14,000,000)")
    parser.add_argument("--rounds", type=int, default=3, help="rounds of each side (default 3)")
    parser.add_argument("--folder", help="where on the disk to write (default: the system's temporary folder)")


if __name__ == "__main__":
    run_benchmark(__doc__, measure, add_options)
