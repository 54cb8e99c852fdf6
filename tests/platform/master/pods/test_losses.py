"""Losses of pods that end a job, with the default budgets."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from elastrec.platform.clusters.pods import EndReason
from elastrec.platform.history import metric_names as names
from elastrec.platform.master.machine import events
from elastrec.platform.master.machine.effects import AnswerLease
from elastrec.platform.master.pods.loss_causes import is_taken_away
from elastrec.platform.master.pods.losses import TAKEN_AWAY_PER_RESTART
from elastrec.platform.master.reporting.status import totals
from elastrec.platform.master.service.journal import encode_state
from elastrec.platform.specs.job import FaultTolerance
from elastrec.platform.specs.metrics import Phase, Role
from elastrec.platform.transport.messages.job import Shard
from tests.platform.master.world import World, plan, running
from tests.shapes import shape
from tests.splits import length_of

pytestmark = pytest.mark.usefixtures("fleet")

DEFAULTS = FaultTolerance()
DAY_SECONDS = 86_400.0
KILLED = {"end": EndReason.KILLED, "exit_code": 137}
CRASHED = {"end": EndReason.ERROR, "exit_code": 139}
OUT_OF_MEMORY = {"end": EndReason.OUT_OF_MEMORY, "exit_code": 137}
PREEMPTED = {"end": EndReason.PREEMPTED, "exit_code": None}


def long_job(workers: int = 1, **changes: Any) -> World:
    """A job of 100 million rows in shards of 10 million, with the default budgets, once it trains."""
    values: dict[str, Any] = {
        "training_rows": 100_000_000,
        "shard_rows": 10_000_000,
        "shape": shape(workers, 1),
        "save_interval_seconds": 0.0,
        "lease_seconds": DEFAULTS.lease,
        "shard_attempts": DEFAULTS.shard_attempts,
        "pod_restarts": DEFAULTS.pod_restarts,
    }
    world = World(plan(**(values | changes)))
    start_pods(world)
    restore_servers(world)
    assert world.state.phase is Phase.TRAINING
    return world


def start_pods(world: World) -> None:
    while world.waiting:
        world.start_pod()


def restore_servers(world: World) -> None:
    for name in list(world.up):
        if world.up[name]["role"] is Role.PARAMETER_SERVER:
            world.act(name)


def worker_names(world: World) -> list[str]:
    return sorted(name for name, pod in world.up.items() if pod["role"] is Role.WORKER)


def lease(world: World, pod: str, kind: str = "train") -> Shard:
    world.serial += 1
    effects = world.handle(
        events.ShardsAsked(
            time=world.time,
            pod=pod,
            incarnation=world.up[pod]["incarnation"],
            generation=world.state.phases.generation,
            request_id=str(world.serial),
            count=1,
            kind=kind,
        )
    )
    (answer,) = [effect for effect in effects if isinstance(effect, AnswerLease)]
    return answer.shards[0]


def report(world: World, pod: str, shard: Shard, offset: int) -> None:
    world.handle(
        events.PodReported(
            time=world.time,
            pod=pod,
            incarnation=world.up[pod]["incarnation"],
            generation=world.state.phases.generation,
            reached_version=world.state.phases.version,
            progress=[world.progress(shard, offset)],
        )
    )


def train_and_lose(world: World, rows: int, **how: Any) -> None:
    """The first worker leases, trains some rows, dies, and is replaced."""
    pod = worker_names(world)[0]
    shard = lease(world, pod)
    if rows:
        report(world, pod, shard, shard.offset + rows)
    world.kill(pod, **how)
    start_pods(world)


def save_a_record(world: World) -> None:
    world.handle(events.SaveAsked(time=world.time))
    for _ in range(3):
        for name in list(world.up):
            if world.up[name]["role"] is Role.PARAMETER_SERVER or world.state.saves.quiescing is not None:
                world.act(name)
    world.commit()
    assert world.state.saves.quiescing is None


# What a healthy job on a shared cluster goes through


def test_two_kills_for_memory_with_progress_in_between_are_not_in_a_row():
    world = long_job()
    for day in range(6):
        world.time = day * DAY_SECONDS
        train_and_lose(world, 1_000_000, **OUT_OF_MEMORY)
        assert world.state.phase is Phase.TRAINING, world.state.failure
    assert totals(world.state, world.time)[names.MEMORY_KILLS] == 6


def test_only_kills_for_memory_are_counted_as_such():
    world = long_job()
    for how in (KILLED, CRASHED, PREEMPTED):
        train_and_lose(world, 1_000_000, **how)
    assert totals(world.state, world.time)[names.MEMORY_KILLS] == 0


def test_two_kills_of_a_server_for_memory_with_a_record_in_between_are_not_in_a_row():
    world = long_job()
    for _ in range(5):
        pod = worker_names(world)[0]
        shard = lease(world, pod)
        report(world, pod, shard, length_of(shard))
        save_a_record(world)
        server = next(name for name, up in world.up.items() if up["role"] is Role.PARAMETER_SERVER)
        world.kill(server, **OUT_OF_MEMORY)
        start_pods(world)
        restore_servers(world)
        assert world.state.phase is Phase.TRAINING, world.state.failure


@pytest.mark.parametrize("how", [KILLED, CRASHED, PREEMPTED])
def test_a_worker_that_is_lost_once_a_day_ends_no_job(how: dict[str, Any]):
    world = long_job()
    for day in range(90):
        world.time = day * DAY_SECONDS
        train_and_lose(world, 1_000_000, **how)
        assert world.state.phase is Phase.TRAINING, world.state.failure


@pytest.mark.parametrize("how", [KILLED, CRASHED])
def test_the_budget_grows_with_the_pods_of_a_role(how: dict[str, Any]):
    world = long_job(workers=50)
    for pod in worker_names(world):
        world.time += 60.0
        world.kill(pod, **how)
        assert world.state.phase is Phase.TRAINING, world.state.failure


@pytest.mark.parametrize("how", [KILLED, CRASHED])
def test_a_shard_that_got_further_between_two_losses_is_not_poison(how: dict[str, Any]):
    world = long_job(training_rows=10_000_000)
    for _ in range(2 * DEFAULTS.shard_attempts):
        world.time += 3600.0
        train_and_lose(world, 1_000_000, **how)
        assert world.state.phase is Phase.TRAINING, world.state.failure


@pytest.mark.parametrize(
    "how",
    [KILLED, PREEMPTED, {"end": EndReason.NODE_LOST}, {"end": EndReason.DELETED}, {"end": EndReason.EVICTED}],
)
def test_a_pod_ended_by_the_cluster_does_not_poison_its_shard(how: dict[str, Any]):
    world = long_job()
    for _ in range(2 * DEFAULTS.shard_attempts):
        train_and_lose(world, 0, **how)
    assert world.state.phase is Phase.TRAINING, world.state.failure
    assert not world.state.training.failures


def test_a_worker_that_names_no_shard_blames_none():
    world = long_job()
    for _ in range(2 * DEFAULTS.shard_attempts):
        pod = worker_names(world)[0]
        lease(world, pod)
        incarnation = world.up.pop(pod)["incarnation"]
        world.handle(
            events.PodFailed(time=world.time, pod=pod, incarnation=incarnation, retryable=True, reason="no route")
        )
        start_pods(world)
    assert world.state.phase is Phase.TRAINING and not world.state.training.failures


# What has to end


def crash_workers_for_ever(world: World, **how: Any) -> int:
    for losses in range(100_000):
        if world.state.phase.is_final:
            return losses
        world.time += 1.0
        world.tick()
        pod = worker_names(world)[0]
        lease(world, pod)
        world.kill(pod, **how)
        start_pods(world)
    raise AssertionError("the job goes on for ever")


@pytest.mark.parametrize(
    ("how", "most_losses", "why"),
    [
        (KILLED, TAKEN_AWAY_PER_RESTART * DEFAULTS.pod_restarts + 1, "exit code 137"),
        (PREEMPTED, TAKEN_AWAY_PER_RESTART * DEFAULTS.pod_restarts + 1, "Preempted"),
        (CRASHED, DEFAULTS.pod_restarts + 1, "spec.faults.pod_restarts"),
        (OUT_OF_MEMORY, 2, "spec.resources.worker.memory"),
    ],
)
def test_a_job_whose_worker_always_dies_at_its_start_fails_with_the_reason(
    how: dict[str, Any], most_losses: int, why: str
):
    world = long_job()
    assert crash_workers_for_ever(world, **how) == most_losses
    assert why in world.state.failure


def test_a_job_whose_workers_die_before_they_lease_ends_with_the_reason():
    world = long_job()
    for _ in range(DEFAULTS.pod_restarts):
        world.kill(worker_names(world)[0], **CRASHED)
        start_pods(world)
    assert world.state.phase is Phase.TRAINING
    world.kill(worker_names(world)[0], **CRASHED)
    assert "pod j-worker-0 failed 21 times in a row" in world.state.failure
    assert "spec.faults.pod_restarts 20" in world.state.failure


def test_records_of_the_same_rows_do_not_refill_the_budget():
    world = long_job()
    losses = 0
    while not world.state.phase.is_final and losses < 1000:
        losses += 1
        save_a_record(world)
        world.kill(worker_names(world)[0], **CRASHED)
        start_pods(world)
    assert losses == DEFAULTS.pod_restarts + 1
    assert "pod_restarts" in world.state.failure


@pytest.mark.parametrize(("how", "limit"), [(CRASHED, 20), (KILLED, 100)])
def test_a_server_that_dies_before_every_record_ends_the_job(how: dict[str, Any], limit: int):
    world = long_job()
    losses = 0
    while not world.state.phase.is_final and losses < 1000:
        losses += 1
        worker = worker_names(world)[0]
        shard = lease(world, worker)
        report(world, worker, shard, shard.offset + 1000)
        world.kill(next(name for name, up in world.up.items() if up["role"] is Role.PARAMETER_SERVER), **how)
        start_pods(world)
        restore_servers(world)
    assert losses == limit + 1 and "pod j-ps-0" in world.state.failure


def test_a_shard_that_crashes_its_workers_at_the_same_row_is_poison():
    world = long_job(training_rows=10_000_000)
    train_and_lose(world, 1_000_000, **CRASHED)
    train_and_lose(world, 1_000_000, **CRASHED)
    for _ in range(DEFAULTS.shard_attempts - 1):
        assert world.state.phase is Phase.TRAINING
        train_and_lose(world, 0, **KILLED)
        train_and_lose(world, 0, **CRASHED)
    assert "training shard 0 (rows 0 to 9999999 of epoch 0) failed 4 times in a row" in world.state.failure


def test_an_evaluation_shard_that_crashes_its_workers_at_the_same_row_is_poison():
    world = long_job(evaluation_rows=10, training_rows=10, shard_rows=10)
    until(world, lambda: world.state.phase is Phase.EVALUATING)
    for _ in range(DEFAULTS.shard_attempts):
        assert world.state.phase is Phase.EVALUATING
        pod = worker_names(world)[0]
        world.up[pod]["shards"].clear()
        shard = lease(world, pod, "evaluate")
        assert shard.offset == 0
        report(world, pod, shard, 5)
        world.kill(pod, **CRASHED)
        start_pods(world)
    assert "evaluation shard 0" in world.state.failure


def until(world: World, reached: Callable[[], bool]) -> None:
    for _ in range(100):
        if reached():
            return
        for name in list(world.up):
            world.act(name)
        world.commit()
    raise AssertionError(world.state.phase)


def test_a_pod_is_blamed_only_for_failures_of_its_own():
    blamed = {EndReason.ERROR, EndReason.BAD_INPUT, EndReason.OUT_OF_MEMORY}
    assert {end for end in EndReason if not is_taken_away(end)} == blamed


@pytest.mark.parametrize("end", [EndReason.NODE_LOST, EndReason.KILLED])
def test_a_pod_of_a_lost_node_is_deleted_and_others_are_kept_for_their_logs(end: EndReason):
    world = running()
    uid = world.up["j-worker-1"]["uid"]
    if end is EndReason.NODE_LOST:
        world.plane.lose_node(uid)
        world.reconcile()
    else:
        world.kill("j-worker-1", end=end)
    assert "j-worker-1-r1" in world.state.membership.members
    assert (uid in world.plane.pods) is (end is not EndReason.NODE_LOST)
    assert not world.state.membership.leaving


def test_a_late_word_about_an_earlier_pod_of_a_name_changes_nothing():
    world = long_job()
    (pod,) = worker_names(world)
    before = encode_state(world.state)
    for uid in ("an-earlier-pod", ""):
        effects = world.handle(events.PodGone(time=world.time, pod=pod, uid=uid, end=EndReason.KILLED))
        assert effects == [] and encode_state(world.state) == before
    world.handle(events.PodSeen(time=world.time, pod=pod, uid="a-later-pod"))
    world.kill(pod)
    assert pod not in world.state.membership.members
