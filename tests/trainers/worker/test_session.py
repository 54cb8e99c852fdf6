"""Communication with the master: nothing is lost while it is unreachable, and only the newest directive counts."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from elastrec.platform.data.metrics.binary import COARSE_BINS
from elastrec.platform.data.metrics.heads import HeadSketches
from elastrec.platform.specs.data import SparseFeature, TrainingData
from elastrec.platform.specs.errors import AuthenticationError, DataError
from elastrec.platform.specs.job import FaultTolerance, JobSpec, Metadata, ModelSpec, TrainingJob
from elastrec.platform.transport.messages.directive import Mode, PodOrders
from elastrec.platform.transport.messages.job import Leased, LeaseState, ShardProgress
from elastrec.trainers.worker.identity import Identity
from elastrec.trainers.worker.session import Session
from elastrec.trainers.worker.window import Window
from tests.heads import predicted
from tests.splits import progress_of, row_shard

JOB = TrainingJob(
    metadata=Metadata(name="tiny"),
    spec=JobSpec(
        model=ModelSpec(architecture="dlrm", embedding_dimension=4),
        data=TrainingData(path="none", sparse=(SparseFeature(name="user"),)),
        faults=FaultTolerance(heartbeat_interval=0.02),
    ),
)


def never() -> bool:
    return False


@pytest.fixture(autouse=True)
def folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # JOB names no checkpoint store; the default one lies in the working folder.
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def pair(scripted_master: Callable[..., object]) -> Iterator[tuple[object, Session]]:
    master = scripted_master(JOB)
    session = Session(Identity("job", "worker-0", "", master.server.address, master.token, None))
    session.register()
    yield master, session
    session.close()


def progress(offset: int) -> ShardProgress:
    return progress_of(row_shard(0, 0, 100), offset)


def test_a_worker_gets_a_new_directive_and_confirms_it(pair) -> None:
    master, session = pair
    before = session.directive
    version = master.command(Mode.PAUSE)
    after = session.wait_for_change(before, 60)
    assert after.mode is Mode.PAUSE
    session.reached(after.version)
    master.wait_for(lambda: master.reached.get("worker-0") == version)


def test_progress_waits_for_an_unreachable_master(pair) -> None:
    master, session = pair
    master.add_shards("train", 100, 100)
    leased = session.lease(0, "train", 1, never)
    assert leased is not None and leased.state is LeaseState.GRANTED
    master.server.shutdown()
    session.report(0, progress(50))
    session.report(0, progress(100))
    session.window.add(samples=100, steps=1)
    master.restart_after_shutdown()
    master.wait_for(lambda: [done.offset for done in master.done] == [100])
    reported = {beat.metrics.number: beat.metrics.samples for beat in master.heartbeats}
    assert sum(reported.values()) == 100


def test_a_worker_registers_again_with_a_master_that_does_not_know_it(pair) -> None:
    master, session = pair
    assert session.directive is not None
    with master.changed:
        master.forget.add("worker-0")
    master.wait_for(lambda: len(master.registrations) == 2)
    assert master.registrations[0].incarnation == master.registrations[1].incarnation


def test_progress_of_an_older_generation_is_not_sent(pair) -> None:
    master, session = pair
    before = session.directive
    master.roll_back([])
    after = session.wait_for_change(before, 60)
    session.report(before.generation, progress(10))
    session.report(after.generation, progress(20))
    master.wait_for(lambda: any(beat.progress for beat in master.heartbeats))
    assert {item.offset for beat in master.heartbeats for item in beat.progress} == {20}


def test_a_finished_shard_is_reported_with_the_next_lease_not_with_a_heartbeat(pair) -> None:
    master, session = pair
    master.heartbeat_seconds = 3600.0
    master.wait_for(lambda: session.beat_seconds == 3600.0)
    beats = len(master.heartbeats)
    master.add_shards("train", 200, 100)
    first = session.lease(0, "train", 1, never)
    assert first is not None and first.state is LeaseState.GRANTED
    session.report(0, progress(100))
    second = session.lease(0, "train", 1, never)
    assert second is not None and second.state is LeaseState.GRANTED
    assert [done.offset for done in master.done] == [100]
    assert len(master.heartbeats) == beats
    session.reached(99)
    master.wait_for(lambda: master.reached.get("worker-0") == 99)
    assert not master.heartbeats[-1].progress


def test_a_cancelled_lease_returns_without_an_answer_of_the_master(pair) -> None:
    master, session = pair
    master.server.shutdown()
    cancelled = threading.Event()
    threading.Timer(0.1, cancelled.set).start()
    assert session.lease(0, "train", 1, cancelled.is_set) is None
    master.restart_after_shutdown()


def test_a_worker_ordered_back_stays_idle_until_its_master_knows_the_returned_shards(pair) -> None:
    master, session = pair
    idle = PodOrders(version=1, is_idle=True)
    master.orders["worker-0"] = idle
    master.wait_for(lambda: session.is_idle)
    master.orders["worker-0"] = PodOrders(version=2)
    master.wait_for(lambda: session.orders == PodOrders(version=2))
    assert not session.is_idle
    master.server.shutdown()
    session.let_go(idle)
    assert session.is_idle
    master.restart_after_shutdown()
    master.wait_for(lambda: master.let_go == {"worker-0": 1} and not session.is_idle)


def test_the_end_of_a_pause_brings_the_orders_that_were_given_in_it(pair) -> None:
    master, session = pair
    given = PodOrders(version=1, batch_size=7)
    seen = []
    take = session._take
    session._take = lambda directive: (seen.append((directive.version, session.orders)), take(directive))
    with master.changed:
        master.version += 1
        master.orders["worker-0"] = given
        version = master.version
    master.wait_for(lambda: session.directive.version == version)
    assert {orders for heard, orders in seen if heard == version} == {given}


def test_shards_bring_the_orders_under_which_they_are_trained(pair) -> None:
    master, _ = pair
    session = Session(Identity("job", "worker-1", "", master.server.address, master.token, None))
    given = PodOrders(version=2, learning_rate_scale=0.5)
    answer = Leased(state=LeaseState.GRANTED, orders=given)
    session._client = SimpleNamespace(call=lambda *of, **more: answer)
    assert session.lease(0, "train", 1, lambda: False) == answer and session.orders == given
    session._take_orders(PodOrders(version=1))
    assert session.orders == given, "answers of two threads may overtake each other"


def test_a_master_without_the_worker_gets_no_report_of_other_orders(pair) -> None:
    master, session = pair
    session.let_go(PodOrders(version=7, is_idle=True))
    master.wait_for(lambda: master.let_go == {"worker-0": 7})
    with master.changed:
        master.forget.add("worker-0")
    master.wait_for(lambda: len(master.registrations) == 2)
    beats = len(master.heartbeats)
    master.wait_for(lambda: len(master.heartbeats) > beats + 1)
    assert master.heartbeats[-1].let_go_version == 0


def test_sigterm_overrules_the_master(pair) -> None:
    _, session = pair
    before = session.directive
    session.stop()
    assert session.wait_for_change(before, 60).mode is Mode.EXIT


def test_a_wrong_token_is_an_error_and_not_a_retry(scripted_master) -> None:
    master = scripted_master(JOB)
    session = Session(Identity("job", "worker-0", "", master.server.address, "wrong", None))
    with pytest.raises(AuthenticationError):
        session.register()


def test_predictions_that_are_not_allowed_end_the_worker_and_name_their_head(pair) -> None:
    _, session = pair
    before = session.directive
    session.window.add(steps=1, samples=2, predicted=predicted([0.5, float("nan")], [0, 1]))
    with pytest.raises(DataError, match="head 'label': prediction: nan is not allowed"):
        session.wait_for_change(before, 60)


def test_seconds_before_a_step_belong_to_its_window_however_many_heartbeats_are_between() -> None:
    window = Window()
    for _ in range(3):
        window.add(wait_seconds=1.0, pull_seconds=0.5)
        early = window.take()
        assert (early.steps, early.wait_seconds, early.pull_seconds) == (0, 0.0, 0.0)
        window.delivered(early)
    window.add(steps=1, samples=10, pull_seconds=0.25)
    window.add(wait_seconds=4.0)
    taken = window.take()
    assert (taken.steps, taken.wait_seconds, taken.pull_seconds) == (1, 3.0, 1.75)
    window.delivered(taken)
    window.forget_waits()
    window.add(steps=1)
    assert window.take().wait_seconds == 0.0


def test_an_undelivered_window_is_kept_and_the_next_one_has_later_steps() -> None:
    window = Window()
    later = HeadSketches(COARSE_BINS)
    for seed in range(3):
        generator = np.random.default_rng(seed)
        rows = predicted(generator.random(10, np.float32), generator.integers(0, 2, 10))
        if seed:
            later.update(rows)
        window.add(samples=10, steps=1, loss_sum=1.0, losses={"click": 2.0}, predicted=rows)
        first = window.take()
    assert (first.number, first.samples, window.take()) == (1, 10, first)
    window.delivered(first)
    second = window.take()
    assert (second.number, second.samples, second.loss_sum, second.losses) == (2, 20, 2.0, {"click": 4.0})
    assert HeadSketches.decode(second.sketch) == later
    window.delivered(first)
    assert window.take() == second
    window.delivered(second)
    assert window.is_empty and window.take().sketch == b""
