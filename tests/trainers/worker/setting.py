"""A worker and parameter servers in one process with a scripted master, and the same job without servers."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from torchrec.modules.embedding_modules import EmbeddingBagCollection

from elastrec.platform.data.manifest import build_manifest, read_manifest
from elastrec.platform.data.reading.reader import ShardReader
from elastrec.platform.specs.job import TrainingJob
from elastrec.platform.transport import RpcServer
from elastrec.platform.transport.messages.directive import Mode
from elastrec.trainers.models import FeatureSchema, build_model, embedding_tables
from elastrec.trainers.parameter_server.hashing import initial_rows
from elastrec.trainers.parameter_server.plan import plan_of_job
from elastrec.trainers.parameter_server.serving.server import ParameterServer
from elastrec.trainers.worker.identity import Identity
from elastrec.trainers.worker.inputs import inputs_of
from elastrec.trainers.worker.loop import run
from elastrec.trainers.worker.parameter_server_trainer import ParameterServerTrainer
from elastrec.trainers.worker.session import Session
from elastrec.trainers.worker.work import Worker
from tests.manifests import write_manifest
from tests.trainers.reference_rules import SegmentOptimizer

ROWS, SHARD, BATCH = 900, 250, 50  # as in the fixture `tiny_job`


class Setting:
    """Master, servers and workers of one test."""

    def __init__(self, job: TrainingJob, make_master: Callable[..., object], folder: Path, servers: int) -> None:
        uri = str(folder / "manifest.json")
        write_manifest(build_manifest(job.spec.data), uri)
        self.job = job
        self.manifest = read_manifest(uri)
        self.master = make_master(job, uri, uri, servers)
        names = [f"ps-{index}" for index in range(servers)]
        self.servers = [ParameterServer(name, job.spec, capacity_rows=10_000) for name in names]
        self.rpcs = [
            RpcServer({}, token=self.master.token, array_handlers=server.array_handlers()) for server in self.servers
        ]
        for name, rpc in zip(names, self.rpcs, strict=True):
            rpc.serve_in_background()
            self.master.addresses[name] = rpc.address
            self.master.restored[name] = "restore-0"
        self.restore()
        self.threads: list[threading.Thread] = []
        self.thread_counts: list[int] = []
        self.sessions: list[Session] = []
        self.workers: list[Worker] = []
        self.errors: list[BaseException] = []

    def restore(self) -> None:
        for server in self.servers:
            server.start_empty(self.master.routing(), self.master.generation)

    def start_worker(self, name: str = "worker-0") -> Worker:
        session = Session(Identity("job-1", name, "", self.master.server.address, self.master.token, None))
        trainer = ParameterServerTrainer(self.job, session.identity, session.window)
        worker = Worker(session, self.job, session.register(), trainer, self.thread_counts.append)

        def work() -> None:
            try:
                run(worker)
            except BaseException as error:
                self.errors.append(error)

        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        self.threads.append(thread)
        self.sessions.append(session)
        self.workers.append(worker)
        return worker

    def finish(self) -> None:
        self.master.command(Mode.EXIT)
        for thread in self.threads:
            thread.join(60)
            assert not thread.is_alive()

    def close(self) -> None:
        for session in self.sessions:
            session.stop()
        for thread in self.threads:
            thread.join(60)
        for worker in self.workers:
            worker.close()
        for session in self.sessions:
            session.close()
        for rpc in self.rpcs:
            rpc.shutdown()


@pytest.fixture(name="setting")
def setting_fixture(
    scripted_master: Callable[..., object], tiny_job: Callable[..., TrainingJob], tmp_path: Path
) -> Iterator[Callable[..., Setting]]:
    made: list[Setting] = []

    def make(servers: int = 1, **options: Any) -> Setting:
        made.append(Setting(tiny_job(**options), scripted_master, tmp_path, servers))
        return made[-1]

    yield make
    for each in made:
        each.close()


def trained_samples(setting: Setting) -> int:
    return sum(beat.metrics.samples for beat in setting.master.heartbeats)


def one_after_the_other(setting: Setting) -> Iterator[list[pa.RecordBatch]]:
    """The minibatches of one worker, a step each."""
    reader = ShardReader(setting.job.spec.data, setting.manifest)
    for index, start in enumerate(range(0, ROWS, SHARD)):
        for batch in reader.read(start, min(SHARD, ROWS - start), seed=5 + index, shuffle=True, batch_size=BATCH):
            yield [batch]


def side_by_side(setting: Setting, length: int, batch_size: int) -> Iterator[list[pa.RecordBatch]]:
    """The minibatches of as many workers as there are shards: the n-th of every shard are a step."""
    spec, shards = setting.job.spec, range(ROWS // length)
    readers = [ShardReader(spec.data, setting.manifest) for _ in shards]
    yield from zip(
        *(
            readers[index].read(index * length, length, seed=5 + index, shuffle=True, batch_size=batch_size)
            for index in shards
        ),
        strict=True,
    )


def cross_entropy(logits: torch.Tensor, target_BT: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.binary_cross_entropy_with_logits(logits, target_BT[:, 0])


def reference(
    setting: Setting,
    steps: Iterable[Sequence[pa.RecordBatch]],
    loss_of: Callable[[Any, torch.Tensor], torch.Tensor] = cross_entropy,
) -> tuple[torch.nn.Module, list[float]]:
    """The same job in one process: torchrec's collection and torch's optimiser, the same order of rows.

    Args:
        steps: number of equal minibatches whose mean loss is used for one step.
    """
    job = setting.job
    tables = embedding_tables(job)
    for table in tables:
        table.num_embeddings = 100
    collection = EmbeddingBagCollection(tables=tables)
    for table in tables:
        entry = plan_of_job(job.spec).by_name[table.name]
        rows = initial_rows(
            np.arange(100), table.name, seed=11, initial_range=entry.column_ranges, dimension=entry.dimension
        )
        collection.embedding_bags[table.name].weight.data = torch.from_numpy(rows)
    model = build_model(job.spec.model, collection, FeatureSchema.from_job(job), seed=11)
    dense_spec = job.spec.optimizers.dense
    others = [value for name, value in model.named_parameters() if "embedding_bags" not in name]
    bags = collection.embedding_bags
    optimizers = [
        *(SegmentOptimizer(bags[table.name].weight, job.spec.row_segments(table.name)) for table in tables),
        torch.optim.Adam(others, lr=dense_spec.learning_rate, eps=dense_spec.epsilon),
    ]
    losses = []
    for batches in steps:
        for optimizer in optimizers:
            optimizer.zero_grad()
        for batch in batches:
            inputs = inputs_of(batch)
            loss = loss_of(model(dense_features=inputs.dense_BI, sparse_features=inputs.sparse), inputs.target_BT)
            losses.append(float(loss.detach()))
            (loss / len(batches)).backward()
        for optimizer in optimizers:
            optimizer.step()
    return model, losses
