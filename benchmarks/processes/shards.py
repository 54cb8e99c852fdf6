"""The two processes of `shards`: a real master, and simulated pods.

The master is the product's: state machine, journal on disk, service, RPC server on a socket. Its cluster only stores
requests, and its pods are simulated: each worker has its own connection, sends heartbeats at the interval that the
master sets, leases shards and reports them as done, without training.
"""

from __future__ import annotations

import json
import logging
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import structlog

from benchmarks.common.child import serve
from elastrec.platform.clusters.nodes import Node
from elastrec.platform.clusters.pods import PodEvent, PodEventKind, PodPhase, PodSize, PodSpec, PodStatus
from elastrec.platform.data.metrics.binary import COARSE_BINS, BinaryMetricsSketch
from elastrec.platform.master.pods.launch import LaunchRequest
from elastrec.platform.master.service.service import JobService
from elastrec.platform.specs.job import TrainingJob
from elastrec.platform.specs.metrics import Role
from elastrec.platform.transport import RpcClient, RpcServer
from elastrec.platform.transport.messages.directive import Directive, Mode
from elastrec.platform.transport.messages.job import (
    Answer,
    Heartbeat,
    Leased,
    LeaseShards,
    LeaseState,
    Register,
    Registered,
    Shard,
    WindowMetrics,
)
from elastrec.platform.transport.server import end_process

_TOKEN = "benchmark"
_START_SECONDS = 120.0
_PLAYING_THREADS = 4


class RememberingCluster:
    """Says that every pod runs."""

    def __init__(self) -> None:
        self._pods: dict[str, PodStatus] = {}

    def create(self, pod: PodSpec) -> PodStatus:
        status = PodStatus(
            name=pod.name, uid=pod.name, job=pod.job, role=pod.role, phase=PodPhase.RUNNING, size=pod.size
        )
        return self._pods.setdefault(pod.name, status)

    def delete(self, name: str, uid: str, *, grace_seconds: float | None = None) -> None:
        self._pods.pop(name, None)

    def resize(self, name: str, uid: str, size: PodSize) -> None:
        self._pods[name] = msgspec.structs.replace(self._pods[name], size=size)

    def watch(self, resume: str, timeout_seconds: float) -> Iterator[PodEvent]:
        yield from [PodEvent(PodEventKind.SEEN, pod) for pod in list(self._pods.values())]
        yield PodEvent(PodEventKind.SYNCED)
        threading.Event().wait(timeout_seconds)

    def nodes(self) -> list[Node]:
        return []

    def logs(self, name: str, *, tail_lines: int | None = None) -> Iterator[str]:
        return iter(())


def run_master(workers: int, rows: int, batch: int, batches_per_shard: int) -> None:
    structlog.configure(
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING),
    )
    job = TrainingJob.model_validate(
        {
            "metadata": {"name": "benchmark"},
            "spec": {
                "model": {"architecture": "dlrm"},
                "data": {"path": "none", "sparse": [{"name": "user"}]},
                "training": {"batch_size": batch, "batches_per_shard": batches_per_shard},
                "resources": {"worker": {"count": workers}, "parameter_server": {"count": 1}},
                "checkpoint": {"interval": 0},
            },
        }
    )
    with tempfile.TemporaryDirectory(prefix="elastrec-benchmark-") as folder:
        request = LaunchRequest.of(
            job, job_id="benchmark-1", training_manifest="none", training_rows=rows, store=f"{folder}/store"
        )
        service = JobService(request, RememberingCluster(), Path(folder), token=_TOKEN)
        server = RpcServer(service.handlers(), token=_TOKEN)
        server.serve_in_background()
        service.start(server.address)
        serve(lambda _: {"done": service.state.training.done}, {"address": server.address})
        server.shutdown()
        service.close()
    end_process(0)


class PlayedPod:
    """A pod that sends the messages of a real one; used by one thread at a time."""

    def __init__(self, name: str, role: Role, master: str) -> None:
        self.name, self.role = name, role
        self.beat_seconds = 0.0
        self._incarnation = uuid.uuid4().hex
        self._client = RpcClient(master, _TOKEN)
        address = f"{name}:1" if role is Role.PARAMETER_SERVER else ""
        message = Register(pod=name, role=role, incarnation=self._incarnation, address=address)
        registered = self._client.call(message, Registered, timeout_seconds=_START_SECONDS)
        self.directive: Directive = registered.directive
        self.beat_seconds = registered.heartbeat_seconds
        self._trained: list[Shard] = []

    def beat(self, metrics: WindowMetrics | None = None) -> None:
        """Gives a heartbeat, and obeys at once."""
        restore = self.directive.restore
        message = Heartbeat(
            pod=self.name,
            incarnation=self._incarnation,
            generation=self.directive.generation,
            reached_version=self.directive.version,
            restored_order_id=restore.order_id if restore else "",
            metrics=metrics or WindowMetrics(),
            memory_bytes=2**30,
            cpu_seconds=1.0,
        )
        answer = self._client.call(message, Answer, timeout_seconds=10.0)
        assert answer.directive is not None
        self.directive, self.beat_seconds = answer.directive, answer.heartbeat_seconds

    def lease(self, count: int) -> int:
        """Reports the shards of the last lease as trained, and leases new ones; returns their number.

        Raises:
            RuntimeError: the master granted none.
        """
        request = LeaseShards(
            pod=self.name,
            incarnation=self._incarnation,
            generation=self.directive.generation,
            request_id=uuid.uuid4().hex,
            count=count,
            kind="train",
            progress=[shard.progress(shard.split.range.length, ended=True) for shard in self._trained],
        )
        leased = self._client.call(request, Leased)
        if leased.state is not LeaseState.GRANTED:
            raise RuntimeError(f"{self.name}: the master answers {leased.state} to a request for {count} shards")
        self._trained = leased.shards
        return len(leased.shards)


