from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elastrec.platform.scaling.amounts import GIBIBYTE, Allocation, Change, Resources
from elastrec.platform.scaling.policies.static import Static
from elastrec.platform.scaling.policy import View
from elastrec.platform.scaling.types import Coefficients, JobProfile, Plan, Proposal
from elastrec.platform.simulator.node_changes import NodeChange
from elastrec.platform.simulator.nodes import Nodes
from elastrec.platform.simulator.simulation import Settings, Simulation
from elastrec.platform.specs.errors import ScalingError
from tests.platform.simulator.cluster import NODE, PRICES, QUIET, asked, job, run
from tests.platform.simulator.made_up import synthetic

WORKERS = frozenset({Change.WORKERS})
FULL = Resources(12.0, 16.0 * GIBIBYTE)
"""What the pods of `job` have together."""


def test_a_job_alone_takes_its_start_and_its_samples_at_its_speed() -> None:
    (job,) = synthetic(1)
    step = job.step_seconds(job.allocation)
    expected = 60.0 + job.samples / (job.allocation.workers * job.shape.batch_size / step)
    (ended,) = run("static", [job]).jobs
    assert ended.completion_seconds == pytest.approx(expected, rel=1e-6)
    assert ended.core_hours == pytest.approx(job.allocation.resources.cores * expected / 3600, rel=1e-6)
    assert ended.cost == pytest.approx(PRICES.per_hour(job.allocation.resources) * expected / 3600, rel=1e-6)


@pytest.mark.parametrize("policy", ["static", "three-stage", "optimus", "elastic-scheduler"])
def test_every_job_ends_and_equal_seeds_give_equal_results(policy: str) -> None:
    jobs = synthetic(12, movable=WORKERS, mean_seconds=900.0)
    noisy = Settings(seed=3, hours_between_failures=5.0)
    one, other = run(policy, jobs, given=noisy), run(policy, jobs, given=noisy)
    assert one == other
    assert len(one.jobs) == 12
    assert not one.unfinished
    assert not one.problems


def test_another_seed_gives_another_result() -> None:
    jobs = synthetic(5, mean_seconds=900.0)
    assert run("static", jobs, given=Settings(seed=1)) != run("static", jobs, given=Settings(seed=2))


def test_scaling_shortens_jobs_with_too_small_requests() -> None:
    jobs = [
        msgspec.structs.replace(job, allocation=msgspec.structs.replace(job.allocation, workers=1))
        for job in synthetic(8, movable=WORKERS, mean_seconds=7200.0)
    ]
    static, ours = (run(name, jobs).figures() for name in ("static", "three-stage"))
    assert ours["completion_seconds_mean"] < 0.7 * static["completion_seconds_mean"]
    assert ours["changes"] > 0


