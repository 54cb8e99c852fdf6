"""Acknowledgements of a worker and their time, with a scripted parameter client; evaluation, with real servers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch

from elastrec.checkpoints import StoreError
from elastrec.platform.specs.job import TrainingJob
from elastrec.platform.transport.messages.directive import Directive, Mode, RoutingTable
from elastrec.platform.transport.messages.job import Leased, LeaseState, Registered, ShardProgress
from elastrec.trainers.embedding.lane import RoutingChangedError
from elastrec.trainers.worker import evaluating
from elastrec.trainers.worker.feed import Item
from elastrec.trainers.worker.identity import Identity
from elastrec.trainers.worker.parameter_server_trainer import ParameterServerTrainer
from elastrec.trainers.worker.predictions import read_predictions, write_predictions
from elastrec.trainers.worker.step import InFlight
from elastrec.trainers.worker.window import Window
from elastrec.trainers.worker.work import Worker
from tests.splits import progress_of, row_shard
from tests.trainers.worker.setting import ROWS, setting_fixture  # noqa: F401

BATCH = 10
SHARD = row_shard(0, 0, 100)


class ScriptedClient:
    """A parameter client whose servers have applied what the test says."""

    def __init__(self) -> None:
        self.pushes_applied = 0
        self.share = None
        self.calls: list[str] = []
        self.on_leave: Callable[[], None] = lambda: None

    def follow(self, version: int) -> None:
        pass

    def connect(self, routing: RoutingTable, generation: int) -> None:
        self.calls.append("connect")

    def init_dense(self, values: Any) -> int:
        return 0

    def drop(self) -> None:
        self.calls.append("drop")

    def forget(self) -> None:
        self.calls.append("forget")

    def leave(self) -> None:
        self.calls.append("leave")
        self.on_leave()

    def close(self) -> None:
        pass


class RecordingSession:
    """A session that keeps what is reported, and leases nothing."""

    def __init__(self) -> None:
        self.identity = Identity("job-1", "worker-0", "", "nowhere:1", "token", None)
        self.window = Window()
        self.orders = None
        self.reported: list[int] = []

    def report(self, generation: int, progress: ShardProgress) -> None:
        self.reported.append(progress.offset)

    def report_now(self) -> None:
        pass

    def lease(self, *_: Any) -> Leased:
        return Leased(state=LeaseState.WAIT, wait_seconds=0.01)


def directive(mode: Mode = Mode.TRAIN) -> Directive:
    routing = RoutingTable(epoch=1, owners=[0], servers=["ps-0"], addresses=["nowhere:1"])
    return Directive(version=1, mode=mode, generation=0, routing=routing)


@pytest.fixture
def worker(tiny_job: Callable[..., TrainingJob], monkeypatch: pytest.MonkeyPatch) -> Iterator[Worker]:
    session: Any = RecordingSession()
    job = tiny_job(mode="async")
    registered = Registered(
        job_json=job.model_dump_json(by_alias=True).encode(), rank=0, streams={}, directive=directive(Mode.IDLE)
    )
    trainer = ParameterServerTrainer(job, session.identity, session.window)
    made = Worker(session, job, registered, trainer, torch.set_num_threads)
    trainer.step.client = ScriptedClient()  # type: ignore[assignment]
    monkeypatch.setattr(trainer.step, "train", lambda started, origin, closed=(), **how: None)
    pulled: Any = object()
    monkeypatch.setattr(trainer.step, "pull", lambda item: InFlight(item, None, pulled))
    made.follow(directive())
    yield made
    made.close()


def step(worker: Worker, end_offset: int) -> None:
    rows = pa.RecordBatch.from_pydict({"label": np.zeros(BATCH)})
    worker.finish(
        worker.start(Item(SHARD, rows, progress_of(SHARD, end_offset), progress_of(SHARD, end_offset - BATCH)))
    )


def client_of(worker: Worker) -> Any:
    trainer = worker.trainer
    assert isinstance(trainer, ParameterServerTrainer)
    return trainer.step.client


def reported(worker: Worker) -> list[int]:
    return worker.session.reported  # type: ignore[attr-defined,no-any-return]


def test_no_sample_is_acknowledged_before_its_push_is_applied(worker: Worker) -> None:
    for number in (1, 2, 3):
        step(worker, number * BATCH)
    assert reported(worker) == []
    client_of(worker).pushes_applied = 2
    step(worker, 4 * BATCH)
    assert reported(worker) == [10, 20]
    client_of(worker).pushes_applied = 4
    assert worker.rest(directive(Mode.PAUSE))
    assert reported(worker) == [10, 20, 30, 40]


def test_a_worker_does_not_pause_while_its_push_waits_for_a_step(worker: Worker) -> None:
    step(worker, 10)
    step(worker, 20)
    client_of(worker).pushes_applied = 1
    assert not worker.rest(directive(Mode.PAUSE))
    assert reported(worker) == [10]
    client_of(worker).pushes_applied = 2
    assert worker.rest(directive(Mode.PAUSE))
    assert reported(worker) == [10, 20]
    assert client_of(worker).calls.count("leave") == 2
    assert worker.rest(directive(Mode.PAUSE))
    assert client_of(worker).calls.count("leave") == 2


def test_steps_of_an_older_generation_are_never_acknowledged(worker: Worker) -> None:
    step(worker, 10)
    step(worker, 20)
    worker.abandon()
    client_of(worker).pushes_applied = 2  # the client counts the lost ones: nobody waits for them any more
    step(worker, 10)
    assert reported(worker) == []
    client_of(worker).pushes_applied = 3
    worker.rest(directive(Mode.PAUSE))
    assert reported(worker) == [10]
    assert "forget" in client_of(worker).calls


def test_steps_before_a_lost_connection_are_acknowledged_once_they_are_applied(worker: Worker) -> None:
    step(worker, 10)
    step(worker, 20)
    client_of(worker).pushes_applied = 1
    worker.drop()
    assert not worker.rest(directive(Mode.PAUSE))
    assert reported(worker) == [10]
    client_of(worker).pushes_applied = 2
    assert worker.rest(directive(Mode.PAUSE))
    assert reported(worker) == [10, 20]


def test_a_minibatch_that_was_started_and_not_trained_starts_again(worker: Worker) -> None:
    rows = pa.RecordBatch.from_pydict({"label": np.zeros(BATCH)})
    items = [Item(SHARD, rows, progress_of(SHARD, end), progress_of(SHARD, end - BATCH)) for end in (10, 20, 30)]
    feed = worker.follow(directive())
    first = worker.start(items[0])
    worker.start(items[1])
    worker.finish(first, hold=True)
    worker.start(items[2])
    worker.drop()
    assert [feed.next(0), feed.next(0)] == items[1:]


def test_a_worker_without_connections_can_leave(worker: Worker) -> None:
    """Servers count it in until then, and others would wait for its push in bsp."""
    step(worker, 10)
    worker.drop()
    calls = client_of(worker).calls
    calls.clear()
    assert not worker.rest(directive(Mode.PAUSE))
    assert calls == ["connect", "leave"]
    assert reported(worker) == []


def test_a_push_that_a_server_has_dropped_is_not_acknowledged(worker: Worker) -> None:
    step(worker, 10)

    def refuse() -> None:
        raise RoutingChangedError("the master does not count this worker in")

    client_of(worker).on_leave = refuse
    with pytest.raises(RoutingChangedError):
        worker.rest(directive(Mode.PAUSE))
    assert reported(worker) == []


def test_only_a_worker_that_trains_and_has_shards_waits_for_rows(worker: Worker) -> None:
    def waited_seconds() -> float:
        window = worker.session.window
        window.add(steps=1)
        taken = window.take()
        window.delivered(taken)
        return taken.wait_seconds

    worker.next(0.01)
    assert waited_seconds() > 0
    worker.next(0.01)
    worker.rest(directive(Mode.PAUSE))
    assert waited_seconds() == 0
    worker.follow(directive(Mode.EVALUATE))
    worker.next(0.01)
    assert waited_seconds() == 0


class FullStore:
    """Refuses the first writes of predictions."""

    def __init__(self, refusals: float) -> None:
        self.refusals = refusals
        self.refused = 0

    def write(self, *arguments: Any) -> None:
        if self.refused < self.refusals:
            self.refused += 1
            raise StoreError("could not write: no space left on device")
        write_predictions(*arguments)


def evaluate(here: Any) -> None:
    here.master.add_shards("evaluate", ROWS, 100)
    here.master.command(Mode.EVALUATE)
    here.start_worker()


def test_a_worker_waits_until_the_store_takes_its_predictions(
    setting: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    store = FullStore(refusals=2)
    monkeypatch.setattr(evaluating, "write_predictions", store.write)
    here = setting(mode="async")
    evaluate(here)
    here.master.wait_for(lambda: len(here.master.done) == 9)
    here.finish()
    assert store.refused == 2 and not here.errors
    assert len(read_predictions(here.workers[0]._predictions_uri)) == 9


def test_a_waiting_worker_follows_another_directive(
    setting: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    store = FullStore(refusals=float("inf"))
    monkeypatch.setattr(evaluating, "write_predictions", store.write)
    here = setting(mode="async")
    evaluate(here)
    here.master.wait_for(lambda: store.refused > 1)
    here.master.command(Mode.EXIT)
    here.threads[0].join(60)
    assert not here.threads[0].is_alive()
    assert not here.errors
