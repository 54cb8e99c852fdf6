"""Each restore order has an id, one server and a separate outcome."""

from __future__ import annotations

import pytest

from elastrec.platform.master.machine import events
from elastrec.platform.master.machine.recovery import CompleteRecord, Recovery
from elastrec.platform.specs.metrics import Phase
from elastrec.platform.specs.splits import Positions
from elastrec.platform.transport.messages.directive import RestoreOrder
from tests.platform.master.world import World, running

pytestmark = pytest.mark.usefixtures("some_fleet")


def order_of(world: World, pod: str) -> str:
    restore = world.directive(pod).restore
    assert restore is not None
    return restore.order_id


def recovering() -> World:
    """ps-0 was lost and is there again; ps-1 has restored, ps-0 has not."""
    world = running()
    world.kill("j-ps-0")
    world.act("j-ps-1")
    world.start_pod()
    assert world.state.phase is Phase.RECOVERING
    return world


def test_every_server_has_an_order_of_its_own():
    recovery = Recovery(start_records=["file:///r"], uri="file:///r")
    for pod in ("ps-0", "ps-1"):
        recovery.order(pod, 1.0)
    assert recovery.servers["ps-0"].order == RestoreOrder("restore-1/ps-0", "file:///r")
    assert recovery.awaited() == ["ps-0", "ps-1"]
    recovery.restored("ps-0", "restore-1/ps-1")
    assert recovery.awaited() == ["ps-0", "ps-1"], "another server's order"
    recovery.restored("ps-0", "restore-1/ps-0")
    assert recovery.awaited() == ["ps-1"]


RECORD = CompleteRecord("file:///own", Positions({}), False, 1)


@pytest.mark.parametrize(
    ("start", "begins_at_positions", "records", "expected"),
    [
        ("", False, [], ("", False)),
        ("file:///champion", False, [], ("file:///champion", False)),
        ("file:///periodic", True, [], ("file:///periodic", True)),
        ("file:///champion", False, [RECORD], ("file:///own", True)),
        ("file:///periodic", True, [RECORD], ("file:///own", True)),
    ],
)
def test_marks_are_restored_only_with_a_record_of_the_shards_positions(
    start: str, begins_at_positions: bool, records: list[CompleteRecord], expected: tuple[str, bool]
):
    recovery = Recovery(start_records=[start], begins_at_positions=begins_at_positions)
    recovery.resume_from(1, records)
    recovery.order("ps-0", 1.0)
    first = recovery.servers["ps-0"].order
    recovery.roll_back(2)
    # A record that is complete only now is not what the shards stand at.
    recovery.add_record(RECORD, 3)
    recovery.order("ps-1", 1.0)
    second = recovery.servers["ps-1"].order
    assert (first.uri, first.with_marks) == (second.uri, second.with_marks) == expected


def test_a_rollback_past_the_last_record_of_the_job_takes_the_marks_of_none():
    recovery = Recovery(start_records=["file:///champion"], uri="file:///champion")
    recovery.resume_from(1, [RECORD])
    recovery.give_up_record(RECORD.uri)
    recovery.roll_back(2)
    recovery.order("ps-0", 1.0)
    assert recovery.servers["ps-0"].order == RestoreOrder("restore-2/ps-0", "file:///champion", with_marks=False)


def test_a_rollback_orders_all_servers():
    world = running()
    before = {pod: order_of(world, pod) for pod in ("j-ps-0", "j-ps-1")}
    world.kill("j-ps-0")
    assert set(world.state.recovery.awaited()) == {"j-ps-0-r1", "j-ps-1"}
    assert order_of(world, "j-ps-1") not in before.values()


def test_a_server_that_is_replaced_while_others_restore_alone_gets_another_order():
    world = recovering()
    kept = order_of(world, "j-ps-1")
    lost = order_of(world, "j-ps-0-r1")
    world.kill("j-ps-0-r1")
    world.start_pod()
    assert world.state.recovery.awaited() == ["j-ps-0-r2"] and world.state.recovery.rollbacks == 1
    assert order_of(world, "j-ps-1") == kept and order_of(world, "j-ps-0-r2") != lost
    world.act("j-ps-0-r2")
    assert world.state.phase is Phase.TRAINING
    world.run_fairly()
    assert world.state.phase is Phase.SUCCEEDED


def test_the_time_of_a_replaced_server_begins_when_it_registers():
    world = recovering()
    world.hung.add("j-ps-0-r2")
    world.time += 30.0
    world.kill("j-ps-0-r1")
    world.start_pod()
    assert world.state.next_deadline() == world.time + 40.0


def test_a_late_report_of_an_earlier_order_changes_nothing():
    world = running()
    old = order_of(world, "j-ps-1")
    world.kill("j-ps-0")
    report = events.PodReported(
        time=world.time, pod="j-ps-1", incarnation=world.up["j-ps-1"]["incarnation"], generation=0, reached_version=0,
        restored_order_id=old,
    )  # fmt: skip
    assert not world.state.changes_state(report)
    world.handle(report)
    assert "j-ps-1" in world.state.recovery.awaited()


def test_a_late_report_does_not_undo_a_restore():
    world = running()
    old = order_of(world, "j-ps-1")
    world.kill("j-ps-0")
    world.act("j-ps-1")
    incarnation = world.up["j-ps-1"]["incarnation"]
    world.handle(
        events.PodReported(
            time=world.time, pod="j-ps-1", incarnation=incarnation, generation=0, reached_version=0,
            restored_order_id=old,
        )
    )  # fmt: skip
    assert "j-ps-1" not in world.state.recovery.awaited()
