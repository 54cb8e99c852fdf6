"""Rounds of bsp whose shares sum to the global batch of the job."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastrec.platform.transport.messages.directive import WorkerProcess
from elastrec.trainers.parameter_server.messages import Share
from elastrec.trainers.parameter_server.serving.global_batch import GlobalBatch, Pushed, shares
from elastrec.trainers.parameter_server.serving.gradients import Gradient, GroupGradient, average
from tests.splits import origin_of

WORKERS = [WorkerProcess(name, "1") for name in "abcdefghij"]
A, B = WORKERS[:2]


def push(samples: int, value: float = 1.0, worker: WorkerProcess = A, share: Share | None = None) -> Pushed:
    group = GroupGradient(
        np.array([1], np.int32), np.array([7]), np.full((1, 2), value, np.float32), np.empty(0, np.int32)
    )
    return Pushed(worker, origin_of(0), Gradient([group], np.array([value], np.float32), samples), share)


def mean(step: list[Pushed]) -> Gradient:
    return average([push.gradient for push in step])


def steps_of(batch: GlobalBatch, workers: int, size: int, rounds: int) -> list[list[int]]:
    """The rows of each push of each step."""
    steps = []
    for number in range(rounds):
        rows, is_last = batch.plan(dict.fromkeys(WORKERS[:workers], size))
        pushes = [push(n, worker=worker, share=Share(number, n, is_last)) for worker, n in rows.items() if n]
        if step := batch.add(pushes):
            steps.append([each.gradient.samples for each in step])
    return steps


@pytest.mark.parametrize(
    ("workers", "steps"),
    [
        (2, [[8, 8]]),
        (1, [[8, 8]]),  # two rounds
        (3, [[6, 5, 5]]),
        (4, [[4, 4, 4, 4]]),
        (5, [[4, 3, 3, 3, 3]]),
        (8, [[2] * 8]),
    ],
)
def test_a_step_of_two_times_eight_rows_keeps_its_size_with_any_number_of_workers(
    workers: int, steps: list[list[int]]
) -> None:
    assert steps_of(GlobalBatch(16), workers, 8, 2)[:1] == steps


def test_a_worker_that_joins_within_a_step_shares_the_rest_of_it() -> None:
    batch = GlobalBatch(16)
    assert steps_of(batch, 1, 8, 1) == []
    assert steps_of(batch, 2, 8, 1) == [[8, 4, 4]]


def test_a_worker_that_leaves_within_a_step_leaves_its_rows_to_others() -> None:
    batch = GlobalBatch(32)
    rows, is_last = batch.plan({A: 8, B: 8})
    assert (rows, is_last) == ({A: 8, B: 8}, False)
    assert batch.add([push(8, share=Share(0, 8, False))]) == []
    assert steps_of(batch, 1, 8, 3) == [[8, 8, 8, 8]]


def test_a_short_minibatch_at_the_end_of_a_split_counts_with_its_whole_share() -> None:
    """Else its missing rows would cost a round of their own."""
    batch = GlobalBatch(16)
    rows, is_last = batch.plan({A: 8, B: 8})
    step = batch.add([push(rows[A], share=Share(0, rows[A], is_last)), push(1, share=Share(0, rows[B], is_last))])
    assert mean(step).samples == 9


def test_rounds_that_do_not_divide_the_global_batch_make_a_step_that_is_a_little_smaller() -> None:
    assert steps_of(GlobalBatch(64), 3, 8, 3) == [[7] * 9]


def test_a_worker_with_a_smaller_batch_size_gets_a_smaller_share_of_the_round() -> None:
    assert shares(32, 0, {A: 4, B: 12}) == ({A: 4, B: 12}, False)
    assert shares(16, 0, {A: 4, B: 12}) == ({A: 4, B: 12}, True)
    assert shares(8, 0, {A: 4, B: 12}) == ({A: 2, B: 6}, True)


def test_some_workers_get_no_share_of_a_step_with_fewer_rows_than_workers() -> None:
    assert shares(3, 0, dict.fromkeys(WORKERS[:5], 8))[0] == dict(zip(WORKERS, [1, 1, 0, 1, 0], strict=False))


def test_pushes_of_a_step_are_averaged_by_their_rows() -> None:
    batch = GlobalBatch(400)
    assert batch.add([push(100, 1.0, share=Share(0, 100, False))]) == []
    step = mean(batch.add([push(300, 5.0, share=Share(1, 300, True))]))
    assert step.samples == 400
    np.testing.assert_allclose(step.dense, [4.0])
    np.testing.assert_allclose(step.groups[0].gradients, [[4.0, 4.0]])


def test_gradients_left_over_become_a_step_when_no_worker_can_fill_it() -> None:
    batch = GlobalBatch(400)
    batch.add([push(100, 5.0)])
    assert mean(batch.take()).samples == 100 and batch.take() == []


def test_waiting_gradients_of_a_removed_worker_are_discarded() -> None:
    batch, kept = GlobalBatch(400), push(100, worker=B)
    batch.add([push(100), kept])
    batch.drop(A)
    assert batch.take() == [kept]


def test_pushes_without_shares_make_a_step_once_they_are_enough() -> None:
    batch = GlobalBatch(200)
    assert batch.add([push(100)]) == []
    assert len(batch.add([push(100)])) == 2


sizes = st.dictionaries(st.sampled_from(WORKERS), st.integers(1, 50), min_size=1)


@given(st.integers(1, 300), st.integers(0, 299), sizes)
def test_a_round_is_divided_completely_and_no_worker_gets_more_than_its_size(
    samples: int, waiting: int, sizes: dict[WorkerProcess, int]
) -> None:
    rows, is_last = shares(samples, waiting, sizes)
    assert set(rows) == set(sizes) and all(0 <= rows[worker] <= sizes[worker] for worker in sizes)
    left = max(samples - waiting, 1)
    assert 1 <= sum(rows.values()) <= left
    assert is_last or sum(rows.values()) < left


@given(st.integers(1, 200), st.lists(st.tuples(sizes, st.sets(st.sampled_from(WORKERS))), max_size=40))
def test_every_row_is_in_one_step_and_no_step_is_larger_than_the_global_batch(
    samples: int, rounds: list[tuple[dict[WorkerProcess, int], set[WorkerProcess]]]
) -> None:
    """Workers that come, leave without their push, or have a share of another size."""
    batch, pushed, steps, short = GlobalBatch(samples), 0, [], 0
    for number, (members, absent) in enumerate(rounds):
        rows, is_last = batch.plan(members)
        pushes = [
            push(n, worker=worker, share=Share(number, n, is_last))
            for worker, n in rows.items()
            if n and worker not in absent
        ]
        if not pushes:
            continue
        short += is_last * (sum(rows.values()) - sum(each.gradient.samples for each in pushes))
        most_rounds = -(-samples // sum(members.values()))
        pushed += sum(each.gradient.samples for each in pushes)
        if step := batch.add(pushes):
            steps.append(mean(step).samples)
            assert samples - short - most_rounds < steps[-1] <= samples
            short = 0
    assert sum(steps) + sum(each.gradient.samples for each in batch.take()) == pushed
