"""The stages of a member; two members may share a place."""

from __future__ import annotations

import itertools

import pytest

from elastrec.platform.master.machine import events
from elastrec.platform.master.pods.membership import ALLOWED, Member, Membership, MemberStage
from elastrec.platform.specs.errors import ElastrecError
from elastrec.platform.specs.metrics import Role
from elastrec.platform.specs.shape import PodSize
from tests.platform.master.world import World, running
from tests.shapes import change

SIZE = PodSize(1.0, 1000)


def member_of(membership: Membership, role: Role = Role.PARAMETER_SERVER) -> Member:
    return membership.add(role, 0, SIZE, 0.0)


def test_every_stage_leads_to_gone_and_gone_is_final():
    assert not ALLOWED[MemberStage.GONE]
    assert all(MemberStage.GONE in to for stage, to in ALLOWED.items() if stage is not MemberStage.GONE)
    assert all(MemberStage.ASKED not in to for to in ALLOWED.values())


def test_a_stage_changes_along_the_table_only():
    membership = Membership(job_id="j")
    member = member_of(membership)
    membership.move(member, MemberStage.RETIRING)
    with pytest.raises(ElastrecError, match="j-ps-0 cannot go from retiring to serving"):
        membership.move(member, MemberStage.SERVING)


@pytest.mark.parametrize(("role", "stage"), [(Role.WORKER, "serving"), (Role.PARAMETER_SERVER, "standby")])
def test_a_worker_serves_once_it_has_registered_and_a_server_stands_by(role: Role, stage: str):
    membership = Membership(job_id="j")
    member = member_of(membership, role)
    assert member.stage == "asked"
    membership.registered(member, "a", "host:1", "node", 0.0)
    assert member.stage == stage
    membership.remove(member.name, delete=True)
    assert membership.leaving[member.name].stage == "gone"


def test_directives_change_with_the_members_processes_not_with_repeated_messages():
    membership = Membership(job_id="j")
    member = member_of(membership)
    editions = [membership.edition]
    for incarnation, address in (("a", "h:1"), ("a", "h:1"), ("a", "h:2"), ("b", "h:2")):
        membership.registered(member, incarnation, address, "node", 0.0)
        editions.append(membership.edition)
    risen = [after > before for before, after in itertools.pairwise(editions)]
    assert risen == [True, False, True, True]


def stages(world: World) -> dict[str, str]:
    return {name: str(member.stage) for name, member in world.state.membership.members.items()}


def test_a_server_serves_while_it_owns_buckets_and_another_at_its_place_stands_by():
    world = running()
    second = world.state.membership.add(Role.PARAMETER_SERVER, 0, SIZE, world.time).name
    world.reconcile()
    world.start_pod()
    assert stages(world)["j-ps-0"] == "serving" and stages(world)[second] == "standby"
    # As an order will do that moves the place's buckets.
    world.state.ownership.take_over("j-ps-0", second)
    world.register("j-worker-0")
    assert stages(world)["j-ps-0"] == "standby" and stages(world)[second] == "serving"


def test_a_worker_that_is_not_wanted_any_more_retires():
    world = running()
    world.handle(events.ShapeAsked(time=world.time, change=change(workers=1)))
    assert sorted(stages(world).values()) == ["retiring", "serving", "serving", "serving"]


def test_a_place_is_empty_when_its_last_member_has_left():
    membership = Membership(job_id="j")
    first, second = member_of(membership), member_of(membership)
    membership.remove(first.name, delete=True)
    assert not membership.left
    membership.remove(second.name, delete=True)
    assert [member.name for member in membership.left.values()] == [second.name]
