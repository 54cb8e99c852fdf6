"""The handlers of one server, called as by the transport."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from elastrec.platform.specs.errors import CheckpointError, TransportError
from elastrec.platform.transport.messages.directive import WorkerProcess
from elastrec.trainers.parameter_server.messages import (
    REQUESTS,
    Blocked,
    GetStats,
    InitDense,
    Join,
    Leave,
    Parameter,
    Pull,
    Push,
    Rows,
    Stale,
)
from elastrec.trainers.parameter_server.migration.giving import Giver
from elastrec.trainers.parameter_server.migration.messages import HandOver
from elastrec.trainers.parameter_server.model import Model
from elastrec.trainers.parameter_server.serving import handlers
from elastrec.trainers.parameter_server.serving.found_rows import FoundPull
from elastrec.trainers.parameter_server.serving.gradients import Gradient
from elastrec.trainers.parameter_server.serving.load import Served
from elastrec.trainers.parameter_server.serving.server import ParameterServer
from elastrec.trainers.parameter_server.storage import ServerMemoryError
from tests.trainers.parameter_server.calls import (
    BATCH,
    LAYOUT,
    SGD,
    applied,
    origin,
    pull,
    push,
    push_pull,
    server_of,
    stamp,
)
from tests.trainers.parameter_server.filled import push as fill
from tests.trainers.parameter_server.running import DIMENSION, job_spec, routing_of


def test_every_request_has_a_handler() -> None:
    assert set(server_of().array_handlers()) == set(REQUESTS)


@pytest.mark.parametrize(
    ("granted_cores", "maximum", "locks"), [(1.0, None, 1), (0.5, 2.0, 8), (1.5, None, 8), (4.0, 2.0, 16)]
)
def test_a_server_has_locks_for_the_cores_that_it_has_or_may_get(
    granted_cores: float, maximum: float | None, locks: int
) -> None:
    spec = job_spec(scaling={"maximum_parameter_server_cores": maximum})
    server = ParameterServer("ps-0", spec, granted_cores=granted_cores)
    server.start_empty(routing_of(["ps-0"]), 1)
    assert [store.locks.count for store in server.stores] == [locks] * len(server.stores)


def test_a_repeated_push_is_applied_once_also_when_another_process_sends_it() -> None:
    server = server_of()
    start = pull(server, "a", [5])[1][0]
    for _ in range(3):
        assert push(server, "a", 0, [5], 0.25)[0] == applied(0)
    np.testing.assert_allclose(pull(server, "a", [5])[1][0], start - 0.25, atol=1e-6)
    assert push(server, "a", 0, [5], 0.25, incarnation="another")[0] == applied(0)
    np.testing.assert_allclose(pull(server, "a", [5])[1][0], start - 0.25, atol=1e-6)


def test_a_pull_that_travels_with_a_push_sees_it_and_repeating_both_applies_the_push_once() -> None:
    server = server_of()
    start = pull(server, "a", [5])[1][0]
    for _ in range(3):
        answer, (rows, dense) = push_pull(server, "a", 0, [5], 0.25)
        assert answer == Rows(offsets=[BATCH])
        np.testing.assert_allclose(rows, start - 0.25, atol=1e-6)
        np.testing.assert_allclose(dense, [-0.25, -0.25])
    assert server.stats(GetStats()).pushes == 1


def test_a_pull_that_travels_with_a_push_waits_for_the_pushs_round(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handlers, "_PATIENCE_SECONDS", 0.01)
    server = server_of("bsp")
    for worker in ("a", "b"):
        server.join(Join(stamp=stamp(worker)), [])
    start = pull(server, "a", [5])[1][0]
    assert push_pull(server, "a", 0, [5], 0.25) == (Blocked(), [])
    push(server, "b", 0, [5], 0.75)
    np.testing.assert_allclose(push_pull(server, "a", 0, [5], 0.25)[1][0], start - 0.5, atol=1e-6)
    assert server.stats(GetStats()).pushes == 2


@pytest.mark.parametrize("mode", ["async", "bsp"])
def test_a_push_without_memory_for_all_of_its_rows_is_not_applied_again(
    monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    monkeypatch.setattr(handlers, "_PATIENCE_SECONDS", 0.01)
    server, ids = server_of(mode, cores=2), list(range(1500))
    errors: list[Exception] = []
    server.broke = errors.append
    workers = ("a", "b") if mode == "bsp" else ("b",)
    for worker in workers:
        server.join(Join(stamp=stamp(worker)), [])
    for worker in workers[:-1]:
        assert push(server, worker, 0, ids, 1.0)[0] == Blocked()
    with pytest.raises(ServerMemoryError) as refused:
        push(server, "b", 0, ids, 1.0)
    # Rows of those stripes that had room were changed.
    assert 0 < server.stores[0].rows <= 1000 and errors == [refused.value]
    assert server.pushes.waiting == 0
    for worker in workers:
        assert push(server, worker, 0, ids, 1.0)[0] == Stale(epoch=1, generation=1, ready=False)
    with pytest.raises(CheckpointError, match="has nothing to save"):
        server.freeze()
    routing = routing_of(["here:1", "there:1"])
    request = HandOver(server="ps-1", order_id="move", generation=1, routing=routing)
    assert isinstance(Giver(server).hand_over(request, [])[0], Stale)
    assert errors == [refused.value]


def test_a_refused_push_also_refuses_its_pull() -> None:
    server = server_of()
    assert push_pull(server, "a", 0, [5], 1.0, generation=0) == (Stale(epoch=1, generation=1, ready=True), [])
    assert (server.stats(GetStats()).pushes, server.stats(GetStats()).pulls) == (0, 0)


def test_requests_of_other_epochs_and_generations_get_the_current_ones() -> None:
    server = server_of()
    for names in ({"epoch": 2}, {"generation": 0}):
        answer, _ = push(server, "a", 0, [5], 1.0, **names)
        assert answer == Stale(epoch=1, generation=1, ready=True)
    assert server.stats(GetStats()).pushes == 0


def test_requests_that_would_mislead_a_kernel_are_refused() -> None:
    server = server_of()
    ids, counts = np.array([1, 2], np.int64), np.array([2, 0], np.int32)
    for arrays in (
        [np.array([3, 0], np.int32), ids],
        [np.array([3, -1], np.int32), ids],
        [np.array([2], np.int32), ids],
        [counts, ids.astype(np.int32)],
        [counts.astype(np.int64), ids],
        [counts],
    ):
        with pytest.raises(TransportError):
            server.pull(Pull(stamp=stamp("a")), arrays)
    gradients, none, dense = np.ones(2 * DIMENSION, np.float32), np.empty(0, np.int32), np.ones(2, np.float32)
    for arrays in (
        [counts, ids, gradients[:-1], none, dense],
        [counts, ids, gradients, np.ones(1, np.int32), dense],
        [counts, ids, gradients, none, np.ones(3, np.float32)],
        [counts, ids, gradients.astype(np.float64), none, dense],
    ):
        with pytest.raises(TransportError):
            server.push(Push(stamp=stamp("a"), origin=origin("a", 0), samples=1, number=1), arrays)
    assert server.stats(GetStats()).tables[0].rows == 0


def test_a_bsp_round_averages_by_samples_sums_shared_rows_and_releases_all_workers() -> None:
    server = server_of("bsp", workers=2)
    server.join(Join(stamp=stamp("a")), [])
    server.join(Join(stamp=stamp("b")), [])
    start = pull(server, "a", [1, 2, 3])[1][0].reshape(3, DIMENSION)
    answers: list[Any] = []
    first = threading.Thread(target=lambda: answers.append(push(server, "a", 0, [1, 2], 1.0, samples=30)))
    first.start()
    answers.append(push(server, "b", 0, [2, 3], 2.0, samples=10))
    first.join(60)
    assert answers == [(applied(0), []), (applied(0), [])]
    rows, dense = pull(server, "b", [1, 2, 3])[1]
    expected = start - np.array([[0.75], [0.75 + 0.5], [0.5]], np.float32)
    np.testing.assert_allclose(rows.reshape(3, DIMENSION), expected, atol=1e-6)
    np.testing.assert_allclose(dense, [-1.25, -1.25])
    assert server.stats(GetStats()).rounds == 1


def test_a_push_may_scale_the_learning_rates_of_its_step() -> None:
    server = server_of()
    start = pull(server, "a", [1])[1][0].copy()
    assert push(server, "a", 0, [1], 2.0, rate_scale=0.25)[0] == applied(0)
    rows, dense = pull(server, "a", [1])[1]
    np.testing.assert_allclose(rows, start - 0.5, atol=1e-6)
    np.testing.assert_allclose(dense, [-0.5, -0.5])
    for wrong in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(TransportError, match="rate_scale"):
            push(server, "a", 1, [1], 2.0, rate_scale=wrong)


def test_a_step_of_bsp_has_the_mean_of_its_pushes_scales_by_their_rows() -> None:
    server = server_of("bsp", workers=2)
    pull(server, "a", [1])
    push(server, "a", 0, [1], 1.0, samples=30, rate_scale=1.0)
    push(server, "a", 1, [1], 1.0, samples=10, rate_scale=0.2)
    np.testing.assert_allclose(pull(server, "a", [1])[1][1], [-0.8, -0.8])


def test_a_single_bsp_worker_does_not_wait_but_its_steps_keep_the_jobs_size() -> None:
    server = server_of("bsp", workers=3)
    start, dense = (part.copy() for part in pull(server, "a", [1])[1])
    for sequence, value in enumerate((1.0, 2.0)):
        assert push(server, "a", sequence, [1], value, samples=BATCH) == (applied(-1), [])
        np.testing.assert_array_equal(pull(server, "a", [1])[1][1], dense)
    assert push(server, "a", 2, [1], 6.0, samples=BATCH) == (applied(2), [])
    rows, dense = pull(server, "a", [1])[1]
    np.testing.assert_allclose(rows, start - 3.0, atol=1e-6)
    np.testing.assert_allclose(dense, [-3.0, -3.0])


def test_a_worker_that_leaves_or_dies_does_not_delay_others() -> None:
    server = server_of("bsp")
    for worker in ("a", "b", "c"):
        server.join(Join(stamp=stamp(worker)), [])
    server.leave(Leave(stamp=stamp("c")), [])
    waiting = threading.Thread(target=push, args=(server, "a", 0, [1], 1.0))
    waiting.start()
    server.adopt(routing_of(["here:1"]), 1, [WorkerProcess("a", "i")], version=2)
    waiting.join(60)
    assert not waiting.is_alive()
    assert server.stats(GetStats()).members == ["a"]


def test_an_ssp_pull_waits_for_the_slowest_worker() -> None:
    server = server_of("ssp", 1)
    server.join(Join(stamp=stamp("b")), [])
    for step in range(2):
        assert isinstance(pull(server, "a", [1])[0], Rows)
        push(server, "a", step, [1], 1.0)
    answers: list[Any] = []
    ahead = threading.Thread(target=lambda: answers.append(pull(server, "a", [1])[0]))
    ahead.start()
    ahead.join(0.2)
    assert ahead.is_alive()
    push(server, "b", 0, [], 0.0, samples=0)
    ahead.join(60)
    assert isinstance(answers[0], Rows)


def test_the_first_workers_dense_values_win_and_another_network_is_refused() -> None:
    server = server_of()
    server.init_dense(InitDense(stamp=stamp("b"), layout=LAYOUT), [np.ones(2, np.float32)])
    assert not pull(server, "a", [1])[1][1].any()
    push(server, "a", 0, [1], 1.0)
    other = [Parameter("w", (3,))]
    with pytest.raises(TransportError, match="other dense parameters"):
        server.init_dense(InitDense(stamp=stamp("b"), layout=other), [np.ones(3, np.float32)])


def test_rows_found_by_a_pull_are_looked_up_again_after_an_eviction() -> None:
    now = [0.0]
    spec = job_spec(optimizers=SGD, tables={"user": {"evict_after": 100.0}, "item": {"evict_after": 100.0}})
    server = ParameterServer("ps-0", spec, clock=lambda: now[0], capacity_rows=1000)
    server.start_empty(routing_of(["here:1"]), 1)
    server.init_dense(InitDense(stamp=stamp("a"), layout=LAYOUT), [np.zeros(2, np.float32)])
    first = pull(server, "a", [5])[1][0]
    push(server, "a", 0, [5], 0.25)
    for _ in range(2):  # as many as are remembered: every one of them knows the row
        pull(server, "a", [5])
    now[0] = 1000.0
    server.evict()
    # The freed row goes to another id before the push of the older pull arrives.
    push(server, "b", 0, [6], 0.0)
    other = pull(server, "b", [6])[1][0]
    push(server, "a", 1, [5], 0.5)
    np.testing.assert_array_equal(pull(server, "b", [6])[1][0], other)
    np.testing.assert_allclose(pull(server, "a", [5])[1][0], first - 0.5, atol=1e-6)


def test_an_eviction_that_is_stopped_again_and_again_comes_to_all_buckets() -> None:
    now = [0.0]
    tables = {"user": {"evict_after": 100.0}, "item": {"evict_after": 100.0, "dimension": 8}}
    server = ParameterServer("ps-0", job_spec(tables=tables), clock=lambda: now[0], capacity_rows=1000)
    server.start_empty(routing_of(["here:1"]), 1)
    fill([server], range(450), 1.0, now[0])
    now[0] = 1000.0
    fill([server], range(450, 900), 1.0, now[0])
    buckets = sum(len(store.buckets_in_use()) for store in server.stores)
    assert len(server.stores) == 2 and buckets > 400
    # A bucket with rows that stay is looked at by each eviction.
    assert any(server.evict(lambda: False) for _ in range(2 * buckets))
    assert [store.rows for store in server.stores] == [450, 450]
    assert server.evict(lambda: True)


def test_a_worker_that_has_pulled_ahead_pushes_to_the_rows_of_its_older_pull() -> None:
    server = server_of()
    for sequence, ids in enumerate(([1, 2], [2, 3], [3, 1], [1, 2])):
        push(server, "b", sequence, ids, 0.0)
    before = {number: pull(server, "b", [number])[1][0] for number in (1, 2, 3)}
    pull(server, "a", [1, 2])
    pull(server, "a", [2, 3])
    push(server, "a", 0, [1, 2], 0.5)
    pull(server, "a", [3, 1])
    push(server, "a", 1, [2, 3], 0.25)
    for number, moved in ((1, 0.5), (2, 0.75), (3, 0.25)):
        np.testing.assert_allclose(pull(server, "a", [number])[1][0], before[number] - moved, atol=1e-6)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Of what is measured; a pull takes 1 s on it, and a step 10 s."""
    now = [0.0]

    def taking(seconds: float, work: Any) -> Any:
        def timed(*arguments: Any, **names: Any) -> Any:
            now[0] += seconds
            return work(*arguments, **names)

        return timed

    monkeypatch.setattr(handlers, "time", SimpleNamespace(monotonic=time.monotonic, perf_counter=lambda: now[0]))
    monkeypatch.setattr(Model, "pull", taking(1.0, Model.pull))
    monkeypatch.setattr(Model, "apply", taking(10.0, Model.apply))
    return now


