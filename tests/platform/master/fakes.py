"""A cluster that only records requests, and scripted pods, as counterparts of the master."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from elastrec.checkpoints import PartWriter, answer, newest_term, open_store
from elastrec.platform.clusters.nodes import Node
from elastrec.platform.clusters.pods import EndReason, PodEvent, PodSize, PodSpec, PodStatus
from elastrec.platform.master.pods.launch import LaunchRequest
from elastrec.platform.specs.environment import STORE_FILE
from elastrec.platform.specs.errors import TransportError
from elastrec.platform.specs.job import TrainingJob
from elastrec.platform.specs.metrics import Role
from elastrec.platform.transport import RpcClient
from elastrec.platform.transport.messages.directive import Mode
from elastrec.platform.transport.messages.job import (
    Answer,
    Done,
    Failed,
    Heartbeat,
    Leased,
    LeaseShards,
    LeaseState,
    Register,
    Registered,
    SavedPart,
    WindowMetrics,
)
from tests.heads import encoded
from tests.platform.clusters.fake_fleet import FakeFleet
from tests.platform.clusters.fleets import new_fleet
from tests.splits import length_of, progress_of


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
    """A `Fleet`, whose pods run as soon as they are created; `on_create` may start their scripts.

    Attributes:
        before: called before each operation with its name and that of the pod; may wait, or raise ClusterError.
        plane: the state of the cluster.
    """

    def __init__(self, plane: FakeFleet | None = None) -> None:
        self.on_create: Callable[[PodSpec], None] = lambda spec: None
        self.before: Callable[[str, str], None] = lambda operation, name: None
        self.plane = plane or new_fleet()
        self.specs: dict[str, PodSpec] = {}
        self.deleted: list[str] = []
        self.resized: list[tuple[str, PodSize]] = []
        self.changed = threading.Condition()

    @property
    def pods(self) -> dict[str, PodStatus]:
        """By name."""
        with self.changed:
            return {pod.name: pod for pod in self.plane.pods.values()}

    def create(self, pod: PodSpec) -> PodStatus:
        self.before("create", pod.name)
        with self.changed:
            known = self.plane.named(pod.name)
            status = known or self.plane.create(pod)
            if known is None:
                self.plane.start(status.uid)
                status, self.specs[pod.name] = self.plane.pods[status.uid], pod
                self.changed.notify_all()
        if known is None:
            self.on_create(pod)
        return status

    def end(self, name: str, reason: EndReason = EndReason.ERROR, exit_code: int = 1) -> None:
        """The pod's process is gone."""
        with self.changed:
            self.plane.end(self.pods[name].uid, reason, exit_code)
            self.changed.notify_all()

    def delete(self, name: str, uid: str = "", *, grace_seconds: float | None = None) -> None:
        self.before("delete", name)
        with self.changed:
            self.deleted.append(name)
            if (pod := self.plane.named(name)) is not None and uid in ("", pod.uid):
                self.plane.delete(name, pod.uid)
                self.changed.notify_all()

    def resize(self, name: str, uid: str, size: PodSize) -> None:
        self.before("resize", name)
        with self.changed:
            self.plane.resize(name, uid, size)
            self.resized.append((name, size))
            self.changed.notify_all()

    def watch(self, resume: str, timeout_seconds: float) -> Iterator[PodEvent]:
        self.before("watch", "")
        deadline = time.monotonic() + min(timeout_seconds, 0.2)
        while True:
            with self.changed:
                events = list(self.plane.watch(resume, 0.0))
                left = deadline - time.monotonic()
                if not events and left > 0.0:
                    self.changed.wait(left)
                    continue
            yield from events
            if left <= 0.0:
                return
            resume = events[-1].resume

    def nodes(self) -> list[Node]:
        return [Node(name="node", size=PodSize(64, 2**40), free=PodSize(64, 2**40))]

    def logs(self, name: str, *, tail_lines: int | None = None, follow: bool = False) -> Iterator[str]:
        self.before("logs", name)
        return iter([f"last words of {name}"])


