from __future__ import annotations

import math

import msgspec
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from elastrec.platform.scaling.model.columns import Columns
from elastrec.platform.scaling.model.step_form import Form
from elastrec.platform.scaling.model.throughput import fit_job
from elastrec.platform.scaling.search.objectives import Rules, Situation, measured_overheads
from elastrec.platform.scaling.types import Overheads
from elastrec.platform.specs.errors import ScalingError
from tests.platform.scaling.jobs import (
    PRICES,
    SHAPE,
    allocation,
    coefficients,
    horizon_seconds,
    known_model,
    measure,
    profile,
    situation,
    speed,
)

TRUE = coefficients()
FREE_STARTS = {
    "worker_start_seconds": 0.0, "server_start_seconds": 0.0,
    "worker_start_core_seconds": 0.0, "server_start_core_seconds": 0.0,
}  # fmt: skip


def test_cost_is_the_price_of_the_added_resources() -> None:
    outcomes = situation().outcomes(Columns.of([allocation(4, 1)]))
    # Two more workers of one core and 2 GiB.
    assert outcomes.cost_per_hour[0] == pytest.approx(2 * (0.04 + 2 * 0.005))


def test_gain_is_speed_less_the_cost_of_starting_pods() -> None:
    overheads = Overheads(worker_start_seconds=360, worker_start_core_seconds=0)
    asked = Situation(profile(), known_model(), PRICES, overheads)
    outcomes = asked.outcomes(Columns.of([allocation(4, 1)]))
    difference = speed(TRUE, allocation(4, 1)) - speed(TRUE, allocation(2, 1))
    # An hour to pay for itself, so a tenth of the gain is lost; training itself does not stop for workers.
    assert outcomes.gain[0] == pytest.approx(0.9 * difference, rel=1e-3)


def test_a_change_of_servers_stops_the_training_for_a_while() -> None:
    overheads = Overheads(migration_pause_seconds=30, **FREE_STARTS)
    asked = Situation(profile(), known_model(), PRICES, overheads)
    outcomes = asked.outcomes(Columns.of([allocation(2, 2), allocation(3, 1)]))
    assert outcomes.overhead[0] == pytest.approx(speed(TRUE, allocation(2, 1)) * 30 / 3600, rel=1e-3)
    assert outcomes.overhead[1] == 0


