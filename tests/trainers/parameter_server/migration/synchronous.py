"""Workers that step together, and the servers to which they belong."""

from __future__ import annotations

import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np

from elastrec.platform.specs.job import TrainingJob
from elastrec.platform.transport.messages.directive import RoutingTable, WorkerProcess
from elastrec.trainers.embedding.client import RoutingChangedError
from tests.splits import origin_of
from tests.trainers.parameter_server.migration.moving import JOB, SHAPES, Cluster, Worker, cluster
from tests.trainers.parameter_server.running import training_job

WORKERS, ROWS, STEPS = 3, 20, 200


def job_with(mode: str, *, workers: int = WORKERS, staleness: int = 0) -> TrainingJob:
    """Steps of as many rows as so many workers' minibatches have together."""
    return training_job(
        optimizers=JOB.spec.optimizers.model_dump(by_alias=True),
        resources={"virtual_buckets": JOB.spec.resources.virtual_buckets, "worker": {"count": workers}},
        training={"batch_size": ROWS, "consistency": {"mode": mode, "staleness": staleness}},
    )


class Synchronous(Worker):
    """Takes a share of each round, and trains as many rows."""

    def __init__(self, routing: RoutingTable, number: int, job: TrainingJob) -> None:
        super().__init__(routing, name=f"w-{number}", job=job)
        self.number = number
        self.may_step = threading.Event()
        self.may_step.set()

    def step(self) -> None:
        self.repeat(self._step)

    def _step(self) -> None:
        share = self.client.next_share(ROWS)
        if share is None:
            return
        ids = np.concatenate([np.arange(200), self.steps % 7 + (13 + self.number) * np.arange(200)]).astype(np.int64)
        routed = self.client.router.route(ids, np.array([0, 200]), np.array([200, 400]), np.arange(2))
        pulled = self.client.pull(routed, dense=True)
        dense, rows = pulled.dense().copy(), pulled.rows()
        gradient = np.sin(dense) + self.steps + self.number
        origin = origin_of(self.steps, number=self.number, rows=ROWS)
        self.client.push(pulled, [np.cos(part) for part in rows], [gradient], share.rows, origin)
        self.steps += 1

    def leave(self) -> None:
        """Until all that it has pushed is applied."""
        while True:
            self.repeat(self.client.leave)
            if self.client.pushes_applied == self.steps:
                return
            time.sleep(0.005)

    def repeat(self, act: Callable[[], None]) -> None:
        while True:
            try:
                return act()
            except RoutingChangedError as error:
                self.client.drop()
                self.follow(error)


def train(servers: Cluster, job: TrainingJob, between: Callable[[list[Synchronous]], None]) -> list[Synchronous]:
    """Workers that each train so many shares; `between` goes on beside them."""
    workers = [Synchronous(servers.routing, number, job) for number in range(WORKERS)]
    for worker in workers:
        worker.repeat(worker.client.join)
    failures: list[BaseException] = []

    def run(worker: Synchronous) -> None:
        try:
            while worker.steps < STEPS:
                worker.may_step.wait(60)
                worker.step()
            worker.leave()
        except BaseException as error:
            # What waits for the worker's steps fails first.
            traceback.print_exc()
            failures.append(error)

    threads = [threading.Thread(target=run, args=(worker,)) for worker in workers]
    for thread in threads:
        thread.start()
    between(workers)
    for thread in threads:
        thread.join(120)
    assert not failures, failures
    assert not any(thread.is_alive() for thread in threads), "they wait for each other"
    for worker in workers:
        worker.client.close()
    return workers


@contextmanager
def servers_of(job: TrainingJob, start: int) -> Iterator[Cluster]:
    members = [WorkerProcess(f"w-{number}", "i") for number in range(WORKERS)]
    with cluster(max(SHAPES) if start > 1 else 1, start, job=job, members=members) as made:
        yield made
