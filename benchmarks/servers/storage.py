"""The rows of a parameter server: memory, concurrent requests, and requests during a save and an eviction.

    python -m benchmarks storage [--rows 10000000] [--evicted-rows 50000000] [--seconds 5] [--folder DISK]
        [--output json]

`ParameterServer` is measured in one process, without sockets; `two_cores` and `two_processes` in child processes with
the settings of malloc that a server's process has. Concurrent requests and waits are measured in wall time, so they
need idle cores; `others_cores` beside them is the number of cores that other processes used meanwhile. Bytes do not
depend on that. Ratios of CPU seconds are medians of several turns. `two_processes` is the best that `two_cores` can
be on the machine.

What turns each figure red: one stripe, `stripes_for` that returns 1 (`two_cores`); a save or an eviction that holds a
stripe's lock for a whole bucket (`pull_p99_while_saving`, `eviction_longest_wait`); an index that doubles
(`staircase`); a listing that reads every row (`listing_5_percent`); a delta save that reads every row
(`delta_5_percent`); slabs that are not freed (`drop_half`); a restore beside the old rows (`restore_peak`); a section
for each bucket (`save_4096_buckets`, `restore_4096_buckets`).
"""

from __future__ import annotations

import argparse
import gc
import logging
import shutil
import statistics
import tempfile
import threading
import time
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import structlog

from benchmarks.common.child import Child
from benchmarks.common.figures import Figure, OtherLoad, ratio, run_benchmark, take_turns
from elastrec.checkpoints import commit_record
from elastrec.platform.specs.environment import CORES
from elastrec.platform.specs.job import JobSpec, Metadata, TrainingJob
from elastrec.platform.transport.messages.directive import RoutingTable
from elastrec.trainers.parameter_server.messages import Origin, Pull, Push, Stamp
from elastrec.trainers.parameter_server.records.share import restore, save_part
from elastrec.trainers.parameter_server.serving.server import ParameterServer
from elastrec.trainers.parameter_server.warm_up import warm_kernels
from elastrec.trainers.threads import process_settings

_DIMENSION, _AT_ONCE, _REQUEST = 16, 200_000, 8192
_NOTHING = np.empty(0, np.int32)
_KEEP_SECONDS = 100.0
_TURNS = 5


