"""Changes of pods without progress are undone before the hand-over, with a reason; others are not."""

from __future__ import annotations

import random

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elastrec.platform.master.machine import events
from elastrec.platform.master.machine.effects import Decided
from elastrec.platform.master.machine.migration import COPYING, HANDING_OVER, STARTING
from elastrec.platform.master.machine.stalls import words
from elastrec.platform.master.measuring.migration_profile import MigrationProfile
from elastrec.platform.master.measuring.monitor import PodSample
from elastrec.platform.master.reporting.status import training_metrics
from elastrec.platform.master.service.journal import decode_state, encode_state
from elastrec.platform.specs.metrics import Phase, Role
from elastrec.platform.transport.messages.job import CopyProgress
from elastrec.platform.transport.messages.observer import PodMove, ShapeOutcome
from tests.platform.master.disturbing import disturb
from tests.platform.master.machine.test_migration import check, go_on, owners
from tests.platform.master.world import World, plan, running
from tests.shapes import change

pytestmark = pytest.mark.usefixtures("fleet")
LIMIT_SECONDS = 100.0
NEW = "j-ps-2"


def long_job(**changes: object) -> World:
    values: dict[str, object] = {"training_rows": 3_000, "save_interval_seconds": 0.0, "lease_seconds": 1e6}
    return running(plan(**(values | {"migration_timeout_seconds": LIMIT_SECONDS} | changes)))


def ask(world: World, **asked: float) -> None:
    world.handle(events.ShapeAsked(time=world.time, change=change(**asked)))


def copies_nothing(**changes: object) -> World:
    """A third server is to take buckets over, and copies none of them."""
    world = long_job(**changes)
    world.stalled.add(NEW)
    ask(world, parameter_servers=3)
    go_on(world, until=COPYING)
    return world


def pass_time(world: World, seconds: float, **ticked: dict[str, str]) -> None:
    """Nothing happens for so long; then the deadlines are looked at."""
    world.time += seconds
    late = world.state.next_deadline()
    if late is not None and late <= world.time:
        world.handle(events.Ticked(time=world.time, **ticked))


def report(world: World, pod: str = NEW, **copying: object) -> None:
    """A heartbeat of a server that copies: the master journals what is news, and nothing else."""
    migration = world.state.migration
    assert migration is not None
    said = events.PodReported(
        time=world.time, pod=pod, incarnation=world.up[pod]["incarnation"], generation=0,
        reached_version=world.state.membership.members[pod].reached_version,
        copying=CopyProgress(order_id=migration.order_id, **copying),  # type: ignore[arg-type]
    )  # fmt: skip
    if world.state.changes_state(said):
        world.handle(said)


def outcomes(world: World) -> list[ShapeOutcome]:
    return [request.outcome for request in world.state.shape_requests]


def cancelled(world: World) -> list[str]:
    decided = [effect for effect in world.effects if isinstance(effect, Decided)]
    return [one.inputs["reason"] for one in decided if one.decision == "migration_cancelled"]


def check_undone(world: World, before: list[str]) -> None:
    """The old servers have the rows, the new ones are gone, and the job trains."""
    state = world.state
    assert state.migration is None and state.has_wanted_servers and owners(world) == before
    assert {server.name for server in state.membership.servers()} == set(before)
    assert state.recovery.rollbacks == 0 and state.phase is Phase.TRAINING
    samples = state.training.samples
    world.stalled.clear()
    world.live_on(4)
    assert state.training.samples > samples and state.migration is None


def test_a_migration_without_copied_rows_is_undone_with_its_servers_reason():
    world = copies_nothing()
    before = owners(world)
    pass_time(world, LIMIT_SECONDS - 1)
    assert world.state.migration is not None
    pass_time(world, 1, problems={NEW: "ps-0:1: connection refused"})
    assert outcomes(world) == [ShapeOutcome.FAILED]
    (request,) = world.state.shape_requests
    assert request.reason == (
        "no new rows were copied for 100 s (spec.faults.migration_timeout) by j-ps-2: ps-0:1: connection refused"
    )
    assert cancelled(world) == [request.reason]
    assert world.state.given_up == f"{request.reported().wanted}: {request.reason}"
    check_undone(world, before)


