"""The process of `checkpoint`: a parameter server full of rows, its records, and plain copies of the same bytes."""

from __future__ import annotations

import logging
import os
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import structlog

from benchmarks.common.child import serve
from benchmarks.processes.parameter_server import FEATURES, ROW, job_of
from elastrec.checkpoints import commit_record, new_record_uri, open_store
from elastrec.platform.specs.job import Metadata, TrainingJob
from elastrec.platform.transport.messages.directive import RoutingTable
from elastrec.platform.transport.server import end_process
from elastrec.trainers.parameter_server.records.share import restore, save_part
from elastrec.trainers.parameter_server.serving.server import ParameterServer
from elastrec.trainers.parameter_server.warm_up import warm_kernels

_CHUNK_BYTES = 8 * 2**20
_FILLED_AT_ONCE = 1_000_000
ROUTING = RoutingTable(epoch=1, owners=[0] * 256, servers=["ps-0"], addresses=["nowhere"])


class Checkpoints:
    """The operations for the parent, each with its own timing.

    Args:
        folder: folder on the measured disk.
        rows: rows of all tables together.
    """

    def __init__(self, folder: Path, rows: int) -> None:
        self._folder = folder
        self._spec = job_of("dlrm")
        self._server = full_server(rows, self._spec)
        self._uri, self._file, self._step = "", folder, 0
        self.bytes = self._save()
        # The same bytes, touched: neither side pays for pages that come into being.
        self._source = np.frombuffer(self._file.read_bytes(), np.uint8)
        self._target = self._source.copy()

    def save(self) -> None:
        """The server's part of a record, durable, and the record committed."""
        self._save()

    def _save(self) -> int:
        job = TrainingJob(metadata=Metadata(name="benchmark"), spec=self._spec)
        self._step += 1
        uri = new_record_uri(f"{self._folder}/store", "benchmark", "benchmark-1", self._step)
        part = save_part(self._server, uri)
        commit_record(uri, [part], b"{}", job=job, job_id="benchmark-1", kind="periodic", step=self._step, generation=1)
        file = open_store(uri).local_path(part.file)
        assert file is not None
        if self._uri:
            shutil.rmtree(self._file.parent.parent)
        self._uri, self._file = uri, file
        return part.size_bytes

    def restore(self) -> None:
        """Restores the whole part into a server, which drops its rows first."""
        restore(self._server, self._uri, ROUTING, 1)

    def memcpy(self) -> None:
        """The part's bytes from memory to memory."""
        np.copyto(self._target, self._source)

    def raw_write(self) -> None:
        """The part's bytes into a file, made durable as the store does: file, name, folder."""
        write_durably(self._folder, self._source.data)

    def raw_read(self) -> None:
        """The part's file into memory that exists."""
        view = self._target.data
        with self._file.open("rb", buffering=0) as file:
            at = 0
            while at < len(view):
                at += file.readinto(view[at : at + _CHUNK_BYTES])

    def answer(self, request: dict[str, Any]) -> dict[str, float]:
        work: Callable[[], None] = getattr(self, request["do"])
        wall, cpu = time.perf_counter(), time.process_time()
        work()
        return {"seconds": time.perf_counter() - wall, "cpu_seconds": time.process_time() - cpu}


def write_durably(folder: Path, data: memoryview) -> None:
    """Writes bytes into a file of a folder as a store does: file, name, folder; and deletes it."""
    temporary, path = folder / "raw.tmp", folder / "raw.bin"
    with temporary.open("wb", buffering=0) as file:
        for start in range(0, len(data), _CHUNK_BYTES):
            file.write(data[start : start + _CHUNK_BYTES])
        os.fsync(file.fileno())
    temporary.replace(path)
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    os.fsync(descriptor)
    os.close(descriptor)
    path.unlink()


def capacity_for(rows: int) -> int:
    """Of a server that holds so many rows."""
    return rows + _FILLED_AT_ONCE


def full_server(rows: int, spec: Any) -> ParameterServer:
    warm_kernels()
    server = ParameterServer("ps-0", spec, capacity_rows=capacity_for(rows))
    server.start_empty(ROUTING, 1)
    random = np.random.default_rng(0)
    for table in range(FEATURES):
        ids = random.permutation(np.arange(rows // FEATURES, dtype=np.int64) * 7919 + table)
        for start in range(0, len(ids), _FILLED_AT_ONCE):
            some = ids[start : start + _FILLED_AT_ONCE]
            counts = np.zeros(FEATURES, np.int32)
            counts[table] = len(some)
            gradients = random.normal(size=(len(some), ROW)).astype(np.float32)
            server.stores[0].push(counts, some, np.empty(0, np.int32), gradients, 0.0)
    return server


if __name__ == "__main__":
    structlog.configure(
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING),
    )
    checkpoints = Checkpoints(Path(sys.argv[1]), int(sys.argv[2]))
    serve(checkpoints.answer, {"bytes": checkpoints.bytes})
    end_process(0)
