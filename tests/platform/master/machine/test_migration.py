"""Changes of servers during training: prepare, copy, hand over, retire; every bucket always has one owner."""

from __future__ import annotations

import pytest

from elastrec.platform.clusters.pods import EndReason
from elastrec.platform.master.machine import events
from elastrec.platform.master.machine.effects import Decided
from elastrec.platform.master.machine.migration import COPYING, HANDING_OVER, STARTING, may_relieve
from elastrec.platform.specs.metrics import Phase, Role
from elastrec.platform.transport.messages.observer import PodMove, ShapeOutcome
from tests.platform.master.world import World, plan, running
from tests.shapes import change

pytestmark = pytest.mark.usefixtures("fleet")


def long_job(**changes: object) -> World:
    return running(plan(training_rows=3_000, save_interval_seconds=0.0, **changes))


def ask(world: World, servers: int) -> None:
    world.handle(events.ShapeAsked(time=world.time, change=change(parameter_servers=servers)))


def go_on(world: World, *, until: str | None = None, rounds: int = 60) -> None:
    """Everybody behaves until the migration is in a stage; None: until it is over."""
    for _ in range(rounds):
        migration = world.state.migration
        if (migration.stage if migration is not None else None) == until:
            return
        world.start_pod()
        for name in list(world.up):
            if name in world.up:
                world.act(name)
            migration = world.state.migration
            if until is not None and migration is not None and migration.stage == until:
                return
        world.commit()
    raise AssertionError(f"it did not get to {until} in {rounds} rounds: {world.state.migration}")


def owners(world: World) -> list[str]:
    ownership = world.state.ownership
    return [ownership.servers[owner] for owner in ownership.owners]


def check(world: World) -> None:
    """Every bucket has one owner, which is a member of the job."""
    ownership, members = world.state.ownership, world.state.membership.members
    assert len(ownership.owners) == 64 and len(ownership.dense_owners) == 64
    assert set(owners(world)) == set(ownership.servers) <= set(members)