@pytest.mark.parametrize("starts", [(10.0, 100.0), (100.0, 10.0)], ids=["workers first", "servers first"])
def test_pending_changes_of_workers_and_of_memory_both_take_effect(
    starts: tuple[float, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    # A node full of these pods: a server with more memory starts elsewhere.
    simulation = Simulation([job()], Nodes(20, FULL), Static(), PRICES, QUIET)
    environment, before = simulation._environment, asked()
    environment.process(simulation._life(0, simulation._jobs[0]))
    environment.run(until=100.0)
    running = simulation._running["one"]
    seconds = iter(starts)
    monkeypatch.setattr(simulation, "_start_seconds", lambda random: next(seconds))
    for changed in ({"workers": 5}, {"parameter_server_memory_bytes": 8 * GIBIBYTE}):
        wanted = msgspec.structs.replace(running.held, **changed)
        simulation._apply(Plan(job_id="one", policy="p", before=running.held, allocation=wanted, reason=""))
    both = msgspec.structs.replace(before, workers=5, parameter_server_memory_bytes=8 * GIBIBYTE)
    assert (running.held, running.allocation) == (both, before)
    environment.run(until=150.0)
    first = {"workers": 5} if starts[0] < starts[1] else {"parameter_server_memory_bytes": 8 * GIBIBYTE}
    assert running.allocation == msgspec.structs.replace(before, **first)
    environment.run(until=250.0)
    assert running.allocation == running.held == both


def test_steps_while_pods_start_belong_to_no_configuration() -> None:
    simulation = Simulation([job()], Nodes(20, NODE), Static(), PRICES, QUIET)
    environment = simulation._environment
    environment.process(simulation._life(0, simulation._jobs[0]))
    environment.run(until=100.0)
    running = simulation._running["one"]
    wanted = msgspec.structs.replace(running.held, workers=5)

    def measured() -> dict[Allocation, float]:
        running.pass_time(environment.now)
        seen = running.facts(QUIET.interval_seconds, None).observations
        return {
            each.allocation: round(each.iterations * each.iteration_seconds / each.allocation.workers) for each in seen
        }

    assert measured() == {asked(): 40}
    simulation._apply(Plan(job_id="one", policy="p", before=running.held, allocation=wanted, reason=""))
    environment.run(until=100.0 + QUIET.start_seconds - 1.0)
    assert measured() == {asked(): 40}
    environment.run(until=100.0 + QUIET.start_seconds + 30.0)
    assert measured() == {asked(): 40, wanted: 30}


def test_pods_are_resized_in_place_without_loss_if_their_node_has_room() -> None:
    nodes = Nodes(20, NODE)
    simulation = Simulation([job()], nodes, Static(), PRICES, QUIET)
    environment = simulation._environment
    environment.process(simulation._life(0, simulation._jobs[0]))
    environment.run(until=100.0)
    running = simulation._running["one"]
    before, free = running.placing, nodes.free
    running.slow_workers, running.is_hot = 1, True
    wanted = msgspec.structs.replace(
        running.held, worker_cores=3.0, parameter_server_memory_bytes=8 * GIBIBYTE, workers=5
    )
    simulation._apply(Plan(job_id="one", policy="p", before=running.held, allocation=wanted, reason=""))
    assert running.allocation == msgspec.structs.replace(wanted, workers=4)
    assert (running.placing.workers[:4], running.placing.servers) == (before.workers, before.servers)
    assert (running.slow_workers, running.is_hot) == (1, True)
    assert free - nodes.free == Resources(5 * 3.0 - 4 * 2.0, 2 * GIBIBYTE + 2 * 4 * GIBIBYTE)
    environment.run(until=200.0)
    assert running.allocation == wanted


@pytest.mark.parametrize(
    ("changed", "at_once", "paused"),
    [
        ({"parameter_servers": 1}, {"parameter_servers": 1}, True),
        ({"workers": 2, "parameter_servers": 1}, {"workers": 2, "parameter_servers": 1}, True),
        ({"workers": 2, "parameter_servers": 3}, {"workers": 2}, False),
        ({"workers": 5, "parameter_servers": 1}, {"parameter_servers": 1}, True),
        ({"workers": 2, "worker_cores": 4.0}, {"workers": 2, "worker_cores": 4.0}, False),
        ({"worker_cores": 1.0, "parameter_server_cores": 1.0, "parameter_servers": 3},
         {"worker_cores": 1.0, "parameter_server_cores": 1.0}, False),
    ],
)  # fmt: skip
def test_what_starts_no_pod_takes_effect_at_once(
    changed: dict[str, float], at_once: dict[str, float], paused: bool
) -> None:
    simulation = Simulation([job()], Nodes(20, NODE), Static(), PRICES, QUIET)
    environment = simulation._environment
    environment.process(simulation._life(0, simulation._jobs[0]))
    environment.run(until=100.0)
    running = simulation._running["one"]
    before = running.held
    wanted = msgspec.structs.replace(before, **changed)
    simulation._apply(Plan(job_id="one", policy="p", before=before, allocation=wanted, reason=""))
    assert running.held == wanted
    assert running.allocation == msgspec.structs.replace(before, **at_once)
    running.pass_time(environment.now)
    left = running.remaining
    environment.run(until=100.0 + QUIET.migration_pause_seconds)
    running.pass_time(environment.now)
    assert (running.remaining == left) == paused
    environment.run(until=100.0 + QUIET.start_seconds + QUIET.migration_pause_seconds + 1.0)
    assert running.settled
    assert running.allocation == wanted


@pytest.mark.parametrize(
    ("changed", "node", "seconds"),
    [
        ({"worker_cores": 4.0}, NODE, 0.0),
        ({"parameter_server_cores": 4.0}, NODE, 0.0),
        ({"worker_cores": 4.0}, FULL, 0.0),
        ({"parameter_server_cores": 4.0}, FULL, 30.0),
        ({"workers": 5}, NODE, 0.0),
    ],
)
def test_training_pauses_for_moved_rows_but_not_for_resized_pods_or_replaced_workers(
    changed: dict[str, float], node: Resources, seconds: float
) -> None:
    class Once(Static):
        def select(self, proposals: Sequence[Proposal], view: View) -> Sequence[Plan]:
            return [
                Plan(
                    job_id=each.job_id, policy="once", before=each.allocation, reason="",
                    allocation=msgspec.structs.replace(each.allocation, **changed),
                )
                for each in proposals
                if each.allocation == asked()
            ]  # fmt: skip

    # A step that takes as long with all of these: what differs is the pause.
    same = Coefficients(gradient=0.0, update=0.0, synchronise=0.0, embedding=0.0, fixed=0.1)
    (stays,) = run("static", [job(coefficients=same)]).jobs
    (ended,) = Simulation([job(coefficients=same)], Nodes(20, node), Once(), PRICES, QUIET).run().jobs
    assert ended.changes == 1
    faster = 5 / 4 if "workers" in changed else 1.0
    trained = stays.ended_seconds - 60.0
    # Asked after the first round, held at once; a new pod trains a minute later.
    before = 180.0 + 60.0 - 60.0
    expected = 60.0 + before + (trained - before) / faster + seconds
    assert ended.ended_seconds == pytest.approx(expected, rel=1e-6)


def test_jobs_wait_for_capacity_and_nodes_are_never_overcommitted() -> None:
    jobs = synthetic(10, mean_arrival_seconds=1.0, mean_seconds=600.0)
    figures = run("static", jobs, nodes=2).figures()
    assert figures["waiting_seconds_mean"] > 0
    assert 0 < figures["cores_used"] <= figures["cores_held"] <= 1


def test_failures_make_jobs_longer() -> None:
    jobs = synthetic(6, mean_seconds=7200.0)
    failing = msgspec.structs.replace(QUIET, hours_between_failures=2.0)
    calm, hit = run("static", jobs), run("static", jobs, given=failing)
    assert hit.figures()["failures"] > 5
    assert hit.figures()["completion_seconds_mean"] > calm.figures()["completion_seconds_mean"]


@pytest.mark.parametrize("policy", ["three-stage", "optimus-greedy", "elastic-scheduler"])
def test_a_job_that_never_fits_does_not_keep_others_from_growing(policy: str) -> None:
    one, large = job(seconds=7200.0, allocation=asked(workers=1)), job("large", allocation=asked(workers=999))
    given = msgspec.structs.replace(QUIET, until_seconds=86_400.0)
    (alone,) = run(policy, [one], given=given).jobs
    (beside,) = run(policy, [one, large], given=given).jobs
    assert alone.changes > 0
    assert beside == alone
    # It fits on nodes that come later.
    room = [NodeChange(1000.0, 100)]
    small = msgspec.structs.replace(one, samples=10 * one.samples)
    report = run(policy, [small, large], given=given, node_changes=room)
    assert next(each for each in report.jobs if each.job_id == "large").placed_seconds == 1000.0


def test_a_job_that_never_fits_is_reported_as_unfinished() -> None:
    (job,) = synthetic(1)
    large = msgspec.structs.replace(job, allocation=msgspec.structs.replace(job.allocation, worker_cores=64.0))
    report = run("static", [large], given=msgspec.structs.replace(QUIET, until_seconds=3600.0))
    assert report.unfinished == (job.job_id,)


def test_a_job_that_has_not_ended_has_held_and_used_its_pods() -> None:
    brief = msgspec.structs.replace(QUIET, until_seconds=7200.0)
    # The second one waits all the time; the third one has not arrived.
    endless = [job("one", seconds=1e6), job("two", allocation=asked(workers=60)), job("late", arrival_seconds=1e5)]
    report = run("static", endless, nodes=1, given=brief)
    assert report.unfinished == ("late", "one", "two") and not report.jobs
    figures = report.figures()
    cores, memory = asked().resources.cores, asked().resources.memory_bytes / GIBIBYTE
    seconds = report.seconds
    assert figures["core_hours"] == pytest.approx(cores * seconds / 3600.0)
    assert figures["cost"] == pytest.approx((cores * PRICES.core_hour + memory * PRICES.gibibyte_hour) * seconds / 3600)
    # The cluster's account, which is kept by its nodes, is the same.
    assert figures["cores_held"] * report.core_hours_there == pytest.approx(figures["core_hours"])
    ended = run("static", [job("one")], nodes=1).figures()
    for name in ("worker_cpu_share", "server_cpu_share"):
        assert figures[name] == pytest.approx(ended[name], rel=0.02)


def test_a_job_that_waits_again_keeps_the_account_of_its_lost_pods() -> None:
    brief = msgspec.structs.replace(QUIET, until_seconds=7200.0)
    lost = [NodeChange(3600.0, -1)]
    report = run("static", [job("one", seconds=1e6)], nodes=1, given=brief, node_changes=[*lost, NodeChange(1e6, 1)])
    assert report.unfinished == ("one",)
    assert report.figures()["core_hours"] == pytest.approx(asked().resources.cores)


def test_no_two_streams_of_random_numbers_are_equal(monkeypatch: pytest.MonkeyPatch) -> None:
    states: list[int] = []
    of_seed = np.random.default_rng

    def noted(seed: Sequence[int]) -> np.random.Generator:
        found = of_seed(seed)
        states.append(found.bit_generator.state["state"]["state"])
        return found

    monkeypatch.setattr(np.random, "default_rng", noted)
    jobs = [job(f"job-{number}") for number in range(5)]
    run("static", jobs, given=Settings(seed=2), node_changes=[NodeChange(600.0, -1)])
    # Three of each job, and that of the removed nodes.
    assert len(set(states)) == len(states) == 16


def test_a_policy_that_fails_does_not_stop_the_cluster() -> None:
    class Failing(Static):
        name = "failing"

        def propose(self, job: JobProfile, view: View) -> Proposal:
            raise ZeroDivisionError("oops")

        def select(self, proposals: Sequence[Proposal], view: View) -> Sequence[Plan]:
            raise ZeroDivisionError("oops")

    jobs = synthetic(3, mean_seconds=900.0)
    report = Simulation(jobs, Nodes(20, NODE), Failing(), PRICES, QUIET).run()
    assert len(report.jobs) == 3
    assert sum(report.problems.values()) > 0


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 12), st.floats(0.1, 9.0), st.booleans()), max_size=20))
def test_nodes_lose_and_invent_nothing(steps: list[tuple[int, float, bool]]) -> None:
    nodes, placed = Nodes(3, Resources(8.0, 16.0 * GIBIBYTE)), []
    for pods, cores, give_back in steps:
        if give_back and placed:
            nodes.give_back(*placed.pop())
        each = Resources(cores, 1.0 * GIBIBYTE)
        before = nodes.free
        where = nodes.place(pods, each)
        if where is None:
            assert nodes.free == before
        else:
            assert len(where) == pods
            placed.append((where, each))
        assert nodes.free.cores >= -1e-3
    for pair in placed:
        nodes.give_back(*pair)
    assert nodes.free.cores == pytest.approx(24.0, abs=1e-6)


def test_freeing_unplaced_pods_is_an_error() -> None:
    with pytest.raises(ScalingError, match="never placed"):
        Nodes(1, NODE).give_back([0], Resources(1.0, 1.0))


def test_a_node_of_whole_cores_can_give_a_part_of_one() -> None:
    nodes = Nodes(1, Resources(2, 4 * GIBIBYTE))
    assert nodes.place(1, Resources(0.5, 1.0)) == [0]
    assert nodes.free.cores == 1.5


def test_two_jobs_of_one_name_are_refused() -> None:
    (job,) = synthetic(1)
    with pytest.raises(ScalingError, match="two of one job_id"):
        Simulation([job, job], Nodes(1, NODE), Static(), PRICES)


@pytest.mark.parametrize("field, wrong", [("noise", -1.0), ("interval_seconds", 0.0), ("start_seconds", math.inf)])
def test_settings_that_mean_nothing_are_refused(field: str, wrong: float) -> None:
    with pytest.raises(ScalingError, match=rf"simulation\.{field}"):
        Settings(**{field: wrong})
