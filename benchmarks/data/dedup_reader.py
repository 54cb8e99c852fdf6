"""A reader of clustered rows that encodes each distinct row once ÷ the plain reader of rows in order of time.

Both fill batches from Parquet (decompress, decode, encode), convert them (the plain one to jagged arrays, the other to
groups without repeats), run the steps of their features (cut, hash) and write the bytes for a worker. Both files have
the same rows. Figures are rows per CPU second, in alternating rounds, and bytes read and sent (RecD §6.3, Table 3 and
Figure 10). `at_rest` compares files that store each distinct row of the group once with the plain clustered files.

What turns each figure red: `distinct` in `platform/data/deduplicating/deduplicated_rows.py` that takes every row for a
distinct one (`rows`); `row_codes` in `deduplication.py` that looks rows up in a dictionary of Python (`convert`).

    python -m benchmarks dedup_reader [--rows 60000] [--rounds 5] [--output json]
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from benchmarks.common.figures import Figure, interleave, ratio, run_benchmark
from benchmarks.common.session_log import LogShape, session_log
from benchmarks.data.dedup_storage import clustered
from elastrec.platform.data.deduplicating import deduplicated_rows as deduplicating_module
from elastrec.platform.data.deduplicating.deduplicated_batch import groups_of, plain_part
from elastrec.platform.data.deduplicating.deduplicated_rows import DeduplicatedRows
from elastrec.platform.data.manifest import build_manifest
from elastrec.platform.data.reading import reader as reader_module
from elastrec.platform.data.reading.batches import ids_of
from elastrec.platform.data.reading.encode import EncodedRows, ReadRows, RowEncoder
from elastrec.platform.data.reading.raw import RawRows
from elastrec.platform.data.reading.reader import ShardReader
from elastrec.platform.specs.data import TrainingData

_BATCH_ROWS = 4_096
_STEPS = [{"step": "keep_last", "count": 100}, {"step": "hash", "size": 10_000_000}]
Spent = dict[str, float]
"""CPU seconds by part, and `sent` in bytes."""


class _Parts:
    """CPU seconds of this process by part."""

    def __init__(self) -> None:
        self.spent: Spent = {"fill": 0.0, "convert": 0.0, "process": 0.0, "send": 0.0, "sent": 0.0}
        self._at = time.process_time()

    def end(self, part: str) -> None:
        """Adds the CPU time since the last call to this part."""
        now = time.process_time()
        self.spent[part] += now - self._at
        self._at = now

    def move(self, part: str, out_of: str, seconds: float) -> None:
        """Moves CPU time from one part to another."""
        self.spent[out_of] -= seconds
        self.spent[part] += seconds

    def send(self, *arrays: np.ndarray[tuple[int, ...], np.dtype[np.generic]]) -> None:
        """Lay down the bytes."""
        sink = pa.BufferOutputStream()
        for array in arrays:
            sink.write(pa.py_buffer(np.ascontiguousarray(array)))
        self.spent["sent"] += sink.getvalue().size


def read_plain(reader: ShardReader, rows: int) -> Spent:
    """Every row as plain jagged arrays."""
    parts = _Parts()
    for batch in reader.read(0, rows, seed=0, shuffle=False, batch_size=_BATCH_ROWS):
        parts.end("fill")
        ids = ids_of(batch)
        parts.end("convert")
        parts.send(ids.values, ids.lengths)
        parts.end("send")
    parts.end("fill")
    parts.move("process", "fill", TimedEncoder.taken())
    return parts.spent


class Timed:
    """Measures the CPU time of a class's calls separately."""

    _seconds = 0.0

    @classmethod
    @contextmanager
    def counted(cls) -> Iterator[None]:
        """Adds the block's CPU seconds."""
        before = time.process_time()
        try:
            yield
        finally:
            cls._seconds += time.process_time() - before

    @classmethod
    def taken(cls) -> float:
        """CPU seconds of all of its objects since the last call."""
        seconds, cls._seconds = cls._seconds, 0.0
        return seconds


class TimedEncoder(Timed, RowEncoder):
    """Measures the CPU time of features' steps, without reading columns."""

    def finish(self, read: ReadRows) -> EncodedRows:
        with self.counted():
            return super().finish(read)


class TimedRows(Timed, DeduplicatedRows):
    """Measures the CPU time of finding and numbering repeats, without decoding and encoding."""

    def distinct(self, piece: RawRows, names: Sequence[str]) -> tuple[pa.Table, NDArray[np.int32] | None]:
        with self.counted():
            return super().distinct(piece, names)

    def finish(self, batch: pa.RecordBatch, pools: Any) -> pa.RecordBatch:
        with self.counted():
            return super().finish(batch, pools)


def read_deduplicated(reader: ShardReader, rows: int) -> Spent:
    """Every row, groups without repeats."""
    parts = _Parts()
    for batch in reader.read(0, rows, seed=0, shuffle=False, batch_size=_BATCH_ROWS):
        parts.end("fill")
        groups, ids = groups_of(batch), ids_of(plain_part(batch))
        parts.end("convert")
        for group in groups:
            parts.send(group.values, group.offsets, group.inverse_lookup)
        parts.send(ids.values, ids.lengths)
        parts.end("send")
    parts.end("fill")
    parts.move("convert", "fill", TimedRows.taken())
    parts.move("process", "fill", TimedEncoder.taken())
    return parts.spent


