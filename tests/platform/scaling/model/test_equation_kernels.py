"""Inputs and results of a fit, compared with the same in plain numpy."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elastrec.platform.scaling.model import equation_kernels as compiled
from elastrec.platform.scaling.model.columns import FIELDS, TERMS, Columns, Floats, constants_of, features, kernels
from elastrec.platform.scaling.model.least_squares import fit_relative
from elastrec.platform.scaling.model.step_form import COLUMNS, SERVERS, Form
from elastrec.platform.scaling.types import ModelShape

SHAPE = ModelShape(batch_size=512, dense_bytes=10_000_000, embedding_dimension=16)
COUNTED = ("workers", "parameter_servers", "worker_cores", "parameter_server_cores")


def columns(count: int, seed: int) -> Columns:
    random = np.random.default_rng(seed)
    table_FC = random.integers(1, 9, (len(FIELDS), count)).astype(np.float64)
    return Columns(table_FC)


def varied(measured: Columns) -> Columns:
    """The measured allocations, and those with a quarter and four times one of the four amounts."""
    tables = [measured.table_FN]
    for field in COUNTED:
        for factor in (0.25, 4.0):
            table = measured.table_FN.copy()
            table[FIELDS.index(field)] *= factor
            tables.append(table)
    return Columns(np.concatenate(tables, axis=1))


def plain_equations(
    form: Form, measured: Columns, seconds_C: Floats, compute_C: Floats, measured_C: Floats,
    prior: tuple[Form, Floats], weight: float,
) -> tuple[Floats, Floats, Floats]:  # fmt: skip
    has_part_C = np.isfinite(compute_C)
    rows, others = form.rows(SHAPE, measured), form.rows(SHAPE, varied(measured))
    blocks = [rows, rows[has_part_C] * np.isin(COLUMNS, ("gradient", "fixed")), others]
    if has_part_C.any():
        blocks = [np.column_stack([each, np.full(len(each), last)])
                  for each, last in zip(blocks, (1.0, 0.0, 1.0), strict=True)]  # fmt: skip
    theirs, theta_K = prior
    known = theirs.seconds(theirs.rows(SHAPE, measured), theta_K)
    level = np.exp(np.sum(measured_C * np.log(seconds_C / known)) / len(known))
    seconds = [seconds_C, compute_C[has_part_C], level * theirs.seconds(theirs.rows(SHAPE, varied(measured)), theta_K)]
    weights = [measured_C, 0.03 * measured_C[has_part_C], np.full(len(others), weight / len(others))]
    kept = slice(3 if weight > 0 else 2)
    return np.concatenate(blocks[kept]), np.concatenate(seconds[kept]), np.concatenate(weights[kept])


@settings(deadline=None)
@given(
    st.integers(1, 12), st.integers(0, 1000), st.sampled_from([0.0, 0.5, 1.0]), st.sampled_from([0.0, 0.001, 1.5]),
    st.booleans(), st.booleans(), st.sampled_from([1.0, 2.0]),
)  # fmt: skip
def test_rows_seconds_and_weights_are_those_of_the_plain_ones(
    count: int, seed: int, measured_parts: float, weight: float, by_request: bool, theirs: bool, overlap: float
) -> None:
    random = np.random.default_rng(seed)
    measured, seconds_C = columns(count, seed), random.uniform(0.01, 1.0, count)
    compute_C = np.where(random.uniform(size=count) < measured_parts, 0.5 * seconds_C, np.nan)
    measured_C = random.uniform(0.1, 2.0, count)
    prior_form, theta_K = Form(overlap, theirs), random.uniform(1e-6, 1.0, len(COLUMNS))
    found = compiled.equations(
        measured.table_FN, constants_of(SHAPE, by_request=by_request), seconds_C, compute_C, measured_C,
        0.03, constants_of(SHAPE, by_request=theirs), kernels().Fitted(*theta_K.tolist(), overlap), weight,
    )  # fmt: skip
    expected = plain_equations(
        Form(1.0, by_request), measured, seconds_C, compute_C, measured_C, (prior_form, theta_K), weight
    )  # fmt: skip
    for ours, plain in zip(found, expected, strict=True):
        assert ours.shape == plain.shape
        assert ours == pytest.approx(plain, rel=1e-9, abs=1e-300)


@settings(deadline=None)
@given(st.integers(1, 12), st.integers(0, 12), st.integers(0, 9), st.integers(0, 1000), st.sampled_from([1.0, 2.0]))
def test_the_error_and_the_information_are_those_of_the_plain_ones(
    steps: int, parts: int, assumed: int, seed: int, overlap: float
) -> None:
    random = np.random.default_rng(seed)
    form, theta_K = Form(overlap), random.uniform(0.1, 1.0, len(COLUMNS))
    rows_RK = random.uniform(0.1, 1.0, (steps + parts + assumed, len(COLUMNS)))
    seconds_R = form.seconds(rows_RK, theta_K) * np.exp(0.1 * random.standard_normal(len(rows_RK)))
    weights_R = random.uniform(0.1, 2.0, len(rows_RK))
    weights_R[:steps] /= weights_R[:steps].mean()
    error, information_KK = compiled.knowledge(
        rows_RK, seconds_R, weights_R, theta_K, steps, steps + parts, SERVERS.start, SERVERS.stop, overlap, 5, 0.03,
        0.3,
    )  # fmt: skip
    predicted_R, slopes_RK = form.slopes(rows_RK, theta_K)
    expected = np.sqrt(np.mean(weights_R[:steps] * np.log(predicted_R[:steps] / seconds_R[:steps]) ** 2))
    assert error == pytest.approx(expected, rel=1e-9)
    sigma = max(0.03, expected * np.sqrt(steps / max(1, steps - 5)))
    relative_CK = slopes_RK[:steps] / predicted_R[:steps, None] / sigma
    plain_KK = relative_CK.T @ (weights_R[:steps, None] * relative_CK)
    if assumed:
        doubted_RK = slopes_RK[steps + parts :] / seconds_R[steps + parts :, None]
        plain_KK += doubted_RK.T @ doubted_RK / assumed / 0.3**2
    assert information_KK == pytest.approx(plain_KK, rel=1e-9)


@pytest.mark.parametrize("dense_bytes", [0, 10_000_000])
def test_assumed_shares_make_up_the_first_configurations_step(dense_bytes: int) -> None:
    shape = ModelShape(batch_size=512, dense_bytes=dense_bytes, embedding_dimension=16)
    measured, shares = columns(3, 1), (0.6, 0.1, 0.1, 0.1)
    found = compiled.assumed(measured.table_FN, constants_of(shape, by_request=False), 0.2, shares)
    row_K = features(shape, measured)[0]
    for term, share, feature in zip(TERMS, shares, row_K, strict=True):
        assert getattr(found, term) * feature == pytest.approx(share * 0.2 if feature else 0.0)
    total = sum(getattr(found, term) * feature for term, feature in zip(TERMS, row_K, strict=True))
    assert total + found.fixed == pytest.approx(0.2)
    assert (found.fan_in, found.fan_out, found.overlap) == (0.0, 0.0, 1.0)


@pytest.mark.parametrize("has_prior", [False, True])
@pytest.mark.parametrize("measured_parts", [False, True])
def test_coefficients_are_those_that_meet_the_equations_best(*, has_prior: bool, measured_parts: bool) -> None:
    measured, seconds_C = columns(3, 4), np.array([0.2, 0.3, 0.25])
    compute_C = 0.4 * seconds_C if measured_parts else np.full(3, np.nan)
    measured_C, constants = np.array([0.5, 1.5, 1.0]), constants_of(SHAPE, by_request=False)
    shares = (0.6, 0.1, 0.1, 0.1)
    theirs = kernels().Fitted(*np.linspace(1e-4, 1e-3, 7).tolist(), 1.0)
    prior = theirs if has_prior else compiled.assumed(measured.table_FN, constants, 0.2, shares)
    *found, summed_K = compiled.summed(
        measured.table_FN, tuple(constants), seconds_C, compute_C, measured_C, 0.03, tuple(constants), tuple(theirs),
        has_prior, shares, 0.5,
    )  # fmt: skip
    expected = compiled.equations(
        measured.table_FN, constants, seconds_C, compute_C, measured_C, 0.03, constants, prior, 0.5
    )
    for ours, plain in zip(found, expected, strict=True):
        assert np.array_equal(ours, plain)
    assert np.array_equal(summed_K, fit_relative(*expected))


def test_a_split_fixed_part_is_one_coefficient_whose_covariance_is_known() -> None:
    random, compute_C = np.random.default_rng(2), np.array([0.1, np.nan, 0.1, np.nan, np.nan, np.nan, np.nan, np.nan])
    rows_RK = random.uniform(0.1, 1.0, (8 + 2 + 4, 8))
    split_K = random.uniform(0.1, 1.0, 8)
    seconds_R, weights_R = rows_RK @ split_K, random.uniform(0.5, 1.5, len(rows_RK))
    at = (SERVERS.start, SERVERS.stop, 1.0, 5, 0.03, 0.3)
    theta_K, error, covariance_KK = compiled.known(rows_RK, seconds_R, weights_R, split_K, compute_C, *at)
    assert theta_K.tolist() == [*split_K[:6].tolist(), split_K[6] + split_K[7]]
    expected, information_KK = compiled.knowledge(rows_RK, seconds_R, weights_R, theta_K, 8, 10, *at)
    assert error == expected
    assert covariance_KK @ information_KK == pytest.approx(np.eye(7), abs=1e-6)


LIMITS = compiled.Limits(
    condition=100.0, tie_break=1e-3, compute_weight=0.03, least_error=0.03, period_error=0.05, prior_error=0.3,
    fading_seconds=600.0,
)  # fmt: skip


@pytest.mark.parametrize("may_refine", [False, True])
@pytest.mark.parametrize("prior_weight", [0.0, 0.5])
@pytest.mark.parametrize("count", [1, 3, 12])
def test_a_whole_fit_is_the_same_as_its_parts(count: int, prior_weight: float, *, may_refine: bool) -> None:
    measured, constants = columns(count, 4), tuple(constants_of(SHAPE, by_request=False))
    seconds_C = np.random.default_rng(5).uniform(0.2, 0.4, count)
    compute_C, trained_C = 0.4 * seconds_C, np.linspace(100.0, 3000.0, count)
    theirs, shares = (*np.linspace(1e-4, 1e-3, 7).tolist(), 1.0), (0.6, 0.1, 0.1, 0.1)
    found, measured_C, summed, known = compiled.plain_fit(
        measured.table_FN, constants, seconds_C, compute_C, trained_C, constants, theirs, prior_weight > 0, shares,
        prior_weight, may_refine, SERVERS.start, SERVERS.stop, tuple(LIMITS),
    )  # fmt: skip
    rank, used, condition = kernels().rank_and_condition(measured.table_FN, constants, seconds_C)
    identified = rank == used and condition <= LIMITS.condition
    assert identified == (count == 12)
    weight = prior_weight if identified else max(prior_weight, LIMITS.tie_break)
    of_compute = LIMITS.tie_break if identified and may_refine else LIMITS.compute_weight
    assert found == (rank, used, condition, weight, of_compute)
    variance_C = LIMITS.least_error**2 + LIMITS.period_error**2 / np.maximum(trained_C / LIMITS.fading_seconds, 1.0)
    assert measured_C == pytest.approx(1.0 / variance_C / np.mean(1.0 / variance_C), rel=1e-12)
    expected = compiled.summed(
        measured.table_FN, constants, seconds_C, compute_C, measured_C, of_compute, constants, theirs,
        prior_weight > 0, shares, weight,
    )  # fmt: skip
    for ours, part in zip(summed, expected, strict=True):
        assert np.array_equal(ours, part)
    of_parts = compiled.known(
        *expected, compute_C, SERVERS.start, SERVERS.stop, 1.0, used, LIMITS.least_error, LIMITS.prior_error
    )
    for ours, part in zip(known, of_parts, strict=True):
        assert np.array_equal(ours, part)