class Server:
    """One server with rows 0 to `rows`, and requests to it.

    Args:
        evicts: whether rows that were not seen for _KEEP_SECONDS before `now` are evicted.
        deltas: number of delta records that may build on a full record.
    """

    def __init__(self, rows: int, *, cores: int = 1, buckets: int = 256, evicts: bool = False, deltas: int = 0) -> None:
        self.rows, self.now = rows, 1000.0
        tables = {"t": {"evict_after": _KEEP_SECONDS}} if evicts else {}
        self.spec = JobSpec.model_validate(
            {
                "model": {"architecture": "dlrm", "embedding_dimension": _DIMENSION},
                "data": {"path": "none", "dense": [{"name": "d"}], "sparse": [{"name": "t"}]},
                "tables": tables,
                "resources": {"virtual_buckets": buckets},
                "checkpoint": {"deltas": deltas},
            }
        )
        self.routing = RoutingTable(epoch=1, owners=[0] * buckets, servers=["ps-0"], addresses=["nowhere"])
        self.server = ParameterServer("ps-0", self.spec, granted_cores=cores, clock=lambda: self.now)
        self.server.start_empty(self.routing, 1)

    @property
    def store(self):  # type: ignore[no-untyped-def]
        return self.server.stores[0]

    def fill(self, first: int = 0, end: int | None = None) -> None:
        for start in range(first, self.rows if end is None else end, _AT_ONCE):
            self.touch(np.arange(start, min(start + _AT_ONCE, self.rows if end is None else end)))

    def touch(self, ids: np.ndarray) -> None:
        gradients = np.ones((len(ids), _DIMENSION), np.float32)
        self.store.push(np.array([len(ids)], np.int32), ids, _NOTHING, gradients, self.now)

    def work(self, worker: str, begin: Callable[[], object], is_over: Callable[[], bool]) -> list[float]:
        """Pulls and pushes as one worker does, once or until it is over; seconds of each pull."""
        stamp, random, seconds = Stamp(worker, uuid.uuid4().hex, 1, 1), np.random.default_rng(len(worker)), []
        batches = [np.unique(random.integers(0, self.rows, _REQUEST)) for _ in range(16)]
        gradients = np.full(_REQUEST * _DIMENSION, 0.01, np.float32)
        number = 0
        begin()
        while not number or not is_over():
            ids = batches[number % len(batches)]
            counts, began = np.array([len(ids)], np.int32), time.perf_counter()
            self.server.pull(Pull(stamp=stamp), [counts, ids])
            seconds.append(time.perf_counter() - began)
            arrays: list[Any] = [counts, ids, gradients[: len(ids) * _DIMENSION], _NOTHING, np.empty(0, np.float32)]
            origin = Origin(stamp.incarnation, 0, 1, number, number + 1, number == 0, False)
            self.server.push(Push(stamp=stamp, origin=origin, samples=1, number=number + 1), arrays)
            number += 1
        return seconds

    def work_for(self, seconds: float, workers: int) -> int:
        """Pulls that so many workers have answered in this time."""
        over, ready, done = threading.Event(), threading.Barrier(workers + 1), []

        def work(name: str) -> None:
            done.append(len(self.work(name, ready.wait, over.is_set)))

        threads = [threading.Thread(target=work, args=("w" * number,)) for number in range(1, workers + 1)]
        for thread in threads:
            thread.start()
        ready.wait()
        time.sleep(seconds)
        over.set()
        for thread in threads:
            thread.join()
        return sum(done)

    def pulls_during(self, task: Callable[[], object]) -> list[float]:
        """Seconds of each pull of a worker that trains while a task runs."""
        over, ready, waits = threading.Event(), threading.Event(), []
        thread = threading.Thread(target=lambda: waits.extend(self.work("w", ready.set, over.is_set)))
        thread.start()
        ready.wait()
        try:
            task()
        finally:
            over.set()
            thread.join()
        return waits

    def save(self, folder: Path, name: str, base: str = "") -> str:
        uri = str(folder / name)
        part = save_part(self.server, uri, cut=name, base=base)
        job = TrainingJob(metadata=Metadata(name="benchmark"), spec=self.spec)
        commit_record(
            uri, [part], b"{}", job=job, job_id="job", kind="periodic", step=1, generation=1,
            base=base and str(folder / base),
        )  # fmt: skip
        return uri


