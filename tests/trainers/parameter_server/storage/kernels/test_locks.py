"""Locks of stripes: waiting requests get them, requests use free stripes first, and errors release them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest

from elastrec.platform.specs.errors import IncompatibleError
from elastrec.platform.specs.job import TableSpec
from elastrec.trainers.parameter_server.plan import make_plan
from elastrec.trainers.parameter_server.prefetch import AHEAD
from elastrec.trainers.parameter_server.storage import RowStore, ServerMemoryError
from elastrec.trainers.parameter_server.storage.copying import copy_frozen_cells
from elastrec.trainers.parameter_server.storage.kernels.arrays import COUNT
from elastrec.trainers.parameter_server.storage.kernels.changes import copy_before
from elastrec.trainers.parameter_server.storage.kernels.locks import (
    CELLS_PER_CHECK,
    Locks,
    has_waiter,
    lock,
    lock_next,
    try_lock,
    unlock,
    yield_to_waiter,
)

BUCKETS, DIMENSION, STRIPES = 64, 4, 4
IDS = np.arange(4000)
NONE = np.empty(0, np.int32)
NO_CELLS = np.empty((0, 1), np.uint32)


def store_of(*, table: TableSpec | None = None, capacity_rows: int = 1_000_000) -> RowStore:
    plan = make_plan({"t": DIMENSION}, settings={"t": table} if table else {}, virtual_buckets=BUCKETS)
    return RowStore(plan, plan.groups[0], np.ones(BUCKETS, np.bool_), capacity_rows, STRIPES)


def push(store: RowStore, ids: np.ndarray = IDS, lookup: object = None) -> None:
    gradients = np.ones((len(ids), DIMENSION), np.float32)
    store.push(np.array([len(ids)], np.int32), ids, NONE, gradients, 0.0, lookup)  # type: ignore[arg-type]


def wait_for(fact: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not fact():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def test_threads_hold_a_lock_one_at_a_time() -> None:
    locks, total = Locks(2), [0]

    def work() -> None:
        for _ in range(2000):
            with locks.held(1):
                before = total[0]
                if before % 50 == 0:
                    time.sleep(0)
                total[0] = before + 1

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert total == [8000]
    assert not has_waiter(locks.words, 1) and try_lock(locks.words, 1) and try_lock(locks.words, 0)


def test_waiting_for_a_lock_is_logged_and_the_lock_passes_to_the_waiter() -> None:
    locks, passed = Locks(1), threading.Event()
    assert try_lock(locks.words, 0) and not try_lock(locks.words, 0)

    def work() -> None:
        with locks.held(0):
            passed.set()

    thread = threading.Thread(target=work)
    thread.start()
    wait_for(lambda: bool(has_waiter(locks.words, 0)))
    assert not passed.is_set()
    unlock(locks.words, 0)
    assert passed.wait(60)
    thread.join(60)
    assert not has_waiter(locks.words, 0)


def test_a_thread_that_takes_a_lock_repeatedly_lets_waiting_threads_pass() -> None:
    locks, passed = Locks(1), 0
    for _ in range(20):
        order: list[str] = []

        def work(order: list[str] = order) -> None:
            lock(locks.words, 0)
            order.append("request")
            unlock(locks.words, 0)

        thread = threading.Thread(target=work)
        with locks.held(0):
            thread.start()
            wait_for(lambda: bool(has_waiter(locks.words, 0)))
            time.sleep(0.002)  # it naps by now
        with locks.held(0):
            order.append("next step")
        thread.join(60)
        passed += order[0] == "request"
    # It lets them pass for about a millisecond: on a busy machine some threads do not run in it.
    assert passed >= 10


def test_a_thread_that_waits_for_ever_does_not_keep_the_next_step_from_the_lock() -> None:
    locks = Locks(1)
    locks.words[1] = 1
    with locks.held(0):
        assert not try_lock(locks.words, 0)


def test_a_waiting_step_has_the_lock_before_later_requests() -> None:
    locks, order = Locks(2), list[str]()

    def step() -> None:
        with locks.held(0):
            order.append("step")

    def request() -> None:
        lock(locks.words, 0)
        order.append("request")
        unlock(locks.words, 0)

    assert try_lock(locks.words, 0)
    # Daemons, which end with the tests if the lock is never released.
    threads = [threading.Thread(target=step, daemon=True), threading.Thread(target=request, daemon=True)]
    threads[0].start()
    wait_for(lambda: bool(locks.words[2]))
    threads[1].start()
    wait_for(lambda: bool(locks.words[1] == 2))
    assert lock_next(locks.words, 0b11) == 1
    unlock(locks.words, 0)
    # Free or not, the thread that had it does not get it again before the step.
    assert order or not try_lock(locks.words, 0)
    for thread in threads:
        thread.join(60)
    assert order == ["step", "request"] and not locks.words[:8].any() and locks.words[8] == 1


def test_a_step_that_never_takes_the_lock_does_not_keep_requests_from_it() -> None:
    locks = Locks(1)
    locks.words[2] = 1
    assert not try_lock(locks.words, 0)
    lock(locks.words, 0)
    assert locks.words[0] == 1


def test_a_step_lets_one_waiting_request_pass_although_others_wait() -> None:
    locks = Locks(1)
    locks.words[1] = 2  # as if two requests waited
    assert try_lock(locks.words, 0)
    began = time.monotonic()
    for _ in range(1000):
        yield_to_waiter(locks.words, 0)  # one of them has it
    assert time.monotonic() - began < 0.5


def test_free_locks_are_taken_first() -> None:
    locks = Locks(4)
    assert try_lock(locks.words, 1)
    assert [lock_next(locks.words, bits) for bits in (0b1010, 0b0001, 0)] == [3, 0, -1]


def test_a_pull_copies_the_rows_of_free_stripes_while_it_waits_for_another_one() -> None:
    store = store_of()
    push(store)
    expected = store.pull(np.array([len(IDS)], np.int32), IDS, read_only=True)[0]
    lookup = store.look_up(np.array([len(IDS)], np.int32), IDS)
    held = int(store.stripe_of[0])
    is_held = store.stripe_of[lookup.request.buckets] == held
    values = np.full((len(IDS), DIMENSION), np.nan, np.float32)
    with store.locked(0):
        thread = threading.Thread(
            target=lambda: store.pull(np.array([len(IDS)], np.int32), IDS, read_only=True, out=values)
        )
        thread.start()
        wait_for(lambda: not np.isnan(values[~is_held]).any())
        assert np.isnan(values[is_held]).all() and thread.is_alive()
    thread.join(60)
    np.testing.assert_array_equal(values, expected)


def test_a_push_that_fails_releases_every_lock() -> None:
    store = store_of(capacity_rows=100)
    with pytest.raises(ServerMemoryError):
        push(store)
    assert store.rows == 100
    with pytest.raises(ServerMemoryError):
        push(store)
    store = store_of()
    push(store)
    lookup = store.look_up(np.array([len(IDS)], np.int32), IDS)
    store.bucket(5).drop()
    with pytest.raises(IncompatibleError, match="another server"):
        push(store, lookup=lookup)
    for bucket in range(BUCKETS):
        store.bucket(bucket).mark()


@pytest.mark.parametrize("is_listed", [False, True], ids=["whole", "changes"])
def test_a_copy_stops_early_when_a_request_waits_for_its_stripe(is_listed: bool) -> None:
    store = store_of()
    push(store, np.arange(100_000))
    indexed, buckets = store.rows_memory.indexed, np.flatnonzero(store.stripe_of == 0)
    store.cuts.freeze(buckets)
    out, counts, progress = np.empty((20_000, 9), np.uint32), np.zeros(len(buckets), np.int64), np.zeros(3, np.int64)
    since, places = np.full(len(buckets), -1, np.int64), np.empty(AHEAD, np.int64)
    words = indexed.pool.buckets[buckets, COUNT] // 64 + 1 if is_listed else np.zeros(len(buckets), np.int64)
    starts = np.concatenate([np.zeros(1, np.int64), np.cumsum(words)])
    bits = np.full(int(starts[-1]), 2**64 - 1, np.uint64)

    def copied_cells() -> int:
        before = int(progress[2])
        copy_frozen_cells(
            indexed, store.marks, buckets, since, store.locks.words, 0, starts, bits, 10_000, progress, places, out,
            counts,
        )  # fmt: skip
        return int(progress[2]) - before

    assert copied_cells() >= 9_000
    store.locks.words[1] = 1  # as if a request waited for it
    # Not at once either: a server with many requests would never be saved.
    assert CELLS_PER_CHECK // 2 < copied_cells() < 2 * CELLS_PER_CHECK
    store.cuts.thaw(buckets)


def test_a_part_of_a_bucket_stops_early_when_a_request_waits_for_its_stripe() -> None:
    store = store_of()
    push(store, np.arange(300_000))
    pool, out = store.rows_memory.indexed.pool, np.empty((3000, 9), np.uint32)
    stripe, held = int(store.stripe_of[0]), store.bucket(0).rows
    assert copy_before(pool, 0, held, store.locks.words, stripe, out) == (held - 3000, 3000)
    store.locks.words[8 * stripe + 1] = 1
    assert copy_before(pool, 0, held, store.locks.words, stripe, out) == (held - CELLS_PER_CHECK, CELLS_PER_CHECK)


def test_a_request_passes_between_two_steps_of_taking_cells_in_and_out(monkeypatch: pytest.MonkeyPatch) -> None:
    source, store, rows = store_of(), store_of(), []
    push(source, np.arange(400_000))
    cells, held = source.bucket(0).changes(-1), store.locks.held
    assert len(cells.rows) > 2 * 2048

    @contextmanager
    def gated(number: int) -> Iterator[None]:
        """A request has the lock before each step."""
        assert try_lock(store.locks.words, number)
        rows.append(store.rows)
        unlock(store.locks.words, number)
        with held(number):
            yield

    monkeypatch.setattr(store.locks, "held", gated)
    store.bucket(0).take_in(cells)
    store.bucket(0).take_in(replace(cells, is_whole=False, rows=NO_CELLS, deleted=cells.rows[:, :4].copy()))
    rows.append(store.rows)
    assert max(rows) == len(cells.rows) and rows[-1] == 0
    assert np.abs(np.diff(rows)).max() == 2048


def test_an_eviction_stops_early_when_a_request_waits_for_its_stripe() -> None:
    store = store_of(table=TableSpec(evict_after=10.0))
    ids = np.arange(200_000)
    push(store, ids)
    whole = next(store.eviction_steps(100.0, lambda bucket: True))
    store.locks.words[1::8] = 1  # as if a request waited for each
    steps = store.eviction_steps(100.0, lambda bucket: True)
    early = next(steps)
    assert 0 < early <= CELLS_PER_CHECK < whole
    store.locks.words[1::8] = 0
    assert whole + early + sum(steps) == len(ids) and store.rows == 0