def test_starting_pods_cost_the_training_of_their_core_seconds() -> None:
    overheads = Overheads(
        migration_pause_seconds=0, **FREE_STARTS | {"worker_start_core_seconds": 6, "server_start_core_seconds": 2}
    )
    now = allocation(2, 1, worker_cores=1.0, server_cores=0.5)
    larger_workers = msgspec.structs.replace(now, workers=3, worker_memory_bytes=2 * now.worker_memory_bytes)
    larger_servers = msgspec.structs.replace(now, parameter_servers=4, parameter_server_cores=1.0)
    plans = {
        msgspec.structs.replace(now, workers=5): 3 * 6,
        msgspec.structs.replace(now, parameter_servers=3): 2 * 2,
        msgspec.structs.replace(now, workers=5, parameter_servers=3): 3 * 6 + 2 * 2,
        larger_workers: 3 * 6,
        larger_servers: 4 * 2,
        msgspec.structs.replace(now, workers=1): 0,
        msgspec.structs.replace(now, workers=4, worker_cores=0.5): 2 * 6,
        msgspec.structs.replace(now, worker_memory_bytes=now.worker_memory_bytes // 2): 0,
        msgspec.structs.replace(now, parameter_server_cores=0.25): 0,
    }
    asked = Situation(profile(allocation=now), known_model(), PRICES, overheads)
    outcomes = asked.outcomes(Columns.of(list(plans)))
    for overhead, core_seconds in zip(outcomes.overhead, plans.values(), strict=True):
        assert overhead == pytest.approx(asked.samples_per_second * core_seconds / 2.5 / 3600, rel=1e-6)


def test_a_small_job_that_ends_soon_starts_no_pods_that_a_long_one_starts() -> None:
    now, more = allocation(1, 1, 0.25, 0.25), allocation(3, 1, 0.25, 0.25)
    overheads = Overheads(**FREE_STARTS | {"worker_start_core_seconds": 6})

    def violation(seconds: float) -> float:
        job = profile(allocation=now, remaining_samples=seconds * speed(TRUE, now))
        return float(Situation(job, known_model(), PRICES, overheads).outcomes(Columns.of([more])).violation[0])

    assert violation(3600.0) <= 0 < violation(30.0)


def test_copying_rows_delays_the_gain_of_a_change_of_servers_without_a_pause() -> None:
    overheads = Overheads(
        migration_pause_seconds=0, migration_copy_seconds=300, **FREE_STARTS | {"server_start_seconds": 60}
    )
    asked = Situation(profile(), known_model(), PRICES, overheads)
    outcomes = asked.outcomes(Columns.of([allocation(2, 2), allocation(3, 1)]))
    difference = speed(TRUE, allocation(2, 2)) - speed(TRUE, allocation(2, 1))
    assert outcomes.overhead[0] == pytest.approx(difference * 360 / 3600, rel=0.02)


def test_a_job_that_is_about_to_end_gains_nothing() -> None:
    ending = situation(remaining_samples=speed(TRUE, allocation()) * 20.0)
    assert ending.outcomes(Columns.of([allocation(8, 1)])).gain[0] <= 0
    ended = situation(remaining_samples=0.0)
    outcomes = ended.outcomes(Columns.of([allocation(8, 1)]))
    assert outcomes.gain[0] <= 0
    assert outcomes.violation[0] > 0


def test_staying_fits_the_capacity_but_is_not_a_plan() -> None:
    outcomes = situation().outcomes(Columns.of([allocation()]))
    assert (outcomes.gain[0], outcomes.cost_per_hour[0]) == (0, 0)
    assert outcomes.violation[0] > 0


def test_a_job_that_scales_linearly_gives_nothing_back() -> None:
    linear = coefficients((1.0, 0.0, 0.0, 0.0, 0.0))
    asked = situation(linear, allocation=allocation(40, 1))
    assert asked.outcomes(Columns.of([allocation(39, 1)])).violation[0] > 0


def test_a_job_whose_servers_are_the_bottleneck_gives_workers_back() -> None:
    bound = coefficients((0.05, 0.9, 0.0, 0.0, 0.05))
    asked = situation(bound, allocation=allocation(40, 1))
    outcomes = asked.outcomes(Columns.of([allocation(30, 1), allocation(2, 1)]))
    assert outcomes.violation[0] <= 0 < outcomes.violation[1]
    assert outcomes.cost_per_hour[0] < 0


def test_small_savings_do_not_add_up_to_a_large_slowdown() -> None:
    bound = coefficients((0.05, 0.9, 0.0, 0.0, 0.05))
    before = speed(bound, allocation(40, 1))
    trained_with = measure(bound, [allocation(30, 1), allocation(40, 1), allocation(20, 1)])
    asked = situation(bound, allocation=allocation(20, 1), observations=trained_with)
    outcomes = asked.outcomes(Columns.of([allocation(workers, 1) for workers in range(1, 20)]))
    kept = outcomes.samples_per_second[outcomes.violation <= 0]
    assert (kept >= 0.95 * before).all()


def test_small_savings_do_not_add_up_although_the_fastest_allocation_was_neither_the_first_nor_the_last() -> None:
    bound = coefficients((0.05, 0.9, 0.0, 0.0, 0.05))
    fastest, here = allocation(40, 1, server_cores=2.0), allocation(40, 1)
    trained_with = measure(bound, [allocation(1, 1), fastest, here])
    asked = situation(bound, allocation=here, observations=trained_with)
    assert asked.reference == pytest.approx(speed(bound, fastest), rel=0.01)


def test_a_plan_without_loss_may_save_even_if_the_job_was_faster_before() -> None:
    here = allocation(2, 1)
    asked = situation(allocation=here, observations=measure(TRUE, [allocation(16, 4), here]))
    assert asked.reference > 2 * asked.samples_per_second
    less = msgspec.structs.replace(here, worker_memory_bytes=here.worker_memory_bytes // 4)
    outcomes = asked.outcomes(Columns.of([less, allocation(1, 1)]))
    assert outcomes.violation[0] <= 0 < outcomes.violation[1]


@settings(max_examples=80, deadline=None)
@given(
    st.lists(st.floats(0.0, 1.0), min_size=7, max_size=7), st.floats(1.0, 8.0), st.integers(1, 40), st.integers(1, 40),
    st.integers(1, 8),
)  # fmt: skip
def test_more_workers_never_make_a_job_slower_for_any_coefficients(
    parts: list[float], overlap: float, few: int, more: int, servers: int
) -> None:
    assume(sum(parts) > 0.1)
    form = Form(overlap, by_request=True)
    rows_NK = form.rows(SHAPE, Columns.of([allocation(few, servers), allocation(few + more, servers)]))
    # Each part as a share of a step of the fewer workers, all of them at least 0.
    theta_K = np.array(parts) / np.where(rows_NK[0] > 0, rows_NK[0], 1.0)
    before, after = np.array([few, few + more]) / form.seconds(rows_NK, theta_K)
    assert after >= before * (1.0 - 1e-9)


def test_only_workers_are_added_on_a_prediction_that_is_not_to_be_trusted() -> None:
    here = allocation(1, 4)
    job = profile(allocation=here, observations=measure(TRUE, [here]))
    bold = [allocation(12, 4), allocation(12, 6), allocation(12, 4, worker_cores=2.0), allocation(12, 4, 1.0, 2.0)]
    outcomes = Situation(job, fit_job(job), PRICES).outcomes(Columns.of(bold))
    assert (outcomes.relative_error > 0.25).all() and (outcomes.against_rules <= 0).all()
    assert (outcomes.violation <= 0).tolist() == [True, False, False, False]


def test_a_job_with_a_temporarily_slow_server_keeps_its_workers() -> None:
    """Its steps were measured in two sizes, in the last one while servers took twice as long."""
    few, here = allocation(8, 2), allocation(12, 2)
    slow = coefficients((0.6, 0.2, 0.1, 0.3, 0.1))
    young = profile(allocation=here, observations=(*measure(TRUE, [few]), *measure(slow, [here])))
    taking = Columns.of([allocation(9, 2)])
    outcomes = Situation(young, fit_job(young), PRICES).outcomes(taking)
    assert outcomes.relative_error[0] < 0.25
    assert outcomes.against_rules[0] <= 0 < outcomes.violation[0]
    idle = coefficients((0.02, 0.9, 0.0, 0.03, 0.05))
    known = situation(idle, allocation=here).outcomes(taking)
    assert known.violation[0] <= 0


def test_a_few_of_many_workers_may_leave_even_with_a_poor_model() -> None:
    """Two of twelve do at most a sixth of the work, four up to a third, which is more than `max_slowdown`."""
    few, here = allocation(8, 2), allocation(12, 2)
    slow = coefficients((0.6, 0.6, 0.3, 0.9, 0.1))
    job = profile(allocation=here, observations=(*measure(TRUE, [few]), *measure(slow, [here])))
    asked = Situation(job, fit_job(job), PRICES, rules=Rules(max_slowdown=0.3))
    outcomes = asked.outcomes(Columns.of([allocation(10, 2), allocation(8, 2)]))
    assert (outcomes.relative_error > asked.rules.trusted_error).all() and (outcomes.against_rules <= 0).all()
    assert (outcomes.violation <= 0).tolist() == [True, False]


shares = st.lists(st.floats(0.01, 1), min_size=5, max_size=5)
places = st.tuples(
    st.integers(1, 30), st.integers(1, 8), st.sampled_from([0.5, 1.0, 2.0, 4.0]), st.sampled_from([0.5, 1.0, 2.0])
)


@settings(max_examples=80, deadline=None)
@given(shares, st.lists(places, min_size=3, max_size=6, unique=True))
def test_allowed_plans_never_form_a_cycle(
    given_shares: list[float], stops: list[tuple[int, int, float, float]]
) -> None:
    total = sum(given_shares)
    model = known_model(coefficients([share / total for share in given_shares]))
    allocations = [allocation(w, p, cw, cp) for w, p, cw, cp in stops]
    is_allowed = {}
    for here in allocations:
        asked = Situation(profile(allocation=here, observations=()), model, PRICES, Overheads())
        violation = asked.outcomes(Columns.of(allocations)).violation
        is_allowed[here] = [there for k, there in enumerate(allocations) if violation[k] <= 0 and there != here]
    # A graph without a cycle can be taken apart leaf by leaf.
    left = set(allocations)
    while left:
        ends = {each for each in left if not left.intersection(is_allowed[each])}
        assert ends, "a job could go round in these allocations"
        left -= ends


@settings(deadline=None)
@given(st.floats(0, 1), st.floats(0, 1))
def test_rules_under_which_a_job_could_flap_are_refused(save: float, grow: float) -> None:
    assume(save >= grow)
    with pytest.raises(ScalingError, match="save < grow"):
        Rules(save_efficiency=save, grow_efficiency=grow)


def test_overheads_are_medians_of_measurements() -> None:
    found = measured_overheads([10, 30, 20], [], [2.0], [], [7, 5], [0.5])
    assert found == Overheads(
        worker_start_seconds=20, migration_pause_seconds=2.0, worker_start_core_seconds=6,
        server_start_core_seconds=0.5, measured=4,
    )  # fmt: skip


@pytest.mark.parametrize("wrong", [math.nan, -1.0])
def test_a_start_that_took_no_time_that_there_is_is_refused(wrong: float) -> None:
    with pytest.raises(ScalingError, match="worker_start_seconds"):
        measured_overheads([10.0, wrong], [], [])


def test_a_change_must_pay_within_an_hour_or_the_rest_of_the_job() -> None:
    now = speed(TRUE, allocation())
    assert horizon_seconds(situation()) == 3600
    assert horizon_seconds(situation(remaining_samples=100 * now)) == pytest.approx(100, rel=1e-6)


def test_a_change_has_at_least_until_the_next_one_is_possible_to_pay_for_itself() -> None:
    job = msgspec.structs.replace(profile(), until_next_change_seconds=60.0)
    for payback, horizon in ((0.0, 60), (90.0, 90)):
        asked = Situation(job, known_model(), PRICES, rules=Rules(payback_seconds=payback))
        assert horizon_seconds(asked) == horizon


def test_a_plan_must_pay_within_the_remaining_time_of_the_job() -> None:
    pause = Overheads(migration_pause_seconds=30.0, **FREE_STARTS)
    now, then = (speed(TRUE, each) for each in (allocation(2, 1), allocation(8, 4)))
    job = profile(remaining_samples=600.0 * now)
    outcomes = Situation(job, known_model(), PRICES, pause).outcomes(Columns.of([allocation(8, 4)]))
    assert then > 2 * now
    assert outcomes.overhead[0] == pytest.approx(now * 30.0 / (600.0 * now / then), rel=0.01)


def test_savings_count_from_when_the_new_pods_train() -> None:
    large = allocation(worker_cores=16.0)
    smaller = msgspec.structs.replace(large, worker_cores=8.0)
    other = msgspec.structs.replace(smaller, worker_memory_bytes=large.worker_memory_bytes + 2**28)
    bound = coefficients((0.05, 0.9, 0.0, 0.0, 0.05))

    def violations(seconds: float) -> list[float]:
        left = seconds * speed(bound, large)
        asked = situation(bound, allocation=large, remaining_samples=left)
        return asked.outcomes(Columns.of([smaller, other])).violation.tolist()

    # Smaller workers are resized where they are, and save until the end.
    assert [each <= 0 for each in violations(3600.0)] == [True, True]
    # Workers with more memory train after a minute: of 55 s they save nothing, of 62 s less than the least change.
    assert [each <= 0 for each in violations(62.0)] == [True, False]
    assert [each <= 0 for each in violations(55.0)] == [True, False]


@pytest.mark.parametrize(("costs", "saves"), [({"server_start_seconds": 3600.0}, True), ({"copy": 3600.0}, False)])
def test_fewer_servers_save_when_their_rows_are_copied_without_a_start(costs: dict[str, float], saves: bool) -> None:
    overheads = Overheads(
        server_start_seconds=costs.get("server_start_seconds", 0.0), migration_copy_seconds=costs.get("copy", 0.0),
        migration_pause_seconds=0.0,
    )  # fmt: skip
    bound = coefficients((0.9, 0.05, 0.0, 0.0, 0.05))
    job = profile(allocation=allocation(2, 8), observations=())
    fewer = Situation(job, known_model(bound), PRICES, overheads).outcomes(Columns.of([allocation(2, 4)]))
    assert (fewer.violation[0] <= 0) == saves


def test_fewer_workers_save_until_the_end() -> None:
    bound = coefficients((0.05, 0.9, 0.0, 0.0, 0.05))
    left = 55.0 * speed(bound, allocation(40, 1))
    asked = situation(bound, allocation=allocation(40, 1), remaining_samples=left)
    assert asked.outcomes(Columns.of([allocation(30, 1)])).violation[0] <= 0


def test_servers_that_are_far_too_large_shrink_although_that_costs_a_pause() -> None:
    large = allocation(server_cores=16.0)
    job = profile(allocation=large, until_next_change_seconds=180.0, observations=())
    pause = Overheads(migration_pause_seconds=30.0, server_start_seconds=60.0)
    smaller = Columns.of([msgspec.structs.replace(large, parameter_server_cores=4.0)])

    def violation(payback: float) -> float:
        rules = Rules(payback_seconds=payback)
        return float(Situation(job, known_model(), PRICES, pause, rules).outcomes(smaller).violation[0])

    assert violation(3600.0) <= 0 < violation(0.0)


@pytest.mark.parametrize("wrong", [math.nan, math.inf, -1.0])
def test_an_invalid_payback_time_is_refused(wrong: float) -> None:
    with pytest.raises(ScalingError, match=r"rules\.payback_seconds"):
        Rules(payback_seconds=wrong)