def test_new_copied_rows_restart_the_time_and_repeated_ones_do_not():
    world = copies_nothing()
    for advance in range(1, 5):
        pass_time(world, 0.9 * LIMIT_SECONDS)
        report(world, advance=advance)
        assert world.state.migration is not None
    pass_time(world, 0.9 * LIMIT_SECONDS)
    report(world, advance=4, copied_bytes=2**40)
    pass_time(world, 0.1 * LIMIT_SECONDS)
    assert outcomes(world) == [ShapeOutcome.FAILED]


def test_progress_is_journalled_now_and_then():
    world = copies_nothing()
    before = len(world.events)
    for advance in range(1, 200):
        world.time += LIMIT_SECONDS / 1000
        report(world, advance=advance)
    assert 2 <= len(world.events) - before <= 4


def test_a_new_master_lets_a_migration_neither_wait_longer_nor_end_too_early():
    world = copies_nothing()
    before = owners(world)
    for _ in range(3):
        pass_time(world, 0.25 * LIMIT_SECONDS)
        world.state = decode_state(encode_state(world.state))
        world.handle(events.Restarted(time=world.time, away_seconds=1e6))
    assert world.state.migration is not None
    pass_time(world, 0.25 * LIMIT_SECONDS - 1)
    assert world.state.migration is not None
    world.handle(events.Restarted(time=world.time, away_seconds=1.0))
    # What was copied without a master is about to be reported.
    pass_time(world, 0.04 * LIMIT_SECONDS)
    assert world.state.migration is not None
    pass_time(world, 0.02 * LIMIT_SECONDS)
    assert outcomes(world) == [ShapeOutcome.FAILED]
    check_undone(world, before)


@pytest.mark.parametrize("reports_first", [False, True])
def test_time_in_which_a_master_was_suspended_does_not_count(reports_first: bool):
    world = copies_nothing()
    pass_time(world, 0.5 * LIMIT_SECONDS)
    world.time += 10 * LIMIT_SECONDS
    if reports_first:
        report(world, advance=1)
    world.handle(events.Restarted(time=world.time, suspended_seconds=10 * LIMIT_SECONDS))
    pass_time(world, 0.4 * LIMIT_SECONDS)
    assert world.state.migration is not None
    pass_time(world, 0.6 * LIMIT_SECONDS)
    assert outcomes(world) == [ShapeOutcome.FAILED]


def test_time_in_which_a_save_keeps_servers_from_copying_does_not_count():
    world = copies_nothing(save_timeout_seconds=10 * LIMIT_SECONDS)
    world.hung.update(world.state.ownership.servers)
    world.handle(events.SaveAsked(time=world.time))
    world.live_on(3)
    assert world.state.saves.under_way
    pass_time(world, 5 * LIMIT_SECONDS)
    world.handle(events.Measured(time=world.time, waiting_share=0.5))
    assert world.state.migration is not None
    world.hung.clear()
    world.live_on(6)
    assert not world.state.saves.under_way and world.state.migration is not None
    pass_time(world, 0.9 * LIMIT_SECONDS)
    assert world.state.migration is not None
    pass_time(world, 0.2 * LIMIT_SECONDS)
    assert outcomes(world) == [ShapeOutcome.FAILED]


def test_a_server_that_can_never_copy_ends_the_migration_immediately():
    world = copies_nothing()
    before = owners(world)
    report(world, problem="ps-0:1: other code", is_permanent=False)
    assert world.state.migration is not None
    report(world, problem="ps-0:1: other code", is_permanent=True)
    assert outcomes(world) == [ShapeOutcome.FAILED]
    assert cancelled(world) == ["j-ps-2 cannot copy its buckets: ps-0:1: other code"]
    check_undone(world, before)


def test_a_servers_report_of_an_older_order_ends_nothing():
    world = copies_nothing()
    migration = world.state.migration
    assert migration is not None
    old = migration.order_id
    world.kill(NEW)
    go_on(world, until=COPYING)
    assert migration.order_id != old
    (taker,) = migration.sources
    said = events.PodReported(
        time=world.time, pod=taker, incarnation=world.up[taker]["incarnation"], generation=0, reached_version=0,
        copying=CopyProgress(order_id=old, problem="other code", is_permanent=True),
    )  # fmt: skip
    assert not world.state.changes_state(said)
    world.handle(said)
    assert world.state.migration is migration


