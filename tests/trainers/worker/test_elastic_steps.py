"""Steps of bsp while workers join and leave: their size is constant, and all servers take the same steps."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from elastrec.platform.specs.job import TrainingJob
from elastrec.platform.transport.messages.directive import Mode, PodOrders
from elastrec.trainers.parameter_server.messages import Origin
from elastrec.trainers.parameter_server.serving.global_batch import Pushed
from elastrec.trainers.parameter_server.serving.gradients import average
from elastrec.trainers.parameter_server.serving.server import ParameterServer
from elastrec.trainers.parameter_server.warm_up import warm_kernels
from elastrec.trainers.worker.warm_up import warm_up
from tests.trainers.worker.setting import Setting

BATCH, WORKERS = 6, 2
GLOBAL_BATCH = BATCH * WORKERS
EPOCHS, ROWS, SHARD = 8, 900, 60  # shares of 12, 6, 4, 3 and 2 rows divide a shard

Steps = list[list[tuple[Origin, int]]]


class Elastic(Setting):
    """Two servers that note their steps, as many workers as the test starts."""

    def __init__(self, job: TrainingJob, make_master: Callable[..., object], folder: Path) -> None:
        super().__init__(job, make_master, folder, 2)
        self.master.finished = False
        self.steps: list[Steps] = [[], []]
        self.scales: list[list[float]] = [[], []]
        self.gate = threading.Event()
        self.gate.set()
        for number, server in enumerate(self.servers):
            self._note_steps(server, self.steps[number], self.scales[number])
        for epoch in range(EPOCHS):
            self.master.add_shards("train", ROWS, SHARD, epoch=epoch)

    def _note_steps(self, server: ParameterServer, steps: Steps, scales: list[float]) -> None:
        step = server._step

        def noted(pushes: Sequence[Pushed]) -> None:
            if pushes:
                self.gate.wait(60)
                scales.append(average([push.gradient for push in pushes]).rate_scale)
                steps.append([(push.origin, push.gradient.samples) for push in pushes])
            step(pushes)

        server._step = noted  # type: ignore[method-assign]

    def step_workers(self, count: int) -> Callable[[], bool]:
        """Whether the last steps are of so many workers."""

        def are() -> bool:
            last = self.steps[0][-3:]
            return len(last) == 3 and all(len({origin.number for origin, _ in step}) == count for step in last)

        return are

    def pause(self) -> None:
        """All workers rest, and what they have reported is known."""
        version = self.master.command(Mode.PAUSE)
        running = [name for name, thread in zip(self.names(), self.threads, strict=True) if thread.is_alive()]
        self.master.wait_for(lambda: all(self.master.reached[name] == version for name in running))
        self.finish()

    def names(self) -> list[str]:
        return [session.identity.pod for session in self.sessions]

    def stop_worker(self, number: int) -> None:
        self.sessions[number].stop()
        self.threads[number].join(60)
        assert not self.threads[number].is_alive()
        with self.master.changed:
            self.master.give_back(f"worker-{number}")


@pytest.fixture
def elastic(
    scripted_master: Callable[..., object], tiny_job: Callable[..., TrainingJob], tmp_path: Path
) -> Iterator[Elastic]:
    warm_kernels()
    warm_up()
    here = Elastic(tiny_job(mode="bsp", batch=BATCH, workers=WORKERS), scripted_master, tmp_path)
    yield here
    here.gate.set()
    here.close()


def sizes_of_pushes(steps: Steps) -> list[int]:
    return sorted(rows for step in steps for _, rows in step)


def check_steps(elastic: Elastic) -> None:
    """Checks that all servers took the same steps, that these contain every acknowledged row, and that all but the last
    have the global batch.

    A step may have fewer rows if a shard ended within a share.
    """
    assert not elastic.errors and elastic.steps[0] == elastic.steps[1]
    steps = elastic.steps[0]
    sizes = [sum(rows for _, rows in step) for step in steps]
    for size, step in zip(sizes[:-1], steps, strict=False):
        assert size == GLOBAL_BATCH or (size < GLOBAL_BATCH and any(origin.is_last for origin, _ in step))
    assert sizes.count(GLOBAL_BATCH) > 0.8 * len(sizes)
    assert sum(sizes) == sum(elastic.master.offsets.values())


def test_every_step_has_the_global_batch_while_workers_go_from_2_to_4_to_1(elastic: Elastic) -> None:
    for number in range(2):
        elastic.start_worker(f"worker-{number}")
    elastic.master.wait_for(elastic.step_workers(2))
    for number in range(2, 4):
        elastic.start_worker(f"worker-{number}")
    elastic.master.wait_for(elastic.step_workers(4))
    for number in range(3):
        elastic.stop_worker(number)
    elastic.master.wait_for(elastic.step_workers(1))
    elastic.pause()
    check_steps(elastic)


def test_a_worker_that_joins_while_a_step_is_taken_is_in_the_same_step_of_all_servers(elastic: Elastic) -> None:
    elastic.start_worker("worker-0")
    elastic.master.wait_for(elastic.step_workers(1))
    # The servers stand in the middle of different steps when the second worker's requests reach them.
    elastic.gate.clear()
    elastic.start_worker("worker-1")
    joined = [server.pushes.consistency for server in elastic.servers]
    elastic.master.wait_for(lambda: any(len(consistency.members) == 2 for consistency in joined))
    elastic.gate.set()
    elastic.master.wait_for(elastic.step_workers(2))
    # The ends of the shards at the joining shorten some steps: few steps say nothing of their share.
    elastic.master.wait_for(lambda: len(elastic.steps[0]) > 60)
    elastic.pause()
    check_steps(elastic)


def test_a_worker_computes_with_the_threads_of_the_cores_that_it_is_ordered_to_use(elastic: Elastic) -> None:
    elastic.gate.clear()
    worker = elastic.start_worker("worker-0")
    for version, cores in ((1, 2.5), (2, 2.5), (3, 1.0)):
        elastic.master.orders["worker-0"] = PodOrders(version=version, learning_rate_scale=1.0 / version, cores=cores)
        elastic.master.wait_for(lambda version=version: (orders := worker.session.orders) and orders.version == version)
        elastic.gate.set()
        before = len(elastic.steps[0])
        elastic.master.wait_for(lambda before=before: len(elastic.steps[0]) > before + 2)
    elastic.pause()
    assert elastic.thread_counts == [3, 1]


def test_ordered_batch_sizes_divide_the_step_proportionally(elastic: Elastic) -> None:
    """The step keeps its size, and every row counts once, on both servers in the same step."""
    for number in range(2):
        elastic.start_worker(f"worker-{number}")
    elastic.master.wait_for(elastic.step_workers(2))
    elastic.master.orders |= {
        "worker-0": PodOrders(version=1, batch_size=3),
        "worker-1": PodOrders(version=1, batch_size=9),
    }
    elastic.master.wait_for(lambda: sizes_of_pushes(elastic.steps[0][-2:]) == [3, 3, 9, 9])
    # Shares of 9 rows end each shard with a smaller one, every seventh step: few steps say nothing of their share.
    elastic.master.wait_for(lambda: len(elastic.steps[0]) > 60)
    elastic.pause()
    check_steps(elastic)


def test_an_order_for_the_learning_rate_holds_for_the_same_steps_of_all_servers(elastic: Elastic) -> None:
    elastic.start_worker("worker-0")
    elastic.master.wait_for(elastic.step_workers(1))
    elastic.master.orders["worker-0"] = PodOrders(version=1, learning_rate_scale=0.5)
    elastic.master.wait_for(lambda: elastic.scales[0][-3:] == [0.5] * 3)
    elastic.pause()
    assert elastic.scales[0] == elastic.scales[1]
    assert elastic.scales[0] == sorted(elastic.scales[0], reverse=True) and elastic.scales[0][:3] == [1.0] * 3
    check_steps(elastic)


def test_a_worker_ordered_to_be_idle_and_back_joins_the_same_steps_on_all_servers(elastic: Elastic) -> None:
    for number in range(2):
        elastic.start_worker(f"worker-{number}")
    for version in (1, 3):
        elastic.master.wait_for(elastic.step_workers(2))
        elastic.master.orders["worker-1"] = PodOrders(version=version, is_idle=True)
        elastic.master.wait_for(elastic.step_workers(1))
        elastic.master.wait_for(lambda: elastic.master.let_go.get("worker-1") == version)  # noqa: B023
        elastic.master.orders["worker-1"] = PodOrders(version=version + 1)
    elastic.master.wait_for(elastic.step_workers(2))
    elastic.pause()
    check_steps(elastic)


def test_an_idle_worker_returns_its_shards_after_all_servers_have_applied_its_pushes(elastic: Elastic) -> None:
    """Steps have three rounds; it leaves after the second of one, and the other worker holds the third back."""
    server, held, go_on = elastic.servers[0], threading.Event(), threading.Event()
    names = ("worker-0", "worker-1")
    elastic.master.orders |= {name: PodOrders(version=1, batch_size=2) for name in names}
    other, leaving = (elastic.start_worker(name) for name in names)
    train_other, train_leaving = other.trainer.train, leaving.trainer.train
    elastic.master.wait_for(lambda: sizes_of_pushes(elastic.steps[0][-1:]) == [2] * 6)

    def order_and_train(*arguments: Any, **options: Any) -> None:
        # Its own push of the first round is still to come, so the round is open.
        if server.pushes._batch._planned == 0:
            leaving.trainer.train = train_leaving  # type: ignore[method-assign]
            elastic.master.orders["worker-1"] = PodOrders(version=2, batch_size=2, is_idle=True)
            elastic.master.wait_for(lambda: leaving.session.is_idle)
        train_leaving(*arguments, **options)

    def hold_and_train(*arguments: Any, **options: Any) -> None:
        if "worker-1" not in [worker.pod for worker in server.pushes.consistency.members]:
            held.set()
            go_on.wait(60)
        train_other(*arguments, **options)

    other.trainer.train = hold_and_train  # type: ignore[method-assign]
    leaving.trainer.train = order_and_train  # type: ignore[method-assign]
    try:
        assert held.wait(60)
        time.sleep(0.3)
        assert server.pushes._batch._planned == 8
        assert "worker-1" in [pod for pod, _ in elastic.master.doing.values()] and not elastic.master.let_go
    finally:
        go_on.set()
    elastic.master.wait_for(lambda: elastic.master.let_go.get("worker-1") == 2)
    assert "worker-1" not in [pod for pod, _ in elastic.master.doing.values()]
    elastic.master.wait_for(lambda: len(elastic.steps[0]) > 60)
    elastic.pause()
    check_steps(elastic)


def test_an_order_for_the_batch_size_of_an_async_worker_repeats_and_loses_no_row(
    scripted_master: Callable[..., object], tiny_job: Callable[..., TrainingJob], tmp_path: Path
) -> None:
    warm_kernels()
    warm_up()
    here = Elastic(tiny_job(mode="async", batch=BATCH), scripted_master, tmp_path)
    try:
        here.start_worker("worker-0")
        for version, batch_size in enumerate((20, 7, 30), start=1):
            here.master.orders["worker-0"] = PodOrders(version=version, batch_size=batch_size)
            here.master.wait_for(lambda: sizes_of_pushes(here.steps[0][-2:]) == [batch_size] * 2)  # noqa: B023
        here.pause()
        assert not here.errors
        for server, steps in zip(here.servers, here.steps, strict=True):
            rows = sum(rows for step in steps for _, rows in step)
            assert rows == sum(here.master.offsets.values())
            assert all(server.pushes.marks.repeated_rows(origin) == 0 for step in steps for origin, _ in step)
            for before, after in pairwise(origin for step in steps for origin, _ in step):
                assert after.is_first or after.begin == before.end
    finally:
        here.close()