class FakeLauncher:
    """A `Launcher` over the same memory."""

    def __init__(self, cluster: FakeCluster | None = None) -> None:
        self.cluster = cluster or FakeCluster()

    def submit(self, first: PodSpec) -> PodStatus:
        return self.cluster.create(first)

    def find(self, job: str) -> PodStatus | None:
        return next((pod for pod in self.jobs() if pod.job == job), None)

    def address(self, first: PodStatus) -> str:
        return first.address

    def secrets(self, name: str, uid: str) -> dict[str, str] | None:
        status = self.cluster.pods.get(name)
        return self.cluster.specs[name].secrets if status is not None and status.uid == uid else None

    def jobs(self) -> list[PodStatus]:
        return [pod for pod in self.pods() if pod.role in (Role.MASTER, Role.EVALUATOR)]

    def pods(self, job: str | None = None) -> list[PodStatus]:
        return [pod for pod in self.cluster.pods.values() if job in (None, pod.job)]

    def remove(self, job: str) -> list[str]:
        names = [pod.name for pod in self.pods(job)]
        for name in names:
            self.cluster.delete(name)
        return names

    def logs(self, name: str, *, tail_lines: int | None = None, follow: bool = False) -> Iterator[str]:
        return self.cluster.logs(name, tail_lines=tail_lines)

    def nodes(self) -> list[Node]:
        return self.cluster.nodes()

    def dry_run(self, pod: PodSpec) -> dict[str, Any]:
        return msgspec.to_builtins(pod)


_STEP_ROWS = 10
"""That a worker acknowledges at once."""


class Killed(Exception):
    """The script has an order to die."""


class ScriptedPod:
    """Imitates one worker or server at the socket of a master, in a separate thread.

    Args:
        trained: called with (generation, number of the split, first row, last row) for every range of acknowledged
            rows.
        step_seconds: time for the rows of one acknowledgement.
    """

    def __init__(
        self,
        spec: PodSpec,
        cluster: FakeCluster,
        trained: list[tuple[int, int, int, int]],
        step_seconds: float,
        fail_on: Callable[[ScriptedPod, Any], None],
    ) -> None:
        self.name, self.role = spec.name, spec.role
        self.incarnation = uuid.uuid4().hex
        self.killed = threading.Event()
        self._cluster = cluster
        self._trained = trained
        self._step_seconds = step_seconds
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
                # Longer attempts would be long silences.
                return self._client.call(message, answer, timeout_seconds=1.0)
            except TransportError as error:
                if not error.retryable:
                    raise
                self._look_up()
        raise Killed

    def _look_up(self) -> None:
        """Goes to the master of the newest term, as pods do whose master is silent."""
        variables = self._spec.environment
        store = (self._spec.files | self._spec.secrets)[STORE_FILE]
        term = newest_term(store, variables["ELASTREC_JOB_NAME"], variables["ELASTREC_JOB"])
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
                saved = self._write(directive, TrainingJob.model_validate_json(registered.job_json))
            moved = {}
            if (take := directive.take) is not None:
                kind = "taken_order_id" if take.is_due(directive.routing, self.name) else "copied_order_id"
                moved = {kind: take.order_id}
            directive = self._beat(directive, saved=saved, restored_order_id=self._restored, **moved)
            if saved is not None:
                self._saved = saved.order_id
            time.sleep(0.01)

    def _write(self, directive: Any, job: TrainingJob) -> SavedPart:
        rank = directive.routing.servers.index(self.name)
        buckets = [bucket for bucket, owner in enumerate(directive.routing.owners) if owner == rank]
        writer = PartWriter(
            directive.save.uri,
            self.name,
            groups=[answer(job.spec.data.tables, buckets)],
            dense_ranges=[(0, 4)] if rank == 0 else [],
            generation=directive.generation,
            cut=directive.save.order_id,
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
            end = min(length_of(shard), offset + _STEP_ROWS)
            is_evaluated = kind == "evaluate" and end == length_of(shard)
            report = progress_of(shard, end, _sketch(shard) if is_evaluated else b"")
            if not report.ended:
                shards.insert(0, (shard, end))
            generation = directive.generation
            metrics = WindowMetrics(samples=end - offset, steps=1, loss_sum=0.5 * (end - offset), compute_seconds=0.001)
            directive = self._beat(directive, progress=[report], metrics=metrics)
            if kind == "train":
                rows = shard.split.range
                self._trained.append((generation, shard.split.number, rows.start + offset, rows.start + end))
            if directive.generation != generation:
                shards = []

    def fail(self, reason: str, *, retryable: bool, shard: Any = None) -> None:
        """Reports a failure and dies of it."""
        progress = shard.progress(0, ended=False) if shard is not None else None
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
    rows = shard.split.range.start + np.arange(length_of(shard))
    return encoded((rows % 10) / 10 + 0.05, rows % 10 > 6)
