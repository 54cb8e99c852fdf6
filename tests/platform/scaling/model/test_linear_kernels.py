"""Compiled linear algebra gives the same results as scipy and numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import nnls

from elastrec.platform.scaling.model.least_squares import fit_curve, fit_plain, fit_relative
from elastrec.platform.scaling.model.linear_kernels import pseudo_inverse, singular_values, triangle
from elastrec.platform.scaling.model.step_form import SERVERS, Form

SIZES = (st.integers(0, 10**6), st.integers(1, 60), st.integers(2, 8))


def problem(seed: int, count: int, columns: int) -> tuple[np.random.Generator, Any, Any]:
    random = np.random.default_rng(seed)
    rows_RK = np.exp(random.normal(0, 1.5, size=(count, columns))) * 10.0 ** random.integers(-6, 6, size=columns)
    if seed % 5 == 0:
        rows_RK[:, 0] = 0.0
    known_K = random.dirichlet(np.ones(columns)) / np.maximum(rows_RK.mean(axis=0), 1e-12)
    return random, rows_RK, rows_RK @ known_K * np.exp(0.3 * random.standard_normal(count))


@settings(max_examples=200, deadline=None)
@given(*SIZES)
def test_coefficients_are_those_of_scipys_nnls(seed: int, count: int, columns: int) -> None:
    _, rows_RK, targets_R = problem(seed, count, columns)
    lengths_K = np.linalg.norm(rows_RK, axis=0)
    scale_K = np.where(lengths_K > 0, lengths_K, 1.0)
    theirs_K = nnls(rows_RK / scale_K, targets_R, maxiter=1000)[0]
    ours_K = fit_plain(rows_RK, targets_R) * scale_K
    assert (ours_K >= 0).all()
    length = np.linalg.norm(targets_R)
    missed, best = (np.linalg.norm(rows_RK / scale_K @ each - targets_R) for each in (ours_K, theirs_K))
    assert missed <= best + 1e-9 * length
    if count >= columns:
        assert ours_K == pytest.approx(theirs_K, abs=1e-7 * length)


def plainly_fitted(form: Form, rows_RK: Any, targets_R: Any, weights_R: Any, starts: list[Any]) -> Any:
    """Gauss–Newton steps on the log residuals, each one an NNLS by scipy, halved until they improve."""
    root_R = np.sqrt(weights_R)
    best_K = min(starts, key=lambda start_K: loss(form, rows_RK, targets_R, weights_R, start_K))
    best = loss(form, rows_RK, targets_R, weights_R, best_K)
    for _ in range(200):
        seconds_R, slopes_RK = form.slopes(rows_RK, best_K)
        guess_R = np.maximum(seconds_R, 1e-6 * targets_R)
        step_R = np.maximum(root_R * (np.log(targets_R / guess_R) + 1.0), 0.0)
        relative_RK = slopes_RK * (root_R / guess_R)[:, None]
        lengths_K = np.linalg.norm(relative_RK, axis=0)
        scale_K = np.where(lengths_K > 0, lengths_K, 1.0)
        wanted_K = nnls(relative_RK / scale_K, step_R, maxiter=1000)[0] / scale_K
        for share in 0.5 ** np.arange(14):
            trial_K = best_K + share * (wanted_K - best_K)
            if (trial := loss(form, rows_RK, targets_R, weights_R, trial_K)) < best:
                break
        else:
            return best_K
        is_done = best - trial <= 1e-12 * max(best, 1e-30)
        best, best_K = trial, trial_K
        if is_done:
            break
    return best_K


def loss(form: Form, rows_RK: Any, targets_R: Any, weights_R: Any, theta_K: Any) -> float:
    seconds_R = np.maximum(form.seconds(rows_RK, theta_K), 1e-6 * targets_R)
    return float(weights_R @ np.log(seconds_R / targets_R) ** 2)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from([1.0, 1.5, 3.0, 8.0]))
def test_a_fit_is_that_of_the_plain_steps(seed: int, overlap: float) -> None:
    form = Form(overlap)
    random, rows_RK, _ = problem(seed, 40, 7)
    known_K = random.dirichlet(np.ones(7)) / np.maximum(rows_RK.mean(axis=0), 1e-12)
    targets_R = form.seconds(rows_RK, known_K) * np.exp(0.05 * random.standard_normal(40))
    weights_R = random.uniform(0.5, 1.0, size=40)
    found_K = fit_relative(rows_RK, targets_R, weights_R)
    root_R = np.sqrt(weights_R)
    relative_RK = rows_RK * (root_R / targets_R)[:, None]
    plain_K = plainly_fitted(
        Form(), rows_RK, targets_R, weights_R, [fit_plain(rows_RK, targets_R), fit_plain(relative_RK, root_R)]
    )
    if overlap != 1.0:
        start_K = known_K * np.exp(0.1 * random.standard_normal(7))
        found_K = fit_curve(rows_RK, targets_R, weights_R, [start_K], SERVERS, overlap)
        plain_K = plainly_fitted(form, rows_RK, targets_R, weights_R, [start_K])
    ours, theirs = (loss(form, rows_RK, targets_R, weights_R, each) for each in (found_K, plain_K))
    assert ours == pytest.approx(theirs, rel=1e-6)


@settings(max_examples=100, deadline=None)
@given(*SIZES)
def test_singular_values_are_numpys(seed: int, count: int, columns: int) -> None:
    _, rows_RK, _ = problem(seed, count, columns)
    theirs = np.linalg.svd(rows_RK, compute_uv=False)
    ours = singular_values(rows_RK)
    assert ours[: len(theirs)] == pytest.approx(theirs, abs=1e-12 * theirs[0])
    assert (ours[len(theirs) :] <= 1e-12 * theirs[0]).all()


@settings(max_examples=100, deadline=None)
@given(*SIZES)
def test_a_pseudo_inverse_omits_undetermined_directions(seed: int, count: int, columns: int) -> None:
    random = np.random.default_rng(seed)
    rows_RK = random.normal(size=(count, columns))
    information_KK = rows_RK.T @ rows_RK
    found_KK = pseudo_inverse(information_KK, 1e-12)
    assert found_KK == pytest.approx(np.linalg.pinv(information_KK, rcond=1e-12, hermitian=True), rel=1e-5, abs=1e-9)


@settings(max_examples=60, deadline=None)
@given(*SIZES)
def test_a_triangle_has_the_products_of_its_rows(seed: int, count: int, columns: int) -> None:
    random = np.random.default_rng(seed)
    rows_RK, targets_R = random.normal(size=(count, columns)), random.normal(size=count)
    upper_MK, target_M = triangle(rows_RK, targets_R)
    assert upper_MK.T @ upper_MK == pytest.approx(rows_RK.T @ rows_RK, abs=1e-10)
    assert upper_MK.T @ target_M == pytest.approx(rows_RK.T @ targets_R, abs=1e-10)
    assert np.array_equal(upper_MK, np.triu(upper_MK))
