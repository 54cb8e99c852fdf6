"""A server with an eviction notice: a record at once, and a successor that takes over if there is time."""

from __future__ import annotations

import pytest

from elastrec.platform.master.machine import events
from elastrec.platform.master.machine.effects import Decided
from elastrec.platform.master.machine.migration import COPYING, HANDING_OVER, STARTING
from elastrec.platform.specs.metrics import Phase
from elastrec.platform.transport.messages.directive import Mode
from elastrec.platform.transport.messages.observer import ShapeOutcome
from tests.platform.master.machine.test_migration import check, go_on, long_job, owners
from tests.platform.master.world import World, plan, running
from tests.shapes import change

pytestmark = pytest.mark.usefixtures("fleet")

SERVER = "j-ps-0"


def notices(world: World) -> list[Decided]:
    return [effect for effect in world.effects if isinstance(effect, Decided) and effect.decision == "notice_given"]


def with_notice(world: World, pod: str = SERVER, ends_in_seconds: float = 60.0) -> World:
    """The master knows that the server has notice."""
    world.give_notice(pod, ends_in_seconds)
    world.act(pod)
    return world


def test_notice_starts_a_save_and_the_server_leaves_when_its_successor_owns_its_buckets():
    world = long_job()
    first, second = world.state.ownership.servers
    with_notice(world, first)
    (save,) = world.state.saves.under_way.values()
    assert not save.is_final and owners(world).count(first) == 32, "it serves until another server has its buckets"
    go_on(world, until=COPYING)
    assert first in world.up and owners(world).count(first) == 32
    go_on(world)
    successor, other = world.state.ownership.servers
    assert other == second and successor not in (first, second)
    world.live_on(2)
    assert first not in world.up and world.state.recovery.rollbacks == 0 and world.state.recovery.record is not None
    assert world.state.shape_requests and world.state.shape_requests[-1].outcome is ShapeOutcome.DONE
    (decided,) = notices(world)
    assert (decided.inputs["pod"], decided.inputs["phase"]) == (first, "Training")
    check(world)


def test_a_repeated_notice_is_journalled_once():
    world = long_job()
    member = world.state.membership.members[SERVER]
    report = events.PodReported(
        time=world.time, pod=SERVER, incarnation=member.incarnation, generation=world.state.phases.generation,
        reached_version=member.reached_version, ends_in_seconds=60.0,
    )  # fmt: skip
    assert world.state.changes_state(report), "a master that restarts goes on with it"
    world.handle(report)
    assert not world.state.changes_state(report)
    world.handle(report)
    assert len(notices(world)) == len(world.state.shape_requests) == 1


@pytest.mark.parametrize("stage", [STARTING, COPYING])
def test_an_early_end_of_a_server_loses_only_training_since_the_record_of_its_notice(stage: str):
    world = long_job()
    first, second = world.state.ownership.servers
    with_notice(world, first)
    for _ in range(3):  # no other server starts meanwhile
        for name in list(world.up):
            world.act(name)
        world.commit()
    record = world.state.recovery.record
    assert record is not None
    if stage == COPYING:
        go_on(world, until=COPYING)
    (started,) = {server.name for server in world.state.membership.servers()} - {first, second}
    world.kill(first)
    assert world.state.recovery.rollbacks == 1 and world.state.recovery.uri == record.uri
    assert world.state.ownership.servers == [started, second], "no further server is made, and nothing moves again"
    world.live_on(20)
    assert world.state.phase is Phase.TRAINING and world.state.migration is None
    assert world.state.ownership.servers == [started, second]
    assert len(world.state.membership.servers()) == 2 and not any(server.outgoing for server in world.state.owners())
    check(world)
    world.run_fairly()
    assert world.state.phase is Phase.SUCCEEDED


def test_a_notice_while_buckets_are_handed_over_leaves_each_of_them_with_one_owner():
    world = long_job()
    world.handle(events.ShapeAsked(time=world.time, change=change(parameter_servers=1)))
    go_on(world, until=HANDING_OVER)
    (giver,) = [server.name for server in world.state.membership.servers() if server.name not in owners(world)]
    (taker,) = world.state.ownership.servers
    for pod in (giver, taker):
        with_notice(world, pod)
        check(world)
    world.live_on(20)
    check(world)
    (owner,) = world.state.ownership.servers
    assert owner not in (giver, taker) and set(world.up) & {giver, taker} == set()
    assert world.state.recovery.rollbacks == 0 and len(notices(world)) == 2


def test_a_notice_to_a_server_that_is_to_take_buckets_brings_another_one_for_it():
    world = long_job()
    world.handle(events.ShapeAsked(time=world.time, change=change(parameter_servers=3)))
    go_on(world, until=COPYING)
    (taker,) = [server.name for server in world.state.membership.servers() if server.name not in owners(world)]
    with_notice(world, taker)
    world.live_on(20)
    check(world)
    assert len(world.state.ownership.servers) == 3 and taker not in world.up and world.state.recovery.rollbacks == 0


