from __future__ import annotations

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elastrec.platform.scaling.model.columns import TERMS, Columns
from elastrec.platform.scaling.model.least_squares import fit_plain, fit_relative, rmsle
from elastrec.platform.scaling.model.throughput import FADED_AFTER, LEAST_ERROR, fit
from elastrec.platform.scaling.types import Coefficients, Observation, Prior
from elastrec.platform.specs.errors import ScalingError
from tests.platform.scaling.jobs import (
    SHAPE,
    allocation,
    coefficients,
    measure,
    plain_rmsle,
    speed,
    spread,
    step_seconds,
)

TRUE = coefficients()


def errors(found: Coefficients, true: Coefficients) -> list[float]:
    return [abs(getattr(found, name) / getattr(true, name) - 1) for name in (*TERMS, "fixed")]


def test_exact_times_give_the_exact_coefficients_back() -> None:
    model = fit(SHAPE, measure(TRUE, spread(12)))
    assert max(errors(model.coefficients, TRUE)) < 1e-6
    assert model.identified
    assert model.rank == model.columns == 5
    assert model.rmsle < 1e-9


def test_predictions_of_unseen_allocations_are_within_their_own_error() -> None:
    model = fit(SHAPE, measure(TRUE, spread(25), noise=0.05, seed=3))
    unseen = spread(40, seed=99)
    predicted = model.predict(Columns.of(unseen))
    actual = np.array([speed(TRUE, each) for each in unseen])
    missed = np.abs(np.log(predicted.samples_per_second / actual)) / predicted.relative_error
    assert np.mean(missed < 2) > 0.9
    assert np.median(predicted.relative_error) < 0.08


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 40), st.floats(0, 1))
def test_relative_least_squares_is_never_worse_than_plain(seed: int, rows: int, noise: float) -> None:
    random = np.random.default_rng(seed)
    a = np.exp(random.normal(0, 2, size=(rows, 5))) * 10.0 ** random.integers(-6, 6, size=5)
    targets = (a / a.mean(axis=0)) @ random.dirichlet(np.ones(5)) * np.exp(noise * random.standard_normal(rows))
    ours = fit_relative(a, targets, np.ones(rows))
    assert (ours >= 0).all()
    assert rmsle(a, targets, ours) <= rmsle(a, targets, fit_plain(a, targets)) + 1e-9


def test_the_slowest_configuration_does_not_decide_alone() -> None:
    # One configuration is 200 times slower and 30 % off: plain NNLS follows it and misses all the others.
    many = spread(12)
    seen = list(measure(TRUE, many))
    slow = allocation(1, 1, worker_cores=0.25, server_cores=0.25)
    seen += [msgspec.structs.replace(each, iteration_seconds=1.3) for each in measure(TRUE, [slow])]
    assert fit(SHAPE, seen).rmsle < 0.6 * plain_rmsle(SHAPE, seen)


def fitted_step(seconds: float, others_seconds: float) -> float:
    """The fitted step of a configuration that was measured a quarter too long for some seconds, the others exactly."""
    *others, odd = measure(TRUE, spread(8))

    def lasting(one: Observation, seconds: float) -> Observation:
        steps = round(seconds * one.allocation.workers / one.iteration_seconds)
        return msgspec.structs.replace(one, iterations=max(1, steps))

    wrong = msgspec.structs.replace(odd, iteration_seconds=1.25 * odd.iteration_seconds)
    model = fit(SHAPE, [*(lasting(each, others_seconds) for each in others), lasting(wrong, seconds)])
    found = model.predict(Columns.of([odd.allocation])).iteration_seconds[0] / odd.iteration_seconds
    return float(found)


def test_a_configuration_that_was_measured_longer_counts_more() -> None:
    assert 1.0 < fitted_step(180.0, 900.0) < fitted_step(900.0, 900.0) < fitted_step(900.0, 180.0) < 1.25
    # What disturbs a short measurement lasts as long as what disturbs one of a period.
    assert fitted_step(1.0, 900.0) == pytest.approx(fitted_step(170.0, 900.0), rel=1e-9)
    # Only the ratio of the weights matters.
    assert fitted_step(100.0, 100.0) == pytest.approx(fitted_step(900.0, 900.0), rel=1e-6)


def test_a_configuration_that_was_measured_longer_is_known_better() -> None:
    *others, last = measure(TRUE, spread(6))
    longer = msgspec.structs.replace(last, iterations=round(900.0 * last.allocation.workers / last.iteration_seconds))
    errors = [fit(SHAPE, [*others, each]).relative_error(Columns.of([last.allocation]))[0] for each in (last, longer)]
    assert errors[1] < errors[0]


def test_a_measured_compute_part_splits_the_fixed_time() -> None:
    true = msgspec.structs.replace(TRUE, compute_fixed=0.7 * TRUE.fixed)
    model = fit(SHAPE, measure(true, spread(12), compute=True))
    assert model.coefficients.compute_fixed == pytest.approx(0.7 * TRUE.fixed, rel=1e-4)
    assert model.coefficients.fixed == pytest.approx(TRUE.fixed, rel=1e-4)


def test_a_measured_compute_part_identifies_the_gradient_where_totals_cannot() -> None:
    # Workers alone change: the total says nothing of how much of it is computing.
    only_workers = [allocation(workers, 1) for workers in (1, 2, 4)]
    without = fit(SHAPE, measure(TRUE, only_workers)).coefficients.gradient
    true = msgspec.structs.replace(coefficients((0.3, 0.1, 0.05, 0.45, 0.1)), compute_fixed=0.0)
    within = fit(SHAPE, measure(true, only_workers, compute=True)).coefficients
    share = within.gradient * 512 + (within.compute_fixed or 0.0)
    assert share == pytest.approx(true.gradient * 512, rel=1e-3)
    assert without > 0


