"""Steps of a fixed global batch, from rounds of any size."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from elastrec.platform.transport.job_messages import WorkerProcess
from elastrec.trainers.parameter_server.global_batch import GlobalBatch, Pushed
from elastrec.trainers.parameter_server.gradients import Gradient, GroupGradient, average

WORKER, OTHER = WorkerProcess("a", "1"), WorkerProcess("b", "1")


def push(samples: int, value: float = 1.0, worker: WorkerProcess = WORKER) -> Pushed:
    group = GroupGradient(
        np.array([1], np.int32), np.array([7]), np.full((1, 2), value, np.float32), np.empty(0, np.int32)
    )
    return Pushed(worker, 0, Gradient([group], np.array([value], np.float32), samples))


def mean(step: list[Pushed]) -> Gradient:
    return average([push.gradient for push in step])


def test_a_round_of_the_whole_batch_is_a_step() -> None:
    step = mean(GlobalBatch(200).add([push(100, 1.0), push(100, 3.0)]))
    assert step.samples == 200
    np.testing.assert_allclose(step.dense, [2.0])
    np.testing.assert_allclose(step.groups[0].gradients, [[2.0, 2.0]])


def test_smaller_rounds_wait_for_each_other_and_are_averaged_by_their_rows() -> None:
    batch = GlobalBatch(400)
    assert [batch.add([push(100, value)]) for value in (1.0, 2.0, 3.0)] == [[]] * 3
    step = mean(batch.add([push(100, 6.0)]))
    assert step.samples == 400
    np.testing.assert_allclose(step.dense, [3.0])
    assert batch.take() == []


def test_a_round_a_little_short_is_a_step_of_its_own() -> None:
    assert len(GlobalBatch(400).add([push(100), push(100), push(100)])) == 3


def test_what_is_left_is_a_step_when_nobody_can_fill_it() -> None:
    batch = GlobalBatch(400)
    batch.add([push(100, 5.0)])
    assert mean(batch.take()).samples == 100 and batch.take() == []


def test_what_a_dropped_worker_has_waiting_is_void() -> None:
    batch, kept = GlobalBatch(400), push(100, worker=OTHER)
    batch.add([push(100), kept])
    batch.drop(WORKER)
    assert batch.take() == [kept]


def test_without_a_global_batch_every_push_is_a_step_as_it_is() -> None:
    batch, pushes = GlobalBatch(0), [push(100), push(0), push(3)]
    assert [batch.add([each]) for each in pushes] == [[each] for each in pushes]
    assert mean([pushes[0]]) is pushes[0].gradient


@given(
    st.integers(1, 1000),
    st.lists(st.lists(st.integers(1, 300), min_size=1, max_size=4), max_size=30),
)
def test_every_sample_is_in_one_step_and_no_step_is_far_from_the_global_batch(target, rounds) -> None:
    batch, steps, trained, value = GlobalBatch(target), [], 0.0, 0.0
    for sizes in rounds:
        pushes = [push(size, value := value + 1.0) for size in sizes]
        trained += sum(each.gradient.samples * float(each.gradient.dense[0]) for each in pushes)
        if step := batch.add(pushes):
            steps.append(mean(step))
            assert steps[-1].samples + sum(sizes) / 2 >= target
            assert steps[-1].samples - sum(sizes) < target
    if last := batch.take():
        steps.append(mean(last))
    assert sum(step.samples for step in steps) == sum(map(sum, rounds))
    total = sum(step.samples * float(step.dense[0]) for step in steps)
    np.testing.assert_allclose(total, trained, rtol=1e-4, atol=1e-3)
