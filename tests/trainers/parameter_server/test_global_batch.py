"""Steps of a fixed global batch, from rounds of any size."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from elastrec.trainers.parameter_server.global_batch import GlobalBatch
from elastrec.trainers.parameter_server.gradients import Gradient, GroupGradient


def gradient(samples: int, value: float = 1.0) -> Gradient:
    group = GroupGradient(
        np.array([1], np.int32), np.array([7]), np.full((1, 2), value, np.float32), np.empty(0, np.int32)
    )
    return Gradient([group], np.array([value], np.float32), samples)


def test_a_round_of_the_whole_batch_is_a_step() -> None:
    batch = GlobalBatch(200)
    step = batch.add([gradient(100, 1.0), gradient(100, 3.0)])
    assert step is not None and step.samples == 200
    np.testing.assert_allclose(step.dense, [2.0])
    np.testing.assert_allclose(step.groups[0].gradients, [[2.0, 2.0]])


def test_smaller_rounds_wait_for_each_other_and_are_averaged_by_their_rows() -> None:
    batch = GlobalBatch(400)
    assert [batch.add([gradient(100, value)]) for value in (1.0, 2.0, 3.0)] == [None] * 3
    step = batch.add([gradient(100, 6.0)])
    assert step is not None and step.samples == 400
    np.testing.assert_allclose(step.dense, [3.0])
    assert batch.take() is None


def test_a_round_a_little_short_is_a_step_of_its_own() -> None:
    assert GlobalBatch(400).add([gradient(100), gradient(100), gradient(100)]) is not None


def test_what_is_left_is_a_step_when_nobody_can_fill_it() -> None:
    batch = GlobalBatch(400)
    batch.add([gradient(100, 5.0)])
    step = batch.take()
    assert step is not None and step.samples == 100 and batch.take() is None


def test_without_a_global_batch_every_push_is_a_step_as_it_is() -> None:
    batch, pushes = GlobalBatch(0), [gradient(100), gradient(0), gradient(3)]
    assert [batch.add([push]) for push in pushes] == pushes


@given(
    st.integers(1, 1000),
    st.lists(st.lists(st.integers(1, 300), min_size=1, max_size=4), max_size=30),
)
def test_every_sample_is_in_one_step_and_no_step_is_far_from_the_global_batch(target, rounds) -> None:
    batch, steps, trained, value = GlobalBatch(target), [], 0.0, 0.0
    for sizes in rounds:
        pushes = [gradient(size, value := value + 1.0) for size in sizes]
        trained += sum(push.samples * float(push.dense[0]) for push in pushes)
        step = batch.add(pushes)
        if step is not None:
            steps.append(step)
            assert step.samples + sum(sizes) / 2 >= target
            assert step.samples - sum(sizes) < target
    last = batch.take()
    steps += [last] if last is not None else []
    assert sum(step.samples for step in steps) == sum(map(sum, rounds))
    told = sum(step.samples * float(step.dense[0]) for step in steps)
    np.testing.assert_allclose(told, trained, rtol=1e-4, atol=1e-3)
