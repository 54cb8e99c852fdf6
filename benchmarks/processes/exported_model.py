"""A generated record of a finished job, exported as by the evaluator, and scored; and the costs of both.

Answers a line of JSON to a line of JSON (`respond`). The model is DLRM; one of its tables has nearly all rows.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import structlog
import torch
from torchrec import EmbeddingBagCollection

from benchmarks.common.child import serve
from elastrec.checkpoints import PartWriter, SectionKind, answer, commit_record, new_record_uri
from elastrec.platform.specs.job import TrainingJob
from elastrec.platform.transport.messages.export import ExportRequest
from elastrec.trainers.export import logged_model
from elastrec.trainers.export.process import export
from elastrec.trainers.models import FeatureSchema, build_model, embedding_tables

DIMENSION = 16
_DENSE, _IDS = [f"x{number}" for number in range(4)], [f"C{number}" for number in range(10)]
_LARGE, _TEXT, _LIST = _IDS[0], "city", "history"
_CHUNK_ROWS, _SMALL_ROWS = 32_768, 1_000


def job() -> TrainingJob:
    """Four numbers, ten ids, a text and a list."""
    sparse = [*({"name": name} for name in _IDS), {"name": _TEXT, "encoding": "string"}]
    content = {
        "metadata": {"name": "export"},
        "spec": {
            "model": {"architecture": "dlrm", "embedding_dimension": DIMENSION},
            "data": {
                "path": "none",
                "dense": [{"name": name} for name in _DENSE],
                "sparse": [*sparse, {"name": _LIST, "is_list": True, "table": _IDS[1]}],
            },
        },
    }
    return TrainingJob.model_validate(content)


def write_record(store: str, rows: int) -> str:
    """A final record with so many rows of the large table; its URI."""
    made, random = job(), np.random.default_rng(0)
    spec = made.spec
    uri = new_record_uri(store, made.metadata.name, "job", 1)
    tables = embedding_tables(made)
    for table in tables:
        table.num_embeddings = 1
    model = build_model(spec.model, EmbeddingBagCollection(tables=tables), FeatureSchema.from_job(made), seed=0)
    dense = {name: value for name, value in model.named_parameters() if "embedding_bag" not in name}
    names, buckets = list(spec.data.tables), spec.resources.virtual_buckets
    total = sum(value.numel() for value in dense.values())
    with PartWriter(uri, "ps-0", groups=[answer(names, range(buckets))], dense_ranges=[(0, total)]) as writer:
        for number, name in enumerate(names):
            count = rows if name == _LARGE else _SMALL_ROWS
            for chunk, first in enumerate(range(0, count, _CHUNK_ROWS)):
                ids = np.arange(first, min(first + _CHUNK_ROWS, count))
                columns: dict[str, Any] = {
                    "ids": ids,
                    "tables": np.full(len(ids), number, np.uint16),
                    "versions": np.ones(len(ids), np.uint32),
                    "state": np.ones((len(ids), 1), np.float32),
                    "values": random.random((len(ids), DIMENSION), np.float32),
                }
                bucket, length = np.array([chunk % buckets]), np.array([len(ids)])
                writer.write_chunk(0, SectionKind.ROWS, bucket, length, columns)
        for name, value in dense.items():
            writer.write_dense(name, tuple(value.shape), 0, {"value": value.detach().numpy().reshape(-1)})
        part = writer.finish()
    commit_record(uri, [part], b"{}", job=made, job_id="job", kind="final", step=1, generation=0)
    return uri


def request_rows(rows: int) -> pd.DataFrame:
    """Raw rows as a client of the model has them."""
    random = np.random.default_rng(rows)
    columns: dict[str, Any] = {name: random.normal(size=rows) for name in _DENSE}
    columns |= {name: random.integers(0, _SMALL_ROWS, rows) for name in _IDS}
    columns[_TEXT] = np.array([f"city {number}" for number in random.integers(0, 50, rows)], object)
    columns[_LIST] = list(random.integers(0, _SMALL_ROWS, (rows, 5)))
    return pd.DataFrame(columns)


class Model:
    """The model that was exported last, and where it lies."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._exports = 0
        self._calls: dict[tuple[str, int], Callable[[], object]] = {}

    def export(self, rows: int) -> dict[str, int]:
        """Exports a record; returns the increase of memory and the size of the largest shard, bytes."""
        self._exports += 1
        folder = self._folder / str(self._exports)
        folder.mkdir()
        made = job()
        request = ExportRequest(
            job_json=made.model_dump_json(by_alias=True),
            job_id="job",
            store_uri=str(folder),
            record_uri=write_record(str(folder), rows),
            artifact_uri=str(folder / "model"),
        )
        before = _status_bytes("VmRSS")
        Path("/proc/self/clear_refs").write_text("5")  # the highest mark begins anew
        export(request, folder)
        grown = _status_bytes("VmHWM") - before
        shards: dict[str, int] = {}
        for file in (folder / "model").rglob("tables/*.npy"):
            name = file.name.partition(".")[0]
            shards[name] = shards.get(name, 0) + file.stat().st_size
        loaded = logged_model.load(str(folder / "model"))
        self._calls = {}
        for size in (10_000, 1):
            frame = request_rows(size)
            table = pa.Table.from_pandas(frame, preserve_index=False)
            self._calls["pyfunc", size] = lambda frame=frame: loaded.predict(frame)
            self._calls["scorer", size] = lambda table=table: loaded.get_raw_model().score(table)
        return {"grown_bytes": grown, "shard_bytes": max(shards.values()), "shards": len(shards)}

    def score(self, side: str, rows: int, times: int) -> float:
        """CPU seconds of so many predictions of one request."""
        call = self._calls[side, rows]
        began = time.process_time()
        for _ in range(times):
            call()
        return time.process_time() - began


def _status_bytes(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:"))


if __name__ == "__main__":
    structlog.configure(
        logger_factory=structlog.PrintLoggerFactory(sys.stderr), wrapper_class=structlog.make_filtering_bound_logger(40)
    )
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as temporary:
        model = Model(Path(temporary))

        def respond(request: dict[str, Any]) -> Any:
            """`{"export": rows}`, or `{"score": [side, rows, times]}`."""
            return model.export(request["export"]) if "export" in request else model.score(*request["score"])

        serve(respond, {})
