"""A scripted master, served by the real RPC server."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from elastrec.checkpoints import open_store
from elastrec.platform.data.metrics.heads import HeadSketches
from elastrec.platform.specs.data import DenseFeature, Partitioning, SparseFeature, TrainingData
from elastrec.platform.specs.elasticity import PodResources, Resources
from elastrec.platform.specs.job import (
    CheckpointSpec,
    Consistency,
    FaultTolerance,
    JobSpec,
    Metadata,
    ModelSpec,
    TableSpec,
    Training,
    TrainingJob,
)
from elastrec.platform.specs.metrics import Role
from elastrec.platform.specs.splits import EVALUATION_STREAM, TRAINING_STREAM, ManifestStream
from elastrec.platform.transport import RpcServer, new_token
from elastrec.platform.transport.messages.directive import (
    Directive,
    Mode,
    PodOrders,
    RestoreOrder,
    RoutingTable,
    SaveOrder,
    WorkerProcess,
)
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
    Shard,
    ShardProgress,
)
from tests.splits import length_of, row_shard

# What the stand-in leaves out: journal, timeouts, replacements. It keeps the protocol's promises and no more.


ROWS, BATCH = 900, 50


def make_job(
    folder: Path,
    mode: str = "bsp",
    precision: str = "float32",
    architecture: str = "dlrm",
    batch: int = BATCH,
    workers: int = 1,
    model_options: dict[str, Any] | None = None,
    data: dict[str, Any] | None = None,
    tables: dict[str, TableSpec] | None = None,
) -> TrainingJob:
    """A job on ROWS rows; `data` holds further fields of its data section."""
    (folder / "data").mkdir(parents=True)
    generator = np.random.default_rng(2)
    user = generator.integers(0, 60, ROWS)
    item = generator.integers(0, 30, ROWS)
    label = (generator.random(ROWS) < 1 / (1 + np.exp(-(user % 5 - 2.0) - (item % 3 - 1.0)))).astype(np.int64)
    table = pa.table(
        {
            "label": label,
            "x": generator.normal(size=ROWS),
            "user": user,
            "item": item,
            "history": [list(generator.integers(0, 30, n)) for n in generator.integers(0, 3, ROWS)],
            "rating": label + (user % 7) / 7,
            "share": (item % 3) / 2,
        }
    )
    pq.write_table(table, folder / "data" / "part-0.parquet")
    log = TrainingData(
        path=str(folder / "data"),
        partitioning=Partitioning.NONE,
        dense=(DenseFeature(name="x", transform="none"),),
        sparse=(
            SparseFeature(name="user"),
            SparseFeature(name="item", table="item"),
            SparseFeature(name="history", table="item", is_list=True),
        ),
    )
    return TrainingJob(
        metadata=Metadata(name="tiny"),
        spec=JobSpec(
            model=ModelSpec(
                architecture=architecture, embedding_dimension=4, precision=precision, options=model_options or {}
            ),
            data=TrainingData.model_validate({**log.model_dump(), **(data or {})}),
            tables=tables or {},
            training=Training(batch_size=batch, seed=11, consistency=Consistency(mode=mode)),
            resources=Resources(worker=PodResources(count=workers)),
            checkpoint=CheckpointSpec(store=str(folder / "store")),
            faults=FaultTolerance(heartbeat_interval=0.02),
        ),
    )


class ScriptedMaster:
    """Serves one job with the shards and directives of the test.

    Args:
        servers: number of parameter servers that must register before workers may train.
        host: address to listen at.
    """

    def __init__(self, job: TrainingJob, training: str, evaluation: str, servers: int, host: str = "127.0.0.1") -> None:
        self.job, self.servers, self.host = job, servers, host
        self.training, self.evaluation = training, evaluation
        self.token = new_token()
        open_store(job.spec.checkpoint.store).create()  # as `prepare` does; pods make none
        self.changed = threading.Condition()
        self.worker_mode = Mode.TRAIN
        self.server_mode = Mode.TRAIN
        self.generation = 0
        self.version = 1
        self.restore = RestoreOrder("restore-0", "")
        self.save: SaveOrder | None = None
        self.saved: dict[str, SavedPart] = {}
        self.addresses: dict[str, str] = {}
        self.restored: dict[str, str] = {}
        self.reached: dict[str, int] = {}
        self.incarnations: dict[str, str] = {}
        self.workers: list[str] = []
        self.registrations: list[Register] = []
        self.failures: list[Failed] = []
        self.heartbeats: list[Heartbeat] = []
        self.todo: list[Shard] = []
        self.doing: dict[tuple[str, int], tuple[str, Shard]] = {}
        self.offsets: dict[tuple[str, int], int] = {}
        self.done: list[ShardProgress] = []
        self.sketches = HeadSketches()
        self.granted: dict[str, Leased] = {}
        self.forget: set[str] = set()
        self.orders: dict[str, PodOrders] = {}
        self.let_go: dict[str, int] = {}
        self.finished = True
        self.heartbeat_seconds = 0.0
        self.server = self._serve(0)

    def _serve(self, port: int) -> RpcServer:
        handlers = {
            Register: self.on_register,
            Heartbeat: self.on_heartbeat,
            LeaseShards: self.on_lease,
            Failed: self.on_failed,
        }
        server = RpcServer(handlers, token=self.token, host=self.host, port=port)
        server.serve_in_background()
        return server

    def restart_after_shutdown(self) -> None:
        """The RPC server comes back at its old address."""
        self.server = self._serve(self.server.port)

    def routing(self) -> RoutingTable:
        names = [f"ps-{index}" for index in range(self.servers)]
        buckets = self.job.spec.resources.virtual_buckets
        ready = [self.addresses[name] if self.restored.get(name) == self.restore.order_id else "" for name in names]
        return RoutingTable(
            epoch=self.generation + 1,
            owners=[bucket % max(1, len(names)) for bucket in range(buckets)],
            servers=names,
            addresses=ready,
        )

    def ready(self) -> bool:
        return all(self.routing().addresses)

    def directive(self, role: Role) -> Directive:
        mode = self.worker_mode if role is Role.WORKER else self.server_mode
        if role is Role.WORKER and not self.ready() and mode is not Mode.EXIT:
            mode = Mode.IDLE
        return Directive(
            version=self.version,
            mode=mode,
            generation=self.generation,
            routing=self.routing(),
            members=[WorkerProcess(pod, self.incarnations[pod]) for pod in sorted(self.workers)],
            trains_alone=len(self.workers) == 1,
            save=self.save if role is not Role.WORKER else None,
            restore=self.restore if role is not Role.WORKER else None,
        )

    def on_register(self, message: Register) -> Registered:
        with self.changed:
            self.registrations.append(message)
            self.forget.discard(message.pod)
            self.incarnations[message.pod] = message.incarnation
            if message.role is Role.WORKER:
                if message.pod not in self.workers:
                    self.workers.append(message.pod)
            elif self.addresses.get(message.pod) != message.address:
                self.addresses[message.pod] = message.address
                self.restored[message.pod] = message.restored_order_id
            self.version += 1
            self.changed.notify_all()
            return Registered(
                job_json=self.job.model_dump_json(by_alias=True).encode(),
                rank=len(self.registrations) - 1,
                streams={
                    TRAINING_STREAM: ManifestStream(self.training),
                    EVALUATION_STREAM: ManifestStream(self.evaluation),
                },
                directive=self.directive(message.role),
            )

    def on_heartbeat(self, message: Heartbeat) -> Answer:
        with self.changed:
            if message.pod in self.forget or self.incarnations.get(message.pod) != message.incarnation:
                return Answer(directive=None, known=False)
            self.heartbeats.append(message)
            self.reached[message.pod] = message.reached_version
            role = Role.PARAMETER_SERVER if message.pod in self.addresses else Role.WORKER
            if message.restored_order_id and self.restored.get(message.pod) != message.restored_order_id:
                self.restored[message.pod] = message.restored_order_id
                self.version += 1
            if message.saved is not None and self.save is not None and message.saved.order_id == self.save.order_id:
                self.saved[message.pod] = message.saved
            if message.generation == self.generation:
                for progress in message.progress:
                    self._take(progress)
            if message.let_go_version > self.let_go.get(message.pod, 0):
                self.let_go[message.pod] = message.let_go_version
                self.give_back(message.pod)
            self.changed.notify_all()
            return Answer(
                directive=self.directive(role),
                heartbeat_seconds=self.heartbeat_seconds,
                orders=self.orders.get(message.pod),
            )

    def _take(self, progress: ShardProgress) -> None:
        key = (progress.stream, progress.number)
        held = self.doing.get(key)
        if held is None or held[1].attempt != progress.attempt:
            return
        self.offsets[key] = max(self.offsets.get(key, 0), progress.offset)
        if progress.ended:
            assert progress.offset == length_of(held[1])
            del self.doing[key]
            self.done.append(progress)
            if progress.sketch:
                self.sketches.merge_encoded(progress.sketch)

    def on_lease(self, message: LeaseShards) -> Leased:
        with self.changed:
            if message.request_id in self.granted:
                return self.granted[message.request_id]
            if message.generation != self.generation:
                return Leased(state=LeaseState.STALE)
            for progress in message.progress:
                self._take(progress)
            fitting = [shard for shard in self.todo if shard.kind == message.kind][: message.count]
            is_idle = message.pod in self.orders and self.orders[message.pod].is_idle
            if not fitting or is_idle:
                over = self.finished and not any(shard.kind == message.kind for _, shard in self.doing.values())
                return Leased(state=LeaseState.DONE if over else LeaseState.WAIT, wait_seconds=0.05)
            for shard in fitting:
                self.todo.remove(shard)
                self.doing[(shard.split.stream, shard.split.number)] = (message.pod, shard)
            answer = Leased(state=LeaseState.GRANTED, shards=fitting)
            self.granted[message.request_id] = answer
            return answer

    def on_failed(self, message: Failed) -> Done:
        with self.changed:
            self.failures.append(message)
            self.changed.notify_all()
            return Done()

    # What tests do

    def add_shards(
        self, kind: str, rows: int, length: int, *, seed: int = 0, shuffle: bool = False, epoch: int = 0
    ) -> None:
        starts = range(0, rows, length)
        for index, start in enumerate(starts):
            self.todo.append(
                row_shard(
                    epoch * len(starts) + index, start, min(length, rows - start), kind=kind, epoch=epoch,
                    seed=seed + index, shuffle=shuffle, keep_predictions=kind == "evaluate",
                )
            )  # fmt: skip

    def command(self, mode: Mode) -> int:
        """Gives workers a new mode; returns the directive's version."""
        with self.changed:
            self.worker_mode = mode
            self.version += 1
            return self.version

    def roll_back(self, shards: list[Shard], uri: str = "") -> None:
        """A new generation: servers restore, shards begin again."""
        with self.changed:
            self.generation += 1
            self.version += 1
            self.restore = RestoreOrder(f"restore-{self.generation}", uri)
            self.doing.clear()
            self.offsets.clear()
            self.done.clear()
            self.granted.clear()
            self.todo = [msgspec.structs.replace(shard, attempt=shard.attempt + 1) for shard in shards]

    def give_back(self, pod: str) -> None:
        """A dead worker's shards return with their acknowledged offsets."""
        with self.changed:
            for key, (owner, shard) in list(self.doing.items()):
                if owner == pod:
                    del self.doing[key]
                    self.todo.append(
                        msgspec.structs.replace(
                            shard, offset=self.offsets.get(key, shard.offset), attempt=shard.attempt + 1
                        )
                    )

    def wait_for(self, condition: Callable[[], bool], seconds: float = 240.0) -> None:
        deadline = time.monotonic() + seconds
        with self.changed:
            while not condition():
                left = deadline - time.monotonic()
                assert left > 0, f"not within {seconds} s; failures: {self.failures}"
                self.changed.wait(min(left, 0.05))

    def close(self) -> None:
        self.server.shutdown()


MasterFactory = Callable[..., ScriptedMaster]


@pytest.fixture
def scripted_master() -> Iterator[MasterFactory]:
    made: list[ScriptedMaster] = []

    def make(
        job: TrainingJob, training: str = "", evaluation: str = "", servers: int = 0, host: str = "127.0.0.1"
    ) -> ScriptedMaster:
        made.append(ScriptedMaster(job, training, evaluation, servers, host))
        return made[-1]

    yield make
    for master in made:
        master.close()


@pytest.fixture
def tiny_job(tmp_path: Path) -> Callable[..., TrainingJob]:
    def make(**options: Any) -> TrainingJob:
        return make_job(tmp_path / "job", **options)

    return make