@pytest.mark.parametrize("servers", [1, 3, 5])
def test_buckets_change_servers_without_a_rollback_or_a_record(servers: int):
    world = long_job()
    before, samples = owners(world), world.state.training.samples
    ask(world, servers)
    go_on(world)
    after = owners(world)
    check(world)
    assert len(set(after)) == servers == len(world.state.membership.servers())
    counts = [after.count(name) for name in set(after)]
    assert max(counts) - min(counts) <= 1
    kept = min(servers, 2) * (64 // max(servers, 2))
    assert sum(old == new for old, new in zip(before, after, strict=True)) >= kept
    assert world.state.recovery.rollbacks == 0 and not world.commits and world.state.phase is Phase.TRAINING
    assert world.state.training.samples > samples
    assert world.state.shape_requests
    assert world.state.shape_requests[-1].outcome is ShapeOutcome.DONE
    world.run_fairly()
    assert world.state.phase is Phase.SUCCEEDED


def test_owners_do_not_change_until_all_new_owners_have_copied():
    world = long_job()
    before = owners(world)
    ask(world, 4)
    go_on(world, until=COPYING)
    migration = world.state.migration
    assert migration is not None
    world.act(next(iter(migration.sources)))
    assert owners(world) == before and len(migration.copied) == 1 and migration.stage == COPYING
    assert world.state.ownership.epoch == 1
    go_on(world)
    assert world.state.ownership.epoch == 2


def test_no_server_is_ordered_to_drop_anything_before_all_have_taken_their_buckets():
    world = long_job()
    ask(world, 4)
    go_on(world, until=HANDING_OVER)
    migration = world.state.migration
    assert migration is not None
    first, *others = migration.sources
    world.act(first)
    assert migration.taken == [first]
    assert all(world.directive(name).moving == migration.order_id for name in world.state.ownership.servers)
    for name in others:
        world.act(name)
    assert world.state.migration is None
    assert not any(world.directive(name).moving for name in world.state.ownership.servers)


def test_losing_a_server_without_buckets_yet_causes_no_rollback():
    world = long_job()
    ask(world, 3)
    go_on(world, until=COPYING)
    assert world.state.migration is not None
    (new,) = world.state.migration.sources
    order = world.state.migration.order_id
    world.kill(new)
    assert world.state.migration.stage == STARTING and world.state.migration.order_id != order
    go_on(world)
    check(world)
    assert world.state.recovery.rollbacks == 0 and len(set(owners(world))) == 3


def test_a_change_for_which_servers_have_too_little_memory_is_given_up_and_the_job_goes_on():
    world = long_job()
    before = owners(world)
    ask(world, 1)
    go_on(world, until=COPYING)
    assert world.state.migration is not None
    (taker,) = world.state.migration.sources
    world.kill(taker, end=EndReason.OUT_OF_MEMORY, exit_code=137)
    request = world.state.shape_requests[-1]
    assert request.outcome is ShapeOutcome.FAILED
    assert request.reason.startswith(f"{taker} was killed for memory at 1000 while it copied")
    assert world.state.migration is None and world.state.recovery.rollbacks == 1
    world.run_fairly()
    assert world.state.phase is Phase.SUCCEEDED
    assert len(set(owners(world))) == len(set(before)) == 2


def test_a_change_goes_on_with_the_memory_that_a_killed_server_gets_in_addition():
    world = long_job(most_memory_bytes={Role.PARAMETER_SERVER: 4_000})
    ask(world, 1)
    go_on(world, until=COPYING)
    world.kill(world.state.ownership.servers[0], end=EndReason.OUT_OF_MEMORY, exit_code=137)
    assert world.state.shape_requests[-1].is_open
    world.run_fairly()
    assert world.state.phase is Phase.SUCCEEDED and len(set(owners(world))) == 1
    assert world.state.wanted_shape[Role.PARAMETER_SERVER].size.memory_bytes == 2_000


@pytest.mark.parametrize("stage", [STARTING, COPYING, HANDING_OVER])
def test_an_owner_lost_during_a_change_is_recovered_and_the_change_completes(stage: str):
    world = long_job()
    ask(world, 3)
    go_on(world, until=stage)
    world.kill(world.state.ownership.servers[0])
    assert world.state.migration is None and world.state.recovery.rollbacks == 1
    for _ in range(30):
        world.start_pod()
        for name in list(world.up):
            if name in world.up:
                world.act(name)
    check(world)
    assert len(set(owners(world))) == 3 == len(world.state.membership.servers())


def test_the_loss_of_an_old_owner_before_its_buckets_were_fetched_causes_a_rollback():
    world = long_job()
    ask(world, 1)
    go_on(world, until=HANDING_OVER)
    (giver,) = [server.name for server in world.state.membership.servers() if server.name not in owners(world)]
    world.kill(giver)
    assert world.state.recovery.rollbacks == 1 and world.state.migration is None
    assert [server.name for server in world.state.membership.servers()] == world.state.ownership.servers
    world.run_fairly()
    assert world.state.phase is Phase.SUCCEEDED


def test_the_loss_of_an_old_owner_of_an_open_request_also_causes_a_rollback(monkeypatch: pytest.MonkeyPatch):
    world = long_job()
    everything = World.waiting.fget
    monkeypatch.setattr(  # the cluster has no room for more workers
        World, "waiting", property(lambda w: [u for u in everything(w) if w.plane.pods[u].role is not Role.WORKER])
    )
    world.handle(events.ShapeAsked(time=world.time, change=change(parameter_servers=3, workers=6)))
    go_on(world)
    (added,) = [server for server in world.state.owners() if server.made_for]
    assert [request.outcome for request in world.state.shape_requests] == [ShapeOutcome.OPEN]
    world.handle(events.ShapeAsked(time=world.time, change={}, moves=[PodMove(pod=added.name)]))
    go_on(world, until=HANDING_OVER)
    assert added.name not in owners(world)
    world.kill(added.name)
    assert world.state.recovery.rollbacks == 1 and world.state.migration is None
    check(world)
    monkeypatch.undo()
    world.run_fairly()
    assert world.state.phase is Phase.SUCCEEDED


def test_a_hand_over_that_does_not_end_is_given_up():
    world = long_job(lease_seconds=1e6)
    ask(world, 3)
    go_on(world, until=HANDING_OVER)
    assert world.state.next_deadline() == world.time + 40.0
    world.time += 40.0
    world.tick()
    assert world.state.recovery.rollbacks == 1 and world.state.migration is None
    check(world)
    world.run_fairly()
    assert world.state.phase is Phase.SUCCEEDED


@pytest.mark.parametrize("stage", [STARTING, COPYING])
def test_a_migration_can_be_cancelled_until_its_hand_over(stage: str):
    world = long_job()
    before = owners(world)
    ask(world, 4)
    go_on(world, until=stage)
    assert world.state.shape_requests
    world.handle(events.ShapeCancelled(time=world.time, request_id=world.state.shape_requests[-1].request_id))
    assert world.state.migration is None and owners(world) == before
    assert len(world.state.membership.servers()) == 2 and world.state.ownership.epoch == 1
    world.run_fairly()
    assert world.state.phase is Phase.SUCCEEDED and world.state.recovery.rollbacks == 0


def test_a_new_request_is_fulfilled_from_the_present_state():
    world = long_job()
    ask(world, 4)
    go_on(world, until=COPYING)
    ask(world, 3)
    go_on(world)
    check(world)
    assert len(set(owners(world))) == 3 == len(world.state.membership.servers())
    assert world.state.recovery.rollbacks == 0


def test_no_record_is_begun_while_buckets_are_handed_over():
    world = long_job()
    ask(world, 3)
    go_on(world, until=HANDING_OVER)
    world.handle(events.SaveAsked(time=world.time))
    assert not world.state.saves.under_way
    go_on(world)
    assert world.state.saves.under_way or world.state.saves.completed


def test_buckets_are_not_handed_over_under_a_record_that_is_being_written():
    world = long_job()
    ask(world, 3)
    go_on(world, until=COPYING)
    world.handle(events.SaveAsked(time=world.time))
    assert world.state.migration is not None
    for name in list(world.state.migration.sources):
        world.act(name)
    assert world.state.migration.copied and world.state.migration.stage == COPYING
    go_on(world)
    assert world.state.saves.completed == 1 and world.state.recovery.rollbacks == 0


def test_a_server_that_the_cluster_refuses_ends_the_request_and_not_the_job():
    world = long_job()
    ask(world, 3)
    refused = next(server.name for server in world.state.membership.servers() if not server.is_registered)
    world.handle(events.PodRefused(time=world.time, pod=refused, reason="no node is that large"))
    assert world.state.migration is None and len(world.state.membership.servers()) == 2
    world.run_fairly()
    assert world.state.phase is Phase.SUCCEEDED


def hot(world: World, moves: dict[int, str], epoch: int | None = None) -> None:
    epoch = world.state.ownership.epoch if epoch is None else epoch
    server = world.state.ownership.servers[0]
    world.handle(
        events.ServerHot(time=world.time, server=server, ratio=2.0, ratio_after=1.1, moves=moves, ownership_epoch=epoch)
    )


def test_only_hot_buckets_move_between_existing_servers():
    world = long_job()
    before, servers = owners(world), list(world.state.ownership.servers)
    dense = [servers[owner] for owner in world.state.ownership.dense_owners]
    mine = [bucket for bucket in range(64) if before[bucket] == servers[0]][:3]
    hot(world, dict.fromkeys(mine, servers[1]))
    assert any(effect.decision == "server_relieved" for effect in world.effects if isinstance(effect, Decided))
    go_on(world)
    check(world)
    assert owners(world) == [servers[1] if bucket in mine else owner for bucket, owner in enumerate(before)]
    assert [world.state.ownership.servers[owner] for owner in world.state.ownership.dense_owners] == dense
    assert [server.name for server in world.state.membership.servers()] == servers
    assert world.state.recovery.rollbacks == 0
    world.run_fairly()
    assert world.state.phase is Phase.SUCCEEDED


@pytest.mark.parametrize("stage", [COPYING, HANDING_OVER])
def test_a_server_that_is_lost_while_hot_buckets_move_leaves_every_bucket_with_one_owner(stage: str):
    world = long_job()
    servers = list(world.state.ownership.servers)
    hot(world, dict.fromkeys([bucket for bucket in range(64) if owners(world)[bucket] == servers[0]][:5], servers[1]))
    go_on(world, until=stage)
    world.kill(servers[1])
    for _ in range(30):
        world.start_pod()
        for name in list(world.up):
            if name in world.up:
                world.act(name)
    check(world)
    assert set(owners(world)) == set(world.state.ownership.servers)
    world.run_fairly()
    assert world.state.phase is Phase.SUCCEEDED


def test_hot_buckets_stay_where_they_are_when_servers_change_or_have_changed():
    world = long_job()
    servers, before = list(world.state.ownership.servers), owners(world)
    hot(world, {0: servers[1], 1: servers[0]}, epoch=world.state.ownership.epoch - 1)
    hot(world, {0: "somebody"})
    assert world.state.migration is None
    ask(world, 3)
    assert world.state.migration is not None
    order = world.state.migration.order_id
    hot(world, {0: servers[1], 1: servers[0]})
    assert world.state.migration.order_id == order and owners(world) == before


def test_hot_buckets_are_copied_with_more_of_the_time_than_those_of_a_change_of_servers():
    shares = {}
    for is_relief in (True, False):
        world = long_job()
        if is_relief:
            hot(world, {0: world.state.ownership.servers[1]})
        else:
            ask(world, 3)
        go_on(world, until=COPYING)
        assert world.state.migration is not None
        found = [world.state.migration.order_of(name, {}) for name in world.state.migration.servers]
        shares[is_relief] = {order.copy_share for order in found if order is not None}
    assert shares == {True: {0.5}, False: {0.1}}


def test_hot_buckets_do_not_move_if_the_job_file_disables_it():
    world = long_job(relieves_hot_servers=False)
    servers = list(world.state.ownership.servers)
    hot(world, {0: servers[1], 1: servers[0]})
    assert world.state.migration is None and not may_relieve(world.state)


def orders(world: World) -> list[tuple[str, str]]:
    """What became of migrations: decision and order, in their order."""
    decided = [effect for effect in world.effects if isinstance(effect, Decided)]
    return [(each.decision, each.inputs["order"]) for each in decided if each.decision.startswith("migration_")]


def test_a_request_for_more_servers_waits_for_the_relief_of_a_hot_one():
    world = long_job()
    servers = list(world.state.ownership.servers)
    mine = [bucket for bucket in range(64) if owners(world)[bucket] == servers[0]][:5]
    hot(world, dict.fromkeys(mine, servers[1]))
    go_on(world, until=COPYING)
    assert world.state.migration is not None
    relief = world.state.migration.order_id
    ask(world, 3)
    assert world.state.migration.order_id == relief and world.state.migration.stage == COPYING
    go_on(world)
    assert ("migration_ended", relief) in orders(world)
    assert "migration_cancelled" not in dict(orders(world))
    check(world)
    assert len(set(owners(world))) == 3 and world.state.recovery.rollbacks == 0


def test_a_request_for_fewer_servers_ends_a_move_of_hot_buckets():
    world = long_job()
    servers = list(world.state.ownership.servers)
    hot(world, dict.fromkeys([bucket for bucket in range(64) if owners(world)[bucket] == servers[0]][:5], servers[1]))
    go_on(world, until=COPYING)
    ask(world, 1)
    assert world.state.migration is not None and not world.state.migration.moves
    go_on(world)
    check(world)
    assert len(set(owners(world))) == 1 and world.state.recovery.rollbacks == 0


@pytest.mark.parametrize("stage", [STARTING, COPYING])
def test_a_request_for_more_servers_waits_for_needed_memory_of_present_ones(stage: str):
    world = long_job()
    moves = [PodMove(pod=name) for name in world.state.ownership.servers]
    asked = change(parameter_server_memory_bytes=3000)
    world.handle(events.ShapeAsked(time=world.time, change=asked, moves=moves))
    go_on(world, until=stage)
    assert world.state.migration is not None
    memory, order = world.state.shape_requests[-1], world.state.migration.order_id
    ask(world, 3)
    assert world.state.migration.order_id == order and world.state.migration.stage == stage
    assert len([server for server in world.state.membership.servers() if server.stays]) == 2, "none is started yet"
    go_on(world)
    check(world)
    assert len(set(owners(world))) == 3 and world.state.recovery.rollbacks == 0
    assert {server.asked.memory_bytes for server in world.state.owners()} == {3000}
    decided = [(each.decision, each.inputs) for each in world.effects if isinstance(each, Decided)]
    assert memory is not None and memory.outcome is ShapeOutcome.DONE
    done = next(
        at for at, (name, of) in enumerate(decided) if of.get("request") == memory.request_id and name == "shape_ended"
    )
    ended = decided.index(next(each for each in decided if each == ("migration_ended", {**each[1], "order": order})))
    next_copies = next(
        at for at, (name, of) in enumerate(decided) if name == "migration_copies" and len(of["servers"]) == 3
    )
    assert max(done, ended) < next_copies, "the third server waits for the memory, and the memory for no third server"


def test_new_servers_leave_if_they_are_not_wanted_any_more_when_a_rollback_ends():
    world = long_job()
    ask(world, 4)
    go_on(world, until=COPYING)
    world.kill(owners(world)[0])
    assert world.state.phase is Phase.RECOVERING and len(world.state.membership.servers()) == 4
    ask(world, 2)
    world.live_on(10)
    assert world.state.phase is Phase.TRAINING and world.state.migration is None
    assert {server.name for server in world.state.membership.servers()} == set(owners(world))
    assert world.state.shape_requests[-1].outcome is ShapeOutcome.DONE
