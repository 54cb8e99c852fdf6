from __future__ import annotations

import itertools
import math

import msgspec
import numpy as np
import pytest
import simpy

from elastrec.platform.scaling.amounts import Allocation, Change
from elastrec.platform.scaling.policies.static import Static
from elastrec.platform.scaling.policy import View
from elastrec.platform.scaling.types import JobProfile, Proposal
from elastrec.platform.simulator.nodes import Nodes
from elastrec.platform.simulator.placing import Part, Placing
from elastrec.platform.simulator.running import Running
from elastrec.platform.simulator.settings import BY_HAND, Handling, Settings
from elastrec.platform.simulator.simulation import Simulation
from elastrec.platform.simulator.troubles import Troubles
from tests.platform.simulator.cluster import NODE, PRICES, QUIET, asked, growing, job, run

NEVER = Handling(straggler_seconds=math.inf, hot_server_seconds=math.inf)


def with_handling(handling: Handling, given: Settings = QUIET) -> Settings:
    return msgspec.structs.replace(given, handling=handling)


def jct(*, handling: Handling = NEVER, policy: str = "static", **changed: object) -> float:
    (ended,) = run(policy, [job(**changed)], given=with_handling(handling)).jobs
    return ended.completion_seconds


def test_with_dynamic_shards_a_slow_worker_only_costs_its_own_part() -> None:
    calm, slow = jct(straggles=False), jct(straggles=True)
    fixed_parts = jct(straggles=True, handling=msgspec.structs.replace(NEVER, dynamic_sharding=False))
    assert calm < slow < fixed_parts
    # Three of four workers go on as they did; the fourth computes three times as long, from half of the job at latest.
    assert slow < calm * 4 / (3 + 0.1 / 0.2) + 1


def test_a_replaced_straggler_costs_less_than_a_remaining_one() -> None:
    assert jct(straggles=True, handling=Handling()) < jct(straggles=True)


def test_a_hot_server_holds_up_every_worker_until_it_is_replaced() -> None:
    calm, hot, replaced = jct(is_hot=False), jct(is_hot=True), jct(is_hot=True, handling=Handling())
    assert calm < replaced < hot
    # Servers have 40 % of a step, three times as long for at least half of the job.
    assert hot > calm + 0.5 * 2 * 0.4 * 3600 - 1


def test_the_share_of_jobs_that_are_hit_is_the_settings() -> None:
    jobs = [job(f"job-{index}", seconds=600.0) for index in range(60)]
    calm = run("static", jobs).figures()["completion_seconds_mean"]
    hit = msgspec.structs.replace(with_handling(NEVER), straggler_share=1.0)
    some = msgspec.structs.replace(with_handling(NEVER), straggler_share=0.3)
    all_hit = run("static", jobs, given=hit).figures()["completion_seconds_mean"]
    some_hit = run("static", jobs, given=some)
    slow = sum(each.completion_seconds > 670 for each in some_hit.jobs)
    assert calm < some_hit.figures()["completion_seconds_mean"] < all_hit
    assert 8 <= slow <= 28


def test_every_policy_meets_the_same_trouble() -> None:
    jobs = [job(f"job-{index}", seconds=1200.0, movable=frozenset()) for index in range(20)]
    hit = msgspec.structs.replace(with_handling(NEVER), straggler_share=0.3, hot_server_share=0.3)
    one, other = (run(policy, jobs, given=hit) for policy in ("static", "three-stage"))
    assert [each.ended_seconds for each in one.jobs] == pytest.approx([each.ended_seconds for each in other.jobs])


FAILING = msgspec.structs.replace(QUIET, hours_between_failures=10.0)


def failing(seed: int, allocation: Allocation) -> tuple[simpy.Environment, Running]:
    """A job that trains, and whose pods fail."""
    environment = simpy.Environment()
    running = Running(job(seconds=1e9), allocation, None, environment, FAILING, np.random.default_rng(0))
    running.take_place(Placing(), 0.0)
    running.begin(0.0)
    Troubles(environment, FAILING, lambda random: 60.0).begin(running, seed, 0)
    return environment, running