def test_other_requests_are_answered_while_a_push_is_compared_with_earlier_pulls(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server, compares, may_go_on = server_of(), threading.Event(), threading.Event()
    is_of = FoundPull.is_of

    def slow(found: FoundPull, gradient: Gradient) -> bool:
        compares.set()
        assert may_go_on.wait(60)
        return is_of(found, gradient)

    start = pull(server, "a", [5])[1][0]
    monkeypatch.setattr(FoundPull, "is_of", slow)
    pushing = threading.Thread(target=push, args=(server, "a", 0, [5], 0.25))
    pushing.start()
    try:
        assert compares.wait(60)
        other = threading.Thread(target=pull, args=(server, "b", [5]), daemon=True)
        other.start()
        other.join(60)
        assert not other.is_alive()
    finally:
        may_go_on.set()
        pushing.join()
    np.testing.assert_allclose(pull(server, "b", [5])[1][0], start - 0.25, atol=1e-6)


def test_rows_of_pulls_and_pushes_are_counted_with_the_time_that_they_take(clock: list[float]) -> None:
    server = server_of()
    pull(server, "a", [1, 2, 3])
    assert server.served == Served(3, 1.0)
    push(server, "a", 0, [1, 2], 1.0)
    assert server.served == Served(5, 11.0)
    push(server, "a", 0, [1, 2], 1.0)
    assert server.served == Served(5, 11.0), "it is applied already"


def test_waiting_for_a_save_does_not_count_as_row_time(clock: list[float]) -> None:
    server = server_of()
    pushing = threading.Thread(target=push, args=(server, "a", 0, [1, 2], 1.0))
    with server.gate.closed():
        pushing.start()
        pushing.join(0.2)
        assert pushing.is_alive()
        clock[0] += 1000.0
    pushing.join(60)
    assert server.served == Served(2, 10.0)


def test_waiting_for_other_workers_does_not_count_as_row_time(clock: list[float]) -> None:
    server = server_of("bsp", workers=2)
    for worker in ("a", "b"):
        server.join(Join(stamp=stamp(worker)), [])
    waiting = threading.Thread(target=push_pull, args=(server, "a", 0, [1, 2], 1.0))
    waiting.start()
    waiting.join(0.2)
    assert waiting.is_alive() and server.served == Served()
    clock[0] += 1000.0
    push(server, "b", 0, [2, 3], 1.0)
    waiting.join(60)
    # One step of three different rows, then the pull of two.
    assert server.served == Served(5, 11.0)
