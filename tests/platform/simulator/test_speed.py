"""True step times that do not follow the model's equation: servers as queues, and the refined form."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastrec.platform.simulator.mixes import refined, with_queues
from elastrec.platform.simulator.speed import Step, queued, response, service_of, steps_of
from tests.platform.simulator.made_up import synthetic

PARTS = st.floats(0.001, 1.0)
STEPS = st.builds(Step, compute=PARTS, update=PARTS, network=PARTS, lookup=PARTS, fixed=PARTS)


def test_a_single_worker_does_not_wait() -> None:
    assert response(0.3, 1.0, 1) == 0.3


def test_two_workers_of_a_server_that_does_nothing_else_take_turns() -> None:
    assert response(1.0, 0.0, 2) == pytest.approx(2.0)


@given(st.floats(0.01, 1.0), st.floats(0.01, 1.0), st.integers(1, 64))
def test_a_response_is_between_no_wait_and_a_wait_for_all(demand: float, think: float, workers: int) -> None:
    found = response(demand, think, workers)
    assert demand <= found <= demand * workers * (1 + 1e-9)
    # Asymptotic bound of a closed network: w workers cannot be served faster than one demand after the other.
    assert found >= workers * demand - think - 1e-9


@given(STEPS, st.integers(1, 64))
def test_the_queueing_model_equals_the_equation_at_the_matched_point(step: Step, workers: int) -> None:
    assert queued(step, workers, service_of(step, workers)).seconds == pytest.approx(step.seconds, rel=1e-6)


def test_queues_and_equation_differ_at_other_allocations() -> None:
    jobs = synthetic(20)
    for one, other in zip(jobs, with_queues(jobs), strict=True):
        assert other.step_seconds(one.allocation) == pytest.approx(one.step_seconds(one.allocation), rel=1e-6)
    many = [msgspec.structs.replace(job.allocation, workers=4 * job.allocation.workers) for job in jobs]
    ratios = [
        other.step_seconds(more) / one.step_seconds(more)
        for one, other, more in zip(jobs, with_queues(jobs), many, strict=True)
    ]
    assert max(ratios) > 1.1


def test_the_refined_form_matches_at_the_requested_allocation_and_overlaps() -> None:
    jobs = synthetic(20)
    for one, other in zip(jobs, refined(jobs), strict=True):
        assert other.step_seconds(one.allocation) == pytest.approx(one.step_seconds(one.allocation), rel=1e-6)
        assert other.coefficients.overlap == 2.0
        step = steps_of(other.shape, other.coefficients)(one.allocation)
        assert step.asking > 0 < step.answering


def test_jobs_of_one_model_have_one_truth() -> None:
    (job,) = synthetic(1)
    larger = msgspec.structs.replace(
        job, job_id="larger", allocation=msgspec.structs.replace(job.allocation, workers=2 * job.allocation.workers)
    )
    assert len({each.service for each in with_queues([job, larger])}) == 1
    assert len({each.coefficients for each in refined([job, larger])}) == 1