def with_workers(running: Running, workers: int) -> None:
    now = running._environment.now
    running.change_to(msgspec.structs.replace(running.held, workers=workers), Placing(), now)
    running.reach(Part(("workers",)), now)
    running.wake()


@pytest.mark.parametrize("change", ["none", "more workers", "evicted"])
def test_pods_fail_after_a_time_that_they_have_trained_together(change: str) -> None:
    shape = FAILING.failure_shape
    pod_seconds = np.random.default_rng([1, 0, 2]).gamma(shape, FAILING.hours_between_failures * 3600.0 / shape)
    environment, running = failing(1, asked(workers=4, servers=2))
    changed_at = pod_seconds / 12
    environment.run(until=changed_at)
    if change == "none":
        expected = pod_seconds / 6
    elif change == "more workers":
        with_workers(running, 18)
        expected = changed_at + pod_seconds / 2 / 20
    else:
        running.evict(changed_at)
        environment.run(until=changed_at + 5000.0)
        running.take_place(Placing(), environment.now)
        running.begin(environment.now)
        expected = changed_at + 5000.0 + pod_seconds / 2 / 6
    environment.run(until=expected - 1e-3)
    assert running.counts["failures"] == 0
    environment.run(until=expected + 1e-3)
    assert running.counts["failures"] == 1


def test_each_pod_that_is_there_fails_with_equal_probability(monkeypatch: pytest.MonkeyPatch) -> None:
    lost: list[str] = []
    monkeypatch.setattr(Running, "lose_server", lambda running, pause, now: lost.append("server"))
    monkeypatch.setattr(Running, "lose_worker", lambda running, now: lost.append("worker"))
    for seed in range(100):
        environment, running = failing(seed, asked(workers=20, servers=2))
        environment.run(until=1.0)
        with_workers(running, 2)
        while len(lost) == seed:
            environment.step()
    assert 35 < lost.count("server") < 65


def test_a_lost_server_undoes_the_training_since_the_checkpoint() -> None:
    often = Settings(seed=2, noise=0.0, start_spread=0.0, hours_between_failures=4.0)
    often_saved = with_handling(Handling(checkpoint_seconds=30.0), often)
    seldom_saved = with_handling(Handling(checkpoint_seconds=3000.0), often)
    jobs = [job(f"job-{index}") for index in range(10)]
    saved, lost = (run("static", jobs, given=given).figures() for given in (often_saved, seldom_saved))
    assert saved["failures"] > 5
    assert lost["completion_seconds_mean"] > saved["completion_seconds_mean"]


def test_tables_that_outgrow_their_server_end_the_job_without_a_forecast_and_not_with_one() -> None:
    full = growing(job(), needed_at_end=1.5)
    by_hand = run("static", [full], given=with_handling(msgspec.structs.replace(Handling(), memory_forecast=False)))
    warned = run("static", [full])
    assert by_hand.figures()["out_of_memory_share"] == 1.0
    assert warned.figures()["out_of_memory_share"] == 0.0
    (late,), (early,) = by_hand.jobs, warned.jobs
    assert late.completion_seconds > early.completion_seconds + Handling().resubmit_seconds
    assert early.allocation.parameter_server_memory_bytes > full.allocation.parameter_server_memory_bytes
    assert late.allocation.parameter_server_memory_bytes == 2 * full.allocation.parameter_server_memory_bytes


def test_servers_get_the_memory_that_a_forecast_asks_for_also_where_plans_move_workers_alone() -> None:
    full = growing(job(movable=frozenset({Change.WORKERS})), needed_at_end=1.5)
    (ended,) = run("three-stage", [full]).jobs
    assert ended.out_of_memory == 0
    before, after = full.allocation, ended.allocation
    assert after.parameter_server_memory_bytes > before.parameter_server_memory_bytes
    servers = (before.parameter_servers, before.parameter_server_cores)
    assert (after.parameter_servers, after.parameter_server_cores) == servers


