from __future__ import annotations

import math
import time

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elastrec.platform.scaling.model import profile as profile_module
from elastrec.platform.scaling.model.profile import summarise
from elastrec.platform.scaling.model.throughput import fit
from elastrec.platform.scaling.types import Observation
from elastrec.platform.specs.errors import ScalingError
from tests.platform.scaling.jobs import SHAPE, allocation, coefficients, measure, spread


def seen(seconds: float, compute: float | None = None, workers: int = 2) -> Observation:
    return Observation(allocation=allocation(workers), iteration_seconds=seconds, compute_seconds=compute)


@pytest.mark.parametrize("wrong", [math.nan, math.inf, -math.inf, 0.0, -1.0])
def test_an_invalid_time_is_left_out_and_counted(wrong: float) -> None:
    profile = summarise([seen(0.1), seen(wrong), seen(0.1)])
    assert profile.iteration_seconds.tolist() == pytest.approx([0.1])
    assert profile.observations.tolist() == [2]
    assert "1 of 3 observations left out" in profile.notes[0]


@pytest.mark.parametrize("wrong", [math.nan, 0.0, -1.0, 0.2])
def test_a_wrong_compute_time_leaves_the_step_alone(wrong: float) -> None:
    profile = summarise([seen(0.1, wrong)])
    assert profile.iteration_seconds.tolist() == pytest.approx([0.1])
    assert math.isnan(profile.compute_seconds[0])
    assert "compute_seconds: left out of 1" in profile.notes[0]


def test_a_profile_without_usable_measurements_names_the_problem() -> None:
    with pytest.raises(ScalingError, match=r"no usable one \(iteration_seconds: 2 of 2 .*allowed: at least one"):
        fit(SHAPE, [seen(math.nan), seen(-1)], job_id="clicks")


def test_an_empty_profile_reports_missing_measurements() -> None:
    with pytest.raises(ScalingError, match=r"observations of clicks: no usable one.*none was made yet"):
        fit(SHAPE, [], job_id="clicks")


def test_contradictory_observations_are_named_and_their_median_is_used() -> None:
    profile = summarise([seen(0.001), seen(0.1), seen(10.0)])
    assert profile.iteration_seconds.tolist() == pytest.approx([0.1])
    assert "contradict each other" in profile.notes[0]


def test_one_pause_does_not_move_a_configuration() -> None:
    profile = summarise([seen(0.1)] * 9 + [seen(60.0)])
    assert profile.iteration_seconds.tolist() == pytest.approx([0.1])
    assert not profile.notes


@settings(deadline=None)
@given(st.permutations(list(range(8))))
def test_the_order_of_observations_does_not_matter(order: list[int]) -> None:
    observations = measure(coefficients(), spread(4) * 2, noise=0.2)
    one, other = summarise(observations), summarise([observations[k] for k in order])
    assert sorted(one.iteration_seconds) == pytest.approx(sorted(other.iteration_seconds))


def test_memory_does_not_distinguish_configurations() -> None:
    more = msgspec.structs.replace(allocation(), worker_memory_bytes=2**34)
    profile = summarise([seen(0.1), Observation(allocation=more, iteration_seconds=0.2)])
    assert len(profile) == 1


def test_a_million_observations_are_fitted_in_seconds() -> None:
    few = measure(coefficients(), spread(20), noise=0.1)
    started = time.process_time()
    model = fit(SHAPE, few * 50_000)
    assert time.process_time() - started < 20
    assert model.configurations == len({each.allocation for each in few})


def test_medians_agree_with_numpy() -> None:
    random = np.random.default_rng(0)
    observations = [
        seen(float(s), workers=int(w))
        for s, w in zip(random.uniform(1, 2, 101), random.integers(1, 5, 101), strict=True)
    ]
    profile = summarise(observations)
    for row, each in enumerate(profile.allocations):
        logs = [math.log(o.iteration_seconds) for o in observations if o.allocation == each]
        assert profile.iteration_seconds[row] == pytest.approx(math.exp(np.median(logs)))


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(1, 3), st.floats(0.05, 0.15), st.sampled_from([None, 0.1, 0.5])), min_size=1))
def test_few_observations_are_summarised_as_many(rows: list[tuple[int, float, float | None]]) -> None:
    observations = [
        seen(seconds, None if share is None else share * seconds, workers) for workers, seconds, share in rows
    ]
    few = summarise(observations)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(profile_module, "_FEW", 0)
        many = summarise(observations)
    for name in ("iteration_seconds", "compute_seconds", "spread", "observations", "measured_seconds"):
        assert getattr(few, name) == pytest.approx(getattr(many, name), rel=1e-12, nan_ok=True), name
    assert few.allocations == many.allocations and few.notes == many.notes
    if len(few) < len(observations):
        # To the last digit: decisions must not depend on how many observations there are.
        assert few.iteration_seconds.tolist() == many.iteration_seconds.tolist()
        assert np.array_equal(few.compute_seconds, many.compute_seconds, equal_nan=True)
        assert few.measured_seconds.tolist() == many.measured_seconds.tolist()


def test_the_steps_of_all_workers_are_made_side_by_side() -> None:
    one, other = seen(0.5, workers=4), seen(0.25, workers=4)
    profile = summarise([msgspec.structs.replace(one, iterations=80), msgspec.structs.replace(other, iterations=320)])
    assert profile.measured_seconds.tolist() == pytest.approx([10.0 + 20.0])
