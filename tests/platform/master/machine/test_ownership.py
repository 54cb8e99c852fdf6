"""Buckets and their owners; the epoch increases exactly when an owner changes."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elastrec.platform.master.machine import events
from elastrec.platform.master.machine.ownership import Ownership
from elastrec.platform.specs.errors import ElastrecError
from elastrec.platform.specs.metrics import Phase, Role
from elastrec.platform.specs.shape import PodSize
from tests.platform.master.world import World, running

BUCKETS = 12
NAMES = ["a", "b", "c", "d", "e"]


def owner_names(found: Ownership) -> list[str]:
    """Of the virtual buckets, then of the dense ones."""
    return [found.servers[owner] for owner in [*found.owners, *found.dense_owners]]


def test_a_server_that_takes_a_place_over_raises_the_epochs_of_its_buckets_alone():
    found = Ownership()
    found.assign(["a", "b", "c"], BUCKETS)
    before = list(found.epochs)
    found.take_over("b", "b2")
    assert found.servers == ["a", "b2", "c"]
    assert [bucket for bucket in range(BUCKETS) if found.epochs[bucket] > before[bucket]] == [1, 4, 7, 10]
    assert [bucket for bucket in range(BUCKETS) if found.dense_epochs[bucket] == found.epoch] == [4, 5, 6, 7]
    assert found.epoch == max(found.epochs) > max(before)


def test_the_same_assignment_changes_nothing():
    found = Ownership()
    found.assign(["a", "b"], BUCKETS)
    found.assign(["a", "b"], BUCKETS)
    found.take_over("z", "y")
    assert found.epoch == 1 and {*found.epochs, *found.dense_epochs} == {1}


def test_dense_buckets_lie_beside_each_other_and_few_of_them_change_owners():
    found = Ownership()
    found.assign(["a", "b"], BUCKETS)
    assert found.dense_owners == [0] * 6 + [1] * 6
    found.assign(["a", "b", "c"], BUCKETS)
    assert found.dense_owners == [0] * 4 + [2] * 2 + [1] * 4 + [2] * 2
    found.assign(["b", "c"], BUCKETS)
    assert owner_names(found)[BUCKETS:] == ["b", "b", "c", "c", "c", "c", "b", "b", "b", "b", "c", "c"]
    assert found.dense_epochs == [3] * 4 + [2] * 2 + [1] * 4 + [2] * 2


def test_buckets_need_a_server():
    with pytest.raises(ElastrecError, match="there is no parameter server"):
        Ownership().assign([], BUCKETS)


@settings(max_examples=200, deadline=None)
@given(
    steps=st.lists(
        st.one_of(
            st.lists(st.sampled_from(NAMES), min_size=1, unique=True),
            st.tuples(st.sampled_from(NAMES), st.sampled_from(["x", "y", "z"])),
        ),
        max_size=12,
    )
)
def test_an_epoch_rises_exactly_where_an_owner_changes(steps: list[list[str] | tuple[str, str]]):
    found = Ownership()
    found.assign(["a"], BUCKETS)
    for step in steps:
        owners, epochs, epoch = owner_names(found), [*found.epochs, *found.dense_epochs], found.epoch
        if isinstance(step, list):
            found.assign(step, BUCKETS)
        elif step[1] not in found.servers:
            found.take_over(*step)
        changed = [before != after for before, after in zip(owners, owner_names(found), strict=True)]
        risen = [after > before for before, after in zip(epochs, [*found.epochs, *found.dense_epochs], strict=True)]
        assert risen == changed and found.epoch == max(found.epochs + found.dense_epochs) == epoch + any(changed)
        assert set(owner_names(found)) == set(found.servers), "a server of the table owns nothing"


def add_server(world: World) -> str:
    """A pod beside the servers of the job; nothing orders it to do anything."""
    return world.state.membership.add(Role.PARAMETER_SERVER, 2, PodSize(1.0, 1000), world.time).name


def test_a_server_added_without_an_order_changes_no_routing():
    world = running()
    before = world.state.routing()
    name = add_server(world)
    world.reconcile()
    world.start_pod()
    assert world.state.membership.members[name].is_registered and world.state.routing() == before
    directive = world.directive(name)
    assert directive.restore is None and directive.save is None
    world.handle(events.SaveAsked(time=world.time))
    for _ in range(3):
        for pod in ("j-worker-0", "j-worker-1", "j-ps-0", "j-ps-1"):
            world.act(pod)
    world.commit()
    assert world.state.saves.completed == 1 and world.state.phase is Phase.TRAINING


def test_of_two_servers_at_one_place_only_the_owner_is_rolled_back():
    world = running()
    second = world.state.membership.add(Role.PARAMETER_SERVER, 0, PodSize(1.0, 1000), world.time).name
    world.reconcile()
    world.start_pod()
    world.kill("j-ps-1")
    assert set(world.state.recovery.servers) == {"j-ps-0", "j-ps-1-r1"}
    assert second not in world.state.routing().servers


def test_a_new_address_of_a_server_does_not_change_the_owner():
    world = running()
    before = world.state.routing()
    pod = world.up["j-ps-0"]
    world.handle(
        events.PodRegistered(
            time=world.time, pod="j-ps-0", role=Role.PARAMETER_SERVER, incarnation=pod["incarnation"],
            address="elsewhere:1", restored_order_id=pod["restored"],
        )
    )  # fmt: skip
    assert world.state.routing().addresses[0] == "elsewhere:1" and world.state.routing().epoch == before.epoch


def test_a_lost_server_raises_the_epoch_of_its_own_buckets():
    world = running()
    before = list(world.state.ownership.epochs)
    world.kill("j-ps-1")
    after = world.state.ownership.epochs
    assert {bucket % 2 for bucket in range(64) if after[bucket] != before[bucket]} == {1}


@pytest.mark.parametrize("is_killed", [True, False])
def test_losing_a_server_that_owns_nothing_causes_no_rollback(is_killed: bool):
    world = running()
    name = add_server(world)
    world.reconcile()
    world.start_pod()
    before = world.state.routing()
    if is_killed:
        world.kill(name)
    else:
        world.up[name]["incarnation"] = "another"
        world.register(name)
    assert world.state.phase is Phase.TRAINING and world.state.recovery.rollbacks == 0
    assert world.state.routing() == before and not world.state.recovery.awaited()
