from __future__ import annotations

import re
from dataclasses import replace

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastrec.platform.scaling.amounts import Change
from elastrec.platform.scaling.model.columns import features
from elastrec.platform.scaling.model.throughput import fit_job
from elastrec.platform.scaling.search.candidates import propose, sizes_needed
from elastrec.platform.scaling.search.front import SearchSettings
from elastrec.platform.scaling.search.objectives import Rules, Situation
from elastrec.platform.scaling.search.space import Space
from elastrec.platform.scaling.types import CandidateKind, Prior, Proposal
from tests.platform.scaling.jobs import (
    PLENTY,
    PRICES,
    SHAPE,
    allocation,
    coefficients,
    horizon_seconds,
    known_model,
    measure,
    profile,
    situation,
)

TRUE = coefficients()
WORKERS, WORKER_SIZE = frozenset({Change.WORKERS}), frozenset({Change.WORKER_SIZE})


def young(*allocations: object, **changes: object) -> Situation:
    job = profile(observations=measure(TRUE, list(allocations)), allocation=allocations[-1], **changes)  # type: ignore[arg-type]
    return Situation(job, fit_job(job), PRICES)


def test_to_stay_is_always_the_first_candidate() -> None:
    first = propose(situation(), PLENTY).candidates[0]
    assert first.kind is CandidateKind.STAY
    assert first.allocation == allocation()
    assert (first.gain, first.cost_per_hour) == (0, 0)


def test_the_candidates_are_a_front_and_few() -> None:
    proposal = propose(situation(), PLENTY, SearchSettings(most=10))
    growing = [each for each in proposal.candidates if each.kind is CandidateKind.GROW]
    assert 2 <= len(growing) <= 10
    assert [each.gain for each in growing] == sorted(each.gain for each in growing)
    assert [each.cost_per_hour for each in growing] == sorted(each.cost_per_hour for each in growing)


def test_a_job_with_too_many_workers_is_offered_a_saving() -> None:
    bound = coefficients((0.05, 0.9, 0.0, 0.0, 0.05))
    asked = situation(bound, allocation=allocation(40, 1), movable=WORKERS)
    saving = [each for each in propose(asked, PLENTY).candidates if each.kind is CandidateKind.SAVE]
    assert saving
    assert all(each.cost_per_hour < 0 and each.allocation.workers < 40 for each in saving)


def test_a_job_that_has_seen_one_configuration_explores_cheaply() -> None:
    asked = young(allocation(1, 1), movable=WORKER_SIZE)
    exploring = [each for each in propose(asked, PLENTY).candidates if each.kind is CandidateKind.EXPLORE]
    assert exploring
    assert all(0.5 <= each.allocation.worker_cores <= 2 for each in exploring)


def test_uncertain_predictions_are_not_chosen_for_their_gain_unless_only_workers_are_added() -> None:
    asked = young(allocation(1, 4))
    growing = [each for each in propose(asked, PLENTY).candidates if each.kind is CandidateKind.GROW]
    doubted = [each.allocation for each in growing if each.relative_error > asked.rules.trusted_error]
    assert doubted
    assert all(each == allocation(each.workers, 4) for each in doubted)


def test_a_job_that_has_seen_one_configuration_grows_by_workers_alone_without_exploring_first() -> None:
    kinds = {each.kind for each in propose(young(allocation(1, 4), movable=WORKERS), PLENTY).candidates}
    assert CandidateKind.GROW in kinds


def test_a_job_whose_model_is_known_does_not_explore() -> None:
    assert not [each for each in propose(situation(), PLENTY).candidates if each.kind is CandidateKind.EXPLORE]


def test_a_job_that_is_about_to_end_neither_grows_nor_explores() -> None:
    asked = young(allocation(1, 1), remaining_samples=100.0)
    assert [each.kind for each in propose(asked, PLENTY).candidates] == [CandidateKind.STAY]


def test_a_proposal_survives_json_and_is_the_same_when_made_again() -> None:
    one, other = propose(situation(), PLENTY), propose(situation(), PLENTY)
    assert one == other
    assert msgspec.json.decode(msgspec.json.encode(one), type=Proposal) == one


def test_plans_with_uncertain_predictions_do_not_hide_certain_ones() -> None:
    asked = young(allocation(1, 4), allocation(2, 4), allocation(2, 6))
    growing = [each for each in propose(asked, PLENTY).candidates if each.kind is CandidateKind.GROW]
    assert any(each.relative_error <= asked.rules.trusted_error for each in growing)


def test_nothing_is_explored_that_no_plan_could_use() -> None:
    """Whose time is spent in what cores do not change has no use for knowing more about cores."""
    kinds = {}
    for name, shares in (("fixed", (0.05, 0.05, 0.0, 0.0, 0.9)), ("computing", (0.9, 0.0, 0.0, 0.0, 0.1))):
        true = coefficients(shares)
        job = profile(
            observations=measure(true, [allocation(1, 1)]), allocation=allocation(1, 1),
            prior=Prior(coefficients=true, source="its twin"), movable=frozenset({Change.WORKER_SIZE}),
        )  # fmt: skip
        asked = Situation(job, fit_job(job), PRICES, rules=Rules(max_slowdown=0.0))
        kinds[name] = {each.kind for each in propose(asked, PLENTY).candidates}
    assert kinds["fixed"] == {CandidateKind.STAY}
    assert len(kinds["computing"]) > 1


