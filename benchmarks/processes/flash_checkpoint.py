"""The process of `flash_checkpoint`: a full parameter server, the memory of its node, and plain copies of the same
bytes.
"""

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
from benchmarks.processes.checkpoint import ROUTING, capacity_for, full_server, write_durably
from benchmarks.processes.parameter_server import FEATURES, ROW, job_of
from elastrec.checkpoints import PartManifest, commit_record, new_record_uri, open_store
from elastrec.checkpoints.flash import MemoryStore
from elastrec.platform.memory import make_pages
from elastrec.platform.specs.job import Metadata, TrainingJob
from elastrec.platform.transport.server import end_process
from elastrec.trainers.parameter_server.records.memory import RecordMemory
from elastrec.trainers.parameter_server.records.pages import PageMaker, note_of
from elastrec.trainers.parameter_server.records.share import restore, save_part
from elastrec.trainers.parameter_server.serving.server import ParameterServer
from elastrec.trainers.parameter_server.warm_up import warm_kernels

_NAME = "benchmark"
_MEMORY_PER_PART = 2.8


class FlashCheckpoints:
    """The operations for the parent, each with its own timing.

    Args:
        folder: folder on the measured disk.
        volume: file of the memory; created as by a node, before the measurements.
        rows: rows of all tables together; changed: share of them that changes between a full part and the next one.
        remote: URI of a store that other machines can reach; empty: there is none.
    """

    def __init__(self, folder: Path, volume: Path, rows: int, changed: float, remote: str) -> None:
        self._folder, self._changed = folder, changed
        open_store(f"{folder}/store").create()
        spec = job_of("dlrm")
        self._spec = spec.model_copy(update={"checkpoint": spec.checkpoint.model_copy(update={"deltas": 100})})
        self._ids = [np.arange(rows // FEATURES, dtype=np.int64) * 7919 + table for table in range(FEATURES)]
        self._server: ParameterServer = full_server(rows, self._spec)
        self._random = np.random.default_rng(1)
        with volume.open("x+b") as file:
            make_pages(file.fileno(), int(_MEMORY_PER_PART * rows * 4 * (ROW + 3)))
        self._memory = RecordMemory(volume)
        self._memory.opened()
        self._step, self._uri, self._cut = 0, "", ""
        self._part: PartManifest | None = None
        # The first save of the process, before anything has warmed up.
        self.first = self.full()
        self.flush()
        self.bytes = self._size()
        self._source = np.frombuffer(self._file().read_bytes(), np.uint8)
        self._target = self._source.copy()
        self._remote_uri = self._save_remotely(remote) if remote else ""

    def _save_remotely(self, store: str) -> str:
        """The rows that the server has now, as a record of another store."""
        uri = new_record_uri(store, _NAME, "benchmark-1", self._step)
        self._commit(uri, save_part(self._server, uri, cut="save-remote"))
        return uri

    def _commit(self, uri: str, part: PartManifest) -> None:
        job = TrainingJob(metadata=Metadata(name=_NAME), spec=self._spec)
        commit_record(uri, [part], b"{}", job=job, job_id="benchmark-1", kind="periodic", step=self._step, generation=1)

    def _size(self) -> int:
        assert self._part is not None
        return self._part.size_bytes

    def _file(self) -> Path:
        assert self._part is not None
        file = open_store(self._uri).local_path(self._part.file)
        assert file is not None
        return file

    def _save(self, base: str) -> dict[str, float]:
        memory = self._memory.opened()
        assert memory is not None
        self._step += 1
        uri = new_record_uri(f"{self._folder}/store", _NAME, "benchmark-1", self._step)
        store = MemoryStore(open_store(uri), memory, is_full=not base, note=note_of(self._server.stores))
        frozen: list[float] = []
        cut, began = f"save-{self._step}", time.perf_counter()
        self._part = save_part(
            self._server, store, cut=cut, base=base, froze=lambda: frozen.append(time.perf_counter())
        )
        ended = time.perf_counter()
        held = store.in_memory
        assert held is not None, "the part did not fit into the memory"
        self._held, self._cut = held, cut
        if not base and (earlier := self._folder / "store" / _NAME).exists():
            shutil.rmtree(earlier)
        self._uri = uri
        return {"blocked_seconds": frozen[0] - began, "seconds": ended - began, "bytes": float(self._size())}

    def full(self) -> dict[str, float]:
        """Everything into memory; requests wait until `blocked_seconds` are over."""
        return self._save("")

    def changes(self) -> dict[str, float]:
        """Some rows change; these alone into memory."""
        for table, ids in enumerate(self._ids):
            some = ids[self._random.random(len(ids)) < self._changed]
            counts = np.zeros(FEATURES, np.int32)
            counts[table] = len(some)
            gradients = np.ones((len(some), ROW), np.float32)
            self._server.stores[0].push(counts, some, np.empty(0, np.int32), gradients, 0.0)
        return self._save(self._cut)

    def flush(self) -> dict[str, float]:
        """What lies in memory becomes durable, by the niced process, and a record."""
        began = time.perf_counter()
        self._memory.flush(self._held, lambda: True, lambda: None)
        seconds = time.perf_counter() - began
        assert self._part is not None
        if not any(run.from_version for group in self._part.groups for run in group.answers):
            self._commit(self._uri, self._part)
        return {"seconds": seconds}

    def memcpy(self) -> dict[str, float]:
        """The part's bytes from memory to memory."""
        return _timed(lambda: np.copyto(self._target, self._source))

    def raw_write(self) -> dict[str, float]:
        """The part's bytes into a file, made durable as the store does."""
        return _timed(lambda: write_durably(self._folder, self._source.data))

    def restore_memory(self) -> dict[str, float]:
        """The newest full record, its part from memory."""
        before = self._memory.opened().read_bytes  # type: ignore[union-attr]
        seconds = _timed(lambda: restore(self._server, self._uri, ROUTING, 1, memory=self._memory.opened()))
        read = self._memory.opened().read_bytes - before  # type: ignore[union-attr]
        assert read > 0.9 * self._size(), "the part was not read from memory"
        return seconds

    def restore_store(self) -> dict[str, float]:
        """The same record from the store's disk, whose cache does not hold it."""
        with self._file().open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        return _timed(lambda: restore(self._server, self._uri, ROUTING, 1))

    def restore_remote(self) -> dict[str, float]:
        """As many rows from the store that other machines reach."""
        return _timed(lambda: restore(self._server, self._remote_uri, ROUTING, 1))

    def record(self) -> dict[str, str]:
        """A full record whose part lies in memory, for a server that is started again; names it."""
        self.full()
        self.flush()
        return {"uri": self._uri}

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        work: Callable[[], dict[str, Any]] = getattr(self, request["do"])
        return work()

    def close(self) -> None:
        self._memory.close()


class RestartedServer:
    """A server that is restarted on its node without pages for its rows, until its restore order.

    Like a pod, it creates pages while it loads its kernels. The registration with a master is left out.

    Args:
        uri: URI of a record whose part is in the memory; rows: number of its rows.
    """

    def __init__(self, uri: str, volume: Path, rows: int) -> None:
        began = time.perf_counter()
        self._memory = RecordMemory(volume)
        self._pages = PageMaker(self._memory)
        self._pages.start()
        warm_kernels()
        self._uri = uri
        self._server = ParameterServer("ps-0", job_of("dlrm"), capacity_rows=capacity_for(rows))
        self._ready_seconds = time.perf_counter() - began
        memory = self._memory.opened()
        assert memory is not None
        self._source = np.ones(sum(part.size_bytes for part in memory.parts() if part.uri == uri), np.uint8)
        self._target = self._source.copy()

    def answer(self, request: dict[str, Any]) -> dict[str, float]:
        """Seconds of a memcpy of the part's bytes, and of its first restore; how long it had made pages before."""
        memory, pages = self._memory.opened(), self._pages
        restored = _timed(
            lambda: restore(self._server, self._uri, ROUTING, 1, memory=memory, pages=pages.take())
        )["seconds"]  # fmt: skip
        copied = _timed(lambda: np.copyto(self._target, self._source))["seconds"]
        return {
            "seconds": restored, "memcpy_seconds": copied, "ready_seconds": self._ready_seconds,
            "pages_seconds": pages.seconds, "pages_bytes": float(pages.made_bytes),
        }  # fmt: skip

    def close(self) -> None:
        self._memory.close()


def _timed(work: Callable[[], object]) -> dict[str, float]:
    began = time.perf_counter()
    work()
    return {"seconds": time.perf_counter() - began}


if __name__ == "__main__":
    structlog.configure(
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING),
    )
    if sys.argv[1] == "restarted":
        restarted = RestartedServer(sys.argv[2], Path(sys.argv[3]), int(sys.argv[4]))
        serve(restarted.answer, {})
        restarted.close()
    else:
        folder, volume, rows, changed, remote = sys.argv[2:]
        checkpoints = FlashCheckpoints(Path(folder), Path(volume), int(rows), float(changed), remote)
        serve(checkpoints.answer, {"bytes": checkpoints.bytes, "first": checkpoints.first})
        checkpoints.close()
    end_process(0)
