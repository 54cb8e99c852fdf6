"""The processes of `reader`: the same files read by our reader, by plain pyarrow and by torchrec's Criteo reader."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from benchmarks.common.child import serve
from elastrec.platform.data.finished import read_report
from elastrec.platform.data.generating.generator import RECORD_NAME, GenerateReport, training_data_for
from elastrec.platform.data.manifest import build_manifest
from elastrec.platform.data.reading.batches import Minibatch, dense_of, ids_of, targets_of
from elastrec.platform.data.reading.reader import ShardReader
from elastrec.platform.specs.data import FileFormat, TrainingData


def _data_of(path: str) -> TrainingData:
    """The data section for a generated log."""
    return training_data_for(read_report(path, RECORD_NAME, GenerateReport).spec)


def ours(path: str, batch: int, batches_per_shard: int, *, tensors: bool) -> Callable[[int], int]:
    """Reads shuffled shards one after the other, like a worker of a job with default settings.

    Args:
        tensors: whether batches are torch tensors, as for the model, instead of numpy arrays.
    """
    data = _data_of(path)
    manifest = build_manifest(data)
    shard = batch * batches_per_shard
    take: Callable[[Minibatch], object]
    if tensors:
        from elastrec.trainers.worker.inputs import inputs_of

        def take(found: Minibatch) -> object:
            return inputs_of(found.batch, found.ids)
    else:

        def take(found: Minibatch) -> object:
            return found.ids or ids_of(found.batch), dense_of(found.batch), targets_of(found.batch)

    def read(rows: int) -> int:
        reader, done = ShardReader(data, manifest), 0
        for start in range(0, min(rows, manifest.rows), shard):
            length = min(shard, rows - start, manifest.rows - start)
            for found in reader.minibatches(start, length, seed=start, shuffle=True, batch_size=batch):
                take(found)
                done += found.batch.num_rows
        reader.close()
        return done

    return read


def plain(path: str, batch: int) -> Callable[[int], int]:
    """pyarrow decodes the same columns, file by file, into batches of the same size, and drops them."""
    data = _data_of(path)
    files = build_manifest(data).files
    dense, sparse = [feature.name for feature in data.dense], [feature.name for feature in data.sparse]

    def batches(file: Any) -> Iterator[pa.RecordBatch]:
        if data.format is FileFormat.PARQUET:
            columns = [data.label, *dense, *sparse]
            yield from pq.ParquetFile(file.uri).iter_batches(batch, columns=columns, use_threads=False)
            return
        numbers = dict.fromkeys((data.label, *dense), pa.float64())
        yield from pa.csv.open_csv(
            file.uri,
            read_options=pa.csv.ReadOptions(column_names=file.text.columns, use_threads=False),
            parse_options=pa.csv.ParseOptions(delimiter="\t"),
            convert_options=pa.csv.ConvertOptions(
                column_types=numbers | dict.fromkeys(sparse, pa.string()), null_values=[""], strings_can_be_null=True
            ),
        )

    def read(rows: int) -> int:
        done = 0
        for file in files:
            for found in batches(file):
                done += found.num_rows
                if done >= rows:
                    return done
        return done

    return read


def torchrec(path: str, batch: int) -> Callable[[int], int]:
    """torchrec's Criteo datapipe with its own row mapper, combined to KeyedJaggedTensors as in its documentation.

    Only `LoadFiles` of `CriteoIterDataPipe` is left out, because it needs an optional package.
    """
    import torch
    import torch.utils.data.datapipes as pipes
    from torchrec.datasets.criteo import (
        DEFAULT_CAT_NAMES,
        DEFAULT_INT_NAMES,
        DEFAULT_LABEL_NAME,
        _default_row_mapper,
    )
    from torchrec.datasets.utils import Batch, ReadLinesFromCSV
    from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

    (file,) = build_manifest(_data_of(path)).files

    def collate(rows: list[dict[str, Any]]) -> Batch:
        dense = np.array([[row[name] for name in DEFAULT_INT_NAMES] for row in rows], np.float32)
        ids = np.array([[int(row[name] or "0", 16) for row in rows] for name in DEFAULT_CAT_NAMES], np.int64)
        return Batch(
            dense_features=torch.from_numpy(np.log(dense + 3)),
            sparse_features=KeyedJaggedTensor(
                keys=DEFAULT_CAT_NAMES,
                values=torch.from_numpy(ids.reshape(-1)),
                lengths=torch.ones(ids.size, dtype=torch.int32),
                stride=len(rows),
            ),
            labels=torch.tensor([row[DEFAULT_LABEL_NAME] for row in rows], dtype=torch.int32),
        )

    def read(rows: int) -> int:
        done = 0
        with Path(file.uri).open(newline="") as lines:
            rows_of_file = pipes.iter.Mapper(ReadLinesFromCSV([(file.uri, lines)], delimiter="\t"), _default_row_mapper)
            for found in pipes.iter.Collator(pipes.iter.Batcher(rows_of_file, batch), collate_fn=collate):
                done += len(found.labels)
                if done >= rows:
                    break
        return done

    return read


def _peak_bytes() -> int:
    # Not getrusage: its maximum begins with that of the parent, before this program was started.
    status = Path("/proc/self/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024


if __name__ == "__main__":
    # One thread each: CPU seconds then do not depend on how many cores happen to be free.
    pa.set_cpu_count(1)
    side, settings = sys.argv[1], json.loads(sys.argv[2])
    read = {"ours": ours, "plain": plain, "torchrec": torchrec}[side](**settings)
    serve(lambda request: {"rows": read(request["rows"]), "peak_bytes": _peak_bytes()}, {})
