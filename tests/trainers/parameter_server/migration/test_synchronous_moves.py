"""Buckets move while several workers train with bsp or ssp."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from elastrec.platform.transport.messages.directive import WorkerProcess
from elastrec.trainers.parameter_server.messages import Pull, Stamp
from elastrec.trainers.parameter_server.serving import handlers
from elastrec.trainers.parameter_server.warm_up import warm_kernels
from tests.processes import wait_for
from tests.splits import origin_of
from tests.trainers.parameter_server.migration.moving import SHAPES, same
from tests.trainers.parameter_server.migration.synchronous import (
    ROWS,
    STEPS,
    WORKERS,
    Synchronous,
    job_with,
    servers_of,
    train,
)


@pytest.fixture(autouse=True, scope="module")
def _warm() -> None:
    """A kernel that compiles in the middle of a request would look like a server out of reach."""
    warm_kernels()


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