def _metrics(steps: int, batch: int) -> WindowMetrics:
    """What a worker reports of so many steps, the sketch of its predictions included."""
    random = np.random.default_rng(0)
    sketch = BinaryMetricsSketch(COARSE_BINS)
    prediction = random.beta(1, 3, steps * batch).astype(np.float32)
    sketch.update(prediction, (random.random(len(prediction)) < prediction).astype(np.float32))
    return WindowMetrics(
        samples=steps * batch, steps=steps, loss_sum=0.5 * steps * batch, wait_seconds=0.1, pull_seconds=0.1,
        compute_seconds=0.7, push_seconds=0.1, bytes_pulled=2**20, bytes_pushed=2**20, sketch=sketch.encode(),
    )  # fmt: skip


class Players:
    """All pods of one job."""

    def __init__(self, master: str, workers: int) -> None:
        self._server = PlayedPod("benchmark-1-ps-0", Role.PARAMETER_SERVER, master)
        self._workers = [PlayedPod(f"benchmark-1-worker-{index}", Role.WORKER, master) for index in range(workers)]
        deadline = time.monotonic() + _START_SECONDS
        while self._workers[0].directive.mode is not Mode.TRAIN:
            if time.monotonic() > deadline:
                raise RuntimeError(f"the job does not train after {_START_SECONDS} s: {self._workers[0].directive}")
            self._server.beat()
            self._workers[0].beat()
            time.sleep(0.05)
        for pod in self._workers:
            pod.beat()

    def lease(self, shards: int, count: int) -> dict[str, float]:
        """All workers lease and finish shards as fast as they are answered, `shards` in all."""
        each = shards // len(self._workers)

        def work(pod: PlayedPod) -> None:
            taken = 0
            while taken < each:
                taken += pod.lease(count)

        began = time.monotonic()
        _in_threads(work, self._workers)
        seconds = time.monotonic() - began
        self._server.beat()
        return {"seconds": seconds, "shards": each * len(self._workers)}

    def train(self, seconds: float, steps_per_second: float, batch: int, shard_seconds: float) -> dict[str, float]:
        """All pods send heartbeats at the interval that the master sets; each worker leases a shard every
        `shard_seconds`.

        Args:
            shard_seconds: seconds between leases of a worker; 0: only heartbeats.
        """
        end = time.monotonic() + seconds
        pace = self._workers[0].beat_seconds
        metrics = _metrics(max(1, round(steps_per_second * pace)), batch)
        beats = leases = 0
        lock = threading.Lock()

        def play(pods: list[PlayedPod]) -> None:
            nonlocal beats, leases
            now = time.monotonic()
            # Pods start at moments of their own.
            due = [(now + pace * (index + 0.5) / len(pods), pod) for index, pod in enumerate(pods)]
            next_lease = {pod.name: moment + shard_seconds / 2 for moment, pod in due}
            beaten = leased = 0
            while due[0][0] < end:
                moment, pod = due.pop(0)
                time.sleep(max(0.0, moment - time.monotonic()))
                pod.beat(metrics if pod.role is Role.WORKER else None)
                beaten += 1
                if shard_seconds and pod.role is Role.WORKER and next_lease[pod.name] <= moment:
                    pod.lease(1)
                    leased += 1
                    next_lease[pod.name] += shard_seconds
                due.append((moment + pod.beat_seconds, pod))
                due.sort(key=lambda entry: entry[0])
            with lock:
                beats, leases = beats + beaten, leases + leased

        pods = [self._server, *self._workers]
        _in_threads(play, [pods[index::_PLAYING_THREADS] for index in range(_PLAYING_THREADS)])
        return {"beats": beats, "leases": leases, "beat_seconds": self._workers[0].beat_seconds}

    def answer(self, request: dict[str, Any]) -> dict[str, float]:
        done: dict[str, float] = getattr(self, request.pop("do"))(**request)
        return done


def _in_threads(work: Any, items: list[Any]) -> None:
    problems: list[BaseException] = []

    def run(item: Any) -> None:
        try:
            work(item)
        except BaseException as error:
            problems.append(error)

    threads = [threading.Thread(target=run, args=(item,)) for item in items]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if problems:
        raise problems[0]


if __name__ == "__main__":
    role, settings = sys.argv[1], json.loads(sys.argv[2])
    if role == "master":
        run_master(**settings)
    else:
        serve(Players(**settings).answer, {})
        end_process(0)