def test_no_bucket_moves_because_of_a_notice_once_training_is_over():
    world = running(plan(training_rows=20, save_interval_seconds=0.0))
    while world.state.phase is Phase.TRAINING:
        world.live_on()
    with_notice(world)
    assert len(notices(world)) == 1 and not world.state.shape_requests
    world.run_fairly()
    assert world.state.phase is Phase.SUCCEEDED


def test_another_process_of_the_pod_has_no_notice():
    world = with_notice(long_job())
    assert world.state.membership.members[SERVER].has_notice
    world.serial += 1
    world.up[SERVER] |= {"incarnation": str(world.serial), "ends_at": None}
    world.register(SERVER)
    assert not world.state.membership.members[SERVER].has_notice


def work_without_new_servers(world: World, seconds: float) -> None:
    """Everybody works, but no pod starts: the cluster has no room."""
    until = world.time + seconds
    while world.time < until:
        for name in list(world.up):
            world.act(name)
        world.commit()
        world.time += 0.25
        world.tick()


def pauses(world: World) -> list[Decided]:
    return [each for each in world.effects if isinstance(each, Decided) and each.decision == "paused_before_end"]


def test_a_server_without_a_successor_in_time_costs_no_row():
    world = long_job()
    with_notice(world, SERVER, ends_in_seconds=20.0)
    work_without_new_servers(world, 10.0)
    assert not pauses(world) and world.state.training.samples > 0
    work_without_new_servers(world, 9.9)
    (paused,) = pauses(world)
    assert paused.inputs["pods"] == [SERVER] and world.directive(SERVER).mode is Mode.PAUSE
    record = world.state.recovery.record
    assert record is not None and record.step == world.state.training.samples, "nothing was trained since"
    trained = world.state.training.covered_rows()
    world.kill(SERVER)
    assert world.state.recovery.rollbacks == 1 and world.state.training.covered_rows() == trained
    assert not world.state.saves.is_paused
    world.run_fairly()
    assert world.state.phase is Phase.SUCCEEDED


def test_workers_continue_when_the_successor_has_the_buckets_of_a_server_with_notice():
    world = long_job()
    with_notice(world, SERVER, ends_in_seconds=20.0)
    work_without_new_servers(world, 19.9)
    assert world.state.saves.is_paused and not world.state.saves.under_way
    go_on(world)
    assert SERVER not in world.state.ownership.servers and not world.state.saves.is_paused
    assert world.state.recovery.rollbacks == 0
    samples = world.state.training.samples
    world.live_on(10)
    assert world.state.training.samples > samples
    check(world)


def test_a_late_notice_causes_one_record_and_an_immediate_pause_of_workers():
    world = long_job()
    with_notice(world, SERVER, ends_in_seconds=0.5)
    assert len(pauses(world)) == 1 and len(world.state.saves.under_way) == 1
    work_without_new_servers(world, 0.5)
    record = world.state.recovery.record
    assert record is not None and record.step == world.state.training.samples and not world.state.saves.under_way


def test_a_server_that_outlives_its_notice_is_worked_with_again():
    world = long_job()
    with_notice(world, SERVER, ends_in_seconds=5.0)
    work_without_new_servers(world, 5.0)
    assert world.state.saves.is_paused
    samples = world.state.training.samples
    work_without_new_servers(world, world.state.plan.lease_seconds - 1.0)
    assert world.state.training.samples == samples
    work_without_new_servers(world, 3.0)
    assert not world.state.saves.is_paused and world.state.training.samples > samples
    assert len(pauses(world)) == 1, "and nobody pauses for it once more"


def test_a_restarted_master_continues_the_pause_before_a_servers_end():
    world = long_job()
    with_notice(world, SERVER, ends_in_seconds=5.0)
    work_without_new_servers(world, 5.0)
    world.handle(events.Restarted(time=world.time, away_seconds=1.0))
    assert world.state.saves.is_paused and world.directive(SERVER).mode is Mode.PAUSE
    world.run_fairly()
    assert world.state.phase is Phase.SUCCEEDED


def test_the_pause_begins_earlier_the_longer_the_last_record_took():
    world = long_job()
    world.state.saves.last_seconds = 4.0
    with_notice(world, SERVER, ends_in_seconds=20.0)
    world.commits.clear()  # the record of the notice takes for ever
    while not pauses(world):
        for name in list(world.up):
            world.act(name)
        world.time += 0.25
        world.tick()
    assert pauses(world)[0].inputs["ends_in_seconds"] == pytest.approx(1.5 * 4.0 + 5.0, abs=0.3)
