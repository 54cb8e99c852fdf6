"""A cluster that only remembers, and pods played by a script: the master's other side in these tests."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from elastrec.checkpoints import PartWriter, newest_term, open_store
from elastrec.platform.clusters.protocol import Capacity, EndReason, PodEvent, PodPhase, PodSize, PodSpec, PodStatus
from elastrec.platform.data.sketch import BinaryMetricsSketch
from elastrec.platform.master.launch import LaunchRequest
from elastrec.platform.specs.errors import ClusterError, TransportError
from elastrec.platform.specs.job import TrainingJob
from elastrec.platform.specs.metrics import Role
from elastrec.platform.transport import RpcClient
from elastrec.platform.transport.job_messages import (
    Answer,
    Done,
    Failed,
    Heartbeat,
    Leased,
    LeaseShards,
    LeaseState,
    Mode,
    Register,
    Registered,
    SavedPart,
    ShardProgress,
    WindowMetrics,
)


def job(**spec: Any) -> TrainingJob:
    """A small job; `spec` replaces whole sections."""
    sections = {
        "model": {"architecture": "dlrm"},
        "data": {"path": "data", "sparse": [{"name": "user"}]},
        "training": {"batch_size": 10, "batches_per_shard": 2},
        "resources": {"worker": {"count": 2}, "parameter_server": {"count": 2}, "virtual_buckets": 64},
        "checkpoint": {"interval": 0},
        "faults": {"heartbeat_interval": 0.02, "heartbeat_timeout": 1.5, "lease": 20},
    }
    return TrainingJob.model_validate(
        {"apiVersion": "elastrec.io/v1alpha1", "kind": "TrainingJob", "metadata": {"name": "clicks"}}
        | {"spec": sections | spec}
    )


def launch(store: str, training_job: TrainingJob, rows: int = 1000, evaluation_rows: int = 100) -> LaunchRequest:
    open_store(store).create()
    return LaunchRequest.of(
        training_job,
        job_id="clicks-1",
        training_manifest=f"file://{Path(store).parent}/train.json",
        training_rows=rows,
        evaluation_manifest="file:///evaluate.json",
        evaluation_rows=evaluation_rows,
        store=store,
    )


class FakeCluster:
    """Pods exist as soon as they are created; `on_create` may start their scripts."""

    def __init__(self) -> None:
        self.on_create: Callable[[PodSpec], None] = lambda spec: None
        self.pods: dict[str, PodStatus] = {}
        self.specs: dict[str, PodSpec] = {}
        self.deleted: list[str] = []
        self.resized: list[tuple[str, PodSize]] = []
        self.before_resize: Callable[[str], None] = lambda name: None
        self._events: list[PodEvent] = []
        self._changed = threading.Condition()

    def _tell(self, kind: str, status: PodStatus) -> None:
        with self._changed:
            self._events.append(PodEvent(kind, status, len(self._events) + 1))
            self._changed.notify_all()

    def create(self, pod: PodSpec) -> PodStatus:
        if pod.name in self.pods:
            if self.specs[pod.name] != pod:
                raise ClusterError(f"{pod.name} is taken by another spec")
            return self.pods[pod.name]
        status = PodStatus(
            name=pod.name, uid=uuid.uuid4().hex, job=pod.job, role=pod.role, phase=PodPhase.RUNNING, size=pod.size
        )
        self.pods[pod.name], self.specs[pod.name] = status, pod
        self._tell("ADDED", status)
        self.on_create(pod)
        return status

    def end(self, name: str, reason: EndReason = EndReason.ERROR, exit_code: int = 1) -> None:
        """The pod's process is gone."""
        phase = PodPhase.SUCCEEDED if exit_code == 0 else PodPhase.FAILED
        status = msgspec.structs.replace(
            self.pods[name], phase=phase, reason=str(reason), end=reason, exit_code=exit_code
        )
        self.pods[name] = status
        self._tell("MODIFIED", status)

    def delete(self, name: str, *, grace_seconds: float | None = None) -> None:
        self.deleted.append(name)
        if name in self.pods:
            self._tell("DELETED", self.pods.pop(name))

    def resize(self, name: str, size: PodSize) -> PodStatus:
        self.before_resize(name)
        self.pods[name] = msgspec.structs.replace(self.pods[name], size=size)
        self.resized.append((name, size))
        return self.pods[name]

    def get(self, name: str) -> PodStatus | None:
        return self.pods.get(name)

    def secrets(self, name: str, uid: str) -> dict[str, str] | None:
        status = self.pods.get(name)
        return self.specs[name].secrets if status is not None and status.uid == uid else None

    def list(self, job: str | None = None) -> list[PodStatus]:
        return list(self.pods.values())

    def watch(
        self, job: str | None = None, since_version: int = 0, timeout_seconds: float = 30.0
    ) -> Iterator[PodEvent]:
        deadline = time.monotonic() + min(timeout_seconds, 0.2)
        while time.monotonic() < deadline:
            with self._changed:
                if len(self._events) == since_version:
                    self._changed.wait(0.05)
                fresh = self._events[since_version:]
            for event in fresh:
                since_version = event.version
                yield event

    def capacity(self) -> Capacity:
        return Capacity(PodSize(64, 2**40), PodSize(64, 2**40))

    def logs(self, name: str, *, tail_lines: int | None = None, follow: bool = False) -> Iterator[str]:
        return iter([f"last words of {name}"])

    def dry_run(self, pod: PodSpec) -> dict[str, Any]:
        return msgspec.to_builtins(pod)


