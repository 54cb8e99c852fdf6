from __future__ import annotations

import msgspec
import numpy as np
import pytest

from elastrec.platform.scaling.model import least_squares, refinement, throughput
from elastrec.platform.scaling.model.columns import Columns, Floats
from elastrec.platform.scaling.model.refinement import FORMS, LEAST_CONFIGURATIONS, Equations, criterion, solve
from elastrec.platform.scaling.model.step_form import Form, vector
from elastrec.platform.scaling.model.throughput import fit
from elastrec.platform.scaling.types import Coefficients, Observation, Prior
from tests.platform.scaling.jobs import SHAPE, coefficients, measure, plain_rmsle, spread

SUM = coefficients((0.3, 0.45, 0.05, 0.1, 0.1))
OVERLAPPED = msgspec.structs.replace(SUM, overlap=2.0)
REQUESTS = {"fan_out": 0.01, "fan_in": 0.004}
ASKING = msgspec.structs.replace(SUM, **REQUESTS)


def equations(rows_RK: Floats, seconds_R: Floats) -> Equations:
    weights_R = np.ones(len(seconds_R))
    return Equations(rows_RK, seconds_R, weights_R, least_squares.fit_relative(rows_RK, seconds_R, weights_R))


def seen(true: Coefficients, count: int, noise: float = 0.0, seed: int = 0) -> tuple[Observation, ...]:
    """Steps in configurations of this job, in its own form."""
    form, where, random = Form.of(true), spread(count, seed), np.random.default_rng(seed)
    seconds = form.seconds(form.rows(SHAPE, Columns.of(where)), vector(true))
    seconds = seconds * np.exp(noise * random.standard_normal(count))
    return tuple(
        Observation(allocation=each, iteration_seconds=float(step))
        for each, step in zip(where, seconds, strict=True)
    )  # fmt: skip


@pytest.mark.parametrize(
    "true",
    [
        OVERLAPPED,
        ASKING,
        msgspec.structs.replace(OVERLAPPED, **REQUESTS),
        msgspec.structs.replace(SUM, overlap=8.0, **REQUESTS),
    ],
)
def test_a_job_with_overlapping_steps_is_fitted_by_its_form(true: Coefficients) -> None:
    model = fit(SHAPE, seen(true, 25))
    found = model.coefficients
    assert (found.overlap, found.fan_out, found.fan_in) == pytest.approx(
        (true.overlap, true.fan_out, true.fan_in), rel=1e-2, abs=1e-9
    )
    assert model.rmsle < 1e-4
    assert any("do not simply add up" in note for note in model.notes)


def test_noise_alone_makes_hardly_any_job_a_refined_one() -> None:
    forms = [fit(SHAPE, measure(SUM, spread(20, seed), noise=0.05, seed=seed)).form for seed in range(20)]
    assert sum(form.refinements > 0 for form in forms) <= 3


def test_a_refined_model_predicts_unseen_configurations_better_than_the_sum() -> None:
    unseen = seen(OVERLAPPED, 40, seed=99)
    columns = Columns.of([each.allocation for each in unseen])
    steps = np.array([each.iteration_seconds for each in unseen])
    refined, summed = [], []
    for seed in range(8):
        observations = seen(OVERLAPPED, 20, noise=0.05, seed=seed)
        rows = Form().rows(SHAPE, Columns.of([each.allocation for each in observations]))
        seconds = np.array([each.iteration_seconds for each in observations])
        sum_K = solve(Form(), equations(rows, seconds)).theta_K
        refined.append(np.log(fit(SHAPE, observations).predict(columns).iteration_seconds / steps))
        summed.append(np.log(Form().rows(SHAPE, columns) @ sum_K / steps))
    assert np.square(refined).mean() < 0.5 * np.square(summed).mean()


def test_it_is_never_worse_than_plain_least_squares(monkeypatch: pytest.MonkeyPatch) -> None:
    # Every form is tried: no sum is good enough.
    monkeypatch.setattr(throughput, "LEAST_ERROR", 0.0)
    for seed in range(10):
        for true in (SUM, OVERLAPPED):
            observations = seen(true, 12, noise=0.2, seed=seed)
            assert fit(SHAPE, observations).rmsle <= plain_rmsle(SHAPE, observations) + 1e-9


def test_too_few_configurations_leave_the_papers_sum() -> None:
    assert fit(SHAPE, seen(OVERLAPPED, LEAST_CONFIGURATIONS - 1)).form == Form()


def test_a_young_job_has_the_form_of_its_prior() -> None:
    prior = Prior(coefficients=OVERLAPPED, source="yesterday")
    model = fit(SHAPE, seen(OVERLAPPED, 2), prior)
    assert model.form.overlap == 2.0
    predicted = model.predict(Columns.of(spread(6, 7))).iteration_seconds
    form = Form.of(OVERLAPPED)
    assert predicted == pytest.approx(
        form.seconds(form.rows(SHAPE, Columns.of(spread(6, 7))), vector(OVERLAPPED)), 0.02
    )


def test_the_parts_of_an_overlapped_step_add_up_to_it() -> None:
    model = fit(SHAPE, seen(OVERLAPPED, 25))
    columns = Columns.of(spread(7, 1))
    assert np.allclose(sum(model.parts(columns).values()), model.predict(columns).iteration_seconds)


def test_of_forms_that_describe_the_steps_alike_the_one_with_fewer_unknowns_is_supported_best() -> None:
    observations = seen(SUM, 14, noise=0.05, seed=4)
    seconds = np.array([each.iteration_seconds for each in observations])
    columns = Columns.of([each.allocation for each in observations])
    fits = [solve(form, equations(form.rows(SHAPE, columns), seconds)) for form in FORMS]
    assert min(fits, key=lambda fitted: criterion(fitted, len(seconds))).form == Form()


def test_the_sum_is_fitted_once_for_all_forms_of_the_same_rows() -> None:
    observations = seen(OVERLAPPED, 25)
    seconds = np.array([each.iteration_seconds for each in observations])
    columns = Columns.of([each.allocation for each in observations])
    made = list[bool]()

    def equations_of(form: Form) -> Equations:
        made.append(form.by_request)
        return equations(form.rows(SHAPE, columns), seconds)

    assert refinement.choose(equations_of, len(seconds), 0.03).form.overlap > 1.0
    assert sorted(made) == [False, True]