def test_a_migration_in_its_hand_over_is_not_undone_and_status_shows_problems():
    world = long_job(restore_timeout_seconds=10 * LIMIT_SECONDS)
    ask(world, parameter_servers=3)
    go_on(world, until=HANDING_OVER)
    pass_time(world, 2 * LIMIT_SECONDS)
    report(world, problem="other code", is_permanent=True)
    assert world.state.migration is not None and outcomes(world) == [ShapeOutcome.OPEN]
    said = CopyProgress(order_id=world.state.migration.order_id, problem="ps-0:1: connection refused")
    metrics = training_metrics(world.state, "j", world.time, None, {NEW: PodSample(copying=said)}, {})
    assert metrics.is_stalled and "handing over of j-ps-2" in metrics.reason
    assert metrics.reason.endswith("j-ps-2: ps-0:1: connection refused")
    go_on(world)
    assert outcomes(world) == [ShapeOutcome.DONE]


def test_the_status_shows_a_stalled_migration_and_then_why_it_was_undone():
    world = copies_nothing()
    assert world.state.migration is not None

    def metrics(**copying: object):
        migration = world.state.migration
        said = CopyProgress(order_id=migration.order_id if migration else "", **copying)  # type: ignore[arg-type]
        return training_metrics(world.state, "j", world.time, None, {NEW: PodSample(copying=said)}, {})

    assert not metrics(buckets_left=21).is_stalled and "21 buckets are left to copy" in metrics(buckets_left=21).reason
    world.time += 0.5 * LIMIT_SECONDS
    stalled = metrics(buckets_left=21)
    assert stalled.is_stalled and "no progress for 50 s of 100 s" in stalled.reason
    assert stalled.migration is not None and stalled.migration.buckets_left == 21
    world.state.migration.progressed = world.time
    assert words(world.state, world.time) == "" and not metrics().is_stalled
    assert metrics(problem="out of reach").is_stalled
    pass_time(world, LIMIT_SECONDS)
    after = metrics()
    assert after.is_stalled and after.reason == f"undone: {after.given_up}" and "no new rows" in after.given_up
    ask(world, workers=3)
    assert not metrics().is_stalled


@pytest.mark.parametrize(
    ("asked", "pod"),
    [({"parameter_servers": 3}, NEW), ({"workers": 3}, "j-worker-2")],
    ids=["server", "worker"],
)
def test_new_pods_that_do_not_fit_are_given_up_after_the_limit_with_the_missing_resources(
    asked: dict[str, float], pod: str
):
    world = long_job()
    before, members = owners(world), set(world.state.membership.members)
    ask(world, **asked)
    pass_time(world, LIMIT_SECONDS - 1)
    assert outcomes(world) == [ShapeOutcome.OPEN]
    pass_time(world, 1, waiting={pod: "Unschedulable: insufficient cpu: asked 1, free 0.5"})
    assert outcomes(world) == [ShapeOutcome.TIMED_OUT]
    (request,) = world.state.shape_requests
    assert f"not started: {pod} (1 cores, 1000): Unschedulable: insufficient cpu" in request.reason, request.reason
    assert "for 100 s (spec.faults.migration_timeout)" in request.reason
    assert request.reason in world.state.given_up
    assert set(world.state.membership.members) == members
    check_undone(world, before)


def test_each_new_pod_that_becomes_ready_restarts_the_time():
    world = long_job()
    ask(world, workers=4, parameter_servers=4)
    for _ in range(3):
        pass_time(world, 0.9 * LIMIT_SECONDS)
        world.start_pod()
        assert outcomes(world) == [ShapeOutcome.OPEN]
    pass_time(world, LIMIT_SECONDS)
    assert outcomes(world) == [ShapeOutcome.TIMED_OUT]


def test_the_successor_of_a_lost_pod_waits_for_room_as_long_as_it_takes():
    world = long_job()
    lost, *_ = world.state.ownership.servers
    world.kill(lost)
    world.kill("j-worker-0")
    for _ in range(5):
        pass_time(world, LIMIT_SECONDS)
    assert world.state.phase is Phase.RECOVERING and len(world.state.membership.members) == 4
    for _ in range(20):
        world.live_on()
    assert world.state.phase is Phase.TRAINING and len(world.up) == 4


@pytest.mark.parametrize("lost", ["j-worker-0", "j-ps-0"])
def test_other_requests_are_undone_when_a_successor_does_not_fit(lost: str):
    world = long_job()
    if "ps" in lost:
        ask(world, parameter_servers=3)
    else:
        ask(world, workers=3)
    world.kill(lost)
    pass_time(world, LIMIT_SECONDS)
    assert outcomes(world) == [ShapeOutcome.TIMED_OUT]
    role = world.state.membership.members.values()
    assert len([member for member in role if not member.retiring]) == 4


