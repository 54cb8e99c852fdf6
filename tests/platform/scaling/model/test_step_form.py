from __future__ import annotations

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elastrec.platform.scaling.model.columns import Columns, features
from elastrec.platform.scaling.model.step_form import COLUMNS, Form, together, vector
from elastrec.platform.scaling.types import Coefficients
from elastrec.platform.simulator.speed import steps_of
from tests.platform.scaling.jobs import SHAPE, allocation, coefficients, spread

OVERLAPS = st.sampled_from([1.0, 1.5, 2.0, 3.0])
REFINED = msgspec.structs.replace(coefficients(), overlap=2.0, fan_out=0.004, fan_in=0.002)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10_000), OVERLAPS, st.booleans())
def test_derivatives_are_those_of_the_seconds_and_add_up_to_them(seed: int, overlap: float, by_request: bool) -> None:
    form, random = Form(overlap, by_request), np.random.default_rng(seed)
    rows_RK = form.rows(SHAPE, Columns.of(spread(9, seed)))
    theta_K = random.uniform(0.1, 1.0, len(COLUMNS)) / np.maximum(rows_RK.max(axis=0), 1e-9)
    seconds_R, slopes_RK = form.slopes(rows_RK, theta_K)
    assert np.allclose(seconds_R, form.seconds(rows_RK, theta_K))
    assert np.allclose(slopes_RK @ theta_K, seconds_R)
    for k in range(len(COLUMNS)):
        moved_K = theta_K.copy()
        moved_K[k] *= 1 + 1e-6
        change_R = (form.seconds(rows_RK, moved_K) - seconds_R) / (moved_K[k] - theta_K[k])
        assert np.allclose(change_R, slopes_RK[:, k], rtol=1e-3, atol=1e-6 * slopes_RK.max())


@settings(max_examples=100, deadline=None)
@given(st.floats(0, 100), st.floats(0, 100), OVERLAPS)
def test_a_step_takes_at_least_its_longer_part_and_at_most_both(own: float, servers: float, overlap: float) -> None:
    found = float(together(np.array([own]), np.array([servers]), overlap)[0])
    assert max(own, servers) * (1 - 1e-9) <= found <= (own + servers) * (1 + 1e-9)


def test_the_sum_is_the_papers() -> None:
    true, columns = coefficients(), Columns.of(spread(5))
    paper = features(SHAPE, columns) @ vector(true)[:4] + true.fixed
    assert np.allclose(Form().seconds(Form().rows(SHAPE, columns), vector(true)), paper)


@pytest.mark.parametrize("true", [coefficients(), REFINED])
def test_a_simulated_job_steps_as_its_model_predicts(true: Coefficients) -> None:
    form, step = Form.of(true), steps_of(SHAPE, true)
    for each in spread(8):
        predicted = form.seconds(form.rows(SHAPE, Columns.of([each])), vector(true))[0]
        assert step(each).seconds == pytest.approx(predicted)


def test_a_slow_worker_loses_less_than_its_slowness_if_servers_overlap() -> None:
    step = steps_of(SHAPE, msgspec.structs.replace(REFINED, fan_out=0.0, fan_in=0.0, fixed=0.0))(allocation(8, 1))
    assert 1.0 < step.with_trouble(3.0, 1.0) / step.seconds < 3.0


def test_another_level_is_another_speed_of_the_same_form() -> None:
    true = msgspec.structs.replace(REFINED, compute_fixed=0.001)
    form, rows_RK = Form.of(true), Form.of(true).rows(SHAPE, Columns.of(spread(4)))
    slower = true.at_level(2.0)
    assert np.allclose(form.seconds(rows_RK, vector(slower)), 2 * form.seconds(rows_RK, vector(true)))
    assert (slower.overlap, slower.compute_fixed) == (true.overlap, 0.002)