def test_a_compute_part_that_contradicts_the_steps_does_not_bend_them() -> None:
    # As if pulls and pushes, which cost workers CPU time, were no work of theirs.
    measured = measure(TRUE, spread(12), compute=True)
    blind = [msgspec.structs.replace(each, compute_seconds=0.5 * (each.compute_seconds or 0.0)) for each in measured]
    predicted = fit(SHAPE, blind).predict(Columns.of([each.allocation for each in blind])).iteration_seconds
    assert np.abs(predicted / [each.iteration_seconds for each in blind] - 1.0).mean() < 0.06


def test_one_configuration_is_not_identified_and_the_reason_is_given() -> None:
    model = fit(SHAPE, measure(TRUE, [allocation()]))
    assert not model.identified
    assert model.rank == 1
    assert any("1 of 5 parts of a step can be distinguished" in note for note in model.notes)
    assert any("assumed" in note for note in model.notes)


def test_where_nothing_was_measured_the_prediction_is_uncertain() -> None:
    model = fit(SHAPE, measure(TRUE, [allocation(2, 1), allocation(3, 1)]))
    near, far = model.predict(Columns.of([allocation(2, 1), allocation(2, 8)])).relative_error
    assert near < 0.1
    assert far > 2 * near


def test_with_workers_alone_two_counts_predict_a_third() -> None:
    model = fit(SHAPE, measure(TRUE, [allocation(1, 1), allocation(3, 1)]))
    predicted = model.predict(Columns.of([allocation(6, 1)]))
    assert predicted.samples_per_second[0] == pytest.approx(speed(TRUE, allocation(6, 1)), rel=0.02)
    assert predicted.relative_error[0] < 0.25


def test_a_prior_gives_a_young_job_the_shape_and_its_measurement_the_level() -> None:
    # The nodes are twice as slow as those of the similar job.
    slower = coefficients(seconds=0.1)
    prior = Prior(coefficients=TRUE, source="yesterday")
    model = fit(SHAPE, measure(slower, [allocation()]), prior)
    elsewhere = allocation(8, 4, worker_cores=2)
    predicted = model.predict(Columns.of([elsewhere])).iteration_seconds[0]
    assert predicted == pytest.approx(step_seconds(slower, elsewhere), rel=0.02)
    assert any("yesterday" in note for note in model.notes)


def test_a_wrong_prior_fades() -> None:
    wrong = Prior(coefficients=coefficients((0.05, 0.1, 0.7, 0.05, 0.1)), source="another kind of job", strength=2.0)
    found = [
        max(errors(fit(SHAPE, measure(TRUE, spread(count, seed=5)), wrong).coefficients, TRUE))
        for count in (2, 6, FADED_AFTER + 2)
    ]
    assert found[0] > found[2]
    assert found[2] < 1e-6


@pytest.mark.parametrize("counts", [FADED_AFTER - 1, FADED_AFTER, FADED_AFTER + 2])
def test_a_faded_prior_decides_where_nothing_was_measured_and_that_stays_uncertain(counts: int) -> None:
    # With any number of counts of workers alone, two parts of a step can be distinguished.
    model = fit(
        SHAPE,
        measure(TRUE, [allocation(each) for each in range(1, counts + 1)]),
        Prior(coefficients=TRUE, source="yesterday"),
    )
    elsewhere = [allocation(4, 8), allocation(4, worker_cores=4.0), allocation(4, worker_cores=0.5)]
    predicted = model.predict(Columns.of(elsewhere))
    true = [step_seconds(TRUE, each) for each in elsewhere]
    assert predicted.iteration_seconds == pytest.approx(true, rel=0.02)
    assert (predicted.relative_error > 0.2).all()
    assert any("yesterday" in note for note in model.notes)


def test_a_job_without_dense_parameters_has_no_synchronisation() -> None:
    shape = msgspec.structs.replace(SHAPE, dense_bytes=0)
    model = fit(shape, measure(TRUE, spread(12)))
    assert model.columns == 4
    assert model.coefficients.synchronise == 0.0
    assert model.identified


def test_the_parts_add_up_to_the_step() -> None:
    model = fit(SHAPE, measure(TRUE, spread(12)))
    columns = Columns.of(spread(7, seed=1))
    assert np.allclose(sum(model.parts(columns).values()), model.predict(columns).iteration_seconds)


def test_the_error_of_a_fit_is_at_least_the_difference_between_two_runs() -> None:
    model = fit(SHAPE, measure(TRUE, spread(30)))
    assert model.predict(Columns.of(spread(5))).relative_error.min() >= LEAST_ERROR


@pytest.mark.parametrize(("synchronise", "dense_bytes"), [(0.0, 10_000_000), (1.0, 0), (-1.0, 1), (np.inf, 1)])
def test_a_prior_of_nothing_is_refused(synchronise: float, dense_bytes: int) -> None:
    only = Coefficients(gradient=0, update=0, synchronise=synchronise, embedding=0, fixed=0)
    shape = msgspec.structs.replace(SHAPE, dense_bytes=dense_bytes)
    with pytest.raises(ScalingError, match="prior of the job from x"):
        fit(shape, measure(TRUE, [allocation()]), Prior(coefficients=only, source="x"))