def _status(name: str) -> int:
    """A line of /proc/self/status in bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    raise ValueError(f"/proc/self/status has no line {name}")


def _cpu_seconds(task: Callable[[], object]) -> float:
    """Of all threads: a restore works in threads of its own."""
    began = time.process_time()
    task()
    return time.process_time() - began


def measure_memory(rows: int) -> list[Figure]:
    """Bytes per row at every size, by the store and by the process, and the memory that dropping returns.

    The process is compared with its size when half a slab of each bucket is full. Any larger number of rows leaves
    about the same amount unused, which would otherwise make later rows look too cheap.
    """
    # What requests need beside rows stays with the process, and is no memory of rows: here those of another server.
    other = Server(_AT_ONCE)
    for _ in range(3):
        other.fill()
    del other
    gc.collect()
    server = Server(rows)
    first = 256 * server.store.rows_memory.indexed.pool.shape.per_slab // 2
    server.touch(np.arange(first))
    before, end, per_row, differences = _status("VmRSS"), first, [], []
    for step in np.linspace(max(rows // 20, 2 * first), rows, 40).astype(int):
        server.fill(end, int(step))
        end = int(step)
        per_row.append(sum(usage.bytes for usage in server.store.usage()) / server.store.rows)
        differences.append((_status("VmRSS") - before) / (server.store.rows - first) / per_row[-1])
    staircase = float(np.abs(np.diff(per_row) / per_row[:-1]).max())
    accounted, full = server.store.memory_bytes, _status("VmRSS")
    for bucket in range(0, 256, 2):
        server.store.bucket(bucket).drop()
    returned = (full - _status("VmRSS")) / (accounted - server.store.memory_bytes)
    share = 1 - server.store.memory_bytes / accounted
    worst = max(differences, key=lambda value: abs(value - 1))
    settings = {"rows": rows, "dimension": _DIMENSION, "rule": "row-wise Adagrad", "buckets": 256}
    return [
        Figure("storage.bytes_per_row", max(per_row), "bytes, at most at any size", at_most=100, settings=settings),
        Figure("storage.staircase", 100 * staircase, "% of bytes per row, largest step of 40", at_most=10),
        Figure(
            "storage.process_to_accounted", worst, "bytes of process ÷ accounted, worst", at_least=0.95, at_most=1.05
        ),
        Figure("storage.drop_half", returned * share / 0.5, "of the memory of half of the buckets", at_least=0.9),
    ]


def measure_listing(rows: int) -> list[Figure]:
    """Listings of all rows and of 5 % changed ones, in turns."""
    server, random, seconds = Server(rows), np.random.default_rng(0), []
    server.fill()
    buckets = [server.store.bucket(number) for number in range(256)]
    for _ in range(_TURNS):
        full = _cpu_seconds(lambda: [bucket.changes(-1) for bucket in buckets])
        versions = [bucket.mark() for bucket in buckets]
        server.touch(random.permutation(rows)[: rows // 20])
        changed = _cpu_seconds(lambda v=versions: [bucket.changes(one) for bucket, one in zip(buckets, v, strict=True)])
        seconds.append(changed / full)
    settings = {"rows": rows, "each": [round(value, 3) for value in seconds]}
    return [
        Figure(
            "storage.listing_5_percent", statistics.median(seconds), "of a full listing's CPU seconds", at_most=0.1,
            settings=settings,
        )
    ]  # fmt: skip


def measure_delta(rows: int, folder: Path) -> list[Figure]:
    """Full records and deltas of 5 % changed rows, in turns."""
    server, random, seconds = Server(rows, deltas=1), np.random.default_rng(0), []
    server.fill()
    for number in range(3):
        full = _cpu_seconds(lambda n=number: server.save(folder, f"base-{n}"))
        server.touch(random.permutation(rows)[: rows // 20])
        delta = _cpu_seconds(lambda n=number: server.save(folder, f"delta-{n}", base=f"base-{n}"))
        seconds.append(delta / full)
    settings = {"rows": rows, "each": [round(value, 3) for value in seconds]}
    return [
        Figure(
            "storage.delta_5_percent", statistics.median(seconds), "of a full save's CPU seconds", at_most=0.2,
            settings=settings,
        )
    ]  # fmt: skip


def measure_cores(rows: int, seconds: float) -> list[Figure]:
    """Requests of a server with two cores against one core, and what the machine's two cores can do at best.

    Processes share no lock and no memory. Two of them, each with a server and a core of its own, are less than twice as
    fast as one where the cores share caches, memory bandwidth or, as virtual cores may, a physical core. All have the
    settings of malloc that a server's process has: otherwise it returns the memory of each answer to the system, for
    which the threads of a process wait for each other.
    """
    granted = {CORES: "2"}
    environment = granted | process_settings(granted)
    with OtherLoad() as load, ExitStack() as stack:

        def child(*cores: str) -> Child:
            return stack.enter_context(
                Child("benchmarks.processes.storage", str(rows), *cores, environment=environment)
            )

        one_server, two_servers = child("1", "2"), [child("1") for _ in range(2)]

        def processes(number: int) -> int:
            with ThreadPoolExecutor(number) as pool:
                return sum(pool.map(lambda each: each.ask(cores=1, seconds=seconds), two_servers[:number]))

        sides: dict[tuple[str, int], Callable[[], int]] = {}
        for number in (1, 2):
            sides["cores", number] = partial(one_server.ask, cores=number, seconds=seconds)
            sides["processes", number] = partial(processes, number)
        found = take_turns(sides, _TURNS)
    figures = []
    for what, goal in (("cores", 1.7), ("processes", None)):
        one, two = found[what, 1], found[what, 2]
        each = [round(more / less, 2) for less, more in zip(one, two, strict=True)]
        settings = {"ids_per_request": _REQUEST, "each": each, "others_cores": round(load.cores, 2)}
        unit = f"× one {'core' if goal else 'process'}'s requests"
        figures.append(Figure(f"storage.two_{what}", ratio(two, one), unit, at_least=goal, settings=settings))
    return figures


def measure_save(rows: int, seconds: float, folder: Path) -> list[Figure]:
    """Requests while a record is written, and the memory of its restore."""
    server, names = Server(rows, cores=2), iter(range(2 * _TURNS))
    server.fill()

    def saving() -> float:
        waits = server.pulls_during(lambda: saved.append(server.save(folder, f"while-pulled-{next(names)}")))
        shutil.rmtree(saved.pop())
        return float(np.quantile(waits, 0.99))

    saved: list[str] = []
    sides = {"quiet": lambda: float(np.quantile(server.pulls_during(lambda: time.sleep(seconds)), 0.99)),
             "saving": saving}  # fmt: skip
    with OtherLoad() as load:
        p99 = take_turns(sides, _TURNS)
    settings = {
        "quiet_ms": round(1e3 * statistics.median(p99["quiet"]), 2), "bytes": server.store.memory_bytes,
        "each": [round(busy / quiet, 2) for quiet, busy in zip(*p99.values(), strict=True)],
        "others_cores": round(load.cores, 2),
    }  # fmt: skip
    figures = [
        Figure("storage.pull_p99_while_saving", ratio(p99["saving"], p99["quiet"]), "× quiet", at_most=2,
               settings=settings),
    ]  # fmt: skip
    uri = server.save(folder, "to-restore")
    before = _status("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the highest mark begins anew
    restore(server.server, uri, server.routing, 1)
    return [*figures, Figure("storage.restore_peak", _status("VmHWM") / before, "× memory before", at_most=1.1)]


def measure_bucket_counts(rows: int, folder: Path) -> list[Figure]:
    """Saves and restores of servers with few buckets and with many, in turns."""
    servers = {buckets: Server(rows, buckets=buckets) for buckets in (256, 4096)}
    for server in servers.values():
        server.fill()

    def save_and_restore(buckets: int) -> tuple[float, float]:
        server, uris = servers[buckets], []
        saving = _cpu_seconds(lambda: uris.append(server.save(folder, f"buckets-{buckets}")))
        restoring = _cpu_seconds(lambda: restore(server.server, uris[0], server.routing, 1))
        shutil.rmtree(uris[0])
        return saving, restoring

    with OtherLoad() as load:
        seconds = take_turns({buckets: partial(save_and_restore, buckets) for buckets in servers}, _TURNS)
    figures = []
    for index, name in enumerate(("save", "restore")):
        few, many = ([each[index] for each in seconds[buckets]] for buckets in (256, 4096))
        settings = {
            "rows": rows, "each": [round(more / less, 2) for less, more in zip(few, many, strict=True)],
            "others_cores": round(load.cores, 2),
        }  # fmt: skip
        figures.append(
            Figure(f"storage.{name}_4096_buckets", ratio(many, few), "× CPU seconds with 256", at_most=1.2,
                   settings=settings)
        )  # fmt: skip
    return figures


def measure_eviction(rows: int) -> list[Figure]:
    server = Server(rows, cores=2, evicts=True)
    server.fill()
    server.now += 2 * _KEEP_SECONDS
    with OtherLoad() as load:
        waits = server.pulls_during(server.server.evict)
    settings = {"rows": rows, "others_cores": round(load.cores, 2)}
    return [Figure("storage.eviction_longest_wait", 1e3 * max(waits), "ms", at_most=20, settings=settings)]


def measure(arguments: argparse.Namespace) -> list[Figure]:
    """All figures, one server after the other."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    warm_kernels()
    rows = arguments.rows
    for server in (Server(1000), Server(1000, cores=2)):
        server.fill()
        server.store.bucket(0).changes(server.store.bucket(0).mark())
        server.store.bucket(0).drop()
    with tempfile.TemporaryDirectory(prefix="elastrec-benchmark-", dir=arguments.folder) as folder:
        # What the first save, delta and restore of a process load is no part of what they cost.
        measure_delta(1000, Path(folder) / "warm-up")
        measure_bucket_counts(1000, Path(folder) / "warm-up")
        return [
            *measure_memory(rows),
            *measure_listing(rows),
            *measure_delta(rows // 4, Path(folder)),
            *measure_cores(rows // 2, arguments.seconds),
            *measure_save(rows, arguments.seconds, Path(folder)),
            *measure_bucket_counts(rows // 4, Path(folder)),
            *measure_eviction(arguments.evicted_rows),
        ]


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rows", type=int, default=10_000_000, help="rows of a server (default 10,000,000)")
    parser.add_argument(
        "--evicted-rows", type=int, default=50_000_000, help="rows that are evicted (default 50,000,000: 5 GB)"
    )
    parser.add_argument("--seconds", type=float, default=5.0, help="of each measurement of requests (default 5)")
    parser.add_argument("--folder", help="where on the disk to write (default: the system's temporary folder)")


if __name__ == "__main__":
    run_benchmark(__doc__, measure, add_options)
