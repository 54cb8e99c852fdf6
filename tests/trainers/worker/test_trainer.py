"""A worker with another kind of trainer: every row is trained once, and evaluated.

The trainer is a logistic regression in the process of the worker, without a server. As with servers, its steps take
effect two minibatches later, and it sometimes loses steps in flight.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from elastrec.platform.data.manifest import build_manifest
from elastrec.platform.data.reading.batches import dense_of, ids_of, targets_of
from elastrec.platform.data.reading.reader import ShardReader
from elastrec.platform.specs.errors import TransportError
from elastrec.platform.specs.job import TrainingJob
from elastrec.platform.transport.messages.directive import Directive, Mode
from elastrec.trainers.worker.feed import Item
from elastrec.trainers.worker.identity import Identity
from elastrec.trainers.worker.loop import run
from elastrec.trainers.worker.session import Session
from elastrec.trainers.worker.trainer import Prediction, Started
from elastrec.trainers.worker.work import Worker
from tests.heads import predicted
from tests.manifests import write_manifest

ROWS, SHARD, BATCH = 900, 250, 50  # as in the fixture `tiny_job`
_LATENCY = 2


class LogisticRegression:
    """A Trainer; see the docstring of the module.

    Attributes:
        rows: the features of every step that has been applied to the weights.
    """

    def __init__(self, lose_every: int) -> None:
        self.weights = np.zeros(2)
        self.rows: list[np.ndarray] = []
        self.trained = self.applied = self.losses = 0
        self.pooled_names = ["none"]
        self.rested = self.closed = False
        self._lose_every = lose_every
        self._in_flight: deque[tuple[np.ndarray, np.ndarray]] = deque()
        self._generation: int | None = None

    def keeps(self, directive: Directive) -> bool:
        return directive.generation == self._generation

    def follow(self, directive: Directive) -> None:
        self._generation = directive.generation

    def redirected(self, error: TransportError) -> bool:
        return False

    def overlaps(self, directive: Directive) -> bool:
        return True

    def mode(self, *, training: bool) -> None:
        pass

    def start(self, item: Item) -> Started:
        return Started(item)

    def is_awaited(self) -> bool:
        return False

    def next_rows(self, batch_size: int) -> int:
        return batch_size

    def train(self, started: Started, *, hold: bool, leaves: bool = False, rate_scale: float = 1.0) -> None:
        batch = started.item.batch
        x_B2 = np.column_stack([dense_of(batch)[:, 0], np.ones(batch.num_rows)])
        gradient_2 = x_B2.T @ (self._probability(x_B2) - targets_of(batch)[:, 0]) / len(x_B2)
        self.trained += 1
        self._in_flight.append((gradient_2, ids_of(batch).values))
        if self._lose_every and self.trained % self._lose_every == 0:
            self.losses += 1
            raise TransportError("the link broke", retryable=True)
        while len(self._in_flight) > _LATENCY:
            self._apply()

    def _apply(self) -> None:
        gradient_2, rows = self._in_flight.popleft()
        self.weights -= 0.5 * gradient_2
        self.rows.append(rows)
        self.applied += 1

    def _probability(self, x_B2: np.ndarray) -> np.ndarray:
        return 1 / (1 + np.exp(-x_B2 @ self.weights))

    def predict(self, started: Started) -> Prediction | None:
        batch = started.item.batch
        x_B2 = np.column_stack([dense_of(batch)[:, 0], np.ones(batch.num_rows)])
        pooled = np.zeros((batch.num_rows, 1), np.float32)
        return Prediction(predicted(self._probability(x_B2), targets_of(batch)[:, 0]), pooled)

    def release(self) -> None:
        pass

    def rest(self, directive: Directive) -> None:
        while self._in_flight:
            self._apply()
        self.rested = True

    def drop(self) -> int:
        kept = self.applied
        self._in_flight.clear()
        self.applied = self.trained
        self._generation = None
        return kept

    def reset(self) -> None:
        self.drop()

    def close(self) -> None:
        self.closed = True


@pytest.mark.parametrize("lose_every", [0, 5])
def test_a_worker_trains_and_evaluates_with_any_trainer(
    scripted_master: Callable[..., object], tiny_job: Callable[..., TrainingJob], tmp_path: Path, lose_every: int
) -> None:
    job = tiny_job(mode="async")
    uri = str(tmp_path / "manifest.json")
    write_manifest(build_manifest(job.spec.data), uri)
    master = scripted_master(job, uri, uri, 0)
    master.add_shards("train", ROWS, SHARD)
    session = Session(Identity("job-1", "worker-0", "", master.server.address, master.token, None))
    trainer = LogisticRegression(lose_every)
    worker = Worker(session, job, session.register(), trainer, torch.set_num_threads)
    thread = threading.Thread(target=run, args=(worker,), daemon=True)
    thread.start()
    try:
        shards = -(-ROWS // SHARD)
        master.wait_for(lambda: len(master.done) == shards)
        assert trainer.rested and bool(trainer.losses) == bool(lose_every)
        master.add_shards("evaluate", ROWS, SHARD)
        master.command(Mode.EVALUATE)
        master.wait_for(lambda: len(master.done) == 2 * shards)
        master.command(Mode.EXIT)
        thread.join(60)
        assert not thread.is_alive() and trainer.closed
    finally:
        session.stop()
        thread.join(60)
        session.close()
    assert sorted(np.concatenate(trainer.rows)) == sorted(np.concatenate(ids_of_all(job)))
    assert master.sketches.heads["label"].rows == ROWS


def ids_of_all(job: TrainingJob) -> list[np.ndarray]:
    """The ids of all rows."""
    reader = ShardReader(job.spec.data, build_manifest(job.spec.data))
    found = [ids_of(batch).values for batch in reader.read(0, ROWS, seed=0, shuffle=False, batch_size=BATCH)]
    reader.close()
    return found
