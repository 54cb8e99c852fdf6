"""Buckets move while several workers train with bsp or ssp."""

from __future__ import annotations

import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from elastrec.platform.specs.job import TrainingJob
from elastrec.platform.transport.messages.directive import RoutingTable, WorkerProcess
from elastrec.trainers.embedding.client import RoutingChangedError
from elastrec.trainers.parameter_server.messages import Pull, Stamp
from elastrec.trainers.parameter_server.serving import handlers
from elastrec.trainers.parameter_server.warm_up import warm_kernels
from tests.processes import wait_for
from tests.splits import origin_of
from tests.trainers.parameter_server.migration.moving import JOB, SHAPES, Cluster, Worker, cluster, same
from tests.trainers.parameter_server.running import training_job

WORKERS, ROWS, STEPS = 3, 20, 200


@pytest.fixture(autouse=True, scope="module")
def _warm() -> None:
    """A kernel that compiles in the middle of a request would look like a server out of reach."""
    warm_kernels()


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


@pytest.mark.parametrize("global_workers", [WORKERS, 2 * WORKERS])
def test_a_bsp_job_has_the_same_parameters_bit_for_bit_when_its_buckets_move(global_workers: int) -> None:
    """This includes steps of two rounds, in which pushes of complete rounds wait while their buckets move.

    Before each move, one worker is paused, so that the pushes of the others wait; before every second move, it
    continues.
    """
    job = job_with("bsp", workers=global_workers)

    def move(workers: list[Synchronous]) -> None:
        for place, count in enumerate(SHAPES[1:], start=1):
            held = workers[0]
            # With two rounds to a step, the second one is open in every other move.
            wait_for(lambda: held.steps >= place * 8, 60, "steps before a move")  # noqa: B023
            held.may_step.clear()
            waits = [moved.servers[name].pushes for name in moved.routing.servers]
            wait_for(lambda: all(pushes.waiting >= WORKERS - 1 for pushes in waits), 60, "pushes of a round")  # noqa: B023
            moved.move(count, rounds=2, between=held.may_step.set if place % 2 else lambda: None)
            held.may_step.set()
        assert all(worker.steps < STEPS for worker in workers), "training ended before its buckets moved"

    with servers_of(job, SHAPES[0]) as moved, servers_of(job, 1) as still:
        train(moved, job, move)
        train(still, job, lambda _: None)
        assert moved.routing.epoch == len(SHAPES)
        same(moved, still)
        for server in (moved.servers[name] for name in moved.routing.servers):
            for number in range(WORKERS):
                assert server.pushes.marks.offset(origin_of(0, number=number).split) == ROWS * STEPS
            assert not server.pushes.waiting


def test_a_server_that_is_new_to_an_ssp_job_keeps_its_fastest_worker_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handlers, "_PATIENCE_SECONDS", 0.0)
    job = job_with("ssp", staleness=1)
    with servers_of(job, SHAPES[0]) as moved:
        fast, slow = (Synchronous(moved.routing, number, job) for number in range(2))
        for worker in (fast, slow):
            worker.repeat(worker.client.join)
        for number in (1, 2):
            for server in moved.servers.values():
                if server.model is not None:
                    server.pushes.count(WorkerProcess("w-0", "i"), number)
        moved.move(max(SHAPES))
        new = moved.servers[f"ps-{max(SHAPES) - 1}"]
        counts, ids = np.zeros(len(new.plan.tables), np.int32), np.empty(0, np.int64)

        def pull(worker: str) -> Any:
            stamp = Stamp(worker, "i", moved.routing.epoch, 1)
            return new.pull(Pull(stamp=stamp), [counts, ids])[0]

        assert type(pull("w-0")).__name__ == "Blocked"
        assert type(pull("w-1")).__name__ == "Rows"
        # Each push counts once, wherever its rows are by now.
        new.pushes.count(WorkerProcess("w-1", "i"), 1)
        new.pushes.count(WorkerProcess("w-0", "i"), 2)
        assert type(pull("w-0")).__name__ == "Rows"
        for worker in (fast, slow):
            worker.client.close()