@pytest.mark.parametrize(
    ("more_cores", "has_prior", "is_tried"), [((), False, True), ((2.0, 3.0), False, False), ((), True, False)]
)
def test_a_growth_that_is_not_predicted_to_pay_is_explored_while_its_prediction_may_be_wrong(
    more_cores: tuple[float, ...], has_prior: bool, is_tried: bool
) -> None:
    """By measurements: with a prior, it is its own error that is assumed."""
    true = coefficients((0.2, 0.0, 0.0, 0.0, 0.8))
    sizes = [allocation(4, 2, cores) for cores in (1.0, *more_cores, 1.25)]
    prior = Prior(coefficients=true, source="its twin") if has_prior else None
    job = profile(observations=measure(true, sizes), allocation=sizes[-1], movable=WORKER_SIZE, prior=prior)
    kinds = {each.kind for each in propose(Situation(job, fit_job(job), PRICES), PLENTY).candidates}
    assert kinds == ({CandidateKind.STAY, CandidateKind.EXPLORE} if is_tried else {CandidateKind.STAY})


@pytest.mark.parametrize(("seconds", "is_tried"), [(7200.0, True), (800.0, True), (650.0, False)])
def test_nothing_is_explored_that_the_next_round_has_no_time_to_use(seconds: float, is_tried: bool) -> None:
    """A round takes ten minutes here: of eleven nothing is left in which what was learnt could be used."""
    young_job = young(allocation(1, 1), movable=WORKER_SIZE)
    left = seconds * young_job.samples_per_second
    asked = young(allocation(1, 1), movable=WORKER_SIZE, remaining_samples=left)
    assert horizon_seconds(asked) > asked.job.until_next_change_seconds
    kinds = {each.kind for each in propose(asked, PLENTY).candidates}
    assert (CandidateKind.EXPLORE in kinds) is is_tried


def test_steps_down_do_not_add_up() -> None:
    """A step that alone would cost less than `max_slowdown` is not tried by a job that has already become slower."""
    seen = measure(coefficients((0.05, 0.05, 0.05, 0.05, 0.8)), [allocation(4, 6), allocation(4, 3)])
    job = profile(observations=seen, allocation=allocation(4, 3))
    asked = Situation(job, fit_job(job), PRICES)
    fastest = max(each.allocation.workers * SHAPE.batch_size / each.iteration_seconds for each in seen)
    exploring = [each for each in propose(asked, PLENTY).candidates if each.kind is CandidateKind.EXPLORE]
    assert exploring
    assert min(each.samples_per_second for each in exploring) >= (1.0 - asked.rules.max_slowdown) * fastest


def test_the_notes_describe_missing_measurements() -> None:
    with_workers_alone = propose(young(allocation(1, 1), movable=WORKERS), PLENTY).notes[0]
    assert with_workers_alone.startswith("one size measured, two are needed to predict what others would do")
    with_everything = propose(young(allocation(1, 1), allocation(2, 1)), PLENTY).notes[0]
    assert with_everything.startswith("two sizes measured, five are needed")
    settled = " ".join(propose(situation(), PLENTY).notes)
    assert "20 sizes measured, which the throughput model meets within" in settled
    for notes in (with_workers_alone, with_everything, settled):
        assert not any(word in notes for word in ("RMSLE", "rank", "condition", "inf"))


def proposed(proposal: Proposal) -> int:
    return sum(each.kind in (CandidateKind.GROW, CandidateKind.SAVE) for each in proposal.candidates)


def test_the_notes_say_of_how_many_plans_how_many_are_proposed_or_why_none_is() -> None:
    all_of_them = propose(situation(movable=WORKERS), PLENTY, SearchSettings(most=100))
    count = proposed(all_of_them)
    assert count > 1 and f"plans examined, {count} are proposed for gain or saving" in all_of_them.notes[1]
    few = propose(situation(movable=WORKERS), PLENTY, SearchSettings(most=2))
    assert proposed(few) == 2 and f"plans examined, 2 of the {count} best are proposed" in few.notes[1]
    part = propose(situation(), PLENTY, SearchSettings(exhaustive_points=10, coarse_points=32))
    assert " plans searched in part, " in part.notes[1]
    ending = propose(young(allocation(1, 1), movable=WORKERS, remaining_samples=100.0), PLENTY)
    assert [each.kind for each in ending.candidates] == [CandidateKind.STAY]
    assert ending.notes[1].endswith("none is proposed for gain or saving: each does not fit, or not pay or save enough")


def test_the_notes_count_the_plans_whose_prediction_is_not_trusted_yet() -> None:
    found = propose(young(allocation(4, 1), movable=frozenset({Change.SERVERS})), PLENTY)
    assert proposed(found) == 0 and any(each.kind is CandidateKind.EXPLORE for each in found.candidates)
    words = r"none is proposed for gain or saving: [1-9]\d* would pay, but the prediction is not trusted yet;"
    assert re.search(words, found.notes[1])


LADDERS = st.tuples(
    *(st.sampled_from([(each,), (each, 2 * each), (1.0, 2.0, 4.0, each)]) for each in (8.0, 6.0, 3.0, 1.5)),
    st.just((1.0,)),
)


@given(LADDERS, st.sampled_from([0, 10_000_000]))
def test_as_many_sizes_are_needed_as_parts_of_a_step_differ_in_the_space(
    ladders: tuple[tuple[float, ...], ...], dense_bytes: int
) -> None:
    asked = Situation(profile(shape=msgspec.structs.replace(SHAPE, dense_bytes=dense_bytes)), known_model(), PRICES)
    asked = replace(asked, model=replace(asked.model, shape=asked.job.shape))
    space = Space(ladders, (0,) * 5, 1)
    columns = space.points(space.whole()).columns
    rows_NK = np.column_stack([features(asked.job.shape, columns), np.ones(len(columns))])
    lengths_K = np.linalg.norm(rows_NK, axis=0)
    rank = np.linalg.matrix_rank(rows_NK[:, lengths_K > 0] / lengths_K[lengths_K > 0], tol=1e-6)
    assert sizes_needed(asked, space) == rank
