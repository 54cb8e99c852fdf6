"""The speed of a worker's reader: Criteo text and Parquet to trainer-ready batches, rows per core second.

Our reader, with shuffling and the default batches and shards of a job, is compared with plain pyarrow, which decodes
the same columns into batches of the same size and drops them, and with torchrec's own Criteo reader. The sides
alternate, each in a process with one thread. Memory is the peak of a process that reads a log, compared with one that
reads a log ten times as long.

What turns figures red: `_group` in `platform/data/reading/raw.py` that caches no row group (`parquet_to_pyarrow`); a
`ShardReader` that keeps the encoded rows of its windows (`memory`).

    python -m benchmarks reader [--rows 1000000] [--memory-bytes 100000000] [--rounds 5] [--output json]
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.common.child import Child, one_core
from benchmarks.common.figures import Figure, interleave, ratio, run_benchmark
from elastrec.platform.data.generating.generator import GenerateReport, GenerateSpec, generate
from elastrec.platform.specs.data import FileFormat

_MODULE = "benchmarks.processes.reader"
_BATCHES_PER_SHARD = 100
_MEMORY_FACTOR = 10
# torchrec reads a line at a time: fewer rows give the same figure.
_SHARE_OF_TORCHREC = 20


def click_log(folder: Path, form: FileFormat, rows: int) -> GenerateReport:
    """One file of Criteo's columns."""
    spec = GenerateSpec(
        path=str(folder / f"{form}-{rows}"), days=1, rows_per_day=rows, format=form, lists=0, rows_per_file=2**40
    )
    return generate(spec)


def _child(side: str, **settings: Any) -> Child:
    return Child(_MODULE, side, json.dumps(settings), environment=one_core())


def speeds(log: GenerateReport, batch: int, rounds: int) -> list[Figure]:
    """Rows per core second of all readers of one log."""
    is_text = log.spec.format is FileFormat.CRITEO_TSV
    form, path = ("criteo_tsv" if is_text else "parquet"), log.spec.path
    job = {"path": path, "batch": batch, "batches_per_shard": _BATCHES_PER_SHARD}
    with contextlib.ExitStack() as stack:
        children = {
            "ours": stack.enter_context(_child("ours", **job, tensors=False)),
            "pyarrow": stack.enter_context(_child("plain", path=path, batch=batch)),
        }
        if is_text:
            children["ours_as_tensors"] = stack.enter_context(_child("ours", **job, tensors=True))
            children["torchrec"] = stack.enter_context(_child("torchrec", path=path, batch=batch))

        def side(name: str) -> Callable[[], float]:
            rows = max(batch, log.rows // _SHARE_OF_TORCHREC) if name == "torchrec" else log.rows

            def run() -> float:
                before = children[name].cpu_seconds()
                read = children[name].ask(rows=rows)["rows"]
                return float(read / (children[name].cpu_seconds() - before))

            return run

        sides = {name: side(name) for name in children}
        interleave(sides, 1)  # imports, allocators and the disk's cache settle
        found = interleave(sides, rounds)
    settings = {
        "rows": log.rows, "bytes": log.bytes, "columns": 40, "batch": batch, "shard": batch * _BATCHES_PER_SHARD,
        "shuffle": True, "threads": 1, "rounds": rounds,
    }  # fmt: skip
    # Parquet is what jobs read; plain pyarrow leaves the text of ids as it is, which is no goal to have.
    figures = [
        Figure(f"reader.{form}_to_pyarrow_batch_{batch}", ratio(found["ours"], found["pyarrow"]),
               "of plain decoding's rows per core second", at_least=None if is_text else 0.7, settings=settings)
    ]  # fmt: skip
    if is_text:
        figures.append(
            Figure(f"reader.{form}_to_torchrec_batch_{batch}", ratio(found["ours_as_tensors"], found["torchrec"]),
                   "× torchrec's rows per core second", at_least=3.0, settings=settings)
        )  # fmt: skip
    for name, each in found.items():
        figures.append(
            Figure(f"reader.{form}_batch_{batch}.{name}", statistics.median(each), "rows per core second",
                   settings={"each": [round(speed) for speed in each]})
        )  # fmt: skip
    return figures


def memory(folder: Path, size_bytes: int, batch: int) -> Figure:
    """Peak memory of reading a log, and of reading one ten times as long."""
    peaks, sizes = [], []
    sample = click_log(folder, FileFormat.CRITEO_TSV, 65_536)
    for factor in (1, _MEMORY_FACTOR):
        log = click_log(folder, FileFormat.CRITEO_TSV, factor * max(1, size_bytes * sample.rows // sample.bytes))
        with _child(
            "ours", path=log.spec.path, batch=batch, batches_per_shard=_BATCHES_PER_SHARD, tensors=False
        ) as reader:
            peaks.append(reader.ask(rows=log.rows)["peak_bytes"])
        sizes.append(log.bytes)
    return Figure(
        "reader.memory", peaks[1] / peaks[0], "× peak memory with ten times the bytes", at_most=1.1,
        settings={"bytes": sizes, "peak_bytes": peaks},
    )  # fmt: skip


def measure(arguments: argparse.Namespace) -> list[Figure]:
    """Both formats and batch sizes, then memory."""
    figures: list[Figure] = []
    with tempfile.TemporaryDirectory(prefix="elastrec-benchmark-") as name:
        folder = Path(name)
        for form in (FileFormat.PARQUET, FileFormat.CRITEO_TSV):
            log = click_log(folder, form, arguments.rows)
            for batch in arguments.batch or (512, 4096):
                figures += speeds(log, batch, arguments.rounds)
        figures.append(memory(folder, arguments.memory_bytes, (arguments.batch or (512,))[0]))
    return figures


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rows", type=int, default=1_000_000, help="rows of each log (default 1,000,000)")
    parser.add_argument("--rounds", type=int, default=5, help="rounds of each side (default 5)")
    parser.add_argument("--batch", type=int, action="append", help="rows of a batch (default: 512 and 4096)")
    parser.add_argument(
        "--memory-bytes", type=int, default=100_000_000, help="of the shorter log whose reader's memory is measured"
    )


if __name__ == "__main__":
    run_benchmark(__doc__, measure, add_options)