def test_a_slow_worker_stays_when_its_successor_finds_no_room():
    world = long_job(slow_pod_moves=1)
    slow, _ = world.state.membership.workers()
    slow.node = "slow-node"
    world.handle(
        events.PodSlow(
            time=world.time, pod=slow.name, incarnation=slow.incarnation, ratio=3.0, seconds_per_row=3.0,
            others_seconds_per_row=1.0,
        )
    )  # fmt: skip
    assert outcomes(world) == [ShapeOutcome.OPEN] and slow.outgoing
    pass_time(world, LIMIT_SECONDS)
    assert outcomes(world) == [ShapeOutcome.TIMED_OUT] and slow.stays and len(world.state.membership.workers()) == 2


def test_a_cancelled_change_lets_the_waiting_one_begin():
    world = long_job()
    moved = world.state.ownership.servers[0]
    world.handle(events.ShapeAsked(time=world.time, change={}, moves=[PodMove(pod=moved)]))
    ask(world, parameter_servers=1)
    assert world.state.migration is not None
    pass_time(world, LIMIT_SECONDS)
    assert outcomes(world) == [ShapeOutcome.TIMED_OUT, ShapeOutcome.OPEN]
    assert world.state.migration is not None and world.state.migration.stage in (STARTING, COPYING)
    go_on(world)
    check(world)
    assert outcomes(world) == [ShapeOutcome.TIMED_OUT, ShapeOutcome.DONE] and len(set(owners(world))) == 1


def test_servers_that_are_not_wanted_any_more_are_not_retried():
    world = copies_nothing()
    before = owners(world)
    ask(world, parameter_servers=4)
    assert outcomes(world) == [ShapeOutcome.SUPERSEDED, ShapeOutcome.OPEN]
    pass_time(world, LIMIT_SECONDS)
    assert world.state.migration is None and world.state.wanted_shape[Role.PARAMETER_SERVER].count == 2
    check_undone(world, before)


def test_hot_buckets_that_cannot_be_copied_stay_and_are_retried_only_later():
    world = long_job()
    hot, other = world.state.ownership.servers
    before = owners(world)
    bucket = before.index(hot)
    event = events.ServerHot(
        time=world.time, server=hot, ratio=2.0, ratio_after=1.0, moves={bucket: other}, ownership_epoch=1
    )
    world.stalled.add(other)
    world.handle(event)
    go_on(world, until=COPYING)
    report(world, other, problem="other code", is_permanent=True)
    assert world.state.migration is None and owners(world) == before
    assert world.state.given_up == f"1 hot buckets elsewhere: {other} cannot copy its buckets: other code"
    world.handle(msgspec.structs.replace(event, time=world.time))
    assert world.state.migration is None
    world.time += LIMIT_SECONDS
    world.handle(msgspec.structs.replace(event, time=world.time))
    assert world.state.migration is not None


def test_the_picture_of_a_change_without_room_shows_who_waited_and_why_it_ended():
    world = long_job()
    ask(world, parameter_servers=3)
    pass_time(world, LIMIT_SECONDS)
    profile = MigrationProfile()
    for effect in world.effects:
        if isinstance(effect, Decided):
            profile.decided(world.time, world.time, effect.decision, effect.inputs)
    (seen,) = profile.seen
    assert "no new server got ready" in seen.outcome
    assert [(server.name, server.is_new) for server in seen.servers] == [
        ("j-ps-0", False), ("j-ps-1", False), (NEW, True),
    ]  # fmt: skip


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_whatever_happens_no_request_and_no_migration_waits_longer_than_the_limit(seed: int):
    chance = random.Random(seed)
    world = World(plan(training_rows=600, migration_timeout_seconds=60.0, save_interval_seconds=0.0))
    waits: dict[str, float] = {}
    for _ in range(250):
        disturb(world, chance)
        state = world.state
        if state.migration is None or state.migration.stage == HANDING_OVER or state.saves.under_way:
            waits.clear()
            continue
        # Any progress has the state's own time; what is measured here is that of the stage alone.
        order = f"{state.migration.order_id} {state.migration.since} {state.migration.progressed}"
        waits = {order: waits.get(order, world.time)}
        assert world.time - waits[order] <= 60.0 + 70.0 + 5.0
    world.run_fairly()
    assert world.state.phase in (Phase.SUCCEEDED, Phase.FAILED)