def test_the_first_round_can_prevent_an_early_memory_failure() -> None:
    full = growing(job(seconds=600.0), needed_at_end=1.5)
    (ended,) = run("static", [full]).jobs
    assert ended.out_of_memory == 0
    assert ended.changes == 1


def test_a_simulated_master_gives_memory_if_the_first_round_is_too_late() -> None:
    # The first round comes after its end; its servers are full after some minutes.
    full = growing(job(seconds=1200.0), needed_at_end=2.0)
    seldom = msgspec.structs.replace(QUIET, interval_seconds=3_600.0)
    (ended,) = run("static", [full], given=seldom).jobs
    assert ended.out_of_memory == 0 and ended.changes > 0
    nobody = with_handling(msgspec.structs.replace(Handling(), memory_forecast=False), seldom)
    (killed,) = run("static", [full], given=nobody).jobs
    assert killed.out_of_memory == 1


@pytest.mark.parametrize("policy", ["static", "three-stage"])
def test_only_memory_is_forecast_for_a_job_that_lacks_a_worker(policy: str) -> None:
    lacking = job(pods_up=((0.0, 3, 2),))
    full = growing(lacking, needed_at_end=1.5)
    (ended,) = run(policy, [full]).jobs
    assert ended.out_of_memory == 0
    before, after = full.allocation, ended.allocation
    assert after.parameter_server_memory_bytes > before.parameter_server_memory_bytes
    assert (after.workers, after.worker_cores) == (before.workers, before.worker_cores)
    (ended,) = run(policy, [growing(lacking, needed_at_end=0.5)]).jobs
    assert ended.changes == 0


def test_memory_is_checked_in_every_round() -> None:
    looked: list[float] = []

    class Noting(Static):
        def propose(self, job: JobProfile, view: View) -> Proposal:
            assert job.memory is not None
            looked.append(job.memory.embedding_bytes)
            return super().propose(job, view)

    Simulation([growing(job(), needed_at_end=0.5)], Nodes(20, NODE), Noting(), PRICES, QUIET).run()
    assert len(looked) > 10
    assert all(one != other for one, other in itertools.pairwise(looked))


def test_a_job_with_memory_enough_is_left_alone() -> None:
    (ended,) = run("static", [growing(job(), needed_at_end=0.5)]).jobs
    assert ended.changes == 0
    assert ended.out_of_memory == 0


def test_a_policy_that_knows_the_need_gives_memory_back() -> None:
    small = growing(job(seconds=7200.0), needed_at_end=0.2)
    (ended,) = run("three-stage", [small]).jobs
    assert ended.out_of_memory == 0
    assert ended.allocation.parameter_server_memory_bytes < small.allocation.parameter_server_memory_bytes


def test_work_by_hand_is_never_quicker() -> None:
    jobs = [growing(job(f"job-{index}"), needed_at_end=0.8 + 0.05 * index) for index in range(8)]
    hit = Settings(seed=1, straggler_share=0.3, hot_server_share=0.3, hours_between_failures=50.0)
    ours = run("static", jobs, given=hit).figures()
    by_hand = run("static", jobs, given=with_handling(BY_HAND, hit)).figures()
    assert by_hand["completion_seconds_mean"] > 1.1 * ours["completion_seconds_mean"]
    assert by_hand["out_of_memory_share"] > 0


def test_memory_is_full_at_exactly_the_defined_sample() -> None:
    full = growing(job(), needed_at_end=1.25)
    assert full.memory is not None
    limit = float(full.allocation.parameter_server_memory_bytes)
    samples = full.memory.samples_until(2, limit)
    assert full.memory.server_bytes(2, samples) == pytest.approx(limit)
    assert samples < full.samples