class Killed(Exception):
    """The script was told to die."""


class ScriptedPod:
    """Plays one worker or server against a master's socket, in a thread of its own.

    Args:
        trained: gets (generation, epoch, index, first row, last row) of every stretch of rows, when acknowledged.
        step_rows: rows per acknowledgement.
        step_seconds: that they take; without, a job is over before what a test waits for can come.
    """

    def __init__(
        self,
        spec: PodSpec,
        cluster: FakeCluster,
        trained: list[tuple[int, int, int, int, int]],
        *,
        step_rows: int = 10,
        step_seconds: float = 0.002,
        fail_on: Callable[[ScriptedPod, Any], None] = lambda pod, shard: None,
    ) -> None:
        self.name, self.role = spec.name, spec.role
        self.incarnation = uuid.uuid4().hex
        self.killed = threading.Event()
        self._cluster = cluster
        self._trained = trained
        self._step_rows, self._step_seconds = step_rows, step_seconds
        self._fail_on = fail_on
        self._spec = spec
        self._client = RpcClient(spec.environment["ELASTREC_MASTER_ADDRESS"], spec.secrets["token"])
        self._restored = ""
        self._saved = ""
        self.thread = threading.Thread(target=self._run, name=self.name, daemon=True)
        self.thread.start()

    def kill(self) -> None:
        """As SIGKILL would: no further word to anybody."""
        self.killed.set()
        self.thread.join()
        self._cluster.end(self.name, EndReason.KILLED, 137)

    def _call(self, message: msgspec.Struct, answer: Any) -> Any:
        while not self.killed.is_set():
            try:
                # Registering may wait for a resize; of the others, longer attempts would be long silences.
                return self._client.call(message, answer, timeout_seconds=2.0 if isinstance(message, Register) else 1.0)
            except TransportError as error:
                if not error.retryable:
                    raise
                self._look_up()
        raise Killed

    def _look_up(self) -> None:
        """Goes to the master of the newest term, as pods do whose master is silent."""
        variables = self._spec.environment
        term = newest_term(variables["ELASTREC_STORE"], variables["ELASTREC_JOB_NAME"], variables["ELASTREC_JOB"])
        if term is not None and term.address != self._client.address:
            self._client.close()
            self._client = RpcClient(term.address, self._spec.secrets["token"])

    def _run(self) -> None:
        try:
            registered = self._register()
            if self.role is Role.WORKER:
                self._work(registered)
            else:
                self._serve(registered)
            if not self.killed.is_set() and self.name in self._cluster.pods:
                self._cluster.end(self.name, EndReason.COMPLETED, 0)
        except Killed:
            pass
        finally:
            self._client.close()

    def _register(self) -> Registered:
        address = f"{self.name}:1" if self.role is Role.PARAMETER_SERVER else ""
        message = Register(
            pod=self.name,
            role=self.role,
            incarnation=self.incarnation,
            address=address,
            restored_order_id=self._restored,
        )
        return self._call(message, Registered)

    def _beat(self, directive: Any, **fields: Any) -> Any:
        message = Heartbeat(
            pod=self.name,
            incarnation=self.incarnation,
            generation=directive.generation,
            reached_version=directive.version,
            memory_bytes=1000,
            **fields,
        )
        answer = self._call(message, Answer)
        found = answer.directive if answer.known else self._register().directive
        # A message is sent again to a master that has taken over meanwhile and does not know this pod.
        return directive if found.order < directive.order else found

    def _serve(self, registered: Registered) -> None:
        directive = registered.directive
        while directive.mode is not Mode.EXIT:
            saved = None
            if directive.restore is not None:
                self._restored = directive.restore.order_id
            if directive.save is not None and directive.save.order_id != self._saved:
                saved = self._write(directive)
            directive = self._beat(directive, saved=saved, restored_order_id=self._restored)
            if saved is not None:
                self._saved = saved.order_id
            time.sleep(0.005)

    def _write(self, directive: Any) -> SavedPart:
        rank = directive.routing.servers.index(self.name)
        buckets = [bucket for bucket, owner in enumerate(directive.routing.owners) if owner == rank]
        dense_range = (0, 4) if rank == 0 else (4, 4)
        writer = PartWriter(
            directive.save.uri, self.name, buckets=buckets, dense_range=dense_range, generation=directive.generation
        )
        if rank == 0:
            writer.write_dense("w", (4,), 0, {"value": np.zeros(4, np.float32)})
        return SavedPart(order_id=directive.save.order_id, manifest_json=writer.finish().to_json())

    def _work(self, registered: Registered) -> None:
        directive = registered.directive
        shards: list[Any] = []
        while directive.mode is not Mode.EXIT:
            if directive.mode not in (Mode.TRAIN, Mode.EVALUATE):
                before = directive.generation
                directive = self._beat(directive)
                if directive.generation != before:
                    shards = []
                time.sleep(0.005)
                continue
            kind = "train" if directive.mode is Mode.TRAIN else "evaluate"
            shards = [shard for shard in shards if shard[0].kind == kind]
            if not shards:
                request = LeaseShards(
                    pod=self.name,
                    incarnation=self.incarnation,
                    generation=directive.generation,
                    request_id=uuid.uuid4().hex,
                    count=3,
                    kind=kind,
                )
                leased = self._call(request, Leased)
                if leased.state is not LeaseState.GRANTED:
                    directive = self._beat(directive)
                    time.sleep(0.01)
                    continue
                shards = [(shard, shard.offset) for shard in leased.shards]
            shard, offset = shards.pop(0)
            self._fail_on(self, shard)
            time.sleep(self._step_seconds)
            end = min(shard.length, offset + self._step_rows)
            report = ShardProgress(
                kind=kind,
                epoch=shard.epoch,
                index=shard.index,
                attempt=shard.attempt,
                offset=end,
                sketch=_sketch(shard) if kind == "evaluate" and end == shard.length else b"",
            )
            if end < shard.length:
                shards.insert(0, (shard, end))
            generation = directive.generation
            metrics = WindowMetrics(samples=end - offset, steps=1, loss_sum=0.5 * (end - offset), compute_seconds=0.001)
            directive = self._beat(directive, progress=[report], metrics=metrics)
            if kind == "train":
                self._trained.append((generation, shard.epoch, shard.index, shard.start + offset, shard.start + end))
            if directive.generation != generation:
                shards = []

    def fail(self, reason: str, *, retryable: bool, shard: Any = None) -> None:
        """Reports a failure and dies of it."""
        progress = None
        if shard is not None:
            progress = ShardProgress(
                kind=shard.kind, epoch=shard.epoch, index=shard.index, attempt=shard.attempt, offset=0
            )
        self._call(
            Failed(
                pod=self.name,
                incarnation=self.incarnation,
                retryable=retryable,
                reason=reason,
                traceback=f"Traceback: {reason}",
                shard=progress,
            ),
            Done,
        )
        end = EndReason.ERROR if retryable else EndReason.BAD_INPUT
        self._cluster.end(self.name, end, 1 if retryable else 2)
        raise Killed


def _sketch(shard: Any) -> bytes:
    sketch = BinaryMetricsSketch()
    rows = np.arange(shard.start, shard.start + shard.length)
    sketch.update((rows % 10) / 10 + 0.05, (rows % 10 > 6).astype(np.float32))
    return sketch.encode()