def measure(arguments: argparse.Namespace) -> list[Figure]:
    """Both readers on one log."""
    for module in (reader_module, deduplicating_module):
        module.RowEncoder = TimedEncoder  # type: ignore[attr-defined]
    reader_module.DeduplicatedRows = TimedRows  # type: ignore[attr-defined]
    shape = LogShape(rows=arguments.rows, open_sessions=arguments.rows, user_lists=2)
    log = session_log(shape)
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        report = clustered(log, shape, root)
        clustered(log, shape, root, "at_rest", (tuple(shape.user_names),))
        # In order of time, by the same writer settings: zstd, no dictionaries for lists.
        (root / "time").mkdir()
        pq.write_table(
            log, root / "time" / "part-0.parquet", compression="zstd", compression_level=3,
            use_dictionary=list(report.dictionary_columns), row_group_size=16_384,
        )  # fmt: skip
        readers: dict[str, Callable[[], Spent]] = {}
        data = {name: _data(root / name, shape) for name in ("time", "clustered", "at_rest")}
        plain = {name: ShardReader(each, build_manifest(each)) for name, each in data.items()}
        ours, rested = (
            ShardReader(data[name], plain[name].manifest, groups=[shape.user_names])
            for name in ("clustered", "at_rest")
        )
        readers["plain"] = lambda: read_plain(plain["time"], log.num_rows)
        readers["clustered"] = lambda: read_plain(plain["clustered"], log.num_rows)
        readers["deduplicated"] = lambda: read_deduplicated(ours, log.num_rows)
        readers["at_rest"] = lambda: read_deduplicated(rested, log.num_rows)
        readers["at_rest_expanded"] = lambda: read_plain(plain["at_rest"], log.num_rows)
        interleave(readers, 1)
        results = interleave(readers, arguments.rounds)
        read_bytes = {name: each.manifest.bytes for name, each in plain.items()}
    settings = {
        "rows": log.num_rows, "batch": _BATCH_ROWS, "rounds": arguments.rounds, "user_lists": shape.user_lists,
        "user_list_length": shape.length, "item_ids_per_row": shape.item_length, "stays": shape.stays,
    }  # fmt: skip
    total = {name: [_total(each) for each in results[name]] for name in readers}
    unit = "of the plain reader's rows per CPU second"
    figures = [
        Figure("dedup_reader.rows", ratio(total["plain"], total["deduplicated"]), unit, at_least=1.8,
               settings=settings),
        Figure("dedup_reader.clustered_without_dedup", ratio(total["plain"], total["clustered"]), unit),
        Figure(
            "dedup_reader.convert",
            statistics.median(each["convert"] / each["fill"] for each in results["deduplicated"]),
            "of the deduplicating reader's fill", at_most=0.4,
        ),
        Figure("dedup_reader.read_bytes", read_bytes["time"] / read_bytes["clustered"], "× fewer"),
        Figure("dedup_reader.sent_bytes", results["plain"][0]["sent"] / results["deduplicated"][0]["sent"], "× fewer"),
        Figure("dedup_reader.at_rest.rows", ratio(total["plain"], total["at_rest"]), unit),
        Figure(
            "dedup_reader.at_rest.than_clustered", ratio(total["deduplicated"], total["at_rest"]),
            "× the rows per CPU second of the same reader on plain clustered files",
        ),
        Figure("dedup_reader.at_rest.expanded_rows", ratio(total["plain"], total["at_rest_expanded"]), unit),
        Figure(
            "dedup_reader.at_rest.read_bytes", read_bytes["clustered"] / read_bytes["at_rest"],
            "× fewer than clustered",
        ),
        Figure(
            "dedup_reader.at_rest.sent_bytes",
            results["deduplicated"][0]["sent"] / results["at_rest"][0]["sent"], "× fewer than clustered",
        ),
    ]  # fmt: skip
    for name in readers:
        for part in ("fill", "convert", "process", "send"):
            value = statistics.median(1e6 * each[part] / log.num_rows for each in results[name])
            figures.append(Figure(f"dedup_reader.{name}: {part}", value, "CPU µs per row"))
    return figures


def _data(path: Path, shape: LogShape) -> TrainingData:
    return TrainingData.model_validate(
        {
            "path": str(path),
            "partitioning": "none",
            "evaluation_path": str(path),
            "sparse": [{"name": name, "is_list": True} for name in (*shape.user_names, "i0")],
            "features": dict.fromkeys((*shape.user_names, "i0"), _STEPS),
            "session": "session",
            "timestamp": "time",
        }
    )


def _total(spent: Spent) -> float:
    return sum(spent[part] for part in ("fill", "convert", "process", "send"))


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rows", type=int, default=60_000, help="rows of the log (default 60,000)")
    parser.add_argument("--rounds", type=int, default=5, help="rounds of each reader (default 5)")


if __name__ == "__main__":
    pa.set_cpu_count(1)
    pa.set_io_thread_count(1)
    run_benchmark(__doc__, measure, add_options)
