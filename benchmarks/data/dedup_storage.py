"""The savings of clustering by session on disk, and of sharding by session in the log: RecD's O2 and O1, Figure 7 and
§6.

Compared are files with the same rows, columns and Parquet writer (`elastrec data cluster`'s, with the encodings that it
chose) in order of time and clustered; `own_encodings` lets the writer choose those that suit the order of time best,
`repeats_left_out` is the clustered log with each distinct row of the user lists stored once. The same is done for the
messages of `elastrec data publish`, in the partitions that its partitioner chooses and compressed with zstd in batches
as by its producer, and for the files of `elastrec data land`; with the session as key, and with a random key.
`LogShape` describes the log. With fewer rows than the default, fewer sessions are interleaved, and the savings are
smaller.

What turns figures red: `sorted_by_session` that sorts by the source row alone (`items`); `session_keys` with the number
of the row as key (`log_64_shards`).

    python -m benchmarks dedup_storage [--rows 400000] [--output json]
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from benchmarks.common.figures import Figure, run_benchmark
from benchmarks.common.session_log import LogShape, session_log
from elastrec.platform.data.clustering.clustering import ClusterReport, ClusterWriter, cluster
from elastrec.platform.data.clustering.sorting import ClusterKeys
from elastrec.platform.data.deduplicating.stored_groups import Groups
from elastrec.platform.data.finished import PARQUET_SETTINGS, ROW_GROUP_ROWS
from elastrec.platform.data.stream.messages import MessageForm
from elastrec.platform.data.stream.partitioning import partitions_of, session_keys
from elastrec.platform.specs.data import TrainingData

GOALS = {0.19: 3.7, 0.40: 2.1}
SHARDS = (1, 4, 16, 64)
SHARD_NAMES = ("log", "landed")
_SHARD_GOAL, _SHARD_GOAL_AT = 1.5, 64
# The producer's batch, and the level of its zstd.
_BATCH_BYTES, _ZSTD_LEVEL = 1_000_000, 3


def time_ordered_bytes(log: pa.Table, folder: Path, dictionaries: tuple[str, ...] | None) -> int:
    """The bytes of the log in order of time, with the writer and the row group size of the clustering.

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


def data_of(path: Path, shape: LogShape) -> TrainingData:
    """The log's data section."""
    return TrainingData.model_validate(
        {
            "path": str(path),
            "partitioning": "none",
            "evaluation_path": str(path),
            "sparse": [{"name": name, "is_list": True} for name in (*shape.user_names, "i0")],
            "session": "session",
            "timestamp": "time",
        }
    )


def clustered(
    log: pa.Table, shape: LogShape, folder: Path, name: str = "clustered", groups: Groups = ()
) -> ClusterReport:
    """The log through `cluster`, to a folder of that name."""
    (folder / "log").mkdir(exist_ok=True)
    pq.write_table(log, folder / "log" / "part-0.parquet", compression="none", use_dictionary=False)
    (report,) = cluster(data_of(folder / "log", shape), str(folder / name), groups=groups)
    return report


def sharded_bytes(messages: Sequence[bytes], shard_N: NDArray[np.int32]) -> int:
    """Compressed size of messages in order of time, partition by partition of the topic."""
    codec, total = pa.Codec("zstd", compression_level=_ZSTD_LEVEL), 0
    for shard in np.unique(shard_N).tolist():
        batch: list[bytes] = []
        size = 0
        for row in np.flatnonzero(shard_N == shard).tolist():
            batch.append(messages[row])
            size += len(messages[row])
            if size >= _BATCH_BYTES:
                total += len(codec.compress(b"".join(batch), asbytes=True))
                batch, size = [], 0
        total += len(codec.compress(b"".join(batch), asbytes=True))
    return total


def landed_bytes(log: pa.Table, shard_N: NDArray[np.int32]) -> int:
    """Size of the files that `land` writes, one per partition of the topic."""
    total = 0
    for shard in np.unique(shard_N).tolist():
        sink = pa.BufferOutputStream()
        with pq.ParquetWriter(sink, log.schema, **PARQUET_SETTINGS) as writer:
            writer.write_table(log.filter(pa.array(shard_N == shard)), row_group_size=ROW_GROUP_ROWS)
        total += sink.getvalue().size
    return total


def measure_storage(shape: LogShape, goal: float | None) -> list[Figure]:
    """Bytes in order of time ÷ bytes clustered: with the same encodings, and with those that suit each order best."""
    log = session_log(shape)
    with tempfile.TemporaryDirectory() as folder:
        report = clustered(log, shape, Path(folder))
        once = clustered(log, shape, Path(folder), "once", (tuple(shape.user_names),))
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
        Figure(f"{name}.repeats_left_out", same / once.bytes, unit, settings={**settings, "once_bytes": once.bytes}),
    ]


def measure_shards(shape: LogShape) -> list[Figure]:
    """By number of partitions: bytes with random keys ÷ bytes with the session as key, in the topic and landed."""
    log = session_log(shape)
    messages = MessageForm(data_of(Path("log"), shape)).messages(log)
    random_N = pa.array(np.random.default_rng(1).integers(0, 2**62, log.num_rows))
    keyed = [session_keys(column) for column in (random_N, log["session"].combine_chunks())]
    figures = []
    for shards in SHARDS:
        by_random, by_session = (partitions_of(keys, shards)[code_N] for keys, code_N in keyed)
        ratios = (
            sharded_bytes(messages, by_random) / sharded_bytes(messages, by_session),
            landed_bytes(log, by_random) / landed_bytes(log, by_session),
        )
        settings = {"rows": log.num_rows, "item_share": shape.item_share, "batch_bytes": _BATCH_BYTES}
        goals = (_SHARD_GOAL if shards == _SHARD_GOAL_AT else None, None)
        figures += [
            Figure(f"dedup_storage.{name}_{shards}_shards", ratio, "× smaller by session", goal, settings=settings)
            for name, ratio, goal in zip(SHARD_NAMES, ratios, goals, strict=True)
        ]
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
