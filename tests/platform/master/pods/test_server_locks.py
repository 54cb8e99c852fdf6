"""Servers have locks for a number of cores: up to it they are resized in place, beyond it they are replaced."""

from __future__ import annotations

import pytest

from elastrec.platform.master.machine.migration import COPYING
from elastrec.platform.master.pods.shape_checks import prospects
from elastrec.platform.specs.metrics import Role
from elastrec.platform.transport.messages.observer import ChangeShape, ShapeOutcome
from tests.platform.master.machine.interrupted import restart_master
from tests.platform.master.machine.test_migration import check, go_on, long_job, owners
from tests.platform.master.pods.test_succession import ask, by_role, outcome
from tests.shapes import change

MOST_USED = (
    "a server uses at most the cores with which it started, or scaling.maximum_parameter_server_cores if that is more"
)


@pytest.mark.usefixtures("fleet")
def test_servers_are_replaced_when_they_are_to_have_more_cores_than_they_have_locks_for():
    world = long_job(most_server_cores=2.0)
    old = by_role(world, Role.PARAMETER_SERVER)
    ask(world, parameter_server_cores=2.0)
    world.live_on(1)
    assert outcome(world) is ShapeOutcome.DONE and by_role(world, Role.PARAMETER_SERVER) == old
    ask(world, parameter_server_cores=3.0)
    go_on(world, until=COPYING)
    assert set(owners(world)) == old
    assert {server.cores for server in world.state.owners()} == {2.0}
    assert world.state.owners()[0].outgoing.endswith("in place: a server that started for 2 cores cannot use more")
    go_on(world)
    check(world)
    servers = by_role(world, Role.PARAMETER_SERVER)
    assert not old & servers and outcome(world) is ShapeOutcome.DONE and world.state.recovery.rollbacks == 0
    # Memory does not depend on locks, nor do the cores that a server has already.
    ask(world, parameter_server_cores=3.0, parameter_server_memory_bytes=5000)
    world.live_on(1)
    assert outcome(world) is ShapeOutcome.DONE and by_role(world, Role.PARAMETER_SERVER) == servers


@pytest.mark.parametrize(
    ("cores", "how"),
    [
        (2.0, "2 resized in place if their nodes have the room, else migrated"),
        (3.0, f"2 migrated: {MOST_USED}"),
    ],
)
def test_a_preview_names_the_servers_that_are_replaced_because_of_their_locks(cores: float, how: str):
    world = long_job(most_server_cores=2.0)
    (line,) = prospects(world.state, ChangeShape(change=change(parameter_server_cores=cores)), {}, {})
    assert line == f"parameter servers of {cores:g} cores and 1000: {how}"


@pytest.mark.usefixtures("fleet")
@pytest.mark.parametrize("is_restarted", [False, True])
def test_a_server_that_has_shrunk_grows_in_place_up_to_the_cores_with_which_it_started(is_restarted: bool):
    world = long_job(most_server_cores=2.0)
    ask(world, parameter_server_cores=4.0)
    go_on(world)
    servers = by_role(world, Role.PARAMETER_SERVER)
    ask(world, parameter_server_cores=1.0)
    world.live_on(1)
    if is_restarted:
        restart_master(world)
    (line,) = prospects(world.state, ChangeShape(change=change(parameter_server_cores=4.0)), {}, {})
    assert "2 resized in place" in line
    ask(world, parameter_server_cores=4.0)
    world.live_on(1)
    assert outcome(world) is ShapeOutcome.DONE and by_role(world, Role.PARAMETER_SERVER) == servers
    (line,) = prospects(world.state, ChangeShape(change=change(parameter_server_cores=5.0)), {}, {})
    assert line.endswith(MOST_USED)
    ask(world, parameter_server_cores=5.0)
    assert world.state.owners()[0].outgoing.endswith("a server that started for 4 cores cannot use more")


@pytest.mark.usefixtures("fleet")
def test_a_process_that_started_for_fewer_cores_than_its_predecessor_in_the_pod_has_fewer_locks():
    world = long_job(most_server_cores=2.0)
    ask(world, parameter_server_cores=4.0)
    go_on(world)
    ask(world, parameter_server_cores=1.0)
    world.live_on(1)
    pod = world.state.membership.servers()[0].name
    world.up[pod] |= {"incarnation": "again", "started_cores": 1}
    world.register(pod)
    (line, other) = prospects(world.state, ChangeShape(change=change(parameter_server_cores=4.0)), {}, {})
    assert "1 resized in place" in other and line.endswith(f"1 migrated: {MOST_USED}")
