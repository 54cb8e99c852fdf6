"""What clustering by session saves on disk, and sharding by session in the log: RecD's O2 and O1, Figure 7 and §6.

The same rows, columns and Parquet writer (`elastrec data cluster`'s, with the encodings that it chose) in order of time
and clustered; `own_encodings` lets the writer choose those that suit the order of time best. Then the same messages in
N shards of a log, each compressed by zstd in blocks as a broker does, keyed by a random number and by the session.
What the log looks like: `LogShape`; fewer rows than its default interleave fewer sessions, and save less.

    python -m benchmarks.dedup_storage [--rows 400000] [--output json]
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.figures import Figure, run_benchmark
from benchmarks.processes.session_log import LogShape, session_log
from elastrec.platform.data.clustering import ClusterReport, ClusterWriter, cluster
from elastrec.platform.data.sorting import ClusterKeys
from elastrec.platform.data.writers import ROW_GROUP_ROWS
from elastrec.platform.specs.data import TrainingData

GOALS = {0.19: 3.7, 0.40: 2.1}
SHARDS = (1, 4, 16, 64)
_SHARD_GOAL, _SHARD_GOAL_AT = 1.5, 64
_BLOCK_BYTES = 1 << 20


def time_ordered_bytes(log: pa.Table, folder: Path, dictionaries: tuple[str, ...] | None) -> int:
    """The log as it came, by the writer that clustering uses, in row groups of as many rows.

    Args:
        dictionaries: columns with dictionary encoding; None lets the writer choose what is smallest in this order.
    """
    # The writer wants sessions side by side; with the row's number as session, every order is right.
    numbered = log.append_column("row", pa.array(np.arange(log.num_rows)))
    writer = ClusterWriter(str(folder), numbered.schema, ClusterKeys("row", "time"), ROW_GROUP_ROWS)
    writer.dictionary_columns = dictionaries
    writer.write(numbered)
    writer.finish()
    parquet = pq.ParquetFile(folder / "part-00000.parquet").metadata
    groups = [parquet.row_group(index) for index in range(parquet.num_row_groups)]
    columns = [group.column(index) for group in groups for index in range(parquet.num_columns)]
    return writer.bytes - sum(each.total_compressed_size for each in columns if each.path_in_schema == "row")


def clustered(log: pa.Table, shape: LogShape, folder: Path) -> ClusterReport:
    """The log through `cluster`."""
    (folder / "log").mkdir()
    pq.write_table(log, folder / "log" / "part-0.parquet", compression="none", use_dictionary=False)
    data = TrainingData.model_validate(
        {
            "path": str(folder / "log"),
            "partitioning": "none",
            "evaluation_path": str(folder / "log"),
            "sparse": [{"name": name, "is_list": True} for name in (*shape.user_names, "i0")],
            "session": "session",
            "timestamp": "time",
        }
    )
    (report,) = cluster(data, str(folder / "clustered"))
    return report


def sharded_bytes(log: pa.Table, shard_N: np.ndarray[tuple[int], np.dtype[np.int64]]) -> int:
    """Compressed size of the log's messages, shard by shard, in order of time."""
    names = [name for name in log.column_names if pa.types.is_list(log.schema.field(name).type)]
    rows_ND = np.concatenate(
        [np.asarray(log[name].combine_chunks().flatten()).reshape(log.num_rows, -1) for name in names], 1
    )
    codec, total = pa.Codec("zstd", compression_level=3), 0
    for shard in np.unique(shard_N):
        messages = rows_ND[shard_N == shard].tobytes()
        for begin in range(0, len(messages), _BLOCK_BYTES):
            total += len(codec.compress(messages[begin : begin + _BLOCK_BYTES], asbytes=True))
    return total


def measure_storage(shape: LogShape, goal: float | None) -> list[Figure]:
    """Bytes in order of time ÷ bytes clustered: with the same encodings, and with those that suit each order best."""
    log = session_log(shape)
    with tempfile.TemporaryDirectory() as folder:
        report = clustered(log, shape, Path(folder))
        same = time_ordered_bytes(log, Path(folder), report.dictionary_columns)
        best = time_ordered_bytes(log, Path(folder), None)
    sessions = len(np.unique(np.asarray(log["session"])))
    settings = {
        "rows": log.num_rows, "samples_per_session": round(log.num_rows / sessions, 1), "stays": shape.stays,
        "user_ids_per_row": shape.user_lists * shape.length, "item_ids_per_row": shape.item_length,
        "open_sessions": shape.open_sessions, "clustered_bytes": report.bytes,
    }  # fmt: skip
    name = f"dedup_storage.items_{round(100 * shape.item_share)}_percent"
    unit = "× smaller than in time order"
    return [
        Figure(name, same / report.bytes, unit, at_least=goal, settings={**settings, "time_order_bytes": same}),
        Figure(f"{name}.own_encodings", best / report.bytes, unit, settings={**settings, "time_order_bytes": best}),
    ]


def measure_shards(shape: LogShape) -> list[Figure]:
    """By number of shards: bytes with random keys ÷ bytes with the session as key."""
    log = session_log(shape)
    session_N = np.asarray(log["session"])
    random_N = np.random.default_rng(1).integers(0, 2**62, log.num_rows)
    figures = []
    for shards in SHARDS:
        ratio = sharded_bytes(log, random_N % shards) / sharded_bytes(log, session_N % shards)
        goal = _SHARD_GOAL if shards == _SHARD_GOAL_AT else None
        settings = {"rows": log.num_rows, "item_share": shape.item_share, "block_bytes": _BLOCK_BYTES}
        figures.append(
            Figure(f"dedup_storage.log_{shards}_shards", ratio, "× smaller by session", goal, settings=settings)
        )
    return figures


def measure(arguments: argparse.Namespace) -> list[Figure]:
    """Both item shares, then the log."""
    shapes = {share: LogShape(rows=arguments.rows, item_share=share) for share in GOALS}
    figures = [figure for share, shape in shapes.items() for figure in measure_storage(shape, GOALS[share])]
    return figures + measure_shards(shapes[0.19])


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rows", type=int, default=400_000, help="rows of each log (default 400,000)")


if __name__ == "__main__":
    run_benchmark(__doc__, measure, add_options)
